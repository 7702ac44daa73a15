# SPDX-License-Identifier: Apache-2.0
"""Make the column for what hosts report of leases while an old database recovers."""

import sqlalchemy as sa

from nova_numa_ext.orchestrator.store import missing

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make what is not there."""
    missing.add_column("lease_host", sa.Column("kept", sa.JSON))
