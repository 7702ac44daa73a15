# SPDX-License-Identifier: Apache-2.0
"""A database with our tables, jobs to be stored, and what a backup of the database brings back."""

import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

from sqlalchemy import delete, insert, select

from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.database import Database
from nova_numa_ext.orchestrator.store.stored_job import NewJob, Sizes, StoredJob, StoredPart
from nova_numa_ext.policy.jobs.states import JobState

PART = StoredPart(
    name="workers",
    count=2,
    flavor="flavor-1",
    sizes=Sizes(vcpus=4, memory_mb=2048, disk_gb=10),
    extra_specs={"numa_ext:gpu_policy": "topo_p"},
    image="image-1",
    networks=("network-1",),
)

STORED = StoredJob(
    number=1,
    uuid="job-1",
    project="project-1",
    user="user-1",
    trust="trust-1",
    name="job",
    state=JobState.QUEUED,
    version=0,
    parts=(PART,),
    held=False,
    cancelled=False,
    priority=0,
    walltime_s=None,
    deadline_at=None,
    max_wait_s=None,
    preemptible=False,
    target=None,
    plan=None,
    refusals=0,
    not_before=0.0,
    postponed=0,
    postponed_at=None,
    excluded=frozenset(),
    reserved=(),
    submitted_at=0.0,
    queued_at=0.0,
    waited_s=0.0,
    building_at=None,
    started_at=None,
    ending_at=None,
    ended_at=None,
    trust_lost_at=None,
    unanswered_at=None,
    fingerprint="",
    reasons=(),
    steps=(),
)


def with_tables(file, **settings):
    """A database of SQLite as the migrations make it, which are run once a process; the file is made of a copy."""
    Path(file).write_bytes(_migrated())
    return Database(f"sqlite:///{file}", **({"sqlite_synchronous": False} | settings))


@cache
def _migrated():
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "migrated.db"
        Database(f"sqlite:///{file}").sync()
        return file.read_bytes()


def new_job(name="job", parts=(PART,), project="project-1", user="user-1", trust="trust-1", **more):
    """A job of one part unless more is given."""
    return NewJob(project, user, trust, name, tuple(parts), **more)


def part(name, **more):
    return replace(PART, name=name, **more)


def stored_job(**fields):
    """A job as it is read, that waits and has waited for nothing yet."""
    return replace(STORED, **{**fields, "parts": tuple(fields.get("parts", STORED.parts))})


def backed_up(database):
    """All rows of all tables, at one moment."""
    with database.transaction() as connection:
        return {
            table: [dict(row._mapping) for row in connection.execute(select(table))]
            for table in tables.METADATA.sorted_tables
        }


def restored(database, backup):
    """Let the database be as it was, also under engines that run: as a backup that is loaded."""

    def load(connection):
        for table in reversed(tables.METADATA.sorted_tables):
            connection.execute(delete(table))
        for table, rows in backup.items():
            if rows:
                connection.execute(insert(table), rows)

    database.again(load)
