# SPDX-License-Identifier: Apache-2.0
"""Agents and the service: a lease is attached where its server runs, over API, engine's rounds and Placement."""

import contextlib
import random
import traceback
import uuid
from collections import Counter
from dataclasses import asdict, replace

import pytest
from sqlalchemy import select, update

from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.leader import Election, NotLeaderError
from nova_numa_ext.orchestrator.store.lease_hosts import LeaseHost
from nova_numa_ext.orchestrator.store.leases import LIVING
from nova_numa_ext.policy.jobs.limits import Limits
from nova_numa_ext.policy.remote_gpu import leases as life
from nova_numa_ext.policy.remote_gpu.choosing import Unmet
from nova_numa_ext.policy.remote_gpu.lease_terms import LeaseTerm
from nova_numa_ext.policy.remote_gpu.leases import LeaseState
from nova_numa_ext.policy.remote_gpu.making_room import RebalanceRules, Rebalancing, UsePolicy
from placement_traits import names, pool_reader
from placement_traits.claim_store import NoRoomError
from placement_traits.claims import emptied
from placement_traits.client import PlacementError
from placement_traits.errors import ServiceUnavailableError
from placement_traits.names import REMOTE_GPU_NETWORK_MBPS, ServiceLevel
from placement_traits.pool_reporter import PoolReporter
from placement_traits.reason import Reason
from placement_traits.request import parse
from tests.support.at_once import at_once
from tests.support.lease_service import ASKED, ENGINE, SERVER, LeaseService, credential
from tests.support.pools import client_nic, movable_pool, pool

HOSTS = ("g1", "c1", "c2")


@pytest.fixture
def service(lending, tmp_path):
    """API, engine's rounds, database and a pool in Placement; hosts report as a test lets them::

    API, LeaseRounds ── leases.db
    └─ Placement with the pool of g1
    """
    return LeaseService(lending, tmp_path)


def test_a_lease_is_attached_where_its_server_runs_and_ends_when_its_host_says_so(service):
    lease = service.leases.create("project-1", "user-1", ASKED, SERVER)
    service.round()
    service.round()
    assert service.state(lease) is LeaseState.RESERVED, "no host serves it: none has reported"
    assert service.report("g1").status_code == 200
    service.round()
    (serves,) = service.ask("g1").json["serves"]
    assert (serves["id"], serves["epoch"], serves["memory_mb"]) == (lease.uuid, 1, 1000)
    assert serves["client_host"] == "", "none may connect yet"
    service.obey()
    assert service.state(lease) is LeaseState.READY
    service.report("c1", servers=[SERVER])
    service.round()
    assert service.state(lease) is LeaseState.READY, "nova has not put it there"
    service.placed[SERVER] = "c1"
    service.round()
    assert service.attaches("c2") == []
    (attach,) = service.ask("c1").json["attaches"]
    assert attach == {
        "id": lease.uuid,
        "epoch": 1,
        "server_id": SERVER,
        "api": "opencl",
        "address": "g1:7000",
        "gpu_host": "g1",
        "network_mbps": 0,
    }
    (serves,) = service.ask("g1").json["serves"]
    assert serves["client_host"] == "c1"
    service.leases.change(service.leases.read(lease.uuid), life.release, ENGINE)
    assert service.attaches("c1") == []
    service.round()
    assert service.claims.read(lease.uuid) is not None, "its process may still run"
    service.obey()
    service.round()
    assert (service.state(lease), service.claims.read(lease.uuid)) == (LeaseState.GONE, None)


def test_a_server_that_moves_gets_its_lease_there_after_the_gpus_host_has_acknowledged(service):
    lease = service.attached()
    service.placed[SERVER] = "c2"
    service.round()
    assert service.attaches("c1") == [(lease.uuid, 1)], "it still runs there"
    service.report("c2", servers=[SERVER])
    for _ in range(3):
        service.round()
        assert (service.attaches("c1"), service.attaches("c2")) == ([], [])
    service.report("g1", serves=[(lease.uuid, 1)])
    service.round()
    assert service.attaches("c2") == [], "an old epoch"
    service.obey()
    service.round()
    assert service.attaches("c2") == [(lease.uuid, 2)]


def test_a_server_that_stops_is_detached_and_attached_again_when_it_starts(service):
    lease = service.attached()
    service.report("c1")
    service.round()
    assert (service.state(lease), service.attaches("c1")) == (LeaseState.DETACHED, [])
    service.obey()
    service.report("c1", servers=[SERVER])
    service.round()
    service.obey()
    service.round()
    assert service.attaches("c1") == [(lease.uuid, 3)]


@pytest.mark.parametrize("hold_s", [None, 600.0])
@pytest.mark.parametrize("lost", [False, True], ids=["", "its GPU's host was silent meanwhile"])
def test_a_stopped_server_keeps_its_gpu_as_long_as_that_is_held_and_gets_another_when_it_runs(
    service, monkeypatch, hold_s, lost
):
    service.hold_s, now = hold_s, service.leases.now
    service.start()
    for _ in range(3):
        service.obey()
        asking(service)
        service.round()
    (lease,) = service.leases.find()
    service.report("c1")
    service.round()
    if lost:
        service.leases.change(service.leases.read(lease.uuid), life.lose, ENGINE)
        service.round()
    service.obey()
    waits = service.state(lease)
    assert waits is (LeaseState.READY if lost else LeaseState.DETACHED)
    monkeypatch.setattr(service.leases, "now", lambda: now() + 500.0)
    service.round()
    assert service.state(lease) is waits
    monkeypatch.setattr(service.leases, "now", lambda: now() + 700.0)
    service.round()
    service.obey()
    service.round()
    if hold_s is None:
        assert service.state(lease) is waits
        return
    assert (service.state(lease), service.claims.read(lease.uuid)) == (LeaseState.GONE, None)
    assert reasons(service, lease)[0][0] == LeaseTerm.STOPPED_LONG
    asking(service)
    service.round()
    (again,) = service.leases.find(states=LIVING)
    assert (again.server, again.claimed) == (SERVER, True)


def test_a_server_that_runs_again_keeps_what_was_held_for_longer_than_it_is(service, monkeypatch):
    """It runs, and no look has been at its lease yet."""
    service.hold_s, now = 600.0, service.leases.now
    service.start()
    lease = service.attached()
    service.report("c1")
    service.round()
    service.obey()
    monkeypatch.setattr(service.leases, "now", lambda: now() + 700.0)
    service.report("c1", servers=[SERVER])
    service.round()
    assert service.state(lease) is LeaseState.STARTING


def test_a_server_that_is_on_no_host_in_two_looks_loses_its_lease(service):
    lease = service.attached()
    service.report("c1")
    service.round()
    assert service.rounds.end_without_server(ENGINE, service.trouble) == 0
    del service.placed[SERVER]
    looks = [service.rounds.end_without_server(ENGINE, service.trouble) for _ in range(2)]
    assert (looks, service.state(lease)) == ([0, 1], LeaseState.RELEASING)


def test_a_server_that_was_evacuated_is_attached_where_it_runs_and_nowhere_while_both_say_so(
    service, monkeypatch
):
    lease = service.attached()
    monkeypatch.setattr(service, "where", lambda _server: frozenset({"c1", "c2"}))
    service.start()
    for host in ("c1", "c2"):
        service.report(host, servers=[SERVER])
    service.round()
    assert service.attaches("c1") == [(lease.uuid, 1)], "who has it keeps it"
    service.report("c1")
    for _ in range(3):
        service.round()
        service.obey()
    assert (service.attaches("c1"), service.attaches("c2")) == ([], [(lease.uuid, 2)])
    service.report("c2")
    service.round()
    assert service.state(lease) is LeaseState.DETACHED
    for host in ("c1", "c2"):
        service.report(host, servers=[SERVER])
    for _ in range(3):
        service.round()
        service.obey()
    assert service.state(lease) is LeaseState.DETACHED, "it is not known which one nova keeps"


@pytest.mark.parametrize(
    "state",
    [LeaseState.RESERVED, LeaseState.STARTING, LeaseState.READY, LeaseState.LOST],
)
def test_a_server_that_is_deleted_frees_the_gpu_whatever_the_state_of_its_lease(service, state):
    """A server that nova may still be placing has a while."""
    lease = service.leases.create("project-1", "user-1", ASKED, SERVER)
    service.round()
    steps = {
        LeaseState.RESERVED: (),
        LeaseState.STARTING: (life.start,),
        LeaseState.READY: (life.start, _served),
        LeaseState.LOST: (life.start, life.lose),
    }
    for step in steps[state]:
        service.leases.change(service.leases.read(lease.uuid), step, ENGINE)
    service.placed[SERVER] = "c1"
    _looks(service, 700.0)
    assert service.state(lease) is state
    del service.placed[SERVER]
    _looks(service, 500.0)
    assert service.state(lease) is state, "it may be built yet"
    _looks(service, 700.0)
    assert service.state(lease) is LeaseState.RELEASING
    service.report("g1")
    service.obey()
    service.round()
    assert (service.state(lease), service.claims.read(lease.uuid)) == (LeaseState.GONE, None)


def _served(lease):
    return life.acknowledge(lease, lease.gpu_host, lease.epoch)


def _looks(service, age_s):
    """Look twice, when leases are so old."""
    now = service.leases.now
    service.leases.now = lambda: now() + age_s
    for _ in range(2):
        service.rounds.end_without_server(ENGINE, service.trouble)
    service.leases.now = now


MEMBER = {
    "X-Identity-Status": "Confirmed",
    "X-User-Id": "user-1",
    "X-Project-Id": "project-1",
    "X-Roles": "member,reader",
}


