# SPDX-License-Identifier: Apache-2.0
"""Jobs whose servers nova's own API, scheduler and compute make: what the fake of tests/functional/jobs stands for."""

import json as json_module
import time
from functools import partial
from types import SimpleNamespace

import fixtures
import pytest

from nova_numa_ext.orchestrator.cloud.fleet import PlacementHosts
from nova_numa_ext.orchestrator.cloud.servers import MICROVERSION, NO_NETWORK, UserServers
from nova_numa_ext.orchestrator.cloud.user import TokenCloud
from nova_numa_ext.orchestrator.decide import HostQueue
from nova_numa_ext.orchestrator.store.stored_job import Sizes
from nova_numa_ext.policy.jobs.host_aspects import PlannerSettings
from nova_numa_ext.policy.jobs.plan import HostPlace, Plan
from nova_numa_ext.policy.jobs.queue_settings import QueueSettings
from nova_numa_ext.policy.jobs.states import JobState
from nova_numa_ext.scheduler import process
from placement_traits.view import ViewSettings
from tests.in_nova.cloud import BE, NovaCloud
from tests.support.job_hints import KEYS
from tests.support.jobs_database import new_job, part
from tests.support.jobs_world import World

_BUSY = {"BUILD", "DELETED"}


class Api:
    """Nova's API in process, as a keystoneauth1 adapter asks it."""

    def __init__(self, client):
        self._client = client

    def request(self, path, method, *, json=None, raise_exc, microversion):
        """Send one request."""
        assert not raise_exc
        self._client.microversion = microversion
        body = None if json is None else json_module.dumps(json)
        return self._client.api_request(path.lstrip("/"), method=method, body=body)


