# SPDX-License-Identifier: Apache-2.0
"""Make the column that says when a lease was last moved."""

import sqlalchemy as sa

from nova_numa_ext.orchestrator.store import missing

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make what is not there."""
    missing.add_column("lease", sa.Column("moved_at", sa.Double))
