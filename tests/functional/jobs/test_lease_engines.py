# SPDX-License-Identifier: Apache-2.0
"""Leases with engines that are processes, killed while they lead, on MariaDB, beside a Placement that is a process."""

import random
import time
from collections import Counter
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
from sqlalchemy import select

from benchmarks import mariadb
from benchmarks.bench_view import served
from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.database import Database
from nova_numa_ext.policy.remote_gpu import leases as life
from nova_numa_ext.policy.remote_gpu.leases import LeaseState
from placement_traits import pool_reader
from placement_traits.client import PlacementClient
from placement_traits.pool_reporter import PoolReporter
from tests.support.at_once import at_once
from tests.support.lease_engine_process import started
from tests.support.lease_service import ENGINE, LeaseService
from tests.support.polling import until
from tests.support.pools import pool

REQUESTS, GPUS, ENGINES, KILLS = 200, 25, 3, 4
ADMIN = {
    "X-Identity-Status": "Confirmed",
    "X-User-Id": "user-1",
    "X-Project-Id": "project-1",
    "X-Roles": "admin,member",
}


class Engines:
    """Processes of one service; of those that are killed others take the place."""

    def __init__(self, url, placement_url, stack):
        self.url, self.placement_url, self._stack = url, placement_url, stack
        self.database, self.alive, self.count, self.killed = Database(url), {}, 0, []
        for _ in range(ENGINES):
            self.start()

    def start(self):
        self.count += 1
        name = f"engine-{self.count}"
        process = started(self.url, self.placement_url, name, 2.0)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        self.alive[name] = process

    def leader(self):
        """Its name, '' where none leads that is alive."""
        with self.database.transaction() as connection:
            holder = connection.execute(select(tables.leader.c.holder)).scalar_one()
        return holder if holder in self.alive else ""

    def kill_leader(self):
        until(self.leader, 60.0)
        name = self.leader()
        self.alive.pop(name).kill()
        self.killed.append(name)
        self.start()


@pytest.fixture
def world(server, tmp_path):
    """API in the test, engines and Placement as processes, MariaDB::

    test: API, hosts g1 and c1 ──► MariaDB ◄── engine-1 … n ──► Placement, on MariaDB
    g1 lends 25 GPUs, 8000 MiB each; c1 runs all servers
    """
    with ExitStack() as stack:
        for name in ("leases", "placement_of_leases"):
            mariadb.create(server, name)
        url = server.url.format("leases")
        Database(url).sync()
        placement_url = server.url.format("placement_of_leases")
        http, _, _ = stack.enter_context(served("benchmarks.placement_on_mariadb", placement_url))
        client = PlacementClient(http)
        names = tuple(f"gpu{number}" for number in range(GPUS))
        PoolReporter(client).sync(pool("g1", gpus=names, cores=REQUESTS))
        service = LeaseService(SimpleNamespace(client=client), tmp_path, url)
        yield service, client, lambda: Engines(url, http.get_endpoint(), stack)


def nothing_is_promised_twice(client):
    for lent in pool_reader.read(client):
        assert all(gpu.memory_mb.free >= 0 <= gpu.share.free for gpu in lent.gpus)


@pytest.mark.long
def test_of_200_requests_50_are_attached_while_engines_that_lead_are_killed(world):
    """Kill -9 of the leading process, four times between the first claim and the last attachment."""
    service, client, engines_of = world
    servers = [f"{number:08x}-0000-0000-0000-000000000000" for number in range(REQUESTS)]
    body = {"memory_mb": 3000, "api": "opencl", "service_level": "silver"}

    def ask(number):
        lease = {"lease": body | {"server_id": servers[number]}}
        api = service.client.application.test_client()
        return api.post("/v1/leases", json=lease, headers=ADMIN)

    assert {each.status_code for each in at_once(REQUESTS, ask)} == {202}
    jobs = service.leases.jobs()
    asked = sorted(service.leases.find(), key=lambda each: jobs[each.job].submitted_at)
    first, rest = ([each.uuid for each in some] for some in (asked[: 2 * GPUS], asked[2 * GPUS :]))
    engines, chance = engines_of(), random.Random(1)
    kill_s, until_s = 0.0, time.monotonic() + 180.0
    while time.monotonic() < until_s:
        service.obey()
        service.report("c1", servers=servers)
        nothing_is_promised_twice(client)
        states = Counter(each.state for each in service.leases.find())
        if states[LeaseState.ATTACHED] == 2 * GPUS and len(engines.killed) == KILLS:
            break
        begun = any(each.claimed for each in service.leases.find())
        if begun and len(engines.killed) < KILLS and time.monotonic() > kill_s:
            engines.kill_leader()
            kill_s = time.monotonic() + chance.uniform(0.2, 2.0)
    assert states == {LeaseState.ATTACHED: 2 * GPUS, LeaseState.RESERVED: REQUESTS - 2 * GPUS}
    assert len(engines.killed) == KILLS
    attached = {each.uuid for each in service.leases.find(states=(LeaseState.ATTACHED,))}
    assert attached == set(first), "those that asked first"
    assert {uuid for uuid in first + rest if service.claims.read(uuid)} == attached
    for uuid in first[:10]:
        service.leases.change(service.leases.read(uuid), life.release, ENGINE)

    def ten_more():
        service.obey()
        now = {each.uuid for each in service.leases.find(states=(LeaseState.ATTACHED,))}
        return now == {*first[10:], *rest[:10]}

    until(ten_more, 60.0)
    nothing_is_promised_twice(client)
