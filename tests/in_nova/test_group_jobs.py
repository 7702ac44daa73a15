# SPDX-License-Identifier: Apache-2.0
"""Jobs that are groups on a fabric: the queue of the service, nova's own API and scheduler, and one Placement."""

import fixtures
import pytest

from nova_numa_ext.orchestrator.cloud.fleet import PlacementHosts
from nova_numa_ext.orchestrator.cloud.servers import UserServers
from nova_numa_ext.orchestrator.decide import HostQueue
from nova_numa_ext.orchestrator.store.stored_job import Sizes
from nova_numa_ext.policy.jobs.host_aspects import PlannerSettings
from nova_numa_ext.policy.jobs.queue_settings import QueueSettings
from nova_numa_ext.policy.jobs.states import JobState
from nova_numa_ext.scheduler import process
from placement_traits import names
from placement_traits.claim_store import ClaimStore
from placement_traits.view import ViewSettings
from tests.in_nova import test_jobs
from tests.in_nova.cloud import NovaCloud
from tests.support.fabrics import fabric
from tests.support.job_hints import KEYS
from tests.support.jobs_database import new_job, part
from tests.support.jobs_world import World

QUIET = {"numa_ext:net_share": "quiet", "numa_ext:net_within": "pod"}


class GroupJobs(NovaCloud):
    """A pod of two leafs, each with three hosts: a block of two, and one beside it::

    train
    └─ p00
       ├─ l000    l000-00 l000-01 l000-02
       └─ l001    l001-00 l001-01 l001-02
    """

    settle = test_jobs.Jobs.settle

    def setUp(self):
        super().setUp()
        self.cabled(fabric([3, 3]))
        self.servers = UserServers(test_jobs.Api(self.api))
        self.world = World(self.useFixture(fixtures.TempDir()).path, ClaimStore(self.client))
        self.world.trusts.servers = lambda _trust: self.servers
        self.world.settle = self.settle
        self.world.hint_keys = KEYS
        each_round = ViewSettings(interval_s=1e-3, busy_share=1.0)
        hosts = PlacementHosts(process.engine()._view.adapter, each_round)
        self.world.decide = HostQueue(hosts, QueueSettings(), PlannerSettings()).decide
        self.world.start()

    def submitted(self, trust, count=4):
        parts = (
            part(
                "ranks",
                count=count,
                flavor=self.flavor(QUIET),
                image=self.glance.image1["id"],
                networks=(),
                sizes=Sizes(1, 512, 1),
                extra_specs=QUIET,
            ),
        )
        job = new_job(trust=trust, parts=parts, project=self.api.project_id)
        return self.world.jobs.create(job)

    def leafs(self, job):
        """Leaf of each server, in the order of ranks."""
        servers = self.world.jobs.read(job.uuid).parts[0].servers
        return [self.host_of({"id": servers[member]})[:4] for member in sorted(servers)]

    @pytest.mark.long
    def test_a_quiet_job_has_blocks_and_the_next_one_waits_until_it_ends(self):
        first, second = self.submitted("a"), self.submitted("b")
        self.world.rounds(5)
        assert self.world.state(first) is JobState.RUNNING, self.world.why(first)
        assert self.leafs(first) == ["l000", "l000", "l001", "l001"]
        assert self.world.state(second) is JobState.QUEUED
        no_room, within, *_ = self.world.why(second)
        assert no_room == "no_room[ranks]=0 (against 4)"
        assert within.startswith("within[pod]=")
        (claim,) = self.fabrics.all()
        (group,) = self.api.get_server_groups()
        assert claim.consumer == group["id"]
        blocks = [held.get(names.LEAF_BLOCK) for held in claim.amounts.values()]
        assert blocks.count(2) == 2
        self.world.cancel(first)
        self.world.rounds(12)
        assert self.world.state(first) is JobState.CANCELLED
        assert self.world.state(second) is JobState.RUNNING, self.world.why(second)
        assert self.leafs(second) == ["l000", "l000", "l001", "l001"]
