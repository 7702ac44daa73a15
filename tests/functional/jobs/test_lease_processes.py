# SPDX-License-Identifier: Apache-2.0
"""Leases of transport ``fake`` from end to end: real processes and sockets, the real API over a real Placement."""

import fcntl
import json
import os
import random
import signal
import socket
import tempfile
import threading
import time
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from host_agent.cmd import leases as command
from host_agent.remote_gpu import gpu_host, processes
from host_agent.remote_gpu.answer import LeaseAnswer, RunningServers
from host_agent.remote_gpu.gpu_host import GpuHost
from host_agent.remote_gpu.processes import LeaseCommand, LeaseProcesses
from host_agent.remote_gpu.publishing import Publishing
from host_agent.remote_gpu.turns import LeaseTurns, pause_s
from host_agent.remote_gpu.use import WINDOW_S, UseMeter
from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.leases import LIVING
from nova_numa_ext.policy.jobs.limits import Limits
from nova_numa_ext.policy.remote_gpu import leases as life
from nova_numa_ext.policy.remote_gpu.leases import LeaseState
from nova_numa_ext.policy.remote_gpu.making_room import RebalanceRules, Rebalancing, UsePolicy
from placement_traits import pool_reader
from placement_traits.claims import emptied
from placement_traits.errors import ServiceUnavailableError
from placement_traits.names import RemoteGpuApi, ServiceLevel
from placement_traits.pool_reporter import PoolReporter, gpu_uuids
from placement_traits.remote_gpu_request import RemoteGpuRequest
from tests.support.apart import lease_groups, processes_in
from tests.support.jobs_database import backed_up, restored
from tests.support.lease_service import ASKED, ENGINE, SERVER, LeaseService, credential
from tests.support.polling import until
from tests.support.pools import movable_pool, pool

REQUEST = RemoteGpuRequest(
    1, 1000, ServiceLevel.SILVER, RemoteGpuApi.OPENCL, 0, 0.0, 1, 0, migratable=False
)


class Hosts:
    """g1, which lends GPUs, and c1 and c2, which run servers; each is started again at will.

    :param apart: g1 keeps its leases in namespaces
    :ivar service_up: the job service answers
    :ivar running: host -> servers
    :ivar asked_by: server -> what its flavor asks for
    :ivar domains: server -> libvirt's number of its domain
    :ivar rest_s: host -> as of LeaseTurns, from its next start on
    :ivar window_s: host -> as of UseMeter, from its next start on
    """

    def __init__(self, service, folder, *, apart=False):
        self.service, self.folder, self.apart = service, folder, apart
        self.service_up, self.now_s, self.asked, self.tried = True, 0.0, [], 0
        self.running = {"g1": frozenset(), "c1": frozenset(), "c2": frozenset()}
        self.turns, self.asked_by, self.rest_s, self.window_s = {}, {}, {}, {}
        self.domains = {}
        self.command = LeaseCommand("fake", folder, "127.0.0.1", gpu_uuids(pool("g1")))
        for host in self.running:
            self.start(host)

    def start(self, host):
        """A new process of the host's supervisor."""
        folder = self.folder / host
        groups = lease_groups(folder / "run") if self.apart and host == "g1" else None
        meter = UseMeter(self.window_s.get(host, WINDOW_S))
        found = LeaseProcesses(folder / "run", self.command, groups, meter=meter)
        self.turns[host] = LeaseTurns(
            host,
            lambda *asked, **more: self.request(host, *asked, **more),
            GpuHost(found, folder / "epochs.json"),
            lambda: self.servers(host),
            folder / "answer.json",
            rest_s=self.rest_s.get(host, 0.0),
            clock=lambda: self.now_s,
        )

    def servers(self, host):
        if self.running[host] is None:
            raise ServiceUnavailableError("libvirt does not answer")
        asked = {each: self.asked_by[each] for each in self.running[host] & self.asked_by.keys()}
        domains = {each: self.domains.get(each, "1") for each in self.running[host]}
        return RunningServers(self.running[host], asked, domains)

    def request(self, host, method, path, json=None, headers=None):
        self.tried += 1
        if not self.service_up:
            raise ServiceUnavailableError("The job service does not answer.")
        sent = credential(host) | (headers or {})
        answer = self.service.client.open(path, method=method, json=json, headers=sent)
        self.asked.append((host, method, answer.status_code))
        return Answer(answer)

    def round(self):
        """Let every host and the engine have a turn."""
        for each in self.turns.values():
            each.turn()
        if self.service_up:
            self.service.round()

    def rounds(self, count=3):
        for _ in range(count):
            self.round()

    def move(self, server, host):
        """Let a server run on a host, '' for none."""
        for each, servers in self.running.items():
            self.running[each] = servers | {server} if each == host else servers - {server}
        if host:
            self.service.placed[server] = host

    def happens(self, placed, running):
        """Let Placement have the server on a host, '' for none, and one report it; all have time to do what follows."""
        self.move(SERVER, running)
        self.service.placed[SERVER] = placed or None
        for _ in range(5):
            self.service.now_s += 20.0
            self.round()
        for _ in range(2):
            self.service.rounds.end_without_server(ENGINE, self.service.trouble)
        self.rounds(2)

    def row(self):
        """Of the newest lease: state and epoch by the database, Placement, epoch of its process, who may connect."""
        found = self.service.leases.find()
        held = {each.uuid for each in found if self.service.claims.read(each.uuid)}
        until(lambda: self.processes().keys() == held, 10.0)
        assert held == {each.uuid for each in found if each.state in LIVING}
        newest = max(found, key=lambda each: each.number)
        served = [
            turns._reported.serves[newest.uuid][0]
            for turns in self.turns.values()
            if newest.uuid in turns._reported.serves
        ]
        clients = [host for host, turns in self.turns.items() if turns.answer.attaches]
        return (
            newest.state.value,
            newest.lease.epoch,
            "claim" if newest.uuid in held else "-",
            ", ".join(map(str, served)) or "-",
            ", ".join(clients) or "-",
        )

    def lend(self, host):
        """Another host that lends GPUs."""
        PoolReporter(self.service.client_of_placement).sync(pool(host))
        self.command = replace(self.command, gpus={**self.command.gpus, **gpu_uuids(pool(host))})
        self.running[host] = frozenset()
        for each in self.running:
            self.start(each)

    def connected(self, host):
        """A client on a host, as it was last allowed to connect; None: it is not."""
        for each in self.turns[host].answer.attaches:
            return Client(each.address, each.epoch)
        return None

    def processes(self):
        """Leases -> processes that serve them."""
        folder = str(self.folder)
        found = {}
        for each in Path("/proc").iterdir():
            if each.name.isdecimal():
                try:
                    words = (each / "cmdline").read_bytes().decode().split("\0")
                except OSError:
                    continue
                found |= {
                    Path(word).name.removesuffix(".sock"): int(each.name)
                    for word in words
                    if word.startswith(folder) and word.endswith(".sock")
                }
        return found

    def stop(self):
        for pid in self.processes().values():
            os.kill(pid, signal.SIGKILL)
        for each in self.turns.values():
            for child in each._gpu_host._processes._children.values():
                child.wait()


