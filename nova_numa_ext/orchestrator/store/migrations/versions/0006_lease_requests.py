# SPDX-License-Identifier: Apache-2.0
"""Make the column for what flavors of hosts' servers ask of remote GPUs."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make what is not there."""
    op.add_column("lease_host", sa.Column("requests", sa.JSON))
