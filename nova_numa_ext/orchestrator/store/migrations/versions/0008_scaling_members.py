# SPDX-License-Identifier: Apache-2.0
"""Make what elastic groups need that are enforced: their members, and whose rights add and delete these."""

from typing import Any

import sqlalchemy as sa

from nova_numa_ext.orchestrator.store import missing

revision = "0008"
down_revision = "0007"
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
    for column in (
        sa.Column("template", sa.JSON),
        sa.Column("trust_id", sa.String(64), nullable=False, server_default=""),
        sa.Column("actions", sa.JSON),
        sa.Column("not_before", sa.Double, nullable=False, server_default="0"),
        sa.Column("refusals", sa.Integer, nullable=False, server_default="0"),
    ):
        missing.add_column("scaling_group", column)
    missing.create_table(
        "scaling_member",
        sa.Column("id", _NUMBER, primary_key=True),
        sa.Column(
            "group_id",
            _NUMBER,
            sa.ForeignKey("scaling_group.id", ondelete="CASCADE"),
            nullable=False,
        ),
        sa.Column("token", sa.String(36), nullable=False, unique=True),
        sa.Column("server", sa.String(36), nullable=False),
        sa.Column("step", sa.String(32), nullable=False),
        sa.Column("since", sa.Double, nullable=False),
        sa.Column("asked_at", sa.Double),
        **_TABLE,
    )
    missing.create_index("scaling_member_of_group", "scaling_member", ["group_id"])
