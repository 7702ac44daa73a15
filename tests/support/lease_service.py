# SPDX-License-Identifier: Apache-2.0
"""The job service as the agents of hosts see it: the API, the engine's rounds, a database and a Placement."""

import uuid
from dataclasses import replace

from oslo_config import cfg
from oslo_policy import policy

from nova_numa_ext.flow.solvers import installed_solver
from nova_numa_ext.orchestrator import manage
from nova_numa_ext.orchestrator.api import app, policies
from nova_numa_ext.orchestrator.lease_rounds import LeaseRounds
from nova_numa_ext.orchestrator.recover import Recoverer
from nova_numa_ext.orchestrator.recover_leases import LeaseRecoverer
from nova_numa_ext.orchestrator.server_requests import LeaseRules
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.database import Database
from nova_numa_ext.orchestrator.store.jobs import Jobs
from nova_numa_ext.orchestrator.store.lease_hosts import LeaseHosts
from nova_numa_ext.orchestrator.store.leases import Leases
from nova_numa_ext.orchestrator.store.recovery import Recovery
from nova_numa_ext.orchestrator.store.stored_lease import LeaseSpec
from nova_numa_ext.orchestrator.store.stores import Stores
from nova_numa_ext.orchestrator.store.trusts import EndedTrusts
from nova_numa_ext.policy.jobs.limits import UNLIMITED
from nova_numa_ext.policy.remote_gpu.leases import LeaseState
from nova_numa_ext.policy.remote_gpu.making_room import RebalanceRules
from placement_traits import pool_reader
from placement_traits.claim_store import ClaimStore
from placement_traits.claims import emptied
from placement_traits.names import RemoteGpuApi, ServiceLevel
from tests.support.compute_api import ComputeApi, FakeHosts, FakeTrusts
from tests.support.jobs_database import with_tables

ENGINE = Actor("engine")
SERVER = str(uuid.uuid4())
ASKED = LeaseSpec(1000, ServiceLevel.SILVER, RemoteGpuApi.OPENCL)


def credential(host, role="numa_ext_host"):
    """What keystonemiddleware sets for the user of a host."""
    return {
        "X-Identity-Status": "Confirmed",
        "X-User-Id": f"id-of-{host}",
        "X-User-Name": f"numa-ext-host-{host}",
        "X-User-Domain-Id": "default",
        "X-Project-Id": "hosts",
        "X-Project-Name": "numa-ext-hosts",
        "X-Project-Domain-Id": "default",
        "X-Roles": role,
    }


