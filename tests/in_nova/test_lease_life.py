# SPDX-License-Identifier: Apache-2.0
"""The life of a server by nova's own API, and what becomes of the lease that its flavor asks for.

Nova's computes define and end domains of a fake libvirt, and hosts report what that says: the agent's own reading of
nova's metadata. The engine asks the same Placement as nova for where servers are and whose. Processes of leases are
real ones of transport ``fake``.
"""

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import fixtures
import pytest
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional.api.client import OpenStackApiException

from host_agent.cmd import leases as agent
from host_agent.machine.libvirt import ListedDomain
from host_agent.model.workload import Activity
from nova_numa_ext.flow.solvers import installed_solver
from nova_numa_ext.orchestrator.cloud.flavors import ServerFlavors
from nova_numa_ext.orchestrator.cloud.hosts import ServerHosts
from nova_numa_ext.orchestrator.server_requests import LeaseRules
from nova_numa_ext.policy.jobs.limits import UNLIMITED, Limits
from placement_traits.pool_reporter import PoolReporter, gpu_uuids
from tests.functional.jobs.test_lease_processes import Hosts
from tests.in_nova.cloud import BE, NovaCloud
from tests.in_nova.test_jobs import Api
from tests.support.lease_service import ENGINE, LeaseService
from tests.support.pools import client, pool

REQUIRED = {**BE, "numa_ext:remote_gpu": "required", "numa_ext:remote_gpu_memory_mb": "1000"}
ACTIVITY = {
    fakelibvirt.VIR_DOMAIN_RUNNING: Activity.RUNNING,
    fakelibvirt.VIR_DOMAIN_PAUSED: Activity.PAUSED,
}


class Domains:
    """What libvirt says on a host, with the XML that nova has given: the fake one forgets the metadata.

    :param compute: nova's on that host
    :param given: server -> that XML
    """

    def __init__(self, compute, given):
        self._compute, self._given = compute, given

    def domains(self):
        found = self._compute.driver._host.get_connection()._vms.values()
        return tuple(
            ListedDomain(each.UUIDString(), self._given[each.UUIDString()], ACTIVITY[each._state])
            for each in found
            if each._state in ACTIVITY
        )


class NovasHosts(Hosts):
    """g1, which lends GPUs, and the hosts of nova's computes, each with what its libvirt says."""

    def __init__(self, service, folder, libvirt):
        self.libvirt, self.dead_at_s = libvirt, {}
        super().__init__(service, folder)
        self.command = replace(self.command, gpus=gpu_uuids(pool("g1")))
        self.running = {"g1": frozenset(), **{host: frozenset() for host in libvirt}}
        self.turns = {}
        for host in self.running:
            self.start(host)

    def servers(self, host):
        if host not in self.libvirt:
            return super().servers(host)
        return agent.servers(self.libvirt[host])

    def time_passes(self):
        """A minute and a half, and two looks for leases without a server."""
        for _ in range(5):
            self.service.now_s += 20.0
            self.round()
        for _ in range(2):
            self.service.rounds.end_without_server(ENGINE, self.service.trouble)
        self.rounds(2)

    def dies(self, host):
        del self.turns[host]
        self.service.dead_at_s[host] = self.service.now_s


class NovasService(LeaseService):
    """The engine as it is set up for a cloud: Placement says where servers are, nova what their flavors ask for."""

    def __init__(self, placement, compute, folder):
        self.cloud, self.flavors = ServerHosts(placement.client), ServerFlavors(compute)
        self.dead_at_s = {}
        super().__init__(placement, folder)

    def rules(self):
        return LeaseRules(
            self.cloud.names,
            self.cloud.owner,
            lambda project: self.limits.get(project, UNLIMITED),
            fabrics=self.cloud.fabrics,
            solve=installed_solver(),
            flavor=self.flavors.remote_gpus,
            nic=self.cloud.nic,
            clock=lambda: self.now_s,
        )

    def reported(self):
        return {
            name: replace(each, seen_at=each.seen_at + self.dead_at_s.get(name, self.now_s))
            for name, each in self.hosts.all().items()
        }


ROW = "{:<16}{:<23}{:<10}{:<7}{:<11}{:<9}{}"
HEAD = ROW.format("event", "nova", "database", "epoch", "Placement", "process", "client")
LIFE = """
event           nova                   database  epoch  Placement  process  client
create          ACTIVE h1              attached  1      claim      1        h1
hard reboot     ACTIVE h1              attached  3      claim      3        h1
stop            SHUTOFF h1             detached  4      claim      4        -
start           ACTIVE h1              attached  5      claim      5        h1
resize          VERIFY_RESIZE h2       attached  6      claim      6        h2
revert          ACTIVE h1              attached  8      claim      8        h1
cold migration  VERIFY_RESIZE h2       attached  9      claim      9        h2
confirm         ACTIVE h2              attached  9      claim      9        h2
live migration  ACTIVE h1              attached  10     claim      10       h1
rebuild         ACTIVE h1              attached  12     claim      12       h1
evacuate        SHUTOFF h2             attached  12     claim      12       -
start           ACTIVE h2              attached  13     claim      13       h2
shelve          SHELVED_OFFLOADED      gone      15     -          -        -
unshelve        ACTIVE h2              attached  1      claim      1        h2
over a quota    ACTIVE h2              attached  1      claim      1        h2
over a limit    ACTIVE h2, ACTIVE h2   attached  1      claim      1        h2
delete          ACTIVE h2              gone      3      -          -        -
a minute later  ACTIVE h2              attached  1      claim      1        h2
delete the 2nd  -                      gone      3      -          -        -
"""


