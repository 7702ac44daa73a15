# SPDX-License-Identifier: Apache-2.0
"""The hosts that the queue plans on, read from the real Placement."""

import uuid

import pytest

from emulation.hosts import four_nodes
from emulation.placement_service import PlacementInProcess
from nova_numa_ext.orchestrator.cloud.fleet import PlacementHosts
from nova_numa_ext.orchestrator.decide import HostQueue
from nova_numa_ext.orchestrator.store.stored_job import Sizes
from nova_numa_ext.policy.jobs.host_aspects import PlannerSettings
from nova_numa_ext.policy.jobs.queue_settings import QueueSettings
from nova_numa_ext.policy.jobs.states import JobState
from placement_traits import names
from placement_traits.claim_store import ClaimStore
from placement_traits.client import PlacementError
from placement_traits.errors import ServiceUnavailableError
from placement_traits.reporter import Reporter
from placement_traits.tree import desired_tree
from placement_traits.view import ViewSettings
from tests.support.faults import FaultyAdapter, lose_request
from tests.support.filled_placement import FilledPlacement
from tests.support.hosts import SETTINGS
from tests.support.jobs_database import new_job, part, stored_job
from tests.support.jobs_world import World

EVERY_S = 10.0
LC = {
    "numa_ext:tier": "LC",
    "hw:cpu_policy": "dedicated",
    "hw:numa_nodes": "1",
    "resources:CUSTOM_RDT_CLOS": "1",
}


class Cloud(FilledPlacement):
    """Two hosts with agents, one without, each of VCPU 8, PCPU 8 and MEMORY_MB 8192, and who reads them.

    :ivar now: seconds that pass when told
    :ivar fault: what becomes of the reader's requests
    :ivar takes_s: seconds that each of them takes
    """

    def __init__(self, adapter):
        super().__init__(adapter)
        self.roots = {name: self.compute(name, PCPU=8) for name in ("h1", "h2", "plain")}
        for name in ("h1", "h2"):
            Reporter(self.client).sync(desired_tree(name, four_nodes(), SETTINGS))
        self.now, self.fault, self.takes_s = 0.0, None, 0.0
        self.seen = FaultyAdapter(adapter, self.becomes)
        every = ViewSettings(interval_s=EVERY_S)
        self.hosts = PlacementHosts(self.seen, every, clock=lambda: self.now)

    def becomes(self, _method, _url):
        self.now += self.takes_s
        return self.fault


@pytest.fixture
def cloud():
    """Three hosts in Placement, and the queue's reader of them::

    h1, h2                     VCPU 8, PCPU 8, MEMORY_MB 8192; published by an agent
    └─ :rdt, :l3_0 … :l3_3     of four nodes, and two GPUs
    plain                      VCPU 8, PCPU 8, MEMORY_MB 8192; no agent
    """
    with PlacementInProcess() as placement:
        yield Cloud(placement.adapter)


def server(cloud, host, vcpus):
    cloud.claim(str(uuid.uuid4()), allocations={cloud.roots[host]: {"VCPU": vcpus}})


def free(view, resource=names.VCPU):
    column = view.classes[resource]
    left = (view.capacity - view.used)[column]
    return {view.host_name(row): int(left[row]) for row in range(len(view.roots))}


def test_hosts_with_an_agent_are_seen_with_what_nova_and_agents_count(cloud):
    server(cloud, "h2", 3)
    view = cloud.hosts.read()
    assert free(view) == {"h1": 8, "h2": 5}
    assert free(view, names.LLC_WAY) == {"h1": 52, "h2": 52}
    assert not view.closed.any()


def test_placement_is_asked_again_when_it_is_due_and_not_before(cloud):
    view = cloud.hosts.read()
    server(cloud, "h1", 8)
    cloud.seen.log.clear()
    assert cloud.hosts.read() is view
    assert cloud.seen.log == []
    cloud.now += EVERY_S + 1
    again = cloud.hosts.read()
    assert again is not view
    assert free(again) == {"h1": 0, "h2": 8}


def test_what_a_deleted_server_had_is_free_at_the_next_reading(cloud):
    """Nova deletes its allocation, and Placement raises no generation."""
    consumer = str(uuid.uuid4())
    cloud.claim(consumer, allocations={cloud.roots["h1"]: {"VCPU": 8}})
    assert free(cloud.hosts.read()) == {"h1": 0, "h2": 8}
    cloud.client.delete(f"/allocations/{consumer}")
    cloud.now += EVERY_S + 1
    assert free(cloud.hosts.read()) == {"h1": 8, "h2": 8}


