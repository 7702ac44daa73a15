# SPDX-License-Identifier: Apache-2.0
"""Make the column that says what goes over the links of the leases of a host."""

import sqlalchemy as sa

from nova_numa_ext.orchestrator.store import missing

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make what is not there."""
    missing.add_column("lease_host", sa.Column("link_mbps", sa.JSON(none_as_null=True)))