class Answer:
    """What flask's client answers, as keystoneauth's does."""

    def __init__(self, found):
        self.status_code, self.headers = found.status_code, found.headers
        self.text = found.get_data(as_text=True)
        self.json = lambda: found.json


class Client:
    """A connection to a lease's process."""

    def __init__(self, address, epoch):
        self.epoch = epoch
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), 5)
        self.socket.sendall(f"{epoch}\n".encode())
        self.lines = self.socket.makefile("rwb")
        self.accepted = self.lines.readline() == b"ok\n"

    def echo(self, text):
        """What comes back, '' where it is cut."""
        try:
            self.lines.write(text.encode() + b"\n")
            self.lines.flush()
            return self.lines.readline().decode().strip()
        except ConnectionError:
            return ""

    def close(self):
        try:
            self.lines.close()
        except ConnectionError:
            pass
        self.socket.close()


@pytest.fixture
def hosts(lending, tmp_path, request):
    """Three hosts beside the service of leases::

    g1    lends GPU a: 8000 MiB by OpenCL, 4 cores, eth1 1000 MB/s, in fabric main
    c1    a client, no server yet
    c2    a client, no server yet
    """
    service = LeaseService(lending, tmp_path)
    apart = getattr(request, "param", "") == "apart"
    with tempfile.TemporaryDirectory() as short:  # a socket's path has 107 bytes
        found = Hosts(service, Path(short), apart=apart)
        yield found
        found.stop()


def attached(hosts, server=SERVER, host="c1"):
    lease = hosts.service.leases.create("project-1", "user-1", ASKED, server)
    hosts.move(server, host)
    hosts.rounds(4)
    return lease


def test_a_server_whose_flavor_asks_for_a_gpu_is_attached_without_a_command(hosts):
    """From the report of the host where it starts to an echo, and away again with the server."""
    hosts.asked_by[SERVER] = REQUEST
    hosts.rounds(2)
    assert hosts.service.leases.find() == []
    hosts.move(SERVER, "c1")
    hosts.rounds(5)
    client = hosts.connected("c1")
    assert (client.accepted, client.echo("hello")) == (True, "hello")
    client.close()
    (lease,) = hosts.service.leases.find()
    hosts.move(SERVER, "")
    del hosts.service.placed[SERVER]
    for _ in range(2):
        hosts.rounds()
        hosts.service.rounds.end_without_server(ENGINE, hosts.service.trouble)
    hosts.rounds()
    assert (hosts.service.state(lease), hosts.processes()) == (LeaseState.GONE, {})
    assert len(hosts.service.leases.find()) == 1


@pytest.mark.parametrize("hosts", ["together", "apart"], indirect=True)
def test_a_client_echoes_through_its_lease_and_is_cut_when_the_server_moves(hosts):
    lease = attached(hosts)
    assert hosts.processes().keys() == {lease.uuid}
    first = hosts.connected("c1")
    assert (first.accepted, first.echo("hello")) == (True, "hello")
    hosts.move(SERVER, "c2")
    hosts.rounds(4)
    second, late = hosts.connected("c2"), Client(first_address(hosts), 1)
    assert (second.accepted, second.echo("here")) == (True, "here")
    assert (first.echo("still?"), late.accepted) == ("", False)
    hosts.service.leases.change(hosts.service.leases.read(lease.uuid), life.release, ENGINE)
    hosts.rounds()
    assert (hosts.service.state(lease), hosts.processes()) == (LeaseState.GONE, {})
    assert second.echo("gone?") == ""
    assert hosts.service.claims.read(lease.uuid) is None
    for each in (first, second, late):
        each.close()


def first_address(hosts):
    (served,) = hosts.turns["g1"]._reported.serves.values()
    return served[1]


