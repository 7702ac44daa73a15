# SPDX-License-Identifier: Apache-2.0
"""Make the table of leases of remote GPUs; what is in the others stays as it is."""

from typing import Any

import sqlalchemy as sa

from nova_numa_ext.orchestrator.store import missing

revision = "0002"
down_revision = "0001"
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
        "lease",
        sa.Column("id", _NUMBER, primary_key=True),
        sa.Column("uuid", sa.String(36), nullable=False, unique=True),
        sa.Column("project_id", sa.String(64), nullable=False),
        sa.Column("user_id", sa.String(64), nullable=False),
        sa.Column("server", sa.String(36), nullable=False),
        sa.Column("asked", sa.JSON, nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("epoch", _NUMBER, nullable=False),
        sa.Column("acknowledged", _NUMBER, nullable=False),
        sa.Column("gpu_host", sa.String(255), nullable=False),
        sa.Column("client_host", sa.String(255), nullable=False),
        sa.Column("gpu", sa.String(36), nullable=False),
        sa.Column("amounts", sa.JSON, nullable=False),
        sa.Column("claimed", sa.Boolean, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("changed_at", sa.Double, nullable=False),
        sa.Column("ended_at", sa.Double),
        sa.Column("reasons", sa.JSON, nullable=False),
        **_TABLE,
    )
    missing.create_index("lease_state", "lease", ["state"])
    missing.create_index("lease_project_state", "lease", ["project_id", "state"])
