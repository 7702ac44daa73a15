# SPDX-License-Identifier: Apache-2.0
"""Make the column for where a lease is to go."""

import sqlalchemy as sa

from nova_numa_ext.orchestrator.store import missing

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make what is not there."""
    missing.add_column("lease", sa.Column("move", sa.JSON))