def test_a_lease_is_attached_to_the_server_that_was_made_with_its_hint(service):
    lease = service.leases.create("project-1", "user-1", ASKED)
    path, body = f"/v1/leases/{lease.uuid}/attach", {"attach": {"server_id": SERVER}}
    service.obey()
    service.placed[SERVER] = "c1"
    for _ in range(2):
        service.round()
    service.obey()
    service.projects[SERVER] = "project-2"
    answer = service.client.post(path, json=body, headers=MEMBER)
    assert (answer.status_code, "a server of the lease's project" in answer.text) == (400, True)
    del service.projects[SERVER]
    foreign = MEMBER | {"X-Project-Id": "project-2"}
    assert service.client.post(path, json=body, headers=foreign).status_code == 404
    reader = MEMBER | {"X-Roles": "reader"}
    assert service.client.post(path, json=body, headers=reader).status_code == 403
    assert service.client.post(path, json={"attach": {}}, headers=MEMBER).status_code == 400
    for _ in range(2):
        answer = service.client.post(path, json=body, headers=MEMBER)
        assert (answer.status_code, answer.json["lease"]["server_id"]) == (202, SERVER)
    other = {"attach": {"server_id": str(uuid.uuid4())}}
    answer = service.client.post(path, json=other, headers=MEMBER)
    assert (answer.status_code, f"is for server {SERVER}" in answer.text) == (409, True)
    service.report("c1", servers=[SERVER])
    service.round()
    assert service.attaches("c1") == [(lease.uuid, 1)]


def test_a_lease_that_ends_is_attached_to_none(service):
    lease = service.leases.create("project-1", "user-1", ASKED)
    service.leases.change(service.leases.read(lease.uuid), life.release, ENGINE)
    body = {"attach": {"server_id": SERVER}}
    answer = service.client.post(f"/v1/leases/{lease.uuid}/attach", json=body, headers=MEMBER)
    assert answer.status_code == 409


def test_a_lease_for_a_server_of_another_project_is_refused(service):
    """Its owner would get a GPU that is not accounted to it, and could be cut off by another's release."""
    service.projects[SERVER] = "project-2"
    body = {"lease": {"memory_mb": 1000, "api": "opencl", "server_id": SERVER}}
    admin = MEMBER | {"X-Roles": "admin,member"}
    answer = service.client.post("/v1/leases", json=body, headers=admin)
    assert (answer.status_code, "a server of the lease's project" in answer.text) == (400, True)
    assert service.leases.find() == []


def test_a_lease_runs_on_without_the_service_and_is_lost_only_where_others_report(service):
    lease = service.attached()
    silent = service.hosts.all()["g1"]
    service.round()
    for reports, expected in ((1, LeaseState.ATTACHED), (8, LeaseState.LOST)):
        for _ in range(reports):
            service.now_s += 3600.0
            service.rounds._hosts = lambda: service.reported() | {"g1": silent}
            service.round()
        assert service.state(lease) is expected
    service.rounds._hosts = service.reported
    service.now_s += 1.0
    service.round()
    assert service.attaches("c1") == []
    service.obey()
    service.round()
    assert service.attaches("c1") == [(lease.uuid, 3)]


@pytest.fixture
def lost(service):
    """A lease that was attached, and whose GPU's host is silent; another host lends the same::

    rgpu:g1   its host g1 silent for nine hours, the lease on its GPU is LOST
    rgpu:g2   as rgpu:g1, all free
    c1        where the lease's server runs
    """
    lease = service.attached()
    PoolReporter(service.client_of_placement).sync(pool("g2"))
    silent = service.hosts.all()["g1"]
    service.rounds._hosts = lambda: service.reported() | {"g1": silent}
    for _ in range(9):
        service.now_s += 3600.0
        service.round()
    assert service.state(lease) is LeaseState.LOST
    yield lease
    service.forget()
    PoolReporter(service.client_of_placement).remove("g2")


def _requeue(service, lease, who=None):
    return service.client.post(f"/v1/leases/{lease.uuid}/requeue", headers=who or MEMBER)


def test_a_lost_lease_is_asked_for_again_and_gets_a_gpu_of_another_host(service, lost):
    """What it held stays held until its host is back and serves it no more."""
    answer = _requeue(service, lost)
    assert (answer.status_code, answer.json["lease"]["server_id"]) == (202, SERVER)
    assert _requeue(service, lost).json == answer.json, "once, however often it is asked"
    heir = service.leases.read(answer.json["lease"]["id"])
    assert (service.state(lost), heir.asked) == (LeaseState.RELEASING, ASKED)
    service.report("g2")
    for _ in range(3):
        service.round()
        service.obey("g2")
    assert service.leases.read(heir.uuid).lease.gpu_host == "g2"
    service.report("c1", servers=[SERVER])
    service.round()
    assert service.attaches("c1") == [(heir.uuid, 1)]
    for _ in range(3):
        service.round()
    assert (service.state(lost), service.claims.read(lost.uuid) is None) == (
        LeaseState.RELEASING,
        False,
    )
    (ends,) = service.ask("g1").json["ends"]
    assert ends["id"] == lost.uuid
    service.obey("g1")
    service.round()
    assert (service.state(lost), service.claims.read(lost.uuid)) == (LeaseState.GONE, None)
    assert _requeue(service, lost).json["lease"]["id"] == heir.uuid


def test_no_gpu_of_a_silent_host_is_chosen(service, lost):
    """It has room for one, and the other for two."""
    fresh = [service.leases.create("project-1", "user-1", ASKED) for _ in range(3)]
    service.report("g2")
    for _ in range(2):
        service.round()
    hosts = [service.leases.read(each.uuid).lease.gpu_host for each in fresh]
    assert hosts == ["g2", "g2", ""]
    bound = service.leases.create("project-1", "user-1", replace(ASKED, pool="g1"))
    service.round()
    assert not service.leases.read(bound.uuid).claimed


def test_an_engine_that_takes_over_gives_nothing_to_a_host_that_was_silent_before(service, lost):
    """Nor is what was lost started there again; when the host reports, both are."""
    service.report("g2")
    reported = service.reported() | {"g1": service.rounds._hosts()["g1"]}
    service.start()
    service.rounds._hosts = lambda: reported
    bound = service.leases.create("project-1", "user-1", replace(ASKED, pool="g1"))
    for _ in range(2):
        service.round()
    assert service.state(lost) is LeaseState.LOST
    assert not service.leases.read(bound.uuid).claimed
    reported["g1"] = replace(reported["g1"], seen_at=reported["g2"].seen_at)
    service.round()
    assert service.state(lost) is LeaseState.STARTING
    assert service.leases.read(bound.uuid).claimed


@pytest.mark.parametrize(
    ("case", "said"),
    [("attached", "is attached; only one that is lost"), ("bound", "was asked for of one host")],
)
def test_a_lease_that_would_gain_nothing_is_not_asked_for_again(service, case, said):
    if case == "attached":
        lease = service.attached()
    else:
        lease = service.leases.create("project-1", "user-1", replace(ASKED, pool="g1"))
        for step in (life.start, life.lose):
            lease = service.leases.change(lease, step, ENGINE)
    before = service.leases.find()
    answer = _requeue(service, lease)
    assert (answer.status_code, said in answer.text) == (409, True)
    assert _requeue(service, lease, MEMBER | {"X-Project-Id": "project-2"}).status_code == 404
    assert _requeue(service, lease, MEMBER | {"X-Roles": "reader"}).status_code == 403
    assert service.leases.find() == before


@pytest.mark.parametrize("stored", [{"asked": {"level": "tin"}}, {"state": "paused"}])
def test_hosts_of_a_lease_of_another_release_learn_nothing_and_go_on(service, stored):
    """A host ends what an answer does not name."""
    lease = service.attached()
    seen_at = service.hosts.all()["g1"].seen_at
    (column,) = stored
    mine = tables.lease.c.uuid == lease.uuid

    def store(**what):
        with service.leases._database.transaction() as connection:
            before = connection.execute(select(tables.lease.c[column]).where(mine)).scalar_one()
            connection.execute(tables.lease.update().where(mine).values(**what))
        return {column: before}

    known = store(**stored)
    for host in ("g1", "c1"):
        assert service.ask(host).status_code == 503
    assert service.report("g1").status_code == 503
    assert service.hosts.all()["g1"].seen_at >= seen_at
    assert not any(service.ask("c2").json.values())
    store(**known)
    assert service.attaches("c1") == [(lease.uuid, 1)]


@pytest.mark.parametrize("asked", HOSTS)
@pytest.mark.parametrize("who", HOSTS)
def test_a_host_reads_and_reports_itself_and_no_other(service, who, asked):
    lease = service.attached()
    before = service.leases.read(lease.uuid), service.hosts.all()
    expected = 200 if who == asked else 403
    assert service.ask(asked, who=who).status_code == expected
    answer = service.report(asked, serves=[(lease.uuid, 1)], servers=[SERVER], who=who)
    assert answer.status_code == expected
    if who != asked:
        assert (service.leases.read(lease.uuid), service.hosts.all()) == before
        assert lease.uuid not in answer.get_data(as_text=True)


@pytest.mark.parametrize("role", ["reader", "member", "service", ""])
def test_the_name_of_a_hosts_user_without_its_role_reports_nothing(service, role):
    answer = service.client.post("/v1/hosts/g1/leases", headers=credential("g1", role))
    assert answer.status_code == 403


@pytest.mark.parametrize(
    "foreign",
    [
        {"X-User-Domain-Id": "other"},
        {"X-Project-Domain-Id": "other"},
        {"X-Project-Name": "mine"},
        {"X-Project-Name": "", "X-Project-Id": ""},
        {"X-User-Name": "numa-ext-host-g10"},
        {"X-User-Name": "g1"},
    ],
)
def test_a_user_that_is_only_called_like_a_hosts_reads_and_reports_nothing(service, foreign):
    """Who may make users, or give roles, in a domain or a project of their own is no host by it."""
    sent = credential("g1") | foreign
    whole = {"report": {"serves": [], "ended": [], "servers": []}}
    for answer in (
        service.client.get("/v1/hosts/g1/leases", headers=sent),
        service.client.post("/v1/hosts/g1/leases", json=whole, headers=sent),
    ):
        assert answer.status_code == 403
    assert service.hosts.all() == {}