def test_on_a_large_cloud_generations_are_compared_and_all_is_read_each_minute(cloud):
    """A reading takes seconds there. What is taken is seen at once, what nova frees is not, unless a job had it."""
    cloud.takes_s = 1.0
    consumers = {}
    for host in ("h1", "h2"):
        consumers[host] = str(uuid.uuid4())
        amounts = {cloud.roots[host]: {"VCPU": 6}}
        cloud.claim(consumers[host], allocations=amounts)
    cloud.hosts.read()
    for consumer in consumers.values():
        cloud.client.delete(f"/allocations/{consumer}")
    cloud.now += 21.0
    cloud.seen.log.clear()
    assert free(cloud.hosts.read()) == {"h1": 2, "h2": 2}
    assert not any("allocation_candidates" in url for _, url in cloud.seen.log)
    server(cloud, "h2", 1)
    cloud.now += 21.0
    assert free(cloud.hosts.read(freed={cloud.roots["h1"], "gone"})) == {"h1": 8, "h2": 7}
    consumer = str(uuid.uuid4())
    cloud.claim(consumer, allocations={cloud.roots["h1"]: {"VCPU": 8}})
    cloud.now += 21.0
    assert free(cloud.hosts.read())["h1"] == 0
    cloud.client.delete(f"/allocations/{consumer}")
    cloud.now += 60.0
    assert free(cloud.hosts.read()) == {"h1": 8, "h2": 7}


def test_a_host_that_nova_has_disabled_is_closed(cloud):
    cloud.traits(cloud.roots["h1"], names.COMPUTE_DISABLED)
    view = cloud.hosts.read()
    assert {view.host_name(row) for row in range(2) if view.closed[row]} == {"h1"}


def test_a_placement_that_does_not_answer_is_asked_the_next_time(cloud):
    cloud.hosts.read()
    cloud.now += EVERY_S + 1
    cloud.fault = lose_request
    with pytest.raises(ServiceUnavailableError):
        cloud.hosts.read()
    cloud.fault = None
    server(cloud, "h1", 8)
    assert free(cloud.hosts.read()) == {"h1": 0, "h2": 8}


def test_jobs_go_where_placement_has_room(cloud):
    """Eight VCPUs on each host, three of them taken on h1: the tightest host first, then the other."""
    server(cloud, "h1", 3)
    queue = HostQueue(cloud.hosts, QueueSettings(), PlannerSettings())
    sizes = Sizes(5, 512, 0)
    jobs = [
        stored_job(uuid=name, parts=(part("p", count=1, sizes=sizes, extra_specs={}),))
        for name in "abc"
    ]
    decided = queue.decide(jobs, [], 1.0)
    places = {job: [each.host for each in plan.places] for job, plan in decided.starts.items()}
    assert places == {"a": [cloud.roots["h1"]], "b": [cloud.roots["h2"]]}
    assert [each.term for each in decided.waits["c"]] == ["no_room"]


def test_ways_of_a_reservation_are_held_in_placement_until_a_job_of_the_queue_takes_them(
    cloud, tmp_path
):
    """An engine with its queue, over the real Placement: a server beside the queue does not get what is held."""
    cloud.traits(cloud.roots["h2"], names.COMPUTE_DISABLED)
    world = World(tmp_path, ClaimStore(cloud.client))
    world.decide = HostQueue(cloud.hosts, QueueSettings(), PlannerSettings()).decide
    world.api.host = cloud.roots["h1"]
    world.start()
    long = _of_one_server(world, "long", memory_mb=6000, walltime_s=3600.0)
    world.rounds(4)
    assert world.state(long) is JobState.RUNNING
    cloud.claim(str(uuid.uuid4()), allocations={cloud.roots["h1"]: {"MEMORY_MB": 6000}})
    cloud.now += EVERY_S + 1

    first = _of_one_server(world, "first", memory_mb=8000, ways=4)
    world.rounds(2)
    assert "no_room" in world.why(first)[0]
    [(domain, held)] = _held(world)
    assert held == 4
    beside = {domain: {names.LLC_WAY: 13}}
    with pytest.raises(PlacementError):
        cloud.claim(str(uuid.uuid4()), allocations=beside)

    cloud.now += EVERY_S + 1
    short = _of_one_server(world, "short", memory_mb=512, ways=13, walltime_s=60.0)
    world.rounds(1)
    assert world.state(short) is JobState.PLANNED
    assert _held(world) == []
    cloud.claim(str(uuid.uuid4()), allocations=beside)
    world.cancel(first)
    world.rounds(4)
    assert (world.state(first), world.state(short)) == (JobState.CANCELLED, JobState.RUNNING)
    assert _held(world) == []


def _of_one_server(world, name, memory_mb, ways=0, **fields):
    specs = {"resources_NODE:CUSTOM_LLC_WAY": str(ways), **LC} if ways else {}
    one = part("p", count=1, sizes=Sizes(1, memory_mb, 0), extra_specs=specs)
    return world.jobs.create(new_job(name, parts=(one,), trust=name, **fields))


def _held(world):
    """Ways that consumers of ours hold for jobs that wait, by provider."""
    return [
        (provider, amounts[names.LLC_WAY])
        for each in world.claims.all()
        if each.type == names.RESERVATION_CONSUMER
        for provider, amounts in each.amounts.items()
        if names.LLC_WAY in amounts
    ]