@pytest.mark.parametrize("how", ["at once", "off for a turn", "without the service", "slow engine"])
def test_a_server_that_stops_and_runs_again_unnoticed_gets_another_epoch(hosts, how):
    """A hard reboot between two turns, or two reports: its domain has another number."""
    lease = attached(hosts)
    epoch, before = hosts.service.leases.read(lease.uuid).lease.epoch, hosts.connected("c1")
    assert before.echo("before") == "before"
    hosts.rounds(3)
    assert hosts.service.leases.read(lease.uuid).lease.epoch == epoch, "nothing has happened"
    hosts.service_up = how not in ("off for a turn", "without the service")
    if how == "off for a turn":
        hosts.move(SERVER, "")
        hosts.round()
        hosts.move(SERVER, "c1")
    hosts.domains[SERVER] = "2"
    if how == "slow engine":
        for _ in range(3):
            hosts.turns["c1"].turn()
    hosts.round()
    hosts.service_up = True
    hosts.rounds(6)
    now = hosts.service.leases.read(lease.uuid)
    assert (now.state, now.lease.epoch) == (LeaseState.ATTACHED, epoch + 2)
    after = hosts.connected("c1")
    assert (before.echo("still?"), after.echo("after")) == ("", "after")
    hosts.rounds(3)
    assert hosts.service.leases.read(lease.uuid).lease.epoch == epoch + 2, "once"
    for each in (before, after):
        each.close()


def test_leases_run_on_without_the_service_and_without_their_supervisor(hosts):
    lease = attached(hosts)
    before = hosts.processes()
    client = hosts.connected("c1")
    hosts.service_up = False
    for host in ("g1", "c1"):
        hosts.start(host)
    hosts.rounds()
    assert hosts.processes() == before
    assert client.echo("still") == "still"
    again = hosts.connected("c1")
    assert again.accepted, "the compute host's last answer is on disk"
    hosts.service_up = True
    hosts.rounds()
    assert (hosts.service.state(lease), client.echo("yes")) == (LeaseState.ATTACHED, "yes")
    client.close()
    again.close()


def test_processes_run_on_under_an_old_database_and_serve_the_adopted_lease(hosts):
    """The lease was asked for after the backup; who used it is cut when its new epoch begins, and not before."""
    service = hosts.service
    backup = backed_up(service.database)
    lease = attached(hosts)
    before, client = hosts.processes(), hosts.connected("c1")
    assert client.echo("hello") == "hello"
    restored(service.database, backup)
    service.start()
    service.recovery.begin("restored")
    hosts.asked.clear()
    for each in hosts.turns.values():
        each.turn()
    assert sorted(hosts.asked) == sorted(
        (host, method, 503) for host in hosts.turns for method in ("GET", "POST")
    )
    assert (hosts.processes(), client.echo("still")) == (before, "still")
    assert service.recover() == 0
    assert client.echo("cut?") == "cut?", "its host has not learned of the new epoch yet"
    hosts.rounds(4)
    again = hosts.connected("c1")
    assert (again.epoch, again.accepted, again.echo("here")) == (2, True, "here")
    assert (hosts.processes(), client.echo("cut?")) == (before, "")
    assert service.state(lease) is LeaseState.ATTACHED
    for each in (client, again):
        each.close()


# What nova does -> where Placement has the server, and which hosts run it, one after the other.
EVENTS = {
    "create": [("c1", "c1")],
    "hard reboot": [("c1", ""), ("c1", "c1")],
    "stop": [("c1", "")],
    "start": [("c1", "c1")],
    "resize": [("c2", ""), ("c2", "c2")],
    "revert": [("c1", ""), ("c1", "c1")],
    "cold migration": [("c2", ""), ("c2", "c2")],
    "live migration": [("c1", "c2"), ("c1", "c1")],
    "rebuild": [("c1", ""), ("c1", "c1")],
    "evacuate": [("c2", "c2")],
    "shelve": [("", "")],
}
#       event            database             epoch  Placement  process  client that may connect
LIFE = """
        create           attached             1      claim      1        c1
        hard reboot      attached             3      claim      3        c1
        stop             detached             4      claim      4        -
        start            attached             5      claim      5        c1
        resize           attached             7      claim      7        c2
        revert           attached             9      claim      9        c1
        cold migration   attached             11     claim      11       c2
        live migration   attached             12     claim      12       c1
        rebuild          attached             14     claim      14       c1
        evacuate         attached             15     claim      15       c2
        shelve           gone                 17     -          -        -
"""


def test_database_placement_and_processes_agree_after_each_of_novas_events(hosts):
    """Nova is imitated by what hosts and Placement see of it; a host that is evacuated from reports no more."""
    service = hosts.service
    lease = service.leases.create("project-1", "user-1", ASKED, SERVER)
    table = [""]
    for event, steps in EVENTS.items():
        if event == "evacuate":
            silent = {"c1": service.hosts.all()["c1"]}
            service.rounds._hosts = lambda gone=silent: service.reported() | gone
            del hosts.turns["c1"]
        for placed, running in steps:
            hosts.happens(placed, running)
        assert service.leases.find() == [service.leases.read(lease.uuid)], "no other one"
        table.append("        {:<17}{:<21}{:<7}{:<11}{:<9}{}".format(event, *hosts.row()))
    assert "\n".join(table) + "\n" == LIFE