def test_what_has_not_changed_is_not_sent_again(service):
    service.attached()
    tag = service.ask("c1").headers["ETag"]
    again = service.ask("c1", **{"If-None-Match": tag})
    assert (again.status_code, again.data) == (304, b"")
    service.report("c1")
    service.round()
    assert service.ask("c1", **{"If-None-Match": tag}).status_code == 200


def test_a_report_acknowledges_only_what_its_host_was_to_do(service):
    """A GPU's host that reports a lease of another, an epoch that never was, or an end that nobody asked for."""
    lease = service.attached()
    before = service.leases.read(lease.uuid)
    service.report("c2", serves=[(lease.uuid, 9)], ended=[(lease.uuid, 9)])
    service.report("g1", ended=[(lease.uuid, 2)])
    service.report("g1", serves=[(lease.uuid, 9)])
    assert service.leases.read(lease.uuid).lease == before.lease
    service.leases.change(before, life.release, ENGINE)
    service.report("g1", serves=[(lease.uuid, 2)])
    service.round()
    assert service.state(lease) is LeaseState.RELEASING


def test_a_lease_whose_process_is_gone_is_attached_at_a_newer_epoch_when_that_is_acknowledged(
    service,
):
    lease = service.attached()
    (serves,) = service.report("g1", ended=[(lease.uuid, 1)]).json["serves"]
    assert (serves["epoch"], service.attaches("c1")) == (2, [])
    service.report("g1", ended=[(lease.uuid, 1)])
    service.round()
    assert (service.state(lease), service.attaches("c1")) == (LeaseState.STARTING, [])
    service.obey()
    service.round()
    assert service.attaches("c1") == [(lease.uuid, 2)]


def test_a_host_that_does_not_know_its_servers_keeps_what_it_reported(service):
    lease = service.attached()
    whole = {"report": {"serves": [], "ended": [], "servers": None}}
    answer = service.client.post("/v1/hosts/c1/leases", json=whole, headers=credential("c1"))
    assert answer.status_code == 200
    service.round()
    assert service.state(lease) is LeaseState.ATTACHED
    service.client.post("/v1/hosts/c9/leases", json=whole, headers=credential("c9"))
    assert service.hosts.all()["c9"].servers == frozenset()


def test_a_report_that_says_nothing_new_is_not_written_again(service):
    service.report("c1", servers=[SERVER])
    first = service.hosts.all()["c1"]
    service.report("c1", servers=[SERVER])
    assert service.hosts.all()["c1"] == first
    service.report("c1")
    assert service.hosts.all()["c1"] == LeaseHost(
        "c1", service.hosts.all()["c1"].seen_at, frozenset()
    )


def off(service, host="g1", roles="admin"):
    """Say as an operator that a host is off."""
    who = MEMBER | {"X-Roles": roles}
    return service.client.post(f"/v1/hosts/{host}/off", headers=who)


def silent(service, host="g1", seconds=61):
    """Let a host have reported some time ago."""
    with service.database.transaction() as connection:
        mine = update(tables.lease_host).where(tables.lease_host.c.host == host)
        connection.execute(mine.values(seen_at=tables.lease_host.c.seen_at - seconds))


def test_leases_of_a_host_that_is_off_go_on_elsewhere(service, placement):
    """In each state: in use, being released, of that host only, and one that waits."""
    used, small = service.attached(), replace(ASKED, level=ServiceLevel.SCAVENGER)
    ending, named, waiting = (
        service.leases.create("project-1", "user-1", asked, str(uuid.uuid4()))
        for asked in (small, replace(small, pool="g1"), replace(ASKED, memory_mb=9000))
    )
    service.round()
    service.obey()
    service.leases.change(service.leases.read(ending.uuid), life.release, ENGINE)
    silent(service)
    PoolReporter(placement.client).sync(pool("g2"))
    service.rounds._silence.is_lost = lambda host: host == "g1"
    answer = off(service)
    assert answer.status_code == 200
    service.report("g2")
    for _ in range(3):
        service.report("c1", servers=[SERVER])
        service.round()
        service.obey("g2")
    assert {service.state(each) for each in (used, ending)} == {LeaseState.GONE}
    assert [service.claims.read(each.uuid) for each in (used, ending)] == [None, None]
    *_, heir = (each for each in service.leases.find() if each.server == SERVER)
    assert (heir.state, heir.lease.gpu_host) == (LeaseState.ATTACHED, "g2")
    assert "is off" in service.client.get(f"/v1/leases/{used.uuid}", headers=MEMBER).text
    ended = {each["id"] for each in answer.json["leases"]}
    assert ended == {used.uuid, ending.uuid, named.uuid}
    assert waiting.uuid not in ended, "it holds nothing"
    assert not ended & {each["id"] for each in off(service).json["leases"]}, "once"
    replaced = [each.value for each in service.leases.read(named.uuid).reasons]
    assert replaced == [""], "it can be had of that host only: it is not asked for again"


def test_a_host_that_reports_is_not_off(service):
    lease = service.attached()
    refused = off(service)
    assert (refused.status_code, off(service, "g7").status_code) == (409, 404)
    assert "it is on. Turn it off, and wait until it has been silent for 60 s." in refused.text
    assert service.state(lease) is LeaseState.ATTACHED


@pytest.mark.parametrize("roles", ["reader", "member,reader", "numa_ext_host", "service"])
def test_only_administrators_say_that_a_host_is_off(service, roles):
    lease = service.attached()
    silent(service)
    assert off(service, roles=roles).status_code == 403
    assert service.state(lease) is LeaseState.ATTACHED


@pytest.fixture
def moving(service, placement):
    """A lease, and another GPU to which it can go::

    c1, the server's host ── rgpu:g1:gpu-a    the lease
                             rgpu:g2:gpu-a    free
    """
    found = service.attached()
    PoolReporter(placement.client).sync(pool("g2"))
    service.report("g2")
    return found


def move(service, lease, roles="admin", pool=""):
    who = MEMBER | {"X-Roles": roles}
    return service.client.post(
        f"/v1/leases/{lease.uuid}/move", json={"move": {"pool": pool}}, headers=who
    )


def gpus_held(service, consumer):
    """Providers of GPUs that a consumer holds something of."""
    held = service.claims.read(consumer)
    gpus = {gpu.uuid for lent in service.lent() for gpu in lent.gpus}
    return set() if held is None else gpus & held.amounts.keys()


def test_a_lease_moves_to_another_gpu_and_holds_both_until_its_source_has_ended_it(service, moving):
    source = moving_now = service.leases.read(moving.uuid)
    assert move(service, moving, pool="g2").status_code == 202
    service.round()
    service.round()
    moving_now = service.leases.read(moving.uuid)
    second = moving_now.move.second
    assert (moving_now.state, moving_now.lease.gpu_host) == (LeaseState.MOVING, "g1")
    assert gpus_held(service, moving.uuid) == {moving_now.gpu} != {source.gpu}
    assert gpus_held(service, second) == {source.gpu}
    assert service.attaches("c1") == [], "its client is cut"
    for _ in range(2):
        service.round()
    assert service.state(moving) is LeaseState.MOVING, "the source has not acknowledged"
    service.obey("g1")
    service.round()
    now = service.leases.read(moving.uuid)
    assert (now.state, now.lease.gpu_host, now.move) == (LeaseState.STARTING, "g2", None)
    assert service.claims.read(second) is None
    service.obey("g2")
    service.round()
    assert service.attaches("c1") == [(moving.uuid, now.lease.epoch)]
    assert service.ask("g1").json["serves"] == []


def crowded(service, placement, mode, unmet=Unmet.WAIT, **rules):
    """Leases of two servers, of half a GPU each, on the only two GPUs, and a gold one that waits."""
    for host in ("g1", "g2"):
        PoolReporter(placement.client).sync(movable_pool(host))
        service.report(host)
    service.rebalance = RebalanceRules(mode, **rules)
    service.start()
    service.placed |= {SERVER: "c1", OTHER: "c1"}
    service.report("c1", servers=[SERVER, OTHER])
    asked = replace(ASKED, migratable=True)
    for server in (SERVER, OTHER):
        service.leases.create("project-1", "user-1", asked, server)
    turns(service, 3)
    return service.leases.create("project-2", "user-2", replace(GOLD, unmet=unmet))


GOLD = replace(ASKED, memory_mb=4000, level=ServiceLevel.GOLD)


def turns(service, count):
    for _ in range(count):
        service.round()
        for host in ("g1", "g2", "g3"):
            service.obey(host)
    service.round()


def reasons(service, lease):
    return [(each.term, each.value) for each in service.leases.read(lease.uuid).reasons]


def levels(service):
    """Of the leases of each GPU that is used."""
    found = {}
    for each in service.leases.find(states=LIVING):
        if each.claimed:
            found.setdefault(each.gpu, []).append(each.asked.level.value)
    return sorted(map(sorted, found.values()))


APART, TOGETHER = [["silver"], ["silver"]], [["gold"], ["silver", "silver"]]


@pytest.mark.parametrize("mode", Rebalancing)
def test_a_lease_makes_room_for_one_that_waits_where_that_is_asked_for(service, placement, mode):
    gold = crowded(service, placement, mode)
    assert levels(service) == APART
    service.round()
    said = {"off": [], "observe": [("room_by_moves", 1)], "enforce": [("moves_for_it", 1)]}
    assert reasons(service, gold) == [("no_gpu", "opencl"), *said[mode]]
    turns(service, 4)
    if mode is not Rebalancing.ENFORCE:
        assert levels(service) == APART
        assert reasons(service, gold) == [("no_gpu", "opencl"), *said[mode]]
        return
    assert levels(service) == TOGETHER
    assert {each.state for each in service.leases.find() if each.server} == {LeaseState.ATTACHED}
    assert [each.moved_at is not None for each in service.leases.find()].count(True) == 1


