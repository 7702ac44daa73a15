# SPDX-License-Identifier: Apache-2.0
"""Make the column for what flavors of hosts' servers ask of remote GPUs."""

import sqlalchemy as sa

from nova_numa_ext.orchestrator.store import missing

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make what is not there."""
    missing.add_column("lease_host", sa.Column("requests", sa.JSON))