# The same for a server whose flavor asks for the lease, with moves and limits; where nova does nothing, what is done.
FLAVOR_EVENTS = {
    "create": [("c1", "c1")],
    "hard reboot": [("c1", ""), ("c1", "c1")],
    "lease move": [],
    "stop": [("c1", "")],
    "start": [("c1", "c1")],
    "resize": [("c2", ""), ("c2", "c2")],
    "revert": [("c1", ""), ("c1", "c1")],
    "cold migration": [("c2", ""), ("c2", "c2")],
    "live migration": [("c1", "c2"), ("c1", "c1")],
    "rebuild": [("c1", ""), ("c1", "c1")],
    "lease move back": [],
    "evacuate": [("c2", "c2")],
    "shelve": [("", "")],
    "over a limit": [("c2", "c2")],
    "limit raised": [("c2", "c2")],
    "delete": [("", "")],
}
#       event            database             epoch  Placement  process  client that may connect
FLAVOR_LIFE = """
        create           attached             1      claim      1        c1
        hard reboot      attached             3      claim      3        c1
        lease move       attached             5      claim      5        c1
        stop             detached             6      claim      6        -
        start            attached             7      claim      7        c1
        resize           attached             9      claim      9        c2
        revert           attached             11     claim      11       c1
        cold migration   attached             13     claim      13       c2
        live migration   attached             14     claim      14       c1
        rebuild          attached             16     claim      16       c1
        lease move back  attached             18     claim      18       c1
        evacuate         attached             19     claim      19       c2
        shelve           gone                 21     -          -        -
        over a limit     gone                 21     -          -        -
        limit raised     attached             1      claim      1        c2
        delete           gone                 3      -          -        -
"""


def test_what_a_flavor_asks_for_is_the_same_in_all_places_after_each_of_novas_events(hosts):
    service = hosts.service
    hosts.lend("g2")
    hosts.asked_by[SERVER] = RemoteGpuRequest(
        1, 1000, ServiceLevel.SILVER, RemoteGpuApi.OPENCL, 0, 0.0, 1, 0, migratable=False
    )
    table = [""]
    for event, steps in FLAVOR_EVENTS.items():
        if event.startswith("lease move"):
            (lease,) = service.leases.find(states=LIVING)
            to = "g1" if lease.lease.gpu_host == "g2" else "g2"
            service.leases.ask_move(lease, to, ENGINE)
            hosts.rounds(6)
        if event == "evacuate":
            silent = {"c1": service.hosts.all()["c1"]}
            service.rounds._hosts = lambda gone=silent: service.reported() | gone
            del hosts.turns["c1"]
        if event in ("over a limit", "limit raised"):
            service.limits["project-1"] = Limits(leases=0 if event == "over a limit" else 1)
        for placed, running in steps:
            hosts.happens(placed, running)
        table.append("        {:<17}{:<21}{:<7}{:<11}{:<9}{}".format(event, *hosts.row()))
    assert "\n".join(table) + "\n" == FLAVOR_LIFE


def test_a_lease_that_makes_room_is_served_on_its_new_gpu_and_its_neighbour_notices_nothing(hosts):
    """Two servers with half a GPU each, on both GPUs; a lease of a whole one waits. Real processes echo."""
    service, other = hosts.service, str(uuid.uuid4())
    hosts.lend("g2")
    for host in ("g1", "g2"):
        PoolReporter(service.client_of_placement).sync(movable_pool(host))
    service.rebalance = RebalanceRules(Rebalancing.ENFORCE)
    service.start()
    clients, leases = {}, {}
    for server, host in ((SERVER, "c1"), (other, "c2")):
        asked = replace(ASKED, migratable=True)
        leases[host] = service.leases.create("project-1", "user-1", asked, server)
        hosts.move(server, host)
    hosts.rounds(4)
    clients = {host: hosts.connected(host) for host in leases}
    assert [each.echo("before") for each in clients.values()] == ["before", "before"]
    whole = replace(ASKED, memory_mb=8000, level=ServiceLevel.GOLD)
    waits = service.leases.create("project-2", "user-2", whole)
    hosts.rounds(6)
    now = {host: service.leases.read(each.uuid) for host, each in leases.items()}
    (moved,) = (host for host, each in now.items() if each.moved_at is not None)
    (stayed,) = now.keys() - {moved}
    assert (now[moved].gpu, now[moved].state) == (now[stayed].gpu, LeaseState.ATTACHED)
    assert clients[stayed].echo("on and on") == "on and on"
    assert clients[moved].echo("cut") == ""
    again = hosts.connected(moved)
    assert again.echo("after") == "after"
    assert service.leases.read(waits.uuid).gpu not in ("", now[moved].gpu)
    assert hosts.processes().keys() == {each.uuid for each in (*leases.values(), waits)}
    for each in (again, *clients.values()):
        each.close()


def test_two_of_three_leases_of_a_gpu_go_to_others_and_the_third_notices_nothing(hosts):
    """F-002-69: each to a GPU of its own, one after the other; the one that stays echoes on one connection."""
    service = hosts.service
    servers = [SERVER, *(str(uuid.uuid4()) for _ in range(2))]
    leases = {}
    for server in servers:
        asked = replace(ASKED, level=ServiceLevel.BRONZE)
        leases[server] = service.leases.create("project-1", "user-1", asked, server)
        hosts.move(server, "c1")
    hosts.rounds(4)
    assert len(hosts.turns["c1"].answer.attaches) == 3

    def client(server):
        found = {each.id: each for each in hosts.turns["c1"].answer.attaches}
        lease = found[leases[server].uuid]
        return Client(lease.address, lease.epoch)

    for host in ("g2", "g3"):
        hosts.lend(host)
    hosts.rounds(2)
    stays, *go = servers
    unmoved = client(stays)
    assert unmoved.echo("before") == "before"
    for server, host in zip(go, ("g2", "g3"), strict=True):
        before = client(server)
        service.leases.ask_move(service.leases.read(leases[server].uuid), host, ENGINE)
        for turn in range(6):
            hosts.round()
            assert unmoved.echo(f"{host} {turn}") == f"{host} {turn}"
        after = client(server)
        assert (before.echo("there?"), after.echo("here")) == ("", "here")
        for each in (before, after):
            each.close()
    hosts_of = [service.leases.read(leases[server].uuid).lease.gpu_host for server in servers]
    assert hosts_of == ["g1", "g2", "g3"]
    assert hosts.processes().keys() == {each.uuid for each in leases.values()}
    unmoved.close()


