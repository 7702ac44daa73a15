# SPDX-License-Identifier: Apache-2.0
"""Make the columns for jobs that ask for remote GPUs: of which kind a job is, and of which job a lease."""

import sqlalchemy as sa

from nova_numa_ext.orchestrator.store import missing

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make what is not there."""
    missing.add_column(
        "job", sa.Column("kind", sa.String(32), nullable=False, server_default="servers")
    )
    missing.add_column("lease", sa.Column("job", sa.String(36), nullable=False, server_default=""))
    missing.create_index("lease_of_job", "lease", ["job"])