@pytest.mark.parametrize(("cool_down_s", "moves"), [(0.0, 2), (3600.0, 0)])
def test_few_leases_move_in_a_minute_and_none_twice_in_its_cool_down(
    service, placement, cool_down_s, moves
):
    """Two of one GPU could go to two others, where small ones are that stay; one of the two has moved before."""
    rules = {"moves_per_minute": 2, "cool_down_s": cool_down_s}
    gold = crowded(service, placement, Rebalancing.ENFORCE, **rules)
    turns(service, 4)
    assert levels(service) == TOGETHER
    service.leases.change(service.leases.read(gold.uuid), life.release, ENGINE)
    turns(service, 2)
    PoolReporter(placement.client).sync(movable_pool("g3"))
    (full,) = {each.lease.gpu_host for each in service.leases.find() if each.server}
    for host in {"g1", "g2", "g3"} - {full}:
        service.leases.create("project-2", "user-2", replace(ASKED, pool=host))
    turns(service, 2)
    again = service.leases.create("project-2", "user-2", gold.asked)
    turns(service, 2)
    one_in_a_minute = [("room_by_moves", 2)] * (moves > 0)
    assert reasons(service, again) == [("no_gpu", "opencl"), *one_in_a_minute]
    with service.database.transaction() as connection:
        earlier = tables.lease.c.moved_at - 61.0
        connection.execute(update(tables.lease).values(moved_at=earlier))
    turns(service, 4)
    both = [["gold"], *[["silver", "silver"]] * 2]
    assert levels(service) == (both if moves else [["silver"], ["silver"], ["silver", "silver"]])


def test_nothing_moves_for_one_that_ends_where_none_has_room(service, placement):
    gold = crowded(service, placement, Rebalancing.ENFORCE, Unmet.STOP)
    service.round()
    assert service.state(gold) is LeaseState.RELEASING
    assert [each.move for each in service.leases.find()] == [None] * 3
    turns(service, 2)
    assert levels(service) == APART


def test_leases_that_have_moved_and_ended_count_in_their_minute(service, placement):
    crowded(service, placement, Rebalancing.ENFORCE)
    turns(service, 4)
    (moved,) = (each for each in service.leases.find() if each.moved_at is not None)
    service.leases.change(moved, life.release, ENGINE)
    turns(service, 2)
    assert service.state(moved) is LeaseState.GONE
    assert (service.leases.moved_lately(60.0), service.leases.moved_lately(0.0)) == (1, 0)


def test_a_round_without_leases_that_wait_asks_for_the_time_once(service, monkeypatch):
    asked, now = [], service.leases.now
    monkeypatch.setattr(service.leases, "now", lambda: asked.append(1) or now())
    service.round()
    assert len(asked) == 1


def half_used(service, placement, mode=Rebalancing.ENFORCE, **rules):
    """Leases of two servers, of half a GPU each, on the only two GPUs; returns their rows by the GPU's host."""
    for host in ("g1", "g2"):
        PoolReporter(placement.client).sync(movable_pool(host))
        service.report(host)
    rules = {"by_use": UsePolicy.CONSOLIDATE} | rules
    service.rebalance = RebalanceRules(mode, **rules)
    service.start()
    service.placed |= {SERVER: "c1", OTHER: "c1"}
    service.report("c1", servers=[SERVER, OTHER])
    for server in (SERVER, OTHER):
        asked = replace(ASKED, migratable=True)
        service.leases.create("project-1", "user-1", asked, server)
    turns(service, 3)
    found = {each.lease.gpu_host: each for each in service.leases.find()}
    assert found.keys() == {"g1", "g2"}
    return found


def work(service, busy, by=None):
    """Let hosts report how busy leases have kept their GPUs: lease -> part; and the engine look.

    :param by: the host that says so; None: each of its own
    """
    leases = [service.leases.read(uuid) for uuid in busy]
    for host in {by or each.lease.gpu_host for each in leases}:
        (asked,) = [service.ask(host).json]
        serves = [
            {"id": each["id"], "epoch": each["epoch"], "address": f"{host}:7000"}
            | ({"busy": busy[each["id"]]} if each["id"] in busy else {})
            for each in asked["serves"]
        ]
        foreign = busy.keys() - {each["id"] for each in serves}
        serves += [
            {"id": each, "epoch": 1, "address": f"{host}:7000", "busy": busy[each]}
            for each in foreign
        ]
        with (
            service.database.transaction() as connection
        ):  # a report is stored each few seconds only
            connection.execute(update(tables.lease_host).values(seen_at=0.0))
        body = {"report": {"serves": serves, "ended": [], "servers": []}}
        path = f"/v1/hosts/{host}/leases"
        assert service.client.post(path, json=body, headers=credential(host)).status_code == 200
    service.now_s += 15.0
    service.round()


@pytest.mark.parametrize("mode", Rebalancing)
def test_leases_move_by_how_busy_their_gpus_are_where_that_is_asked_for(
    service, placement, mode, caplog
):
    caplog.set_level("INFO")
    there = half_used(service, placement, mode)
    cold, warm = there["g1"], there["g2"]
    for _ in range(3):
        work(service, {cold.uuid: 0.1, warm.uuid: 0.6})
    said = caplog.text.count("by consolidate these leases would move")
    assert said == (mode is Rebalancing.OBSERVE), "once"
    if mode is not Rebalancing.ENFORCE:
        assert [each.move for each in service.leases.find()] == [None, None]
        return
    now = service.leases.read(cold.uuid)
    assert (now.state, now.gpu) == (LeaseState.MOVING, warm.gpu)
    turns(service, 3)
    now = {each.uuid: each for each in service.leases.find()}
    assert [each.state for each in now.values()] == [LeaseState.ATTACHED] * 2
    assert {each.gpu for each in now.values()} == {warm.gpu}
    assert (now[warm.uuid].moved_at, now[warm.uuid].lease.epoch) == (None, warm.lease.epoch)
    assert gpus_held(service, cold.uuid) == {warm.gpu}


def test_how_busy_a_lease_is_its_owner_reads_and_of_others_leases_a_host_says_nothing(
    service, placement
):
    there = half_used(service, placement, Rebalancing.OFF)
    mine, other = there["g1"].uuid, there["g2"].uuid
    owner = MEMBER | {"X-Project-Id": "project-1"}

    def shown():
        found = service.client.get("/v1/leases", headers=owner).json["leases"]
        listed = {each["id"]: each["busy"] for each in found}
        for lease, busy in listed.items():
            answer = service.client.get(f"/v1/leases/{lease}", headers=owner)
            assert answer.json["lease"]["busy"] == busy
        return listed

    assert shown() == {mine: None, other: None}
    work(service, {mine: 0.25, other: 0.5}, by="g1")
    assert shown() == {mine: 0.25, other: None}


def test_memory_and_link_of_a_lease_are_what_its_host_reports(service, placement):
    """As its owner reads them, until the host says nothing of them any more."""
    lease = half_used(service, placement, Rebalancing.OFF)["g1"]
    said = {"id": lease.uuid, "epoch": lease.lease.epoch, "address": "g1:7000"}
    owner = MEMBER | {"X-Project-Id": "project-1"}

    def shown(**figures):
        with (
            service.database.transaction() as connection
        ):  # a report is stored each few seconds only
            connection.execute(update(tables.lease_host).values(seen_at=0.0))
        body = {"report": {"serves": [said | figures], "ended": [], "servers": []}}
        answer = service.client.post("/v1/hosts/g1/leases", json=body, headers=credential("g1"))
        assert answer.status_code == 200
        found = service.client.get(f"/v1/leases/{lease.uuid}", headers=owner).json["lease"]
        return found["used_mb"], found["link_mbps"]

    assert shown() == (None, None)
    assert shown(used_mb=512.25, link_mbps=3.5) == (512.25, 3.5)
    assert shown(used_mb=0.0) == (0.0, None)
    assert shown() == (None, None)


@pytest.mark.parametrize(
    ("busy", "by"),
    [
        ({"g1": 0.1}, None),  # of g2 nothing is known
        ({"g1": 0.4, "g2": 0.7}, None),  # together more than one GPU has
        ({"g1": 0.1, "g2": 0.6}, "g1"),  # a host says it of another one's lease
    ],
)
def test_nothing_moves_by_use_that_is_not_known_or_too_much(service, placement, busy, by):
    there = half_used(service, placement)
    for _ in range(2):
        work(service, {there[host].uuid: part for host, part in busy.items()}, by)
    assert [each.move for each in service.leases.find()] == [None, None]


def test_nothing_moves_by_use_while_a_lease_waits(service, placement):
    there = half_used(service, placement)
    busy = {there["g1"].uuid: 0.1, there["g2"].uuid: 0.6}
    large = replace(ASKED, memory_mb=9000)
    waits = service.leases.create("project-2", "user-2", large)
    work(service, busy)
    assert [each.move for each in service.leases.find()] == [None] * 3
    service.leases.change(service.leases.read(waits.uuid), life.release, ENGINE)
    turns(service, 1)
    work(service, busy)
    assert service.leases.read(there["g1"].uuid).move is not None