def test_a_lease_that_idles_goes_to_the_gpu_of_one_that_works_by_what_their_processes_did(hosts):
    """Real processes echo for one client and for the other not: hosts report it, and the engine empties a GPU."""
    service, other = hosts.service, str(uuid.uuid4())
    hosts.lend("g2")
    for host in ("g1", "g2"):
        PoolReporter(service.client_of_placement).sync(movable_pool(host))
        hosts.window_s[host] = 0.5
        hosts.start(host)
    service.rebalance = RebalanceRules(Rebalancing.ENFORCE, by_use=UsePolicy.CONSOLIDATE, cold=0.02)
    service.start()
    leases = {}
    for server, host in ((SERVER, "c1"), (other, "c2")):
        asked = replace(ASKED, migratable=True)
        leases[host] = service.leases.create("project-1", "user-1", asked, server)
        hosts.move(server, host)
    hosts.rounds(4)
    before = {host: service.leases.read(each.uuid).gpu for host, each in leases.items()}
    assert len({*before.values()}) == 2
    works, idles = hosts.connected("c1"), hosts.connected("c2")
    assert idles.echo("before") == "before"
    until_s = time.monotonic() + 60.0
    while service.leases.read(leases["c2"].uuid).moved_at is None:
        assert time.monotonic() < until_s
        for _ in range(200):
            assert works.echo("x" * 60_000), "who works is not cut"
        service.now_s += 20.0
        hosts.now_s += 20.0  # each turn reports
        hosts.round()
    hosts.rounds(5)
    moved, stayed = (service.leases.read(leases[host].uuid) for host in ("c2", "c1"))
    assert (moved.gpu, moved.state) == (stayed.gpu, LeaseState.ATTACHED)
    assert (stayed.gpu, stayed.moved_at) == (before["c1"], None)
    assert idles.echo("cut") == ""
    again = hosts.connected("c2")
    assert (again.echo("after"), works.echo("on")) == ("after", "on")
    held = {each.uuid: service.claims.read(each.uuid).amounts for each in leases.values()}
    assert all(stayed.gpu in each for each in held.values())
    assert hosts.processes().keys() == held.keys()
    for each in (works, idles, again):
        each.close()


def test_an_old_database_ends_no_process_before_it_is_committed(hosts):
    lease = attached(hosts)
    hosts.service.recovery.begin("it was restored")
    with hosts.service.leases._database.transaction() as connection:
        connection.execute(tables.lease.delete())
    for each in hosts.turns.values():
        each.turn()
    assert hosts.connected("c1").accepted
    assert hosts.processes().keys() == {lease.uuid}
    hosts.service.claims.write(emptied(hosts.service.claims.read(lease.uuid)))
    hosts.service.recovery.end()
    for each in hosts.turns.values():
        each.turn()
    until(lambda: hosts.processes() == {}, 10.0)


def test_a_supervisor_that_knows_nothing_ends_nothing_before_the_service_has_answered(hosts):
    lease = attached(hosts)
    (hosts.folder / "g1" / "answer.json").unlink()
    hosts.service_up = False
    hosts.start("g1")
    hosts.rounds()
    assert hosts.processes().keys() == {lease.uuid}


@pytest.mark.parametrize("supervisor_died", [False, True])
def test_a_process_that_was_killed_is_started_again_at_a_newer_epoch(hosts, supervisor_died):
    """Who was connected would find the memory of the GPU empty at the old one."""
    lease = attached(hosts)
    hosts.move(SERVER, "c2")
    hosts.rounds(4)
    before = hosts.connected("c2")
    killed = hosts.processes()[lease.uuid]
    os.kill(killed, signal.SIGKILL)
    if supervisor_died:
        hosts.start("g1")
    hosts.turns["g1"].turn()
    assert hosts.service.state(lease) is LeaseState.STARTING
    shown = hosts.service.leases.read(lease.uuid).reasons
    assert [each.term for each in shown] == ["process_gone"]
    assert (before.echo("still?"), hosts.service.attaches("c2")) == ("", [])
    hosts.rounds(4)
    assert hosts.processes()[lease.uuid] != killed
    client = hosts.connected("c2")
    assert (before.epoch, client.epoch, client.echo("back")) == (2, 3, "back")
    assert not any(Client(first_address(hosts), epoch).accepted for epoch in (1, 2))
    client.close()
    before.close()


def test_a_process_that_died_stays_so_while_the_service_cannot_raise_its_epoch(hosts):
    lease = attached(hosts)
    hosts.service_up = False
    os.kill(hosts.processes()[lease.uuid], signal.SIGKILL)
    for _ in range(2):
        hosts.rounds()
        assert hosts.processes() == {}
        hosts.start("g1")
    hosts.service_up = True
    hosts.rounds(4)
    client = hosts.connected("c1")
    assert (client.epoch, client.echo("back")) == (2, "back")
    client.close()


def test_epochs_that_the_release_before_has_kept_are_those_of_processes(hosts):
    lease = attached(hosts)
    kept = hosts.folder / "g1" / "epochs.json"
    old = json.loads(kept.read_text())
    del old["given"]
    kept.write_text(json.dumps(old))
    hosts.start("g1")
    hosts.rounds()
    assert hosts.service.leases.read(lease.uuid).lease.epoch == 1
    kept.write_text(json.dumps(old))
    hosts.start("g1")
    os.kill(hosts.processes()[lease.uuid], signal.SIGKILL)
    hosts.rounds()
    assert hosts.service.leases.read(lease.uuid).lease.epoch == 2


