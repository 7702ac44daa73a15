# SPDX-License-Identifier: Apache-2.0
"""Make what elastic groups need whose members a stack of Heat has: the size that it is to come to."""

import sqlalchemy as sa

from nova_numa_ext.orchestrator.store import missing

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make what is not there."""
    missing.add_column("scaling_group", sa.Column("resize", sa.JSON))