def test_a_lease_that_has_moved_by_use_rests_and_few_move_in_a_minute(service, placement):
    there = half_used(service, placement, by_use=UsePolicy.BALANCE, moves_per_minute=1)
    first = there["g1"]
    assert move(service, first, pool="g2").status_code == 202
    turns(service, 4)
    assert {each.lease.gpu_host for each in service.leases.find()} == {"g2"}
    busy = {there["g1"].uuid: 0.4, there["g2"].uuid: 0.6}
    work(service, busy)
    assert [each.move for each in service.leases.find()] == [None, None], "one has just moved"
    with service.database.transaction() as connection:
        earlier = tables.lease.c.moved_at - 61.0
        connection.execute(update(tables.lease).values(moved_at=earlier))
    work(service, busy)
    moving = [each.uuid for each in service.leases.find() if each.move is not None]
    assert moving == [there["g2"].uuid], "the other one rests"


def test_a_lease_of_higher_priority_gets_the_faster_gpu_and_who_has_it_makes_room(
    service, placement
):
    """F-002-84 and 85: g2 has the fast GPU, of which a lease without priority holds the half that another lacks."""
    found = []
    service.placed |= {SERVER: "c1", OTHER: "c1"}
    service.report("c1", servers=[SERVER, OTHER])
    servers = {"g1": (SERVER, 5), "g2": (OTHER, 0)}
    for host, model in (("g1", "k20"), ("g2", "p100"), ("g3", "k20")):
        lends = movable_pool(host)
        gpu = replace(lends.gpus[0], traits=frozenset({names.gpu_model(model)}))
        PoolReporter(placement.client).sync(replace(lends, gpus=(gpu,)))
        service.report(host)
        if host in servers:
            server, priority = servers[host]
            asked = replace(GOLD, migratable=True, priority=priority)
            found.append(service.leases.create("project-1", "user-1", asked, server))
        turns(service, 3)
    speeds = {"k20": 100, "p100": 338}
    service.rebalance = RebalanceRules(Rebalancing.ENFORCE, by_use=UsePolicy.PROMOTE, speeds=speeds)
    service.start()

    def where():
        return [service.leases.read(each.uuid).lease.gpu_host for each in found]

    assert where() == ["g1", "g2"]
    for _ in range(2):
        service.now_s += 15.0
        turns(service, 4)
    assert where() == ["g2", "g3"]
    assert {each.state for each in service.leases.find()} == {LeaseState.ATTACHED}


@pytest.fixture
def two_to_move(service, placement):
    """A gold lease waits for a whole GPU, for which both leases of g1 have to go::

    rgpu:g1:gpu-a    silver, silver    may be moved
    rgpu:g2:gpu-a    silver            stays
    rgpu:g3:gpu-a    silver            stays
    """
    service.rebalance = RebalanceRules(Rebalancing.ENFORCE, moves_per_minute=2)
    service.start()
    service.placed |= {SERVER: "c1", OTHER: "c1"}
    service.report("c1", servers=[SERVER, OTHER])
    lend = PoolReporter(placement.client).sync
    lend(movable_pool("g1"))
    service.report("g1")
    for server in (SERVER, OTHER):
        service.leases.create("project-1", "user-1", replace(ASKED, migratable=True), server)
    turns(service, 3)
    for host in ("g2", "g3"):
        lend(movable_pool(host))
        service.report(host)
        service.leases.create("project-2", "user-2", replace(ASKED, pool=host))
    turns(service, 2)
    assert levels(service) == [["silver"], ["silver"], ["silver", "silver"]]
    return service.leases.create("project-2", "user-2", GOLD)


def test_what_one_leaves_is_given_to_nobody_else_while_another_goes_whichever_engine_leads(
    service, two_to_move
):
    """The host of the second has not ended it yet; another engine leads, and a half of the GPU is asked for."""
    service.round()
    assert reasons(service, two_to_move) == [("no_gpu", "opencl"), ("moves_for_it", 2)]
    service.round()
    first, second = service.ask("g1").json["ends"]
    service.report("g1", ended=[(first["id"], first["epoch"])])
    service.start()
    late = service.leases.create("project-3", "user-3", replace(ASKED, pool="g1", priority=9))
    for _ in range(2):
        service.round()
    assert service.leases.read(first["id"]).move is None
    assert service.leases.read(second["id"]).move is not None
    assert service.leases.read(late.uuid).gpu == ""
    assert reasons(service, late) == [("in_order", "")]
    assert reasons(service, two_to_move) == [("no_gpu", "opencl"), ("moves_for_it", 1)]
    service.start()
    turns(service, 4)
    gold = service.leases.read(two_to_move.uuid)
    assert (gold.claimed, gold.lease.gpu_host, gold.room) == (True, "g1", {})
    assert levels(service) == [["gold"], ["silver", "silver"], ["silver", "silver"]]


def test_room_is_kept_no_longer_than_a_lease_moves_for_it(service, two_to_move):
    service.round()
    assert service.leases.read(two_to_move.uuid).room != {}
    refused = (Reason(LeaseTerm.NO_MOVE, ""),)
    for each in service.leases.find(states=[LeaseState.ATTACHED]):
        service.leases.plan_move(each, None, ENGINE, refused)
    service.round()
    assert service.leases.read(two_to_move.uuid).room == {}
    assert reasons(service, two_to_move) == [("no_gpu", "opencl")]


def test_all_leases_of_a_plan_begin_to_move_or_none(service, two_to_move, monkeypatch):
    """The second has changed since it was read."""
    leases, lately = service.leases, service.leases.moved_lately
    attached = leases.find(states=[LeaseState.ATTACHED])

    def changed(seconds):
        leases.plan_move(attached[1], None, ENGINE)
        return lately(seconds)

    monkeypatch.setattr(leases, "moved_lately", changed)
    service.round()
    assert [each.move for each in leases.find()] == [None] * 5
    assert leases.read(two_to_move.uuid).room == {}
    monkeypatch.setattr(leases, "moved_lately", lately)
    service.round()
    assert [each.move is not None for each in leases.find()].count(True) == 2


def test_what_a_move_left_stays_until_its_host_reports_where_an_older_database_was_restored(
    service, moving
):
    """The backup was made before the move: no row knows of the second consumer, and the source may serve on."""
    before = service.leases.read(moving.uuid)
    move(service, moving, pool="g2")
    service.round()
    service.round()
    second = service.leases.read(moving.uuid).move.second
    with service.database.transaction() as connection:
        mine = update(tables.lease).where(tables.lease.c.uuid == moving.uuid)
        connection.execute(mine.values(state=before.state, move=None, epoch=before.lease.epoch))
    for _ in range(3):
        service.rounds.look(lambda: None, service.trouble)
    assert gpus_held(service, second) == {before.gpu}, "g1 has said nothing"
    service.report("g1", servers=[OTHER])  # something new, which is stored at once
    service.rounds.look(lambda: None, service.trouble)
    assert service.claims.read(second) is None


def test_a_move_that_is_refused_leaves_lease_and_placement_as_they_are(service, moving, placement):
    before = service.claims.read(moving.uuid).amounts
    whole = replace(ASKED, memory_mb=8000, level=ServiceLevel.GOLD, pool="g2")
    service.leases.create("project-1", "user-1", whole)
    service.round()
    move(service, moving)
    service.round()
    now = service.leases.read(moving.uuid)
    assert (now.state, now.move, str(now.reasons[0])) == (LeaseState.ATTACHED, None, "no_move=")
    assert service.claims.read(moving.uuid).amounts == before
    assert service.attaches("c1") != []


def test_a_move_that_placement_refuses_is_none(service, moving, monkeypatch):
    before = service.claims.read(moving.uuid).amounts
    move(service, moving)
    service.round()

    def full(*_claims, **_more):
        raise NoRoomError("it", 409, "", "")

    monkeypatch.setattr(service.claims, "write", full)
    service.round()
    monkeypatch.undo()
    now = service.leases.read(moving.uuid)
    assert (now.state, now.move) == (LeaseState.ATTACHED, None)
    assert service.claims.read(moving.uuid).amounts == before


@pytest.mark.parametrize("gone", ["lent no more", "silent"])
def test_a_move_to_a_gpu_that_has_gone_is_none(service, moving, placement, gone):
    before = service.claims.read(moving.uuid).amounts
    move(service, moving)
    service.round()
    assert service.leases.read(moving.uuid).move.second
    if gone == "silent":
        service.rounds._silence.is_lost = lambda host: host == "g2"
    else:
        PoolReporter(placement.client).remove("g2")
    service.round()
    now = service.leases.read(moving.uuid)
    assert (now.state, now.move, str(now.reasons[0])) == (LeaseState.ATTACHED, None, "no_move=")
    assert service.claims.read(moving.uuid).amounts == before


def test_a_move_of_a_lease_whose_claim_was_taken_away_is_none(service, moving):
    before = service.claims.read(moving.uuid)
    move(service, moving)
    service.round()
    service.claims.write(emptied(before))
    service.round()
    assert service.leases.read(moving.uuid).move is None
    service.rounds.look(lambda: None, service.trouble)
    assert service.claims.read(moving.uuid).amounts == before.amounts


def test_leases_of_one_server_that_move_at_once_get_gpus_of_their_own(service, placement):
    PoolReporter(placement.client).sync(pool("g1", gpus=("a", "b")))
    service.obey("g1")
    asking(service, count=2)
    for _ in range(3):
        service.round()
        service.obey("g1")
    PoolReporter(placement.client).sync(pool("g2", gpus=("a", "b")))
    service.report("g2")
    gang = service.leases.find(states=(LeaseState.ATTACHED,))
    assert [move(service, each, pool="g2").status_code for each in gang] == [202, 202]
    service.round()
    assert len({service.leases.read(each.uuid).move.gpu for each in gang}) == 2