def test_an_answer_that_is_old_brings_no_old_epoch_back(hosts):
    lease = attached(hosts)
    old = hosts.turns["g1"].answer
    hosts.move(SERVER, "c2")
    hosts.rounds(4)
    hosts.service_up = False
    hosts.start("g1")
    hosts.turns["g1"].answer = old
    hosts.turns["g1"].turn()
    assert not Client(first_of(hosts, lease), 1).accepted
    assert hosts.connected("c2").accepted


def first_of(hosts, lease):
    epoch, address = hosts.turns["g1"]._gpu_host.obey(hosts.turns["g1"].answer)[0][lease.uuid]
    assert epoch == 2
    return address


def test_where_libvirt_does_not_answer_no_server_is_taken_for_stopped(hosts):
    lease = attached(hosts)
    hosts.running["c1"] = None
    hosts.now_s += 20.0
    hosts.rounds()
    assert hosts.service.state(lease) is LeaseState.ATTACHED


def test_a_process_of_no_lease_is_ended(hosts):
    """R3: a supervisor died after its start, and the lease went meanwhile."""
    lease = attached(hosts)
    (served,) = hosts.turns["g1"].answer.serves
    stray = LeaseProcesses(hosts.folder / "g1" / "run", hosts.command)
    stray.start(replace(served, id="of-no-lease"))
    assert hosts.processes().keys() == {lease.uuid, "of-no-lease"}
    hosts.round()
    until(lambda: hosts.processes().keys() == {lease.uuid}, 10.0)
    stray._wait("of-no-lease")


def test_what_has_not_changed_is_asked_for_with_its_tag_and_reported_in_time(hosts):
    attached(hosts)
    hosts.asked.clear()
    hosts.rounds(3)
    assert set(hosts.asked) == {(host, "GET", 304) for host in hosts.running}
    hosts.now_s += 15.0
    hosts.round()
    assert [each for each in hosts.asked if each[1] == "POST"] == [
        (host, "POST", 200) for host in hosts.running
    ]
    spread = {pause_s(2.0) for _ in range(20)}
    assert len(spread) == 20
    assert 1.5 <= min(spread) <= max(spread) <= 2.5


def turns_of_a_minute(hosts, host, of="c1"):
    """Requests of a host in a minute of turns every two seconds."""
    hosts.asked.clear()
    for _ in range(30):
        hosts.now_s += 2.0
        hosts.turns[host].turn()
    return [method for asked, method, _status in hosts.asked if asked == host]


def test_a_host_asks_only_while_one_of_its_servers_asks_for_a_gpu(hosts):
    """c1 rests at first, c2 never does: 2 questions and 2 reports a minute, in place of 30 and 4."""
    hosts.rest_s = {"c1": 30.0}
    hosts.start("c1")
    plain = str(uuid.uuid4())
    hosts.move(plain, "c1")
    hosts.round()
    assert sorted(turns_of_a_minute(hosts, "c1")) == ["GET"] * 2 + ["POST"] * 2
    assert sorted(turns_of_a_minute(hosts, "c2")) == ["GET"] * 30 + ["POST"] * 4
    hosts.asked_by[SERVER] = REQUEST
    hosts.move(SERVER, "c1")
    hosts.asked.clear()
    hosts.now_s += 2.0
    hosts.turns["c1"].turn()
    assert [method for _host, method, _status in hosts.asked] == ["GET", "POST"]
    hosts.rounds(5)
    assert hosts.connected("c1").echo("here") == "here"
    assert turns_of_a_minute(hosts, "c1").count("GET") == 30
    hosts.move(SERVER, "")
    del hosts.service.placed[SERVER]
    hosts.rounds(2)
    for _ in range(2):
        hosts.service.rounds.end_without_server(ENGINE, hosts.service.trouble)
    hosts.rounds(2)
    assert hosts.turns["c1"].answer == LeaseAnswer()
    assert turns_of_a_minute(hosts, "c1").count("GET") == 2


def test_a_host_whose_question_or_report_is_lost_does_not_rest(hosts):
    """So two lost ones in a row are no minute of silence, after which its servers would get nothing."""
    hosts.rest_s = {"c1": 30.0}
    hosts.start("c1")
    turns_of_a_minute(hosts, "c1")
    hosts.service_up, before = False, hosts.tried
    turns_of_a_minute(hosts, "c1")
    assert hosts.tried - before > 15
    hosts.service_up = True
    assert sorted(turns_of_a_minute(hosts, "c1")) in (
        ["GET"] * 2 + ["POST"] * 2,
        ["GET"] * 3 + ["POST"] * 2,
    )


class HostAdapter:
    """keystoneauth's, of the user of g1."""

    def __init__(self, hosts):
        self.hosts = hosts

    def request(self, path, method, raise_exc, **given):
        assert not raise_exc
        return self.hosts.request("g1", method, path, **given)


