# SPDX-License-Identifier: Apache-2.0
"""Make the tables of elastic groups; what is in the others stays as it is."""

from typing import Any

import sqlalchemy as sa

from nova_numa_ext.orchestrator.store import missing

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_TABLE: Any = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
}


def upgrade() -> None:
    """Make what is not there."""
    missing.create_table(
        "scaling_group",
        sa.Column("id", _NUMBER, primary_key=True),
        sa.Column("uuid", sa.String(36), nullable=False, unique=True),
        sa.Column("project_id", sa.String(64), nullable=False),
        sa.Column("user_id", sa.String(64), nullable=False),
        sa.Column("settings", sa.JSON, nullable=False),
        sa.Column("source", sa.JSON, nullable=False),
        sa.Column("paused", sa.Boolean, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("trouble", sa.String(255), nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("changed_at", sa.Double, nullable=False),
        **_TABLE,
    )
    missing.create_table(
        "scaling_decision",
        sa.Column("id", _NUMBER, primary_key=True),
        sa.Column(
            "group_id",
            _NUMBER,
            sa.ForeignKey("scaling_group.id", ondelete="CASCADE"),
            nullable=False,
        ),
        sa.Column("at_s", sa.Double, nullable=False),
        sa.Column("line", sa.JSON, nullable=False),
        **_TABLE,
    )
    missing.create_index(
        "scaling_decision_of_group", "scaling_decision", ["group_id", "at_s"], unique=True
    )