@pytest.mark.parametrize("left", range(9))
def test_a_move_is_whole_wherever_the_engine_dies(service, moving, left, monkeypatch):
    """It dies at any write to database or Placement, and the server may stop right then."""
    move(service, moving)
    writes = [left]

    def mortal(real):
        def call(*given, **more):
            writes[0] -= 1
            if writes[0] < 0:
                raise NotLeaderError("killed")
            return real(*given, **more)

        return call

    for name in ("plan_move", "change"):
        monkeypatch.setattr(service.leases, name, mortal(getattr(service.leases, name)))
    monkeypatch.setattr(service.claims, "write", mortal(service.claims.write))
    for _ in range(4):
        with contextlib.suppress(NotLeaderError):
            service.round()
        service.obey("g1")
    monkeypatch.undo()
    if left % 2:
        service.report("c1")
    service.start()
    for _ in range(6):
        service.round()
        for host in ("g1", "g2"):
            service.obey(host)
    now = service.leases.read(moving.uuid)
    assert now.move is None
    assert service.claims.read(moving.uuid).amounts == now.amounts
    lent = {gpu.uuid: gpu for each in service.lent() for gpu in each.gpus}
    assert {uuid for uuid, gpu in lent.items() if gpu.memory_mb.used} == {now.gpu}
    assert (
        now.lease.gpu_host
        == {gpu.uuid: each.host for each in service.lent() for gpu in each.gpus}[now.gpu]
    )


def test_a_lease_that_moves_can_be_released(service, moving):
    move(service, moving)
    service.round()
    service.round()
    service.leases.change(service.leases.read(moving.uuid), life.release, ENGINE)
    service.obey("g1")
    service.round()
    assert service.state(moving) is LeaseState.GONE
    assert not any(gpu.memory_mb.used for each in service.lent() for gpu in each.gpus)


def test_only_administrators_move_leases_and_only_those_in_use(service, moving):
    for roles in ("reader", "member,reader", "service"):
        assert move(service, moving, roles).status_code == 403
    waiting = service.leases.create("project-1", "user-1", replace(ASKED, pool="g1"))
    assert "only one that is attached can be moved" in move(service, waiting).text
    assert [move(service, moving).status_code for _ in range(2)] == [202, 202]
    assert "moves; only one" in move(service, moving, pool="g2").text
    named = service.leases.read(moving.uuid)
    service.leases.plan_move(named, None, ENGINE)
    with service.database.transaction() as connection:
        mine = update(tables.lease).where(tables.lease.c.uuid == moving.uuid)
        connection.execute(mine.values(asked=asdict(replace(ASKED, pool="g1"))))
    assert "to another GPU of that only" in move(service, moving, pool="g2").text


OTHER = str(uuid.uuid4())
SMALL = {
    "numa_ext:remote_gpu_memory_mb": "4000",
    "numa_ext:remote_gpu_service_level": "bronze",
    "numa_ext:remote_gpu_priority": "2",
    "numa_ext:remote_gpu_network_mbps": "100",
}
REQUEST = {
    "server_id": SERVER,
    "count": 1,
    "memory_mb": 1000,
    "service_level": "bronze",
    "api": "opencl",
    "network_mbps": 0,
    "priority": 0,
    "migratable": False,
}


def asking(service, host="c1", **more):
    """Let a server run on a host, whose flavor asks for remote GPUs."""
    service.placed[SERVER] = host
    return service.report(host, servers=[SERVER], requests=[REQUEST | more])


def test_a_server_that_runs_gets_what_its_flavor_asks_for(service):
    service.obey()
    assert asking(service, priority=3).status_code == 200
    service.round()
    service.round()
    (lease,) = service.leases.find()
    assert (lease.project, lease.user, lease.server) == ("project-1", "user-1", SERVER)
    assert (lease.asked.memory_mb, lease.asked.level, lease.asked.priority) == (1000, "bronze", 3)
    service.obey()
    service.round()
    service.round()
    assert service.attaches("c1") == [(lease.uuid, 1)]
    assert len(service.leases.find()) == 1, "once"


def test_a_host_gets_leases_for_servers_that_nova_has_put_there_only(service):
    """Its word alone gives no other project a lease, nor takes one of its limit."""
    asking(service)
    service.placed[SERVER] = "c2"
    service.report("c1", requests=[REQUEST | {"server_id": OTHER}])
    service.round()
    del service.placed[SERVER]
    asking(service)
    del service.placed[SERVER]
    service.round()
    assert service.leases.find() == []


def test_a_host_gets_no_more_for_its_servers_than_nova_says_that_flavors_ask_for(service):
    """Of a host that is broken out of: all of a GPU, before all others, for a flavor of a small part."""
    flavors = {SERVER: parse({"numa_ext:remote_gpu": "allowed", **SMALL}, vcpus=1, memory_mb=512)}
    service.flavor = lambda server: flavors[server].remote_gpus
    service.start()
    more = {"memory_mb": 80_000, "service_level": "gold", "priority": 9, "network_mbps": 900}
    assert asking(service, count=16, migratable=True, **more).status_code == 200
    service.round()
    (lease,) = service.leases.find()
    asked = lease.asked
    assert (asked.memory_mb, asked.level, asked.priority) == (4000, "bronze", 2)
    assert (asked.network_mbps, asked.migratable) == (100, False)


def test_a_server_of_which_nova_shows_no_request_gets_no_lease(service, caplog):
    service.flavor = lambda _server: None
    service.start()
    asking(service)
    for _ in range(2):
        service.round()
    assert (service.leases.find(), caplog.text.count("by nova its flavor asks for none")) == ([], 1)


def test_a_nova_that_does_not_answer_holds_up_no_round(service, monkeypatch):
    """It is asked once a round, as each question takes as long as the service waits for an answer."""
    troubles, asked = [], []
    monkeypatch.setattr(service, "trouble", lambda server, error: troubles.append(server))

    def flavor(server):
        asked.append(server)
        raise ServiceUnavailableError("Nova does not answer.")

    service.flavor = flavor
    service.start()
    service.placed |= {SERVER: "c1", OTHER: "c1"}
    requests = [REQUEST, REQUEST | {"server_id": OTHER}]
    service.report("c1", servers=[SERVER, OTHER], requests=requests)
    service.round()
    both = sorted([SERVER, OTHER])
    assert (service.leases.find(), troubles, asked) == ([], both, both[:1])


def test_what_a_silent_nova_has_said_keeps_no_frames_of_earlier_rounds(service, monkeypatch):
    """The same error raised again grows by the frames of each time, with all that these hold."""
    entries = []

    def trouble(_server, error):
        entries.append(len(list(traceback.walk_tb(error.__traceback__))))

    def flavor(_server):
        raise ServiceUnavailableError("Nova does not answer.")

    monkeypatch.setattr(service, "trouble", trouble)
    service.flavor = flavor
    service.start()
    asking(service)
    for _ in range(5):
        service.round()
    assert len(entries) == 5
    assert max(entries[1:]) == entries[1]


def test_who_has_released_a_servers_lease_gets_no_other_until_it_was_on_no_host(service):
    asking(service)
    service.round()
    (first,) = service.leases.find()
    service.leases.change(service.leases.read(first.uuid), life.release, ENGINE)
    for _ in range(3):
        service.round()
    assert service.state(first) is LeaseState.GONE
    assert len(service.leases.find()) == 1
    second = service.leases.create("project-1", "user-1", ASKED, OTHER)
    service.leases.change(second, life.release, ENGINE, (Reason(LeaseTerm.SERVER_GONE, ""),))
    service.placed[OTHER] = "c1"
    service.report("c1", servers=[OTHER], requests=[REQUEST | {"server_id": OTHER}])
    service.round()
    assert [each.server for each in service.leases.find(states=(LeaseState.RESERVED,))] == [OTHER]


@pytest.mark.parametrize("why", [LeaseTerm.MAX_WAIT, LeaseTerm.NO_GPU, LeaseTerm.RELEASED])
def test_what_was_given_up_is_not_asked_for_after_its_server_was_shelved(service, why):
    """It is where it was purged while the server was on no host."""
    asking(service)
    service.round()
    (first,) = service.leases.find()
    service.leases.change(first, life.release, ENGINE, (Reason(why, ""),))
    for _ in range(2):
        service.round()
    assert service.state(first) is LeaseState.GONE

    def seen_after_a_shelve(*, purged):
        del service.placed[SERVER]
        service.report("c1")
        _looks(service, 700.0)
        if purged:
            service.leases.purge(service.leases.now() + 60)
        asking(service)
        service.round()
        return [each.uuid for each in service.leases.find()]

    assert seen_after_a_shelve(purged=False) == [first.uuid]
    (second,) = seen_after_a_shelve(purged=True)
    assert second != first.uuid


def test_leases_of_flavors_count_against_the_limits_of_their_project(service, caplog):
    service.limits["project-1"] = Limits(leases=2, gpu_memory_mb=2500)
    asking(service, count=3)
    service.round()
    service.round()
    assert service.leases.find() == []
    assert caplog.text.count("a limit of its project is reached") == 1
    asking(service, count=2, memory_mb=1300)
    service.round()
    assert service.leases.find() == []
    asking(service, count=2)
    service.round()
    first, second = service.leases.find()
    assert first.asked.gang == second.asked.gang != ""


def test_what_a_limit_refuses_is_looked_at_ever_less_often(service, monkeypatch):
    """After 2, 4, 8 … 60 seconds; a server that asks for something else is looked at at once."""
    looked, usage = [], service.leases.usage
    monkeypatch.setattr(
        service.leases, "usage", lambda *asked: looked.append(service.now_s) or usage(*asked)
    )
    service.limits["project-1"] = Limits(leases=0)
    asking(service)
    for second in range(0, 130, 2):
        service.now_s = float(second)
        service.round()
    assert looked == [0.0, 2.0, 6.0, 14.0, 30.0, 62.0, 122.0]
    service.limits["project-1"] = Limits(leases=1)
    service.round()
    assert service.leases.find() == []
    asking(service, memory_mb=1001)
    service.round()
    assert [each.asked.memory_mb for each in service.leases.find()] == [1001]