def test_the_command_publishes_serves_and_reports(hosts, placement, monkeypatch, tmp_path):
    adapters = {"numa-ext": HostAdapter(hosts), "placement": placement.adapter}
    monkeypatch.setattr(command, "make_adapter", lambda _conf, name="placement": adapters[name])
    monkeypatch.setattr("oslo_log.log.setup", lambda *_arguments: None)
    monkeypatch.setattr("signal.signal", lambda *_arguments: None)
    state = hosts.folder / "g1"
    file = tmp_path / "agent.conf"
    lent = (
        "transport = fake\ntrying_out = true\nisolated = false\n"
        "gpus = a=8000, new=500\nnics = eth1=1000\nfabrics = main\ncores = 4\n"
    )
    text = f"[agent]\nstate_dir = {state}\n[host]\nname = g1\n[remote_gpus]\n"
    file.write_text(text + lent)
    once = ["--config-file", str(file), "--once"]
    assert command.main(once) == 0
    (pool,) = pool_reader.read(placement.client)
    assert {each.name: each.memory_mb.capacity for each in pool.gpus} == {"a": 8000, "new": 500}
    lease = hosts.service.leases.create("project-1", "user-1", ASKED, SERVER)
    hosts.move(SERVER, "c1")
    for _ in range(4):
        hosts.turns["c1"].turn()
        hosts.service.round()
        assert command.main(once) == 0
    hosts.turns["c1"].turn()
    client = hosts.connected("c1")
    assert client.echo("here") == "here"
    client.close()
    hosts.service_up = False
    assert command.main(once) == 1
    os.kill(int(pid_of(state / "leases", lease)), signal.SIGKILL)
    file.write_text(text + "transport = fake\ntrying_out = true\ngpus = a\n")
    assert command.main(once) == os.EX_CONFIG


@pytest.mark.parametrize(
    "case",
    [
        ("transport = verbs", "'verbs' is not allowed; allowed: fake, gone"),
        ("transport = fake", "trying_out"),
        ("", "the name of a transport"),
        ("transport = gone", "/opt/gone is not there: install the server of transport gone"),
    ],
)
def test_a_transport_that_cannot_serve_is_refused_in_a_sentence(
    case, tmp_path, monkeypatch, caplog, capfd
):
    options, why = case
    monkeypatch.setattr("oslo_log.log.setup", lambda *_arguments: None)
    monkeypatch.setattr("signal.signal", lambda *_arguments: None)
    (tmp_path / "gone.toml").write_text(
        'name = "gone"\napis = ["cuda"]\nslices = "advisory"\n[server]\nargv = ["/opt/gone"]\n'
        '[guest.environment]\nGONE = "{endpoints}"\n'
    )
    file = tmp_path / "agent.conf"
    file.write_text(
        f"[agent]\nstate_dir = {tmp_path}\n[host]\nname = g1\n[remote_gpus]\ntransports = {tmp_path}\n"
        f"gpus = a=8000\nnics = eth1=1000\nfabrics = main\n{options}\n"
    )
    assert command.main(["--config-file", str(file), "--once"]) == os.EX_CONFIG
    assert why in caplog.text + capfd.readouterr().err


def pid_of(folder, lease):
    """The process whose command line has the lease's socket."""
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        if f"{folder}/run/{lease.uuid}.sock".encode() in each.read_bytes():
            return each.parent.name
    raise AssertionError(lease)


SEEDS = 2


@pytest.mark.parametrize("hosts", ["together", "apart"], indirect=True)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_is_killed_after_two_rounds_no_process_and_no_claim_is_of_no_lease(hosts, seed):
    """Supervisors, processes and the service go and come back; of three leases two have room at a time."""
    chance = random.Random(seed)
    server = {number: f"{number:08x}-0000-0000-0000-000000000000" for number in range(3)}
    made = {0: hosts.service.leases.create("p", "u", ASKED, server[0])}
    hosts.move(server[0], "c1")
    hosts.rounds(chance.randrange(4))
    seen = set()
    for _ in range(20):
        number = chance.randrange(3)
        hosts.service_up = chance.random() < 0.8
        match chance.choice(("lease", "move", "move", "release", "kill", "restart", "forget")):
            case "lease" if number not in made:
                made[number] = hosts.service.leases.create("p", "u", ASKED, server[number])
            case "move":
                hosts.move(server[number], chance.choice(("c1", "c2", "")))
            case "release" if number in made:
                lease = hosts.service.leases.read(made.pop(number).uuid)
                if LeaseState.RELEASING in life.TRANSITIONS[lease.state]:
                    hosts.service.leases.change(lease, life.release, ENGINE)
            case "kill" if pids := list(hosts.processes().values()):
                os.kill(chance.choice(pids), signal.SIGKILL)
            case "restart":
                hosts.start(chance.choice(("g1", "c1", "c2")))
            case "forget":
                (hosts.folder / "g1" / "answer.json").unlink(missing_ok=True)
        hosts.round()
        seen |= {each.state for each in hosts.service.leases.find()}
    hosts.service_up = True
    hosts.rounds(5)
    serving = {
        each.uuid: each.lease.client_host
        for each in hosts.service.leases.find()
        if each.lease.epoch_at("g1") is not None
    }
    assert hosts.processes().keys() == serving.keys()
    living = hosts.service.leases.find(states=LIVING)
    held = {each.uuid for each in living if hosts.service.claims.read(each.uuid)}
    assert held == {each.uuid for each in living if each.claimed} == serving.keys()
    assert len(held) == min(len(living), 2), "a third one waits"
    if hosts.apart:
        assert len(processes_in(hosts.folder / "g1/run")) == 4 * len(serving)
    for host in ("c1", "c2"):
        used = {each.id for each in hosts.turns[host].answer.attaches}
        assert used == {lease for lease, client in serving.items() if client == host}
    assert len(seen) >= 2


def test_a_process_that_does_not_start_is_a_warning_and_delays_no_other(hosts, caplog):
    lease = attached(hosts)
    plain = hosts.turns["g1"]._gpu_host._processes._command

    def command(asked, control):
        return ["false"] if lease.uuid != asked.id else plain(asked, control)

    hosts.turns["g1"]._gpu_host._processes._command = command
    hosts.service.leases.create("project-1", "user-1", ASKED)
    hosts.rounds()
    assert "does not start" in caplog.text
    client = hosts.connected("c1")
    assert client.echo("here") == "here"
    client.close()


