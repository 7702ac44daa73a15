# SPDX-License-Identifier: Apache-2.0
"""The job service with its database and a Placement, and what a round of its engine costs the engine's process.

``python -m benchmarks.jobs_service DATABASE PLACEMENT`` is the part of an engine that decides: for each line of its
standard input it reads the jobs and the hosts, decides, and prints a line of JSON.
"""

import json
import random
import resource
import subprocess
import sys
import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from keystoneauth1 import adapter, session, token_endpoint
from sqlalchemy import bindparam, update

from benchmarks.jobs_round import submitted
from benchmarks.placement_server import is_full, root_uuid
from nova_numa_ext.orchestrator.cloud.fleet import PlacementHosts
from nova_numa_ext.orchestrator.decide import HostQueue
from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.database import Database
from nova_numa_ext.orchestrator.store.job_rows import KnownRows
from nova_numa_ext.orchestrator.store.jobs import Jobs
from nova_numa_ext.policy.jobs.host_aspects import PlannerSettings
from nova_numa_ext.policy.jobs.host_view import HostsView
from nova_numa_ext.policy.jobs.queue_settings import QueueSettings
from nova_numa_ext.policy.jobs.states import JobState
from placement_traits import names
from placement_traits.client import HttpAdapter
from placement_traits.view import ViewSettings

ALIASES: Final = {"gpu": frozenset({names.PGPU})}
_UNFINISHED: Final = tuple(state for state in JobState if not state.final)


def store(
    database: Database, hosts: int, free: int, *, waiting: int, running: int, seed: int
) -> float:
    """Store jobs that wait and others that run; return how many were submitted in a second.

    :param hosts: those of :mod:`.placement_server`, on which jobs run
    :param free: as of :func:`.placement_server.is_full`; jobs run on hosts that are full
    """
    jobs, draw = Jobs(database), random.Random(seed)
    before = time.perf_counter()
    for new in submitted(waiting, draw):
        jobs.create(new)
    per_s = waiting / (time.perf_counter() - before)
    full = [root_uuid(number) for number in range(hosts) if is_full(number, free)]
    changes = []
    for number, new in enumerate(submitted(running, draw)):
        one = replace(new.parts[0], count=1)
        job = jobs.create(replace(new, parts=(one,), preemptible=number % 2 > 0))
        place = {"part": one.name, "host": full[number % len(full)], "count": 1}
        changes.append((job.number, place, str(uuid.UUID(int=draw.getrandbits(128)))))
    _run(database, changes)
    return per_s


def _run(database: Database, changes: Sequence[tuple[int, dict[str, Any], str]]) -> None:
    """Let jobs run, in bulk: as the saga leaves them after eight transactions each.

    :param changes: job's number, its one place, and the server there
    """
    job = update(tables.job).where(tables.job.c.id == bindparam("number"))
    part = update(tables.part).where(tables.part.c.job_id == bindparam("number"))
    empty: dict[str, Any] = {"utility": 1.0, "claims": [], "reasons": [], "spare": []}
    with database.transaction() as connection:
        connection.execute(
            job.values(
                state=JobState.RUNNING, started_at=tables.Now(), plan=bindparam("places_of_it")
            ),
            [
                {"number": n, "places_of_it": {"places": [place], **empty}}
                for n, place, _ in changes
            ],
        )
        connection.execute(
            part.values(servers=bindparam("its_servers"), hosts=bindparam("its_hosts")),
            [
                {"number": n, "its_servers": {"0": server}, "its_hosts": {"0": place["host"]}}
                for n, place, server in changes
            ],
        )


class Engine:
    """A process that decides on request."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def round(self, *, hosts: bool = True) -> dict[str, float]:
        """Have it do one round; return its figures.

        :param hosts: as of :meth:`Round.do`
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("round\n" if hosts else "same hosts\n")
        self._process.stdin.flush()
        found: dict[str, float] = json.loads(self._process.stdout.readline())
        return found


@contextmanager
def engine(database: str, placement: str) -> Iterator[Engine]:
    """Start such a process.

    :param database: URL of the jobs' database
    :param placement: URL of Placement
    """
    command = [sys.executable, "-m", "benchmarks.jobs_service", database, placement]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        yield Engine(process)


class _Read:
    """The hosts, and what reading them took of the processor the last time.

    :ivar due: they are read again
    """

    def __init__(self, hosts: PlacementHosts) -> None:
        self._hosts = hosts
        self._view: HostsView | None = None
        self.due = True
        self.cpu_s = 0.0

    def read(self, freed: Collection[str] = ()) -> HostsView:
        """Return the hosts."""
        began_s = time.process_time()
        if self.due or self._view is None:
            self._view = self._hosts.read(freed)
        self.cpu_s = time.process_time() - began_s
        return self._view


class Round:
    """The thread of an engine's rounds, without what it hands to others.

    :param discipline: of the queue
    """

    def __init__(self, database: Database, placement: HttpAdapter, settings: QueueSettings) -> None:
        # Read in each round, however long that takes.
        often = ViewSettings(interval_s=1e-3, busy_share=1.0)
        self._database, self._rows = database, KnownRows()
        self._hosts = _Read(PlacementHosts(placement, often, ALIASES))
        self._queue = HostQueue(self._hosts, settings, PlannerSettings())

    def do(self, *, hosts: bool = True) -> dict[str, float]:
        """Read jobs and hosts, and decide; return what that took of the processor, and what came of it.

        :param hosts: they are due to be read; else those of the round before are decided about
        """
        self._hosts.due = hosts
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        found = Jobs(self._database).find(states=_UNFINISHED, known=self._rows)
        read_s = time.process_time() - began_cpu_s
        active = [each for each in found if each.state.active]
        waiting = [each for each in found if not each.state.active]
        decided = self._queue.decide(waiting, active, self._database.now())
        return {
            "cpu_s": time.process_time() - began_cpu_s,
            "jobs_cpu_s": read_s,
            "hosts_cpu_s": self._hosts.cpu_s,
            "s": time.perf_counter() - began_s,
            "starts": len(decided.starts),
            "waits": len(decided.waits),
            "running": len(active),
            "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }


def http(url: str) -> adapter.Adapter:
    """Return an adapter for a Placement without Keystone."""
    auth = token_endpoint.Token(url, "admin")
    return adapter.Adapter(session.Session(auth), service_type="placement")


def main() -> None:
    """Do a round for each line of the standard input."""
    database, placement = sys.argv[1:]
    rounds = Round(Database(database), http(placement), QueueSettings())
    for line in sys.stdin:
        print(json.dumps(rounds.do(hosts=line.strip() == "round")), flush=True)


if __name__ == "__main__":
    main()