class WithNova(NovaCloud):
    """h1 and h2 as :class:`NovaCloud` draws them, both clients in fabric "main", and g1, which lends a GPU there."""

    def setUp(self):
        super().setUp()
        self.xml = {}
        for name in ("defineXML", "createXML"):
            self.remember(name)
        for name in ("h1", "h2"):
            self.host(name)
            self.publish(name, remote_gpus=client("main"))
        PoolReporter(self.client).sync(pool("g1"))
        folder = self.useFixture(fixtures.TempDir()).path
        placement = SimpleNamespace(client=self.client)
        compute = SimpleNamespace(request=partial(Api(self.api).request, microversion="latest"))
        self.service = NovasService(placement, compute, folder)
        short = tempfile.TemporaryDirectory(
            dir="/tmp"
        )  # not the long one of nova: a socket's path has 107 bytes
        self.addCleanup(short.cleanup)
        libvirt = {name: Domains(self.computes[name], self.xml) for name in ("h1", "h2")}
        self.hosts = NovasHosts(self.service, Path(short.name), libvirt)
        self.addCleanup(self.hosts.stop)
        self.table = ["", HEAD]

    def remember(self, name):
        """Keep the XML that nova gives a domain; that of a live migration comes from the fake libvirt."""
        plain = getattr(fakelibvirt.Connection, name)

        def call(connection, xml, *more):
            domain = plain(connection, xml, *more)
            if "nova:instance" in xml:
                self.xml[domain.UUIDString()] = xml
            return domain

        self.useFixture(fixtures.MockPatchObject(fakelibvirt.Connection, name, call))

    def slow(self):
        """Where nova ends a domain to define it again, hosts and engine have a turn in between, as it takes seconds."""
        plain = fakelibvirt.Domain.destroy

        def destroy(domain):
            plain(domain)
            self.hosts.round()

        return mock.patch.object(fakelibvirt.Domain, "destroy", destroy)

    def event(self, name, act, *given, **more):
        """Let nova do something, and write down what is so when all had time to follow; returns what nova returns."""
        with self.slow():
            found = act(*given, **more)
        self.hosts.time_passes()
        servers = sorted(self.api.get_servers(), key=lambda each: each["created"])
        novas = (
            f"{each['status']} {each['OS-EXT-SRV-ATTR:host'] or ''}".strip() for each in servers
        )
        row = (name, ", ".join(novas) or "-", *self.hosts.row())
        self.table.append(ROW.format(*row))
        return found

    @pytest.mark.long
    def test_placement_database_and_processes_agree_after_each_event_of_a_server(self):
        self.server = server = self.event("create", self.boot, REQUIRED, host="h1")
        self.event("hard reboot", self._reboot_server, server, hard=True)
        self.event("stop", self._stop_server, server)
        self.event("start", self._start_server, server)
        self.event("resize", self._resize_server, server, self.flavor(REQUIRED, vcpus=2))
        self.event("revert", self._revert_resize, server)
        self.event("cold migration", self._migrate_server, server)
        self.event("confirm", self._confirm_resize, server)
        self.event("live migration", self.migrate_live, server, "h1")
        self.event("rebuild", self._rebuild_server, server, self._create_image({})["id"])
        self.event("evacuate", self.evacuate, server)
        self.event("start", self._start_server, server)
        self.event("shelve", self._shelve_server, server)
        self.event("unshelve", self._unshelve_server, server)
        self.event("over a quota", self.over_quota)
        self.service.limits[self.api.project_id] = Limits(leases=1)
        other = self.event("over a limit", self.boot, REQUIRED)
        self.event("delete", self._delete_server, server)
        self.event("a minute later", lambda: None)
        self.event("delete the 2nd", self._delete_server, other)
        assert self.table == LIFE.splitlines()

    def migrate_live(self, server, host):
        self.src, self.dest = (self.computes[each] for each in (self.host_of(server), host))
        found = self._live_migrate(server)
        # The fake libvirt forgets that nova asks for a domain that is persistent there and undefined here.
        here, there = (each.driver._host.get_connection() for each in (self.src, self.dest))
        here._vms.pop(here.lookupByUUIDString(server["id"]).name())
        there.lookupByUUIDString(server["id"])._transient = False
        return found

    def evacuate(self, server):
        """Off a host that is down: nova keeps what it holds there until it is back."""
        host = self.host_of(server)
        self.hosts.dies(host)
        self.computes[host].stop()
        self.api.put_service(self.computes[host].service_ref.uuid, {"forced_down": True})
        return self._evacuate_server(server)

    def over_quota(self):
        self.flags(instances=1, group="quota")
        with pytest.raises(OpenStackApiException, match="Quota exceeded"):
            self.boot(REQUIRED)
        self.flags(instances=2, group="quota")
