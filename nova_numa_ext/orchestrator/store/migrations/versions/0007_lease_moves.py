# SPDX-License-Identifier: Apache-2.0
"""Make the column for where a lease is to go."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make what is not there."""
    op.add_column("lease", sa.Column("move", sa.JSON))
