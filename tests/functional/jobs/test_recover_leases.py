# SPDX-License-Identifier: Apache-2.0
"""An old database is restored under leases that hosts serve: none is lost, none is cut before it is committed."""

import random
import uuid
from dataclasses import replace

import pytest

from host_agent.remote_gpu.answer import kept_answer, read_answer
from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.leases import LIVING
from nova_numa_ext.orchestrator.store.recovery import Recovery
from nova_numa_ext.policy.remote_gpu import leases as life
from nova_numa_ext.policy.remote_gpu.leases import LeaseState
from placement_traits.claims import Claim
from placement_traits.names import LEASE_CONSUMER, REMOTE_GPU_MEMORY_MB, REMOTE_GPU_SHARE
from placement_traits.plain import Value
from tests.support.jobs_database import backed_up, restored
from tests.support.lease_service import ASKED, ENGINE, SERVER, LeaseService

on_sqlite = pytest.mark.parametrize("url", ["sqlite"], indirect=True)

HOSTS = ("g1", "c1", "c2")
ATTACHED, GONE, STARTING = LeaseState.ATTACHED, LeaseState.GONE, LeaseState.STARTING


class Restored(LeaseService):
    """The same, of which an old database is restored.

    :ivar answers: host -> what it was last asked, as it keeps it
    :ivar running: host -> the servers that it runs
    """

    def __init__(self, placement, url):
        super().__init__(placement, None, url)
        self.answers, self.running = {}, dict.fromkeys(HOSTS, ())

    def restore(self, backup):
        """Let the database be as it was, hosts have asked for the last time, and an operator says so."""
        self.keep()
        restored(self.database, backup)
        self.start()
        Recovery(self.database).begin("restored")

    def keep(self):
        """Hosts ask, and keep what they are told as agents keep it for a service that has lost its leases."""
        for host in HOSTS:
            answer = read_answer(Value(self.ask(host).json, "the answer"))
            self.answers[host] = kept_answer(replace(answer, sends=(), receives=()))

    def turn(self, *hosts):
        """Hosts do what they were last asked, and report it where the service says nothing."""
        for host in hosts or HOSTS:
            asked = self.answers[host]
            serves = [(each["id"], each["epoch"]) for each in asked["serves"]]
            ended = [(each["id"], each["epoch"]) for each in asked["ends"]]
            answer = self.report(host, serves, ended, self.running[host], asked=asked)
            assert answer.status_code == 503

    def run(self, server, host):
        """Nova has a server run on a host, '' for none."""
        self.placed[server] = host or None
        for each in HOSTS:
            self.running[each] = tuple({*self.running[each], server} - {server})
        if host:
            self.running[host] += (server,)

    def go_on(self, count=3):
        """Hosts and engine have turns."""
        for _ in range(count):
            self.obey()
            for host in ("c1", "c2"):
                self.report(host, servers=self.running[host])
            self.round()

    def held(self):
        """All claims of leases, by consumer."""
        found = self.claims.of_providers(each for pool in self.lent() for each in pool.providers)
        return {each.consumer: each for each in found if each.type == LEASE_CONSUMER}

    def now(self, lease):
        return self.leases.read(lease.uuid)

    def looks(self, count=2):
        return sum(self.rounds.look(lambda: None, self.trouble) for _ in range(count))


@pytest.fixture
def service(lending, url):
    """A service of leases whose database a test replaces by an old one::

    API, LeaseRounds ── leases.db, restored by ``restore``
    ├─ rgpu:g1     fabric main; 4 cores, NIC of 1000 MB/s, GPU a of 8000 MiB
    └─ g1, c1, c2  hosts that keep what they were last asked; servers run where ``run`` puts them
    """
    return Restored(lending, url)


def attached(service, server=SERVER, host="c1"):
    lease = service.leases.create("project-1", "user-1", ASKED, server)
    service.run(server, host)
    service.go_on()
    assert service.state(lease) is ATTACHED
    return lease


def test_a_lease_that_is_not_known_is_adopted_from_placement_and_hosts(service, capsys):
    backup = backed_up(service.database)
    lease = attached(service)
    before, claim = service.now(lease), service.claims.read(lease.uuid)
    service.restore(backup)
    service.turn()
    assert service.recover(commit=False) == 0
    line = (
        f"ADOPT  lease  {lease.uuid}  is not known; hosts know epoch 1: goes on starting, epoch 2"
    )
    assert line in capsys.readouterr().out
    assert (service.leases.find(), service.claims.read(lease.uuid)) == ([], claim)
    assert service.recover() == 0
    found = service.now(lease)
    assert (found.asked, found.server, found.project, found.user) == (
        ASKED,
        SERVER,
        "project-1",
        "user-1",
    )
    assert (found.gpu, found.amounts, found.claimed) == (before.gpu, before.amounts, True)
    assert (found.state, found.lease.epoch) == (STARTING, 2)
    service.go_on()
    assert service.attaches("c1") == [(lease.uuid, 2)]
    assert (service.looks(), service.claims.read(lease.uuid)) == (0, claim)