def test_nova_is_asked_ever_less_often_while_it_shows_no_request_or_does_not_answer(
    service, monkeypatch
):
    asked, answers = [], []

    def flavor(_server):
        asked.append(service.now_s)
        if answers:
            return answers[0]
        raise ServiceUnavailableError("Nova does not answer.")

    troubles = []
    monkeypatch.setattr(service, "trouble", lambda server, error: troubles.append(server))
    service.flavor = flavor
    service.start()
    asking(service)
    for second in range(0, 40, 2):
        service.now_s = float(second)
        service.round()
    assert (asked, len(troubles)) == ([0.0, 2.0, 6.0, 14.0, 30.0], 20)
    asked.clear()
    answers.append(None)
    for second in range(62, 100, 2):
        service.now_s = float(second)
        service.round()
    assert asked == [62.0, 64.0, 68.0, 76.0, 92.0]


def test_a_gang_is_claimed_in_one_request_or_waits_as_a_whole(service, placement, monkeypatch):
    PoolReporter(placement.client).sync(pool("g1", gpus=("a", "b")))
    written = []
    write = service.claims.write
    monkeypatch.setattr(
        service.claims,
        "write",
        lambda *found, **more: written.append(found) or write(*found, **more),
    )
    asking(service, count=3)
    service.round()
    assert {each.claimed for each in service.leases.find()} == {False}
    PoolReporter(placement.client).sync(pool("g1", gpus=("a", "b", "c")))
    service.round()
    found = service.leases.find()
    assert {each.claimed for each in found} == {True}
    assert len({each.gpu for each in found}) == 3, "each a GPU of its own"
    assert [len(each) for each in written] == [3]


@pytest.mark.parametrize("left", range(8))
def test_a_gang_is_whole_wherever_the_engine_dies(service, placement, left, monkeypatch):
    """It dies at any of its writes to database and Placement; the next engine goes on."""
    PoolReporter(placement.client).sync(pool("g1", gpus=("a", "b", "c")))
    asking(service, count=3)
    writes = [left]

    def mortal(real):
        def call(*given, **more):
            writes[0] -= 1
            if writes[0] < 0:
                raise NotLeaderError("killed")
            return real(*given, **more)

        return call

    for name in ("request", "choose", "hold"):
        monkeypatch.setattr(service.leases, name, mortal(getattr(service.leases, name)))
    monkeypatch.setattr(service.claims, "write", mortal(service.claims.write))
    with contextlib.suppress(NotLeaderError):
        service.round()
    held = [service.claims.read(each.uuid) is not None for each in service.leases.find()]
    assert len(set(held)) <= 1, "all or none"
    monkeypatch.undo()
    service.start()
    service.round()
    service.round()
    found = service.leases.find()
    assert [each.claimed for each in found] == [True] * 3
    assert all(service.claims.read(each.uuid).amounts == each.amounts for each in found)


def test_a_server_gets_gpus_of_the_fabrics_of_its_host_only(service):
    service.fabrics["c1"] = frozenset({"elsewhere"})
    asking(service)
    service.round()
    (lease,) = service.leases.find()
    assert (lease.claimed, str(lease.reasons[0])) == (False, "no_gpu=opencl (against 1000)")
    service.fabrics["c1"] = frozenset({"main"})
    service.round()
    assert service.leases.read(lease.uuid).claimed


def test_a_stopped_server_gets_nothing_that_its_host_does_not_reach(service, placement):
    """It would start there, and its lease be of no use: where it is, Placement says."""
    service.fabrics["c1"] = frozenset({"elsewhere"})
    asking(service)
    service.round()
    service.report("c1")
    service.round()
    (lease,) = service.leases.find()
    assert not lease.claimed
    PoolReporter(placement.client).sync(pool("g2", fabrics=("elsewhere",)))
    service.round()
    now = service.leases.read(lease.uuid)
    assert (now.claimed, now.lease.gpu_host) == (True, "g2")


@pytest.fixture
def clients(service, placement):
    """Compute nodes with NICs to pools, as their agents publish them::

    c1
    └─ c1:rgpu    CUSTOM_RGPU_NET_MBPS 1000
    c2
    └─ c2:rgpu    CUSTOM_RGPU_NET_MBPS 300
    """
    found = {}
    for name, mbps in (("c1", 1000), ("c2", 300)):
        root = placement.compute(name)
        found[name] = root, client_nic(placement, root, name, mbps)
    yield {name: nic for name, (_, nic) in found.items()}
    service.forget()
    for root, nic in found.values():
        for each in (nic, root):
            placement.client.call("DELETE", f"/resource_providers/{each}")


def bandwidth(service, lease):
    """What a lease holds of NICs, by Placement; its row says the same."""
    held = service.claims.read(lease.uuid).amounts
    assert held == service.leases.read(lease.uuid).amounts
    return {
        nic: amounts[REMOTE_GPU_NETWORK_MBPS]
        for nic, amounts in held.items()
        if REMOTE_GPU_NETWORK_MBPS in amounts
    }


def in_use(service, *hosts, mbps):
    """A lease of a server on a host, promised bandwidth, then the server on the others, one after the other."""
    for host in hosts:
        for each in {"c1", "c2"} - {host}:
            service.report(each)
        for _ in range(3):
            service.obey()
            asking(service, host, network_mbps=mbps)
            service.round()
    (lease,) = service.leases.find()
    assert (lease.state, lease.lease.client_host) == (LeaseState.ATTACHED, host)
    return lease


def test_a_lease_holds_what_it_is_promised_at_both_ends_and_takes_its_own_end_along(
    service, clients
):
    (pool_nic,) = (nic.uuid for lent in service.lent() for nic in lent.nics)
    lease = in_use(service, "c1", mbps=200)
    assert bandwidth(service, lease) == {pool_nic: 200, clients["c1"]: 200}
    assert in_use(service, "c2", mbps=200).uuid == lease.uuid
    assert bandwidth(service, lease) == {pool_nic: 200, clients["c2"]: 200}
    in_use(service, "g1", mbps=200)
    assert bandwidth(service, lease) == {}, "over no wire"
    in_use(service, "c1", mbps=200)
    assert bandwidth(service, lease) == {pool_nic: 200, clients["c1"]: 200}


def test_a_lease_waits_for_the_nic_of_its_servers_host(service, clients):
    service.obey()
    asking(service, "c2", network_mbps=400)
    service.round()
    (lease,) = service.leases.find()
    assert (lease.claimed, str(lease.reasons[0])) == (False, "client_network=400")
    assert service.claims.read(lease.uuid) is None


def test_the_nic_of_a_servers_host_is_read_once_a_round(service, clients, placement, monkeypatch):
    """And not for each lease after each look: these may be thousands."""
    PoolReporter(placement.client).sync(pool("g1", gpus=("a", "b")))
    for _ in range(3):
        service.obey()
        asking(service, count=2, network_mbps=100)
        service.round()
    assert [each.claimed for each in service.leases.find()] == [True, True]
    service.rounds.look(lambda: None, service.trouble)
    read, asked = pool_reader.client_nic, []

    def counted(client, root):
        asked.append(root)
        return read(client, root)

    monkeypatch.setattr(pool_reader, "client_nic", counted)
    service.round()
    assert asked == ["c1"]


def test_pools_are_not_read_in_each_round_for_a_gpu_that_is_lent_no_more(
    service, clients, monkeypatch
):
    in_use(service, "c1", mbps=200)
    asked = []
    monkeypatch.setattr(service.rounds, "_pools", lambda: asked.append("pools") or ())
    service.rounds._wires.forget()
    for _ in range(3):
        service.round()
    assert asked == ["pools"], "once between two looks"


def test_a_server_that_moves_to_a_host_whose_nic_is_full_keeps_its_gpu(
    service, clients, caplog, monkeypatch
):
    """It holds what it held, and what it lacks is claimed in a later look, when there is room."""
    lease = in_use(service, "c1", "c2", mbps=400)
    assert bandwidth(service, lease).keys() >= {clients["c1"]}
    assert caplog.text.count("which the NICs between its GPU and its server do not have") == 1
    write, tried = service.claims.write, []

    def counted(*claims, **more):
        tried.append(claims)
        return write(*claims, **more)

    monkeypatch.setattr(service.claims, "write", counted)
    for _ in range(2):
        service.round()
        service.round()
        service.rounds.look(lambda: None, service.trouble)
    service.round()
    assert len(tried) == 2, "tried again after each look, not in each round"
    assert caplog.text.count("do not have") == 1, "logged once"


def test_a_lease_that_moves_takes_the_nic_of_its_server_along(service, clients, placement):
    lease = in_use(service, "c1", mbps=400)
    PoolReporter(placement.client).sync(pool("g2"))
    service.report("g2")
    assert move(service, lease, pool="g2").status_code == 202
    for _ in range(4):
        service.round()
        service.obey("g1")
        service.obey("g2")
    nics = {lent.host: nic.uuid for lent in service.lent() for nic in lent.nics}
    assert service.leases.read(lease.uuid).lease.gpu_host == "g2"
    assert bandwidth(service, lease) == {nics["g2"]: 400, clients["c1"]: 400}


def moved(service, lease, pool=""):
    """What a lease in use has become that an administrator has moved."""
    assert move(service, lease, pool=pool).status_code == 202
    for _ in range(5):
        service.round()
        for host in ("g1", "g2"):
            service.obey(host)
        asking(service, lease.lease.client_host)
    service.round()
    return service.leases.read(lease.uuid)


