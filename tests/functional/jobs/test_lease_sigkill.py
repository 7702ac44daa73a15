# SPDX-License-Identifier: Apache-2.0
"""Engines, supervisors, agents and processes of leases, all real processes, are killed in each state of a lease.

A state that passes quickly is held by stopping who would end it: the engines, or the supervisor of the GPU's host. They
go on, and a moment later, drawn by chance, one is killed by SIGKILL, in whatever it does then.

Rounds are counted, not seconds: of all that began after the last death, when an engine leads, two turns of each host
that lends GPUs end what serves no lease, and two looks of one engine release what is held for none. As chance leaves
little of that, a process that somebody left on each of these hosts, and a claim that arrives late, are there each time.
"""

import json
import os
import random
import signal
import tempfile
import threading
import time
import uuid
from contextlib import ExitStack
from pathlib import Path

import pytest
from werkzeug.serving import make_server

from host_agent.remote_gpu.answer import ServedLease
from host_agent.remote_gpu.processes import LeaseCommand, LeaseProcesses
from nova_numa_ext.orchestrator.store import lease_hosts
from nova_numa_ext.orchestrator.store.database import LostRaceError
from nova_numa_ext.orchestrator.store.leases import LIVING
from nova_numa_ext.policy.remote_gpu import leases as life
from nova_numa_ext.policy.remote_gpu.leases import LeaseState
from placement_traits.claims import Claim
from placement_traits.names import LEASE_CONSUMER, REMOTE_GPU_MEMORY_MB, REMOTE_GPU_SHARE
from placement_traits.pool_reporter import PoolReporter, gpu_uuids
from tests.functional.jobs.test_lease_engines import world  # noqa: F401 - a fixture
from tests.functional.jobs.test_lease_killed import (
    CLIENTS,
    LENDERS,
    WITHOUT_SERVER,
    assert_agreement,
    claimed,
    other_lender,
)
from tests.functional.jobs.test_lease_processes import Hosts
from tests.support import rounds_log
from tests.support.lease_host_process import started
from tests.support.lease_service import ASKED, ENGINE
from tests.support.polling import until
from tests.support.pools import pool

SEEDS = 4
SILENT_S = "15.0"
VICTIMS = ("engine", "supervisor", "agent", "process")