def test_epochs_go_on_above_the_databases_and_the_hosts(service):
    """Its server has moved since: the database says that c1 may connect, at an epoch that the GPU's host refuses."""
    lease = attached(service)
    backup = backed_up(service.database)
    for host in ("c2", "c1", "c2"):
        service.run(SERVER, host)
        service.go_on()
    assert service.attaches("c2") == [(lease.uuid, 4)]
    service.restore(backup)
    assert (service.now(lease).lease.epoch, service.now(lease).lease.client_host) == (1, "c1")
    service.turn()
    service.recover()
    assert service.now(lease).lease.epoch == 5
    assert (service.attaches("c1"), service.attaches("c2")) == ([], [])
    service.go_on()
    assert (service.attaches("c1"), service.attaches("c2")) == ([], [(lease.uuid, 5)])


@on_sqlite
def test_a_lease_that_waited_keeps_the_gpu_that_it_has_got_since(service):
    lease = service.leases.create("project-1", "user-1", ASKED, SERVER)
    backup = backed_up(service.database)
    service.run(SERVER, "c1")
    service.go_on()
    claim = service.claims.read(lease.uuid)
    service.restore(backup)
    service.turn()
    service.recover()
    found = service.now(lease)
    assert (found.claimed, found.amounts, found.lease.gpu_host) == (True, claim.amounts, "g1")
    service.go_on()
    assert (service.state(lease), service.claims.read(lease.uuid)) == (ATTACHED, claim)


@on_sqlite
def test_what_still_waits_is_left_as_it_is(service, capsys):
    lease = service.leases.create("project-1", "user-1", ASKED)
    service.restore(backed_up(service.database))
    before = service.now(lease)
    service.turn()
    service.recover()
    assert service.now(lease) == before
    assert lease.uuid not in capsys.readouterr().out


def test_a_lease_that_has_ended_since_ends(service, capsys):
    lease = attached(service)
    backup = backed_up(service.database)
    service.leases.change(service.now(lease), life.release, ENGINE)
    service.go_on()
    assert (service.state(lease), service.claims.read(lease.uuid)) == (GONE, None)
    service.restore(backup)
    service.turn()
    service.recover()
    assert f"END  lease  {lease.uuid}  is attached, but nothing holds" in capsys.readouterr().out
    found = service.now(lease)
    assert (found.state, found.claimed, str(found.reasons[0])) == (GONE, False, "ended_since=")
    assert found.ended_at is not None


@on_sqlite
def test_a_lease_that_was_ending_ends_when_its_host_says_so(service):
    backup = backed_up(service.database)
    lease = attached(service)
    service.leases.change(service.now(lease), life.release, ENGINE)
    service.restore(backup)
    asked = service.answers["g1"]
    assert [each["id"] for each in asked["ends"]] == [lease.uuid]
    service.report("g1", asked=asked)  # its process does not end yet
    service.turn("c1", "c2")
    service.recover()
    assert service.state(lease) is LeaseState.RELEASING
    service.round()
    assert service.claims.read(lease.uuid) is not None
    service.go_on()
    assert (service.state(lease), service.claims.read(lease.uuid)) == (GONE, None)


@on_sqlite
def test_claims_of_no_lease_are_released_when_both_looks_have_found_them(service, capsys):
    lease = attached(service)
    amounts = {service.now(lease).gpu: {REMOTE_GPU_MEMORY_MB: 1, REMOTE_GPU_SHARE: 1}}
    service.restore(backed_up(service.database))
    service.turn()
    consumers = []

    def claimed():
        consumers.append(str(uuid.uuid4()))
        service.claims.write(Claim(consumers[-1], LEASE_CONSUMER, "project-1", "user-1", amounts))

    claimed()
    service.recover(between=claimed)
    assert [service.claims.read(each) is None for each in consumers] == [True, False]
    assert f"RELEASE  claim  {consumers[0]}  of no lease" in capsys.readouterr().out
    assert service.claims.read(lease.uuid) is not None


@pytest.mark.parametrize("known", [False, True])
@on_sqlite
def test_a_gpus_host_that_says_nothing_keeps_its_leases_far_above_what_it_may_serve(
    service, capsys, known
):
    first = backed_up(service.database)
    lease = attached(service)
    backup = backed_up(service.database) if known else first
    service.run(SERVER, "c2")
    service.go_on()
    service.restore(backup)
    service.turn("c1", "c2")
    service.recover()
    shown = capsys.readouterr().out
    assert "LEAVE  host   g1" in shown
    assert service.now(lease).lease.epoch > 1_000_000
    assert service.looks() == 0
    service.go_on()
    assert [epoch for _, epoch in service.attaches("c2")] == [service.now(lease).lease.epoch]
    assert service.now(lease).server == SERVER