def test_a_lease_moves_on_its_host_by_the_bandwidth_and_the_core_that_it_has(
    service, clients, placement
):
    """Neither is there twice: what both ends need is held once."""
    PoolReporter(placement.client).sync(pool("g1", gpus=("a", "b"), cores=1))
    lease = in_use(service, "c1", mbps=600)
    before = bandwidth(service, lease)
    now = moved(service, lease)
    assert (now.state, now.gpu != lease.gpu) == (LeaseState.ATTACHED, True)
    assert bandwidth(service, now) == before


def test_a_lease_moves_to_its_servers_own_host_over_no_wire(service, clients, placement):
    """Its NIC has less left than the lease is promised."""
    PoolReporter(placement.client).sync(pool("g1", mbps=100))
    PoolReporter(placement.client).sync(pool("g2"))
    service.report("g2")
    lease = in_use(service, "g1", mbps=200)
    away = moved(service, lease, pool="g2")
    assert (away.lease.gpu_host, len(bandwidth(service, away))) == ("g2", 1)
    home = moved(service, away, pool="g1")
    assert (home.lease.gpu_host, bandwidth(service, home)) == ("g1", {})


@contextlib.contextmanager
def engine_that_dies(service, monkeypatch, left):
    """An engine that swaps NICs as far as so many of its two writes: to Placement, then to the row."""
    calls = 0

    def mortal(real):
        def call(*given, **more):
            nonlocal calls
            calls += 1
            if calls > left:
                raise NotLeaderError("killed")
            return real(*given, **more)

        return call

    with monkeypatch.context() as patched:
        patched.setattr(service.claims, "write", mortal(service.claims.write))
        patched.setattr(service.leases, "rewire", mortal(service.leases.rewire))
        with contextlib.suppress(NotLeaderError):
            yield
    service.start()


@pytest.mark.parametrize("left", range(3))
def test_a_claim_of_other_nics_is_whole_wherever_the_engine_dies(
    service, clients, left, monkeypatch
):
    """Before Placement is written to, before the row is, and after both."""
    lease = in_use(service, "c1", mbps=200)
    with engine_that_dies(service, monkeypatch, left):
        service.report("c1")
        asking(service, "c2", network_mbps=200)
        service.round()
    in_use(service, "c2", mbps=200)
    assert bandwidth(service, lease).keys() >= {clients["c2"]}
    assert clients["c1"] not in bandwidth(service, lease)


def test_a_server_that_returns_before_its_row_follows_gets_its_nic_back_in_the_next_look(
    service, clients, monkeypatch
):
    """Placement holds the other host's NIC then, and the row says that all is as it should be."""
    lease = in_use(service, "c1", mbps=200)
    before = bandwidth(service, lease)
    with engine_that_dies(service, monkeypatch, left=1):
        service.report("c1")
        asking(service, "c2", network_mbps=200)
        service.round()
    assert clients["c2"] in service.claims.read(lease.uuid).amounts
    in_use(service, "c1", mbps=200)
    service.rounds.look(lambda: None, service.trouble)
    service.round()
    assert bandwidth(service, lease) == before
    version = service.leases.read(lease.uuid).version
    service.rounds.look(lambda: None, service.trouble)
    service.round()
    assert service.leases.read(lease.uuid).version == version, "once"


def test_a_host_draws_no_lease_to_it_of_a_server_that_nova_has_not_put_there(service):
    """A host of GPUs that says so would get it over no wire, and one of another fabric would keep it waiting."""
    service.fabrics.update(z1=frozenset({"main"}), a1=frozenset({"elsewhere"}))
    asking(service, "z1", network_mbps=200)
    service.report("g1", servers=[SERVER])
    service.report("a1", servers=[SERVER])
    service.round()
    (lease,) = service.leases.find()
    assert lease.claimed
    assert any(REMOTE_GPU_NETWORK_MBPS in each for each in lease.amounts.values())


def test_placement_is_asked_where_a_server_is_when_other_hosts_report_it(service):
    class Counted(dict):
        asked = 0

        def get(self, server):
            self.asked += 1
            return super().get(server)

    service.placed = Counted()
    service.start()
    service.fabrics["c1"] = frozenset({"elsewhere"})
    asking(service)
    service.round()
    once = service.placed.asked
    service.round()
    assert service.placed.asked == once
    service.report("c2", servers=[SERVER])
    service.round()
    assert service.placed.asked == once + 1


def test_what_is_more_important_goes_first_and_age_counts_too(service):
    whole = {"memory_mb": 8000, "service_level": "gold"}
    first = service.leases.create("project-1", "user-1", replace(ASKED, memory_mb=8000))
    service.round()
    asking(service, **whole, priority=2)
    second = service.leases.create("project-1", "user-1", replace(ASKED, memory_mb=8000))
    service.round()
    (urgent,) = (each for each in service.leases.find() if each.server)
    service.leases.change(service.leases.read(first.uuid), life.release, ENGINE)
    service.round()
    service.round()
    claimed = {each.uuid: each.claimed for each in service.leases.find(states=LIVING)}
    assert claimed == {urgent.uuid: True, second.uuid: False}
    with service.database.transaction() as connection:
        older = update(tables.job).where(tables.job.c.uuid == second.job)
        connection.execute(older.values(queued_at=tables.job.c.queued_at - 3 * 3600))
    third = str(uuid.uuid4())
    service.placed[third] = "c2"
    request = REQUEST | whole | {"server_id": third, "priority": 2}
    service.report("c2", servers=[third], requests=[request])
    service.leases.change(service.leases.read(urgent.uuid), life.release, ENGINE)
    for _ in range(3):
        service.round()
    assert service.leases.read(second.uuid).claimed, "three hours are worth more than 2"


def test_a_server_of_which_placement_says_nothing_delays_no_other(service):
    def owner(server):
        if server == SERVER:
            raise PlacementError("it", 403, "", "")
        return "project-1", "user-1"

    service.owner = owner
    service.start()
    service.placed |= {SERVER: "c1", OTHER: "c1"}
    requests = [REQUEST, REQUEST | {"server_id": OTHER}]
    service.report("c1", servers=[SERVER, OTHER], requests=requests)
    found = {}
    service.rounds.round(ENGINE, lambda: None, found.__setitem__)
    assert found.keys() == {SERVER}
    assert [each.server for each in service.leases.find()] == [OTHER]


@pytest.mark.parametrize(
    ("report", "said"),
    [
        ({}, "serves, ended, servers"),
        ({"serves": [{"id": "x", "epoch": 1, "address": "a:1"}]}, "a uuid"),
        ({"serves": [{"id": SERVER, "epoch": 0, "address": "a:1"}]}, "minimum 1"),
        ({"serves": [{"id": SERVER, "epoch": 1, "address": "a b"}]}, "an address and a port"),
        ({"servers": ["x"] * 5000}, "maxItems 4096"),
        ({"requests": [REQUEST | {"count": 17}]}, "maximum 16"),
    ],
)
def test_a_report_that_cannot_be_is_a_sentence(service, report, said):
    whole = {"report": {"serves": [], "ended": [], "servers": []} | report if report else {}}
    answer = service.client.post("/v1/hosts/g1/leases", json=whole, headers=credential("g1"))
    assert answer.status_code == 400
    assert said in answer.json["errors"][0]["detail"]


REQUESTS, GPUS = 200, 25


@pytest.mark.long
def test_of_200_requests_at_once_for_50_slices_50_are_attached_whichever_engine_leads(
    service, placement
):
    """Three engines take turns; the one that leads is killed between its writes, again and again."""
    names = tuple(f"gpu{number}" for number in range(GPUS))
    PoolReporter(placement.client).sync(pool("g1", gpus=names, cores=REQUESTS))
    servers = [f"{number:08x}-0000-0000-0000-000000000000" for number in range(REQUESTS)]
    service.placed.update(dict.fromkeys(servers, "c1"))
    admin = MEMBER | {"X-Roles": "admin,member"}
    body = {"memory_mb": 3000, "api": "opencl", "service_level": "silver"}

    def ask(number):
        lease = {"lease": body | {"server_id": servers[number]}}
        return service.client.application.test_client().post(
            "/v1/leases", json=lease, headers=admin
        )

    assert {each.status_code for each in at_once(REQUESTS, ask)} == {202}
    service.obey()
    service.report("c1", servers=servers)
    elections = [Election(service.leases._database, f"engine-{each}", 0.0) for each in range(3)]
    chance = random.Random(1)
    for turn in range(40):
        term = elections[turn % 3].campaign()
        left = [chance.randint(5, 60)]

        def may(left=left):
            left[0] -= 1
            if left[0] < 0:
                raise NotLeaderError("killed")

        try:
            service.rounds.round(Actor(f"engine-{turn % 3}", term), may, service.trouble)
        except NotLeaderError:
            pass
        for lent in pool_reader.read(placement.client):
            for gpu in lent.gpus:
                assert gpu.memory_mb.free >= 0 <= gpu.share.free
        service.obey()
    states = Counter(each.state for each in service.leases.find())
    assert states == {LeaseState.ATTACHED: 2 * GPUS, LeaseState.RESERVED: REQUESTS - 2 * GPUS}
    attached = [each.number for each in service.leases.find(states=(LeaseState.ATTACHED,))]
    assert attached == list(range(attached[0], attached[0] + 2 * GPUS)), "those that asked first"
    waiting = service.leases.find(states=(LeaseState.RESERVED,))
    assert not any(each.claimed for each in waiting)
    held = {each.uuid for each in service.leases.find() if service.claims.read(each.uuid)}
    assert held == {each.uuid for each in service.leases.find(states=(LeaseState.ATTACHED,))}
    for each in service.leases.find(states=(LeaseState.ATTACHED,))[:10]:
        service.leases.change(each, life.release, ENGINE)
    for _ in range(5):
        service.obey()
        service.round()
    now = {each.uuid: each.claimed for each in service.leases.find(states=LIVING)}
    assert [now[each.uuid] for each in waiting] == [True] * 10 + [False] * (len(waiting) - 10)
