# SPDX-License-Identifier: Apache-2.0
"""Leases with engines that are processes, killed while they lead, on MariaDB, beside a Placement that is a process."""

import json
import os
import random
import signal
import tempfile
import time
import uuid
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import select

from benchmarks import mariadb
from benchmarks.bench_view import served
from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.database import Database, LostRaceError
from nova_numa_ext.orchestrator.store.leases import LIVING
from nova_numa_ext.policy.remote_gpu import leases as life
from nova_numa_ext.policy.remote_gpu.leases import LeaseState
from placement_traits import pool_reader
from placement_traits.client import PlacementClient
from placement_traits.errors import ConflictError
from placement_traits.pool_reporter import PoolReporter, gpu_uuids
from tests.functional.jobs.test_lease_killed import CLIENTS, LENDERS, claimed, other_lender
from tests.functional.jobs.test_lease_processes import Hosts
from tests.support.at_once import at_once
from tests.support.lease_engine_process import started
from tests.support.lease_service import ASKED, ENGINE, LeaseService
from tests.support.polling import until
from tests.support.pools import pool

REQUESTS, GPUS, ENGINES, KILLS = 200, 25, 3, 4
USER = Actor("user-1")
ADMIN = {
    "X-Identity-Status": "Confirmed",
    "X-User-Id": "user-1",
    "X-Project-Id": "project-1",
    "X-Roles": "admin,member",
}


class Engines:
    """Processes of one service; of those that are killed others take the place."""

    def __init__(self, url, placement_url, stack, *more):
        self.url, self.placement_url, self._stack, self._more = url, placement_url, stack, more
        self.database, self.alive, self.count, self.killed = Database(url), {}, 0, []
        for _ in range(ENGINES):
            self.start()

    def start(self):
        self.count += 1
        name = f"engine-{self.count}"
        process = started(self.url, self.placement_url, name, 2.0, *self._more)
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
        # The server is that of all tests: each has databases of its own.
        leases, placement = (f"{each}_{uuid.uuid4().hex}" for each in ("leases", "placement"))
        for name in (leases, placement):
            mariadb.create(server, name)
        url = server.url.format(leases)
        Database(url).sync()
        placement_url = server.url.format(placement)
        http, _, _ = stack.enter_context(served("benchmarks.placement_on_mariadb", placement_url))
        client = PlacementClient(http)
        names = tuple(f"gpu{number}" for number in range(GPUS))
        PoolReporter(client).sync(pool("g1", gpus=names, cores=REQUESTS))
        service = LeaseService(SimpleNamespace(client=client), tmp_path, url)
        yield service, client, lambda *more: Engines(url, http.get_endpoint(), stack, *more)


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
    assert {each for each in first + rest if service.claims.read(each)} == attached
    for each in first[:10]:
        service.leases.change(service.leases.read(each), life.release, ENGINE)

    def ten_more():
        service.obey()
        now = {each.uuid for each in service.leases.find(states=(LeaseState.ATTACHED,))}
        return now == {*first[10:], *rest[:10]}

    until(ten_more, 60.0)
    nothing_is_promised_twice(client)


class Chaos:
    """Real engines, supervisors and lease processes that are killed while servers move, stop and are released.

    :ivar done: what was done, by its name
    """

    def __init__(self, hosts, file, chance):
        self.hosts, self.file, self.chance = hosts, file, chance
        self.service, self.done, self.servers = hosts.service, Counter(), {}

    def turn(self, host):
        """One turn of a host, whose clock is that of the test."""
        self.hosts.now_s = time.monotonic()
        self.hosts.turns[host].turn()

    def place(self, server, host):
        self.hosts.move(server, host)
        self.servers[server] = host or self.servers.get(server, "c1")
        other = self.file.with_suffix(".new")
        other.write_text(json.dumps(self.servers))
        other.rename(self.file)

    def ask(self):
        server = str(uuid.UUID(int=len(self.servers) + 1))
        self.place(server, "c1")
        self.service.leases.create("project-1", "user-1", ASKED, server)

    def act(self):
        """One of all that may happen, drawn by chance; hosts have a turn most of the time."""
        acts = {
            "turn": (12, lambda: self.turn(self.chance.choice([*self.hosts.turns]))),
            "kill supervisor": (1, lambda: self.hosts.start(self.chance.choice(LENDERS))),
            "kill agent": (1, lambda: self.hosts.start(self.chance.choice(CLIENTS))),
            "kill process": (1, self.kill_process),
            "move server": (2, self.move_server),
            "move lease": (1, self.move_lease),
            "release": (1, self.release),
        }
        weights = [weight for weight, _ in acts.values()]
        (name,) = self.chance.choices([*acts], weights)
        self.done[name] += 1
        with suppress(LostRaceError, ConflictError, life.LeaseError):
            acts[name][1]()

    def kill_process(self):
        if found := sorted(self.hosts.processes().values()):
            os.kill(self.chance.choice(found), signal.SIGKILL)

    def move_server(self):
        self.place(self.chance.choice([*self.servers]), self.chance.choice((*CLIENTS, "")))

    def move_lease(self):
        if found := self.service.leases.find(states=(LeaseState.ATTACHED,)):
            lease = self.chance.choice(found)
            self.service.leases.ask_move(lease, other_lender(lease), USER)

    def release(self):
        if found := self.service.leases.find(states=LIVING):
            self.service.leases.change(self.chance.choice(found), life.release, USER)
            self.ask()

    def settled(self):
        """All servers run; return whether database, Placement and processes say the same."""
        for host in self.hosts.turns:
            self.turn(host)
        living = self.service.leases.find(states=LIVING)
        uuids = {each.uuid for each in living}
        return (
            {each.state for each in living} == {LeaseState.ATTACHED}
            and claimed(self.hosts) == uuids == self.hosts.processes().keys()
            and {each.lease.client_host for each in living} == {"c1"}
        )


@pytest.mark.long
def test_whatever_is_killed_database_placement_and_processes_agree_in_the_end(world, tmp_path):
    """S4 on MariaDB: engines that are processes, and those of leases, by kill -9; seeded, but for their timing."""
    service, client, engines_of = world
    for host in LENDERS:
        PoolReporter(client).sync(pool(host))
    file, chance = tmp_path / "placed.json", random.Random(4)
    with tempfile.TemporaryDirectory() as short:
        hosts = Hosts(service, Path(short))
        hosts.command = replace(hosts.command, gpus=gpu_uuids(pool("g1")) | gpu_uuids(pool("g2")))
        hosts.running["g2"] = frozenset()
        for host in hosts.running:
            hosts.start(host)
        try:
            chaos = Chaos(hosts, file, chance)
            for _ in range(4):
                chaos.ask()
            engines = engines_of(str(file))
            until(engines.leader, 60.0)
            for _ in range(KILLS):
                for _ in range(40):
                    chaos.act()
                engines.kill_leader()
            for server in chaos.servers:
                chaos.place(server, "c1")
            until(chaos.settled, 120.0)
            assert len(service.leases.find(states=LIVING)) == 4
            assert min(chaos.done.values()) > 0 and len(chaos.done) == 7, chaos.done
        finally:
            hosts.stop()
