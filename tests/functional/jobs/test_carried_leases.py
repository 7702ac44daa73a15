# SPDX-License-Identifier: Apache-2.0
"""Leases that go to another host with all that they have: the service's part, over API, rounds and Placement.

What hosts do for it is in ``tests/functional/host_agent/test_lease_moves.py``; both together are at the end.
"""

import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from host_agent.remote_gpu.answer import RunningServers
from host_agent.remote_gpu.turns import LeaseTurns
from nova_numa_ext.orchestrator.store.leases import LIVING
from nova_numa_ext.policy.remote_gpu import leases as life
from nova_numa_ext.policy.remote_gpu.lease_terms import LeaseTerm
from nova_numa_ext.policy.remote_gpu.leases import LeaseState
from placement_traits import names
from placement_traits.pool_reporter import PoolReporter, gpu_uuids
from tests.functional.host_agent.test_lease_link import SERVER as GUEST
from tests.functional.host_agent.test_lease_moves import Chain, GpuHosts, compute
from tests.functional.jobs.test_lease_processes import Answer
from tests.support.lease_service import ASKED, ENGINE, SERVER, LeaseService, credential
from tests.support.polling import until
from tests.support.pools import pool

MOVES_S = 60.0


class Moving(LeaseService):
    """A service with g1 and g2, which lend GPUs, and a lease of g1 that c1 uses."""

    def __init__(self, placement, folder):
        super().__init__(placement, folder)
        self.lease = self.attached()
        PoolReporter(self.client_of_placement).sync(pool("g2"))
        for host in ("g1", "g2"):
            self.tell(host)
        self.before = self.claims.read(self.lease.uuid).amounts

    def now(self):
        return self.leases.read(self.lease.uuid)

    def tell(self, host, *, can_move=True, done=(), **move):
        """Let a host serve what it is to serve, and report that, leases that it has ended, and one move."""
        serves = [(each["id"], each["epoch"]) for each in self.ask(host).json["serves"]]
        ended = [(self.lease.uuid, epoch) for epoch in done]
        more = {}
        if move:
            nothing = {"address": "", "sent_mb": 0, "of_mb": 0, "why": ""}
            epoch = self.now().lease.epoch
            more["moves"] = [nothing | {"id": self.lease.uuid, "epoch": epoch} | move]
        if can_move:
            more["can_move"] = True
        answer = self.report(host, serves, ended, **more)
        assert answer.status_code == 200, answer.get_data()
        return answer

    def move(self, rounds=2):
        self.leases.ask_move(self.now(), "g2", ENGINE)
        for _ in range(rounds):
            self.round()

    def sent(self):
        (found,) = self.ask("g1").json["sends"]
        return found

    def settle(self):
        """Rounds and reports until nothing changes."""
        for _ in range(4):
            self.round()
            for host in ("g1", "g2"):
                self.tell(host)
        self.report("c1", servers=[SERVER])
        self.round()

    def shown(self, role="admin"):
        headers = credential("c1", role) | {"X-Project-Id": "project-1", "X-User-Id": "user-1"}
        return self.client.get(f"/v1/leases/{self.lease.uuid}", headers=headers).json["lease"]


@pytest.fixture
def service(lending, tmp_path):
    return Moving(lending, tmp_path)


def test_a_lease_is_not_carried_to_a_gpu_of_another_model(service):
    """F-002-32: its process has no code for that; where a host cannot carry it, it moves with nothing."""
    lends = pool("g2")
    gpu = replace(lends.gpus[0], traits=frozenset({names.gpu_model("p100")}))
    PoolReporter(service.client_of_placement).sync(replace(lends, gpus=(gpu,)))
    service.move()
    found = service.now()
    assert (found.state, found.move) == (LeaseState.ATTACHED, None)
    assert found.reasons[0].term == LeaseTerm.NO_MOVE
    assert service.claims.read(service.lease.uuid).amounts == service.before
    service.tell("g2", can_move=False)
    service.move()
    assert service.now().state is LeaseState.MOVING


def test_a_lease_is_carried_where_both_hosts_can(service):
    service.move()
    assert service.now().state is LeaseState.MOVING
    assert (service.sent()["to"], service.sent()["address"]) == ("g2", "")
    (comes,) = service.ask("g2").json["receives"]
    assert (comes["source"], comes["gpu"], comes["client_host"]) == ("g1", service.now().gpu, "")
    assert [service.ask(host).json[what] for host, what in (("g1", "ends"), ("g2", "serves"))] == [
        *([], [])
    ]
    service.tell("g2", address="g2:7001")
    assert service.sent()["address"] == "g2:7001"
    service.tell("g1", sent_mb=3, of_mb=9)
    assert service.shown()["move"] == {"carried": True, "sent_mb": 3, "of_mb": 9}
    service.round()
    assert service.now().state is LeaseState.MOVING, "g1 has not ended it"
    service.tell("g1", done=[service.now().lease.epoch])
    assert service.ask("g2").json["receives"] == [comes], "what has come is kept until it is served"
    assert service.ask("g1").json["sends"] == []
    service.settle()
    found = service.now()
    assert (found.state, found.lease.gpu_host, found.move) == (LeaseState.ATTACHED, "g2", None)
    assert service.shown()["move"] is None
    assert service.claims.read(service.lease.uuid).amounts == found.amounts != service.before


def test_what_the_source_says_went_is_said_so(service):
    service.move()
    service.tell("g2", address="g2:7001")
    service.tell("g1", done=[service.now().lease.epoch])
    service.round()
    assert [each.term for each in service.now().reasons] == [LeaseTerm.CARRIED]


