# SPDX-License-Identifier: Apache-2.0
"""Make the tables of jobs, and the leader's row: of no engine, expired.

What a later release changes comes as a migration of its own; what this one makes stays as it is.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

from nova_numa_ext.orchestrator.store import missing

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
# Names and ids that differ in case are others, as in Python.
_TABLE: Any = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
}


def _of_job() -> "sa.Column[int]":
    key = sa.ForeignKey("job.id", ondelete="CASCADE")
    return sa.Column("job_id", _NUMBER, key, nullable=False)


def upgrade() -> None:
    """Make what is not there."""
    missing.create_table(
        "leader",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("holder", sa.String(255), nullable=False),
        sa.Column("term", _NUMBER, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.Column("mark", _NUMBER, nullable=False),
        sa.Column("recover_at", sa.Double),
        sa.Column("recover_why", sa.String(255), nullable=False),
        **_TABLE,
    )
    none = {"id": 1, "holder": "", "term": 0, "expires_at": 0.0, "mark": 0, "recover_why": ""}
    leader = sa.table("leader", *map(sa.column, none))
    if op.get_bind().execute(sa.select(leader.c.id)).first() is None:
        op.bulk_insert(leader, [none])
    missing.create_table(
        "job",
        sa.Column("id", _NUMBER, primary_key=True),
        sa.Column("uuid", sa.String(36), nullable=False, unique=True),
        sa.Column("project_id", sa.String(64), nullable=False),
        sa.Column("user_id", sa.String(64), nullable=False),
        sa.Column("trust_id", sa.String(64), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("held", sa.Boolean, nullable=False),
        sa.Column("cancelled", sa.Boolean, nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("walltime_s", sa.Double),
        sa.Column("deadline_at", sa.Double),
        sa.Column("max_wait_s", sa.Double),
        sa.Column("preemptible", sa.Boolean, nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("target", sa.String(32)),
        sa.Column("plan", sa.JSON),
        sa.Column("refusals", sa.Integer, nullable=False),
        sa.Column("not_before", sa.Double, nullable=False),
        sa.Column("postponed", sa.Integer, nullable=False),
        sa.Column("postponed_at", sa.Double),
        sa.Column("excluded", sa.JSON, nullable=False),
        sa.Column("reserved", sa.JSON, nullable=False),
        sa.Column("submitted_at", sa.Double, nullable=False),
        sa.Column("queued_at", sa.Double, nullable=False),
        sa.Column("waited_s", sa.Double, nullable=False),
        sa.Column("building_at", sa.Double),
        sa.Column("started_at", sa.Double),
        sa.Column("ending_at", sa.Double),
        sa.Column("ended_at", sa.Double),
        sa.Column("trust_lost_at", sa.Double),
        sa.Column("unanswered_at", sa.Double),
        sa.Column("reasons", sa.JSON, nullable=False),
        sa.Column("steps", sa.JSON, nullable=False),
        **_TABLE,
    )
    missing.create_index("job_state", "job", ["state"])
    missing.create_index("job_project_state", "job", ["project_id", "state"])
    missing.create_table(
        "part",
        sa.Column("id", _NUMBER, primary_key=True),
        _of_job(),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("count", sa.Integer, nullable=False),
        sa.Column("flavor", sa.String(255), nullable=False),
        sa.Column("image", sa.String(255), nullable=False),
        sa.Column("networks", sa.JSON, nullable=False),
        sa.Column("sizes", sa.JSON, nullable=False),
        sa.Column("extra_specs", sa.JSON, nullable=False),
        sa.Column("wait_for", sa.JSON, nullable=False),
        sa.Column("apart", sa.Boolean, nullable=False),
        sa.Column("on_failure", sa.String(32), nullable=False),
        sa.Column("servers", sa.JSON, nullable=False),
        sa.Column("hosts", sa.JSON, nullable=False),
        sa.Column("replaced", sa.Integer, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        **_TABLE,
    )
    missing.create_index("part_of_job", "part", ["job_id", "name"], unique=True)
    missing.create_table(
        "event",
        sa.Column("id", _NUMBER, primary_key=True),
        _of_job(),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("actor", sa.String(255), nullable=False),
        sa.Column("term", _NUMBER),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("what", sa.String(32), nullable=False),
        sa.Column("reasons", sa.JSON, nullable=False),
        **_TABLE,
    )
    missing.create_index("event_of_job", "event", ["job_id", "id"])
    missing.create_table(
        "trust",
        sa.Column("trust_id", sa.String(64), primary_key=True),
        sa.Column("ended_at", sa.Double, nullable=False),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("not_before", sa.Double, nullable=False),
        **_TABLE,
    )