@pytest.fixture
def impatient(monkeypatch):
    """No process is waited for as long as in a cloud."""
    monkeypatch.setattr(processes, "_ANSWERS_S", 0.3)
    monkeypatch.setattr(processes, "_HANGS_S", 0.5)


def test_a_process_that_hangs_is_killed_and_its_lease_is_served_again(hosts, impatient, caplog):
    lease = attached(hosts)
    hung = hosts.processes()[lease.uuid]
    os.kill(hung, signal.SIGSTOP)
    hosts.turns["g1"]._gpu_host.obey(hosts.turns["g1"].answer)
    assert hosts.processes() == {lease.uuid: hung}, "it is given a while"
    until(lambda: hosts.round() or hosts.processes().get(lease.uuid) not in (hung, None), 10.0)
    assert "hangs, it is killed" in caplog.text
    hosts.rounds()
    client = hosts.connected("c1")
    assert client.echo("back") == "back"
    client.close()


def test_a_process_that_hangs_does_not_keep_the_gpu_of_a_released_lease(hosts, impatient):
    lease = attached(hosts)
    hosts.start("g1")  # its child it is not any more
    os.kill(hosts.processes()[lease.uuid], signal.SIGSTOP)
    hosts.service.leases.change(hosts.service.leases.read(lease.uuid), life.release, ENGINE)
    until(lambda: hosts.round() or hosts.service.state(lease) is LeaseState.GONE, 10.0)
    assert hosts.service.claims.read(lease.uuid) is None


def test_a_lease_has_not_ended_while_something_that_it_started_runs(hosts, impatient, caplog):
    """A server that hangs in its driver outlives SIGKILL; the lock is its."""
    lease = attached(hosts)
    server = os.open(hosts.folder / "g1" / "run" / f"{lease.uuid}.lock", os.O_RDONLY)
    os.kill(hosts.processes()[lease.uuid], signal.SIGKILL)
    until(lambda: not hosts.processes(), 10.0)
    fcntl.flock(server, fcntl.LOCK_EX)
    hosts.service.leases.change(hosts.service.leases.read(lease.uuid), life.release, ENGINE)
    hosts.rounds()
    assert hosts.service.state(lease) is LeaseState.RELEASING
    assert f"A process that served lease {lease.uuid} has not ended" in caplog.text
    os.close(server)
    hosts.rounds()
    assert hosts.service.state(lease) is LeaseState.GONE


def test_the_server_of_a_lease_holds_its_lock(hosts):
    lease = attached(hosts)
    lock = hosts.folder / "g1" / "run" / f"{lease.uuid}.lock"
    (server,) = _children(hosts.processes()[lease.uuid])
    assert str(lock) in {os.readlink(each) for each in Path(f"/proc/{server}/fd").iterdir()}


def _children(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_a_process_that_is_slow_delays_neither_others_nor_the_report(hosts, monkeypatch):
    monkeypatch.setattr(gpu_host, "_WAIT_S", 1.0)
    lease = attached(hosts)
    plain = hosts.turns["g1"]._gpu_host._processes._command

    def command(asked, control):
        return ["sleep", "6"] if lease.uuid != asked.id else plain(asked, control)

    hosts.turns["g1"]._gpu_host._processes._command = command
    slow = hosts.service.leases.create("project-1", "user-1", ASKED)
    hosts.rounds(3)
    hosts.asked.clear()
    hosts.now_s += 20.0
    begun_s = time.monotonic()
    hosts.rounds(2)
    assert time.monotonic() - begun_s < 5.5
    assert ("g1", "POST", 200) in hosts.asked
    assert hosts.turns["g1"]._reported.serves.keys() == {lease.uuid}
    hosts.service.leases.change(hosts.service.leases.read(slow.uuid), life.release, ENGINE)
    hosts.rounds(1)
    assert hosts.service.state(slow) is LeaseState.RELEASING, "it may start yet"
    until(lambda: hosts.round() or hosts.service.state(slow) is LeaseState.GONE, 15.0)


def test_a_gpus_host_whose_libvirt_hangs_reports_its_leases(hosts):
    attached(hosts, host="g1")
    hosts.running["g1"] = None
    hosts.asked.clear()
    hosts.now_s += 20.0
    hosts.rounds()
    assert ("g1", "POST", 200) in hosts.asked
    assert hosts.service.hosts.all()["g1"].servers == {SERVER}, "as it was known before"


class Reporter:
    """Placement as a publisher of pools sees it: it answers, refuses, or hangs."""

    def __init__(self, answers=()):
        self.answers, self.asked, self.lasts = list(answers), threading.Event(), threading.Event()

    def sync(self, _pool):
        self.asked.set()
        if not self.answers:
            self.lasts.wait(10.0)
        elif not self.answers.pop(0):
            raise ServiceUnavailableError("Placement does not answer.")


def test_placement_is_asked_ever_less_often_while_it_does_not_answer():
    publishing = Publishing(pool("g1"), Reporter([1, 0, 0, 0, 0, 1, 0]), 30.0)
    assert [publishing.turn() for _ in range(7)] == [30.0, 5.0, 10.0, 20.0, 30.0, 30.0, 5.0]


def test_a_placement_that_hangs_holds_up_no_turn():
    reporter, stop = Reporter(), threading.Event()
    Publishing(pool("g1"), reporter, 30.0).start(stop)
    assert reporter.asked.wait(10.0)
    stop.set()
    reporter.lasts.set()
