# SPDX-License-Identifier: Apache-2.0
"""Jobs whose servers nova's own API, scheduler and compute make: what the fake of tests/functional/jobs stands for."""

import json as json_module
import time

import fixtures

from nova_numa_ext.orchestrator.cloud.servers import UserServers
from nova_numa_ext.policy.jobs.states import JobState
from tests.in_nova.cloud import BE, NovaCloud
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

    def parts(self, vcpus=1, **more):
        image = self.glance.image1["id"]
        flavor = self.flavor(BE, vcpus)
        return (part("workers", flavor=flavor, image=image, networks=(), **more),)

    def test_a_job_runs_and_is_cancelled(self):
        job = self.world.jobs.create(new_job(parts=self.parts(count=3)))
        self.world.rounds(4)
        job = self.world.jobs.read(job.uuid)
        assert job.state is JobState.RUNNING, job.reasons
        found = self.servers.of_job(job.uuid)
        assert sorted(each.member for each in found) == [0, 1, 2]
        assert {each.uuid for each in found} == set(job.parts[0].servers.values())
        self.servers.delete(found[0].uuid)
        self._wait_until_deleted({"id": found[0].uuid})
        self.servers.delete(found[0].uuid)
        self.world.cancel(job)
        self.world.rounds(4)
        assert self.world.state(job) is JobState.CANCELLED
        assert self.api.get_servers() == []

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