@on_sqlite
def test_a_report_of_before_the_restore_tells_nothing(service):
    """The backup has one, in which the host serves nothing."""
    service.report("g1")
    backup = backed_up(service.database)
    lease = attached(service)
    service.restore(backup)
    service.turn("c1", "c2")
    service.recover()
    assert service.now(lease).lease.epoch > 1_000_000


@on_sqlite
def test_a_lease_of_another_release_is_left_alone_with_its_claim(service, capsys):
    lease = attached(service)
    claim = service.claims.read(lease.uuid)
    backup = backed_up(service.database)
    (row,) = backup[tables.lease]
    row["asked"] = {"level": "tin"}
    service.keep()
    restored(service.database, backup)
    Recovery(service.database).begin("restored")
    service.turn()
    service.recover()
    assert f"LEAVE  lease  {lease.uuid}" in capsys.readouterr().out
    assert service.claims.read(lease.uuid) == claim


@on_sqlite
def test_a_commit_that_broke_off_is_done_by_the_next_one(service):
    backup = backed_up(service.database)
    leases = [attached(service, str(uuid.UUID(int=number)), "c1") for number in (1, 2)]
    service.restore(backup)
    service.turn()
    plain, left = service.leases.adopt, [2]

    def dies(*given):
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return plain(*given)

    service.leases.adopt = dies
    with pytest.raises(KeyboardInterrupt):
        service.recover()
    service.leases.adopt = plain
    assert service.recover() == 0
    service.go_on()
    assert [service.state(each) for each in leases] == [ATTACHED, ATTACHED]


def test_what_was_reported_is_forgotten_when_the_service_goes_on(service):
    service.restore(backed_up(service.database))
    service.turn()
    assert service.hosts.all()["g1"].kept is not None
    service.recover()
    service.report("g1")
    assert service.hosts.all()["g1"].kept is None


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "serves, ends, attaches"),
        ({"serves": [{"id": SERVER, "epoch": 1}]}, "gpu, memory_mb, service_level"),
        ({"attaches": [{"id": "x", "epoch": 1, "server_id": SERVER, "api": "opencl", "address": ""}]}, "a uuid"),
    ],
)  # fmt: skip
@on_sqlite
def test_what_a_host_cannot_have_been_asked_is_a_sentence(service, asked, said):
    asked = {"serves": [], "ends": [], "attaches": []} | asked if asked else {}
    answer = service.report("g1", asked=asked)
    assert answer.status_code == 400
    assert said in answer.json["errors"][0]["detail"]


def lives_on(service, draw, servers):
    """Something happens to leases, servers, hosts or the engine."""
    living = service.leases.find(states=LIVING)
    what = draw.choice(["ask", "ask", "release", "run", "run", "stop", "turn", "turn"])
    if what == "ask" and len(living) < 4:
        servers.append(str(uuid.UUID(int=draw.getrandbits(120))))
        service.leases.create("project-1", "user-1", ASKED, servers[-1])
    elif what == "release" and living:
        found = draw.choice(living)
        if found.state is not LeaseState.RELEASING:
            service.leases.change(found, life.release, ENGINE)
    elif what in {"run", "stop"} and servers:
        service.run(draw.choice(servers), draw.choice(["c1", "c2"]) if what == "run" else "")
    else:
        service.go_on(draw.randint(1, 2))


@on_sqlite
@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_lost_and_nothing_is_left_whatever_has_happened_since_the_backup(service, seed):
    draw, servers = random.Random(seed), []
    service.report("g1")
    for _ in range(draw.randint(0, 12)):
        lives_on(service, draw, servers)
    backup = backed_up(service.database)
    for _ in range(draw.randint(1, 12)):
        lives_on(service, draw, servers)
    before = {each.uuid: each for each in service.leases.find()}
    service.restore(backup)
    asked = service.answers["g1"]
    served = {each["id"]: each["epoch"] for each in asked["serves"]}
    heard = draw.random() < 0.7
    service.turn(*(HOSTS if heard else ("c1", "c2")))
    assert service.recover() == 0
    for key, epoch in served.items():
        found = service.now(before[key])
        assert (found.lease.epoch > epoch, found.lease.gpu_host) == (True, "g1")
        assert (found.amounts, found.claimed) == (before[key].amounts, True)
        assert (found.state, found.asked) == (STARTING, ASKED)
    service.go_on(4)
    for key, lease in before.items():
        if key in served and any(lease.server in service.running[each] for each in ("c1", "c2")):
            assert service.state(lease) is ATTACHED
        if lease.state is GONE and heard:
            assert service.now(lease) is None or service.state(lease) is not ATTACHED
    service.looks()
    assert service.held().keys() == {
        each.uuid for each in service.leases.find(states=LIVING) if each.claimed
    }