class Jobs(NovaCloud):
    """``h1`` and ``h2`` as :class:`.NovaCloud` draws them."""

    def setUp(self):
        super().setUp()
        self.host("h1")
        self.host("h2")
        self.servers = UserServers(Api(self.api))
        self.world = World(self.useFixture(fixtures.TempDir()).path)
        self.world.trusts.servers = lambda _trust: self.servers
        self.world.settle = self.settle

    def settle(self):
        """Wait until nova builds and deletes nothing."""
        until = time.monotonic() + 30
        while any(
            each.status in _BUSY
            for job in self.world.jobs.find()
            for each in self.servers.of_job(job.uuid)
        ):
            assert time.monotonic() < until, "nova does not get ready"
            time.sleep(0.1)

    def parts(self, vcpus=1, networks=(), **more):
        image = self.glance.image1["id"]
        flavor = self.flavor(BE, vcpus)
        return (part("workers", flavor=flavor, image=image, networks=networks, **more),)

    def test_servers_have_no_network_where_none_is_asked_for(self):
        for networks, number in ((NO_NETWORK, 0), ((), 1)):
            job = self.world.jobs.create(new_job(parts=self.parts(count=1, networks=networks)))
            self.world.rounds(4)
            job = self.world.jobs.read(job.uuid)
            assert job.state is JobState.RUNNING, job.reasons
            (uuid,) = job.parts[0].servers.values()
            assert len(self.api.get_server(uuid)["addresses"]) == number

    def test_a_job_runs_and_is_cancelled(self):
        job = self.world.jobs.create(new_job(parts=self.parts(count=3)))
        self.world.rounds(4)
        job = self.world.jobs.read(job.uuid)
        assert job.state is JobState.RUNNING, job.reasons
        found = self.servers.of_job(job.uuid)
        assert sorted(each.member for each in found) == [0, 1, 2]
        assert {each.uuid for each in found} == set(job.parts[0].servers.values())
        assert self.servers.get(found[0].uuid) == found[0]
        self.servers.delete([found[0].uuid])
        self._wait_until_deleted({"id": found[0].uuid})
        assert self.servers.get(found[0].uuid) is None
        self.servers.delete([found[0].uuid])
        self.world.cancel(job)
        self.world.rounds(4)
        assert self.world.state(job) is JobState.CANCELLED
        assert self.api.get_servers() == []

    def test_what_a_user_sees_of_flavors_and_limits(self):
        """By id and by name, beyond the first page; what a user names like a path is no path."""
        self.flags(max_limit=2, group="api")
        self.flags(instances=3, ram=-1, server_group_members=0, group="quota")
        asked = partial(Api(self.api).request, microversion=MICROVERSION)
        compute = SimpleNamespace(request=asked)
        others = dict.fromkeys(("image", "network", "orchestration", "identity"))
        token = SimpleNamespace(project_id=self.api.project_id)
        cloud = TokenCloud(token, compute=compute, trustee=str, roles=(), **others)
        found = cloud.flavor(self.flavor(BE, vcpus=2))
        assert (found.vcpus, found.memory_mb, found.disk_gb, found.root_gb) == (2, 512, 1, 1)
        assert found.extra_specs == BE
        body = {"name": "a b/é", "id": "last", "vcpus": 1, "ram": 64, "disk": 1, "swap": 1025}
        self.api.api_post("flavors", {"flavor": {**body, "OS-FLV-EXT-DATA:ephemeral": 3}})
        assert (cloud.flavor("a b/é").uuid, cloud.flavor("last").disk_gb) == ("last", 6)
        assert [cloud.flavor(name) for name in ("none", "..", ".", "detail")] == [None] * 4
        quota = cloud.quota()
        assert (quota.instances, quota.memory_mb, quota.members) == (3, None, 0)

    def test_servers_run_where_they_were_planned(self):
        self.world.hint_keys = KEYS
        self.world.start()
        root = self._get_provider_uuid_by_name("h2")
        self.world.plan = lambda _job: Plan((HostPlace("workers", root, 2),))
        parts = self.parts(count=2)
        job = self.world.jobs.create(new_job(parts=parts, project=self.api.project_id))
        self.world.rounds(4)
        job = self.world.jobs.read(job.uuid)
        assert job.state is JobState.RUNNING, job.reasons
        assert {self.host_of({"id": each}) for each in job.parts[0].servers.values()} == {"h2"}

    @pytest.mark.long
    def test_jobs_beyond_what_placement_has_wait_until_a_job_ends(self):
        """Four servers of two dedicated CPUs fill a host: of three jobs of two such parts the third waits."""
        each_round = ViewSettings(interval_s=1e-3, busy_share=1.0)
        hosts = PlacementHosts(process.engine()._view.adapter, each_round)
        self.world.decide = HostQueue(hosts, QueueSettings(), PlannerSettings()).decide
        self.world.start()
        specs = {"hw:cpu_policy": "dedicated"}
        flavor, image = self.flavor(specs, vcpus=2), self.glance.image1["id"]
        fields = {"flavor": flavor, "image": image, "networks": (), "sizes": Sizes(2, 512, 1)}
        names = ("one", "other")
        parts = tuple(part(name, count=2, extra_specs=specs, **fields) for name in names)
        jobs = [self.world.jobs.create(new_job(trust=trust, parts=parts)) for trust in "abc"]
        self.world.rounds(6)
        states = [self.world.state(each) for each in jobs]
        assert states == [JobState.RUNNING, JobState.RUNNING, JobState.QUEUED], [
            str(reason)
            for each in jobs
            for event in self.world.jobs.events(each)
            for reason in event.reasons
        ]
        assert self.world.why(jobs[2])[0] == "no_room[one]=0 (against 2)"
        assert sorted(map(self.host_of, self.api.get_servers())) == ["h1"] * 4 + ["h2"] * 4
        self.world.cancel(jobs[0])
        self.world.rounds(10)
        assert self.world.state(jobs[0]) is JobState.CANCELLED
        assert self.world.state(jobs[2]) is JobState.RUNNING, self.world.why(jobs[2])

    def test_what_nova_refuses_leaves_nothing(self):
        """A third host, a flavor that is not there, an instance more than the quota allows."""
        image = self.glance.image1["id"]
        stories = {
            "apart": self.parts(count=3, apart=True),
            "flavor": (part("workers", flavor="none", image=image, networks=()),),
            "quota": self.parts(count=4),
        }
        jobs = {}
        for trust, parts in stories.items():
            self.flags(instances=3, group="quota")
            jobs[trust] = self.world.jobs.create(new_job(parts=parts, trust=trust))
            self.world.rounds(5)
            assert self.api.get_servers() == []
            assert self.api.get_server_groups() == []
        told = {
            trust: (self.world.state(job), self.world.why(job)[0]) for trust, job in jobs.items()
        }
        assert told["apart"][0] is JobState.QUEUED
        assert "No valid host was found" in told["apart"][1]
        assert told["flavor"][0] is JobState.FAILED
        assert "POST /servers with 400: Flavor none could not be found" in told["flavor"][1]
        assert told["quota"][0] is JobState.QUEUED
        assert "with 403: Quota exceeded for instances" in told["quota"][1]
