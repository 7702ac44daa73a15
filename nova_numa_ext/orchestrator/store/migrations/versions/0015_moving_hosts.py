# SPDX-License-Identifier: Apache-2.0
"""Make the column that says whether leases come to a host, and leave it, with all that they have."""

import sqlalchemy as sa

from nova_numa_ext.orchestrator.store import missing

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make what is not there."""
    missing.add_column("lease_host", sa.Column("can_move", sa.Boolean()))
