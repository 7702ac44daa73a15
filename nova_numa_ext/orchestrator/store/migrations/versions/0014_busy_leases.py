# SPDX-License-Identifier: Apache-2.0
"""Make the column that says how busy leases keep the GPUs of a host."""

import sqlalchemy as sa

from nova_numa_ext.orchestrator.store import missing

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make what is not there."""
    missing.add_column("lease_host", sa.Column("busy", sa.JSON(none_as_null=True)))
