# SPDX-License-Identifier: Apache-2.0
"""Make the column that says which room is being made for a lease that waits."""

import sqlalchemy as sa

from nova_numa_ext.orchestrator.store import missing

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make what is not there."""
    missing.add_column("lease", sa.Column("room", sa.JSON(none_as_null=True)))
