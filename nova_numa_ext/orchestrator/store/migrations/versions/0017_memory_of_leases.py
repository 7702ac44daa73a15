# SPDX-License-Identifier: Apache-2.0
"""Make the column that says how much memory the leases of a host have in use of their GPUs."""

import sqlalchemy as sa

from nova_numa_ext.orchestrator.store import missing

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make what is not there."""
    missing.add_column("lease_host", sa.Column("used_mb", sa.JSON(none_as_null=True)))
