# SPDX-License-Identifier: Apache-2.0
"""How long the engine takes from the choice of a lease's GPU to its claim, over MariaDB and a real Placement on it."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import mariadb
from benchmarks.bench_view import served
from nova_numa_ext.orchestrator.lease_rounds import LeaseRounds
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.database import Database
from nova_numa_ext.orchestrator.store.leader import Election
from nova_numa_ext.orchestrator.store.leases import Leases
from nova_numa_ext.orchestrator.store.stored_lease import LeaseChoice, LeaseSpec, StoredLease
from placement_traits import pool_reader
from placement_traits.claim_store import ClaimStore
from placement_traits.client import HttpAdapter, PlacementClient, RetrySettings
from placement_traits.errors import NumaExtError
from placement_traits.names import RemoteGpuApi, ServiceLevel
from placement_traits.pool_reporter import PoolReporter
from placement_traits.pool_tree import LentGpu, LentNic, LentPool

HOSTS: Final = 25
GPUS: Final = 8
GPU_MB: Final = 16_384
NETWORK_MBPS: Final = 10
ASKED: Final = LeaseSpec(4_096, ServiceLevel.SILVER, RemoteGpuApi.OPENCL, network_mbps=NETWORK_MBPS)


class UnclaimedError(NumaExtError):
    """Leases were not claimed, so that there is nothing to time."""


class TimedLeases(Leases):
    """Leases that take note of when a GPU was chosen and when it was held.

    :ivar took_s: seconds of each claim
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.took_s: list[float] = []
        self._began_s = 0.0

    def choose(
        self, members: Sequence[StoredLease], choices: Sequence[LeaseChoice], actor: Actor
    ) -> list[StoredLease]:
        """Store a choice; the clock runs from here."""
        self._began_s = time.perf_counter()
        return super().choose(members, choices, actor)

    def hold(self, stored: StoredLease, actor: Actor) -> StoredLease:
        """Say that it is claimed; the clock stops."""
        held = super().hold(stored, actor)
        self.took_s.append(time.perf_counter() - self._began_s)
        return held


def claims_s(leases: int) -> list[float]:
    """Return the seconds of each of some claims, none without a MariaDB.

    :param leases: that are asked for, each by itself; half as many fit at least
    :raises UnclaimedError: one was not claimed
    """
    if not Path(mariadb.SERVER).exists():
        return []
    with mariadb.mariadb() as server:
        for name in ("jobs", "placement"):
            mariadb.create(server, name)
        database = Database(server.url.format("jobs"))
        database.sync()
        url = server.url.format("placement")
        with served("benchmarks.placement_on_mariadb", url) as (http, _, _):
            return _claimed(database, http, leases)


def _claimed(database: Database, http: HttpAdapter, leases: int) -> list[float]:
    client = PlacementClient(http, RetrySettings(attempts=1))
    reporter = PoolReporter(client)
    for number in range(HOSTS):
        reporter.sync(_pool(f"g{number:02}"))
    stored = TimedLeases(database)
    for number in range(leases):
        stored.create(f"project-{number % 7}", "user", ASKED)
    election = Election(database, "bench")
    term = election.campaign()
    if term is None:
        raise UnclaimedError("Another engine leads in a database of the benchmark's own.")
    rounds = LeaseRounds(stored, ClaimStore(client), lambda: pool_reader.read(client))
    rounds.round(Actor("bench", term), lambda: election.check(term), _trouble)
    if len(stored.took_s) != leases:
        raise UnclaimedError(f"Of {leases} leases {len(stored.took_s)} were claimed.")
    return stored.took_s


def _trouble(lease: str, error: Exception) -> Any:
    raise UnclaimedError(f"lease {lease}: {error}") from error


def _pool(host: str) -> LentPool:
    apis = frozenset({RemoteGpuApi.OPENCL})
    gpus = tuple(
        LentGpu(str(number), GPU_MB, apis, frozenset({"fake"}), enforced=True)
        for number in range(GPUS)
    )
    nics = (LentNic("eth1", NETWORK_MBPS * 2 * GPUS),)
    return LentPool(host, 2 * GPUS, nics, gpus, frozenset({"main"}))