@pytest.mark.parametrize("who", ["g1", "g2"])
def test_a_lease_that_cannot_go_is_where_it_was_with_all_that_it_held(service, who):
    second = None
    service.move()
    second = service.now().move.second
    assert service.claims.read(second) is not None
    if who == "g2":
        service.tell("g2", why="no CRIU")
        assert service.sent()["cancelled"]
        assert service.ask("g2").json["receives"] == []
        service.round()
        assert service.now().state is LeaseState.MOVING, "only g1 knows whether it goes on"
    service.tell("g1", why="cancelled" if who == "g2" else "the disk is full")
    service.settle()
    found = service.now()
    assert (found.state, found.lease.gpu_host, found.move) == (LeaseState.ATTACHED, "g1", None)
    assert service.claims.read(service.lease.uuid).amounts == service.before == found.amounts
    assert service.claims.read(second) is None


def test_why_it_did_not_go_operators_read_and_users_do_not(service):
    service.move()
    service.tell("g1", why="/var is full")
    service.round()
    term = [each for each in service.now().reasons if each.term == LeaseTerm.MOVE_FAILED]
    assert [each.value for each in term] == ["/var is full"]
    user = service.shown("reader")["reasons"]
    assert "/var" not in str(user)


def test_where_the_other_host_is_silent_it_is_to_go_on(service):
    service.move()
    service.now_s += 100
    for host in ("g1", "c1"):
        service.hosts.report(host, service.hosts.read(host).servers, can_move=True)
    real = service.reported

    def but_g2():
        found = real()
        return {name: each for name, each in found.items() if name != "g2"}

    service.reported = but_g2
    service.start()
    service.round()
    assert service.sent()["cancelled"]


def test_where_one_host_cannot_it_is_ended_and_begins_there(service):
    service.tell("g2", can_move=False)
    service.move()
    assert service.ask("g1").json["sends"] == []
    assert [each["id"] for each in service.ask("g1").json["ends"]] == [service.lease.uuid]


def test_what_a_host_says_of_another_move_changes_nothing(service):
    service.move()
    before = service.now().version
    service.tell("g2", address="g2:7001", epoch=service.now().lease.epoch - 1)
    service.report("c1", servers=[SERVER], moves=[])
    assert service.now().version == before


@pytest.mark.parametrize("host", ["c1", "c2"])
def test_a_host_that_has_no_part_in_a_move_learns_and_says_nothing_of_it(service, host):
    """c1 has the lease's server, and no part in it until that may connect again."""
    service.move()
    before = service.now()
    assert not any(service.ask(host).json.values())
    service.tell(host, address="elsewhere:7001")
    service.tell(host, why="it does not go")
    assert service.now() == before


# -- both together -----------------------------------------------------------------------------------------------------


class Cloud:
    """The service, g1 and g2 with real processes, and a guest on c1."""

    def __init__(self, lending, folder, short, processes):
        self.service = LeaseService(lending, folder)
        self.hosts = GpuHosts(short, processes, gpus=gpu_uuids(pool("g1")) | gpu_uuids(pool("g2")))
        self.running = frozenset({GUEST})
        self.turns = {
            host: LeaseTurns(
                host,
                lambda *asked, host=host, **more: self.request(host, *asked, **more),
                self.hosts.hosts[host] if host != "c1" else self.hosts.client_host(),
                lambda host=host: RunningServers(self.running if host == "c1" else frozenset()),
                short / f"{host}-answer.json",
            )
            for host in ("g1", "g2", "c1")
        }

    def request(self, host, method, path, json=None, headers=None):
        sent = credential(host) | (headers or {})
        return Answer(self.service.client.open(path, method=method, json=json, headers=sent))

    def turn(self):
        for each in self.turns.values():
            each.turn()
        leases = self.turns["c1"].attaches()
        if leases is not None:
            self.hosts.road.doors.turn(leases)
        self.service.round()

    def state(self):
        return next(iter(self.service.leases.find()))

    def until_attached(self, host):
        def attached():
            self.turn()
            found = self.state()
            there = (found.state, found.lease.gpu_host) == (LeaseState.ATTACHED, host)
            return there and self.turns["c1"].answer.attaches

        until(attached, MOVES_S)


def test_an_operator_moves_a_lease_and_its_program_goes_on(lending, tmp_path):
    with tempfile.TemporaryDirectory() as short, ExitStack() as processes:
        cloud = Cloud(lending, tmp_path, Path(short), processes)
        service = cloud.service
        service.leases.create("project-1", "user-1", ASKED, GUEST)
        service.placed[GUEST] = "c1"
        cloud.until_attached("g1")
        PoolReporter(service.client_of_placement).sync(pool("g2"))
        cloud.turn()
        cloud.hosts.road.open()
        client = cloud.hosts.road.client()
        client.settimeout(MOVES_S)
        chain = Chain()
        compute(chain, client)
        for host in ("g2", "g1"):
            service.leases.ask_move(cloud.state(), host, ENGINE)
            begun_s = time.monotonic()
            cloud.until_attached(host)
            cloud.turn()
            compute(chain, client)
            assert time.monotonic() - begun_s < MOVES_S
            assert [each.term for each in cloud.state().reasons] == [LeaseTerm.ATTACHED]
        service.leases.change(cloud.state(), life.release, ENGINE)
        until(lambda: cloud.turn() or not service.leases.find(states=list(LIVING)), MOVES_S)
        assert cloud.hosts.nothing_of("g1")
        assert cloud.hosts.nothing_of("g2")
