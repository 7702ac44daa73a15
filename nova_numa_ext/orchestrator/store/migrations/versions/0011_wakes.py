# SPDX-License-Identifier: Apache-2.0
"""Make the table by which an engine learns at once that there is something new."""

import sqlalchemy as sa

from nova_numa_ext.orchestrator.store import missing

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make what is not there."""
    number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    missing.create_table(
        "wake",
        sa.Column("id", number, primary_key=True),
        sa.Column("at", sa.Double, nullable=False),
        mysql_engine="InnoDB",
    )
