# SPDX-License-Identifier: Apache-2.0
"""The tables as this release uses them; ``migrations`` makes them."""

from typing import Any, Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import ColumnElement

METADATA: Final = MetaData()

# SQLite counts up only what it calls INTEGER.
_NUMBER: Final = BigInteger().with_variant(Integer, "sqlite")
_UUID: Final = String(36)
_KEYSTONE_ID: Final = String(64)
_WORD: Final = String(32)

leader: Final = Table(
    "leader",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("holder", String(255), nullable=False),
    Column("term", _NUMBER, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("mark", _NUMBER, nullable=False),
    Column("recover_at", Double),
    Column("recover_why", String(255), nullable=False),
)

job: Final = Table(
    "job",
    METADATA,
    Column("id", _NUMBER, primary_key=True),
    Column("uuid", _UUID, nullable=False, unique=True),
    Column("project_id", _KEYSTONE_ID, nullable=False),
    Column("user_id", _KEYSTONE_ID, nullable=False),
    Column("trust_id", _KEYSTONE_ID, nullable=False),
    Column("name", String(255), nullable=False),
    Column("state", _WORD, nullable=False),
    Column("version", Integer, nullable=False),
    Column("held", Boolean, nullable=False),
    Column("cancelled", Boolean, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("walltime_s", Double),
    Column("deadline_at", Double),
    Column("max_wait_s", Double),
    Column("preemptible", Boolean, nullable=False),
    Column("fingerprint", String(64), nullable=False),
    Column("kind", _WORD, nullable=False, server_default="servers"),
    Column("target", _WORD),
    Column("plan", JSON),
    Column("refusals", Integer, nullable=False),
    Column("not_before", Double, nullable=False),
    Column("postponed", Integer, nullable=False),
    Column("postponed_at", Double),
    Column("excluded", JSON, nullable=False),
    Column("reserved", JSON, nullable=False),
    Column("submitted_at", Double, nullable=False),
    Column("queued_at", Double, nullable=False),
    Column("waited_s", Double, nullable=False),
    Column("building_at", Double),
    Column("started_at", Double),
    Column("ending_at", Double),
    Column("ended_at", Double),
    Column("trust_lost_at", Double),
    Column("unanswered_at", Double),
    Column("reasons", JSON, nullable=False),
    Column("steps", JSON, nullable=False),
    Index("job_state", "state"),
    Index("job_project_state", "project_id", "state"),
    mysql_engine="InnoDB",
)

part: Final = Table(
    "part",
    METADATA,
    Column("id", _NUMBER, primary_key=True),
    Column("job_id", _NUMBER, ForeignKey("job.id", ondelete="CASCADE"), nullable=False),
    Column("name", String(64), nullable=False),
    Column("count", Integer, nullable=False),
    Column("flavor", String(255), nullable=False),
    Column("image", String(255), nullable=False),
    Column("networks", JSON, nullable=False),
    Column("sizes", JSON, nullable=False),
    Column("extra_specs", JSON, nullable=False),
    Column("wait_for", JSON, nullable=False),
    Column("apart", Boolean, nullable=False),
    Column("on_failure", _WORD, nullable=False),
    Column("servers", JSON, nullable=False),
    Column("hosts", JSON, nullable=False),
    Column("replaced", Integer, nullable=False),
    Column("version", Integer, nullable=False),
    Index("part_of_job", "job_id", "name", unique=True),
    mysql_engine="InnoDB",
)

event: Final = Table(
    "event",
    METADATA,
    Column("id", _NUMBER, primary_key=True),
    Column("job_id", _NUMBER, ForeignKey("job.id", ondelete="CASCADE"), nullable=False),
    Column("at", Double, nullable=False),
    Column("actor", String(255), nullable=False),
    Column("term", _NUMBER),
    Column("state", _WORD, nullable=False),
    Column("what", _WORD, nullable=False),
    Column("reasons", JSON, nullable=False),
    Index("event_of_job", "job_id", "id"),
    mysql_engine="InnoDB",
)

trust: Final = Table(
    "trust",
    METADATA,
    Column("trust_id", _KEYSTONE_ID, primary_key=True),
    Column("ended_at", Double, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("not_before", Double, nullable=False),
    mysql_engine="InnoDB",
)

lease: Final = Table(
    "lease",
    METADATA,
    Column("id", _NUMBER, primary_key=True),
    Column("uuid", _UUID, nullable=False, unique=True),
    Column("project_id", _KEYSTONE_ID, nullable=False),
    Column("user_id", _KEYSTONE_ID, nullable=False),
    Column("server", _UUID, nullable=False),
    Column("asked", JSON, nullable=False),
    Column("state", _WORD, nullable=False),
    Column("version", Integer, nullable=False),
    Column("epoch", _NUMBER, nullable=False),
    Column("acknowledged", _NUMBER, nullable=False),
    Column("gpu_host", String(255), nullable=False),
    Column("client_host", String(255), nullable=False),
    Column("address", String(255), nullable=False, server_default=""),
    Column("gpu", _UUID, nullable=False),
    Column("amounts", JSON, nullable=False),
    Column("claimed", Boolean, nullable=False),
    Column("job", _UUID, nullable=False, server_default=""),
    Column("move", JSON(none_as_null=True)),
    Column("moved_at", Double),
    Column("room", JSON(none_as_null=True)),
    Column("created_at", Double, nullable=False),
    Column("changed_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("reasons", JSON, nullable=False),
    Index("lease_state", "state"),
    Index("lease_project_state", "project_id", "state"),
    Index("lease_gpu_host", "gpu_host", "state"),
    Index("lease_client_host", "client_host", "state"),
    Index("lease_of_job", "job"),
    mysql_engine="InnoDB",
)

lease_host: Final = Table(
    "lease_host",
    METADATA,
    Column("host", String(255), primary_key=True),
    Column("seen_at", Double, nullable=False),
    Column("servers", JSON, nullable=False),
    Column("kept", JSON(none_as_null=True)),
    Column("requests", JSON(none_as_null=True)),
    Column("busy", JSON(none_as_null=True)),
    Column("can_move", Boolean),
    Column("link_mbps", JSON(none_as_null=True)),
    Column("used_mb", JSON(none_as_null=True)),
    mysql_engine="InnoDB",
)

wake: Final = Table(
    "wake",
    METADATA,
    Column("id", _NUMBER, primary_key=True),
    Column("at", Double, nullable=False),
    mysql_engine="InnoDB",
)

scaling_group: Final = Table(
    "scaling_group",
    METADATA,
    Column("id", _NUMBER, primary_key=True),
    Column("uuid", _UUID, nullable=False, unique=True),
    Column("project_id", _KEYSTONE_ID, nullable=False),
    Column("user_id", _KEYSTONE_ID, nullable=False),
    Column("settings", JSON, nullable=False),
    Column("source", JSON, nullable=False),
    Column("paused", Boolean, nullable=False),
    Column("version", Integer, nullable=False),
    Column("trouble", String(255), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("changed_at", Double, nullable=False),
    Column("template", JSON(none_as_null=True)),
    Column("trust_id", _KEYSTONE_ID, nullable=False, server_default=""),
    Column("actions", JSON(none_as_null=True)),
    Column("not_before", Double, nullable=False, server_default="0"),
    Column("refusals", Integer, nullable=False, server_default="0"),
    Column("resize", JSON(none_as_null=True)),
    mysql_engine="InnoDB",
)

scaling_member: Final = Table(
    "scaling_member",
    METADATA,
    Column("id", _NUMBER, primary_key=True),
    Column("group_id", _NUMBER, ForeignKey("scaling_group.id", ondelete="CASCADE"), nullable=False),
    Column("token", _UUID, nullable=False, unique=True),
    Column("server", _UUID, nullable=False),
    Column("step", _WORD, nullable=False),
    Column("since", Double, nullable=False),
    Column("asked_at", Double),
    Index("scaling_member_of_group", "group_id"),
    mysql_engine="InnoDB",
)

scaling_decision: Final = Table(
    "scaling_decision",
    METADATA,
    Column("id", _NUMBER, primary_key=True),
    Column("group_id", _NUMBER, ForeignKey("scaling_group.id", ondelete="CASCADE"), nullable=False),
    Column("at_s", Double, nullable=False),
    Column("line", JSON, nullable=False),
    Index("scaling_decision_of_group", "group_id", "at_s", unique=True),
    mysql_engine="InnoDB",
)


class Now(ColumnElement[float]):
    """The database's clock: seconds since 1970, as a number to calculate with."""

    inherit_cache = True
    type = Double()


@compiles(Now, "sqlite")
def _now_in_sqlite(_element: Now, _compiler: Any, **_options: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(Now, "mysql", "mariadb")
def _now_in_mariadb(_element: Now, _compiler: Any, **_options: Any) -> str:
    since_1970 = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
    return f"(CAST({since_1970} AS DOUBLE) / 1e6)"