class LeaseService:
    """The API, the engine's rounds, a database and a Placement with pools; hosts report by hand.

    :ivar placed: server -> host, as nova has put it
    :ivar projects: server -> project; others are of project-1
    :ivar limits: project -> its limits
    :ivar fabrics: host of servers -> fabrics that it is in; others are not known
    :ivar rebalance: whether leases that run make room for others, from the next :meth:`start` on
    :ivar hold_s: for which stopped servers keep their GPUs, from the next :meth:`start` on; None: for ever
    :ivar flavor: what nova says of servers' flavors, from the next :meth:`start` on; None: it is not asked
    """

    def __init__(self, placement, folder, url=""):
        self.client_of_placement = placement.client
        self.database = database = (
            Database(url, sqlite_synchronous=False) if url else with_tables(f"{folder}/leases.db")
        )
        self.leases, self.hosts = Leases(database), LeaseHosts(database)
        self.recovery = Recovery(database)
        self.placed, self.projects, self.limits, self.now_s = {}, {}, {}, 0.0
        self.fabrics, self.flavor, self.rebalance, self.hold_s = {}, None, RebalanceRules(), None
        self.claims = ClaimStore(placement.client)
        self.start()
        conf = cfg.ConfigOpts()
        enforcer = policy.Enforcer(conf)
        conf([], default_config_files=[])
        enforcer.register_defaults(policies.RULES)
        made = app.make(
            Stores.of(database),
            enforcer,
            lambda _environ: self,
            None,  # no group is asked for
        )
        self.client = made.test_client()

    def project_of(self, server):
        """What nova says to a user."""
        return self.projects.get(server, "project-1")

    def where(self, server):
        """The hosts that Placement has a server on, by ``placed``."""
        host = self.placed.get(server)
        return frozenset({host} if host else ())

    def owner(self, server):
        """What Placement says of a server's allocation."""
        return (self.project_of(server), "user-1") if server in self.placed else None

    def start(self):
        """Another engine."""
        self.rounds = LeaseRounds(
            self.leases,
            self.claims,
            self.lent,
            self.reported,
            self.rules(),
        )

    def rules(self):
        """By what it decides."""
        return LeaseRules(
            self.where,
            self.owner,
            lambda project: self.limits.get(project, UNLIMITED),
            fabrics=self.fabrics.get,
            solve=installed_solver(),
            flavor=self.flavor,
            nic=lambda host: pool_reader.client_nic(self.client_of_placement, host),
            clock=lambda: self.now_s,
            rebalance=self.rebalance,
            hold_s=self.hold_s,
        )

    def recover(self, *, commit=True, between=lambda: None):
        """``numa-ext-manage recover``, of a service without jobs."""
        recoverer = Recoverer(
            Jobs(self.database),
            EndedTrusts(self.database),
            FakeTrusts(ComputeApi()),
            self.claims,
            FakeHosts(ComputeApi()),
        )
        of_leases = LeaseRecoverer(self.leases, self.hosts, self.claims, self.lent)
        return manage.recovered(
            recoverer, of_leases, self.recovery, commit=commit, wait=lambda _seconds: between()
        )

    def lent(self):
        return pool_reader.read(self.client_of_placement)

    def reported(self):
        """The hosts' reports, each as old as the test says."""
        found = self.hosts.all()
        return {
            name: replace(each, seen_at=each.seen_at + self.now_s) for name, each in found.items()
        }

    def round(self):
        self.rounds.round(ENGINE, lambda: None, self.trouble)

    def trouble(self, lease, error):
        raise AssertionError(lease) from error

    def ask(self, host, who=None, **headers):
        sent = credential(who or host) | headers
        return self.client.get(f"/v1/hosts/{host}/leases", headers=sent)

    def report(self, host, serves=(), ended=(), servers=(), who=None, **more):
        body = {
            "report": {
                "serves": [
                    {"id": lease, "epoch": epoch, "address": f"{host}:7000"}
                    for lease, epoch in serves
                ],
                "ended": [{"id": lease, "epoch": epoch} for lease, epoch in ended],
                "servers": list(servers),
                **more,
            }
        }
        path = f"/v1/hosts/{host}/leases"
        return self.client.post(path, json=body, headers=credential(who or host))

    def obey(self, host="g1"):
        """Let a GPU's host do what it is to do, and report it."""
        asked = self.ask(host).json
        serves = [(each["id"], each["epoch"]) for each in asked["serves"]]
        return self.report(host, serves, [(each["id"], each["epoch"]) for each in asked["ends"]])

    def attached(self):
        """A lease whose server runs on c1, and may connect."""
        lease = self.leases.create("project-1", "user-1", ASKED, SERVER)
        self.obey()
        self.placed[SERVER] = "c1"
        self.report("c1", servers=[SERVER])
        for _ in range(2):
            self.round()
        self.obey()
        self.round()
        assert self.state(lease) is LeaseState.ATTACHED
        return lease

    def state(self, lease):
        return self.leases.read(lease.uuid).state

    def attaches(self, host):
        return [(each["id"], each["epoch"]) for each in self.ask(host).json["attaches"]]

    def forget(self):
        """Give back what leases hold."""
        for lease in self.leases.find():
            held = self.claims.read(lease.uuid)
            if held is not None:
                self.claims.write(emptied(held))