class Killed(Hosts):
    """g1 and g2, which lend a GPU each, c1 and c2, which run servers, and engines: all are processes.

    :ivar stopped: those that were told to stop, and are to go on
    """

    def __init__(self, service, folder, url, engines, stack):
        self.url, self.engines, self.stack, self.stopped = url, engines, stack, []
        self.file, self.placed = folder / "servers.json", folder / "placed.json"
        self.service, self.folder = service, folder
        self.running = {host: frozenset() for host in (*LENDERS, *CLIENTS)}
        self.turns, self.alive = {}, {}
        self.write()
        for host in self.running:
            self.start(host)

    def start(self, host):
        self.alive[host] = process = started(host, self.folder, self.url, self.file)
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)

    def write(self):
        servers = {host: sorted(each) for host, each in self.running.items()}
        for file, what in ((self.file, servers), (self.placed, self.service.placed)):
            other = file.with_suffix(".new")
            other.write_text(json.dumps(what))
            other.rename(file)

    def move(self, server, host):
        super().move(server, host)
        self.write()

    def halt(self, *processes):
        for each in processes:
            each.send_signal(signal.SIGSTOP)
            self.stopped.append(each)

    def go_on(self):
        while self.stopped:
            each = self.stopped.pop()
            if each.poll() is None:
                each.send_signal(signal.SIGCONT)

    def kill(self, victim, chance):
        match victim:
            case "engine":
                self.engines.kill_leader()
            case "process":
                if found := sorted(self.processes().values()):
                    os.kill(chance.choice(found), signal.SIGKILL)
            case _:
                host = chance.choice(LENDERS if victim == "supervisor" else CLIENTS)
                self.alive[host].kill()
                self.alive[host].wait()
                self.start(host)

    def leave_over(self):
        """What the dead may leave: a process on each host that lends GPUs, and a claim, all of no lease."""
        self.halt(*(self.alive[each] for each in LENDERS))
        for host in LENDERS:
            (gpu,) = gpu_uuids(pool(host))
            command = LeaseCommand("fake", self.folder, "127.0.0.1", gpu_uuids(pool(host)))
            stray, lease = LeaseProcesses(self.folder / host / "run", command), str(uuid.uuid4())
            stray.start(ServedLease(lease, 1, gpu, 1, "scavenger", "opencl", 0))
            self.stack.callback(stray._wait, lease)
        held = {gpu: {REMOTE_GPU_MEMORY_MB: 1, REMOTE_GPU_SHARE: 1}}
        claim = Claim(str(uuid.uuid4()), LEASE_CONSUMER, "project-1", "user-1", held)
        self.service.claims.write(claim)
        assert claim.consumer in claimed(self)
        assert len(of_no_lease(self, self.processes)) >= len(LENDERS)
        self.go_on()

    def stop(self):
        self.go_on()
        for each in self.engines.alive.values():
            each.kill()
            each.wait()
        for pid in self.processes().values():
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def killed(world, monkeypatch):  # noqa: F811
    """All of them, with the API in a thread of the test::

    g1, g2, c1, c2 ──► API (test) ──► MariaDB ◄── engine-1 … n ──► Placement, on MariaDB
    """
    service, client, engines_of = world
    monkeypatch.setattr(lease_hosts, "FRESH_S", 0.5)
    for host in LENDERS:
        PoolReporter(client).sync(pool(host))
    api = make_server("127.0.0.1", 0, service.client.application, threaded=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        thread = threading.Thread(target=api.serve_forever)
        thread.start()
        stack.callback(thread.join)
        stack.callback(api.shutdown)
        engines = engines_of(str(folder / "placed.json"), SILENT_S)
        found = Killed(service, folder, f"http://127.0.0.1:{api.server_port}", engines, stack)
        stack.callback(found.stop)
        until(engines.leader, 150.0)
        until(lambda: len(service.hosts.all()) == len(found.running), 150.0)
        yield found


def bring(killed, server, state):
    """Make a lease and let it come to a state, in which it stays while somebody is stopped; return it."""
    service = killed.service
    if state is LeaseState.RESERVED:
        killed.halt(*killed.engines.alive.values())
    if state is LeaseState.STARTING:
        killed.halt(*(killed.alive[each] for each in LENDERS))
    killed.move(server, "" if state in WITHOUT_SERVER else "c1")
    lease = service.leases.create("project-1", "user-1", ASKED, server)
    if state not in WITHOUT_SERVER:
        wait_for(killed, lease, LeaseState.ATTACHED)
    source = killed.alive.get(service.leases.read(lease.uuid).lease.gpu_host)
    if state is LeaseState.MOVING:
        change(service, lease, lambda now: service.leases.ask_move(now, other_lender(now), ENGINE))
    if state in (LeaseState.MOVING, LeaseState.LOST, LeaseState.RELEASING):
        killed.halt(source)
    match state:
        case LeaseState.DETACHED:
            killed.move(server, "")
        case LeaseState.RELEASING:
            release(service, lease)
    wait_for(killed, lease, state)
    return lease


def wait_for(killed, lease, state):
    """Wait until a lease is in a state; what it is instead is said where it does not come."""
    until_s = time.monotonic() + 150.0
    while (now := killed.service.leases.read(lease.uuid)).state is not state:
        assert time.monotonic() < until_s, f"{state}: {now.lease} {now.reasons} {now.move}"
        time.sleep(0.02)


def change(service, lease, how):
    """Change a lease beside all others that do; a race that is lost is run again."""
    for _ in range(50):
        try:
            return how(service.leases.read(lease.uuid))
        except LostRaceError:
            time.sleep(0.05)
    raise AssertionError(lease)


def release(service, lease):
    def once(now):
        if LeaseState.RELEASING in life.TRANSITIONS[now.state]:
            service.leases.change(now, life.release, ENGINE)

    change(service, lease, once)


def over(killed, since_s, kind, count):
    """Wait until so many rounds of a kind that began since a time are over, of each host, or of one engine."""

    def are_over():
        done = rounds_log.done(killed.folder, since_s)
        if kind == "turn":
            return all(done[kind, host] >= count for host in LENDERS)
        return (
            max((number for (each, _), number in done.items() if each == kind), default=0) >= count
        )

    until(are_over, 150.0)


def of_no_lease(killed, there):
    """Return which of some processes or claims are of no lease, by the database before and after they were read."""
    known = set()
    before = killed.service.leases.find(states=LIVING)
    found = there()
    for each in (*before, *killed.service.leases.find(states=LIVING)):
        known |= {each.uuid, *([each.move.second] if each.move is not None else [])}
    return set(found) - known


def holds(check, killed):
    try:
        check(killed)
    except AssertionError:
        return False
    return True


@pytest.mark.long
@pytest.mark.parametrize("seed", range(SEEDS))
def test_whoever_is_killed_in_whichever_state_no_process_and_no_claim_is_left_over(killed, seed):
    """Each seed has its own two of the states that live; seeded, but for where SIGKILL meets a process."""
    chance, deaths = random.Random(seed), set()
    for number, state in enumerate(sorted(LIVING)[seed::SEEDS]):
        server = str(uuid.UUID(int=number + 1))
        lease = bring(killed, server, state)
        for victim in chance.sample(VICTIMS, chance.randrange(2, 5)):
            killed.go_on()
            time.sleep(chance.uniform(0.0, 0.4))
            killed.kill(victim, chance)
            deaths.add((state, victim))
            if chance.random() < 0.3:
                killed.move(server, chance.choice((*CLIENTS, "")))
        killed.go_on()
        until(killed.engines.leader, 150.0)
        killed.leave_over()
        since_s = time.monotonic()
        over(killed, since_s, "turn", 2)
        assert of_no_lease(killed, killed.processes) == set(), (state, deaths)
        over(killed, since_s, "look", 2)
        assert of_no_lease(killed, lambda: claimed(killed)) == set(), (state, deaths)
        until(lambda: holds(assert_agreement, killed), 150.0)
        release(killed.service, lease)
        until(lambda: (killed.processes(), claimed(killed)) == ({}, set()), 150.0)
        until(lambda: holds(assert_agreement, killed), 90.0)
    assert len(deaths) >= len(LIVING) // SEEDS * 2
