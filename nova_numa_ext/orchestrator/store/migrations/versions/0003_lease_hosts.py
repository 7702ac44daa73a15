# SPDX-License-Identifier: Apache-2.0
"""Make the table of hosts that report leases, and leases' addresses; what is in the others stays as it is."""

from typing import Any

import sqlalchemy as sa

from nova_numa_ext.orchestrator.store import missing

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_TABLE: Any = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
}


def upgrade() -> None:
    """Make what is not there."""
    missing.create_table(
        "lease_host",
        sa.Column("host", sa.String(255), primary_key=True),
        sa.Column("seen_at", sa.Double, nullable=False),
        sa.Column("servers", sa.JSON, nullable=False),
        **_TABLE,
    )
    address = sa.Column("address", sa.String(255), nullable=False, server_default="")
    missing.add_column("lease", address)
    missing.create_index("lease_gpu_host", "lease", ["gpu_host", "state"])
    missing.create_index("lease_client_host", "lease", ["client_host", "state"])
