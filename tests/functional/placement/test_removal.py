# SPDX-License-Identifier: Apache-2.0
"""Hosts that are taken out of the real Placement, or drained: what goes, what stays and why."""

import uuid

import pytest

from emulation.hosts import four_nodes
from placement_traits import beats, names, removal
from placement_traits.beats import BeatWriter
from placement_traits.client import PlacementError
from placement_traits.host_modes import HostModes
from placement_traits.names import TierTrait
from placement_traits.pool_reporter import PoolReporter
from placement_traits.removal import Removal
from placement_traits.reporter import Reporter
from placement_traits.tree import desired_tree
from placement_traits.view import FleetView
from tests.support.filled_placement import as_literal
from tests.support.hosts import SETTINGS
from tests.support.pools import pool

CHILDREN = (
    "h1:gpu-0000:05:00.0",
    "h1:gpu-0000:85:00.0",
    *(f"h1:l3_{n}" for n in range(4)),
    "h1:rdt",
)


@pytest.fixture
def used(reported_compute):
    """The reported host after some time::

    h1      … of ``reported_compute``, a beat, mode observe, drained by operators
    """
    cloud = reported_compute
    BeatWriter(cloud.client, "h1").beat(5)
    setter = HostModes(cloud.client)
    setter.prepare()
    setter.set(setter.root("h1"), observe=True)
    Reporter(cloud.client).drain("h1", on=True)
    return cloud


def claim_ways(cloud, provider="h1:l3_0"):
    """Let a server take two ways; returns it."""
    server = str(uuid.uuid4())
    cloud.claim(server, allocations={cloud.uuid(provider): {names.LLC_WAY: 2}})
    return server


def known(cloud):
    """Traits and resource classes that do not come with Placement."""
    traits = cloud.client.get("/traits?name=startswith:CUSTOM_")["traits"]
    classes = cloud.client.get("/resource_classes")["resource_classes"]
    return {*traits, *(c["name"] for c in classes if c["name"].startswith("CUSTOM_"))}


def test_a_removed_host_is_as_nova_made_it(used):
    ours = len(root_traits(used) - {"HW_CPU_X86_AVX2"})
    gone = removal.remove(used.client, "h1")
    assert gone.removed == (*CHILDREN, f"{ours} traits of h1", "beat:h1")
    assert (gone.held, gone.failed) == ((), ())
    nova = {"VCPU": (8, 0, 1, 2147483647), "MEMORY_MB": (8192, 0, 1, 2147483647)}
    assert used.everything() == {"h1": (None, {"HW_CPU_X86_AVX2"}, nova)}


def test_it_may_be_called_again_and_for_what_never_was(used):
    removal.remove(used.client, "h1")
    client = used.connect()
    assert removal.remove(client, "h1") == Removal()
    assert removal.remove(client, "never-was") == Removal()
    assert client.counters.writes == 0


def test_a_dry_run_says_the_same_and_writes_nothing(used):
    server = claim_ways(used)
    before, client = used.everything(), used.connect()
    would = removal.remove(client, "h1", dry_run=True)
    assert (client.counters.writes, used.everything()) == (0, before)
    assert server in would.held[0]
    assert removal.remove(used.client, "h1") == would


def test_what_servers_hold_stays_and_takes_no_new_ones(reported_compute):
    cloud = reported_compute
    server = claim_ways(cloud)
    gone = removal.remove(cloud.client, "h1")
    (sentence,) = gone.held
    assert sentence.startswith(
        "Provider h1:l3_0 stays and takes no new servers: 1 hold a part of it"
    )
    assert server in sentence
    assert set(gone.removed[:-1]) == set(CHILDREN) - {"h1:l3_0"}
    left = cloud.everything()
    assert set(left) == {"h1", "h1:l3_0"}
    assert left["h1"][1] == {"HW_CPU_X86_AVX2"}
    with pytest.raises(PlacementError):
        claim_ways(cloud)
    assert removal.hosts(cloud.client) == ("h1",)
    again = removal.remove(cloud.client, "h1")
    assert (again.removed, again.held, again.failed) == ((), gone.held, ())
    cloud.client.delete(f"/allocations/{server}")
    assert removal.remove(cloud.client, "h1") == Removal(("h1:l3_0",))
    assert removal.hosts(cloud.client) == ()


def test_of_many_servers_a_few_are_named(reported_compute):
    servers = sorted(claim_ways(reported_compute) for _ in range(6))
    (sentence,) = removal.remove(reported_compute.client, "h1", dry_run=True).held
    assert f"6 hold a part of it ({', '.join(servers[:5])} …)" in sentence


def test_a_server_that_comes_meanwhile_keeps_its_provider(reported_compute, monkeypatch):
    cloud, client = reported_compute, reported_compute.connect()
    delete, came = client.delete, []

    def late(path):
        if path.endswith(cloud.uuid("h1:l3_2")) and not came:
            came.append(claim_ways(cloud, "h1:l3_2"))
        delete(path)

    monkeypatch.setattr(client, "delete", late)
    gone = removal.remove(client, "h1")
    assert came[0] in gone.held[0]
    assert (len(gone.removed), gone.failed) == (7, ())
    assert client.get(f"/allocations/{came[0]}")["allocations"]


def test_what_is_not_ours_stays(shared_compute):
    cloud = shared_compute
    removal.remove(cloud.client, "h1")
    left = cloud.everything()
    assert set(left) == {"h1", "h1_0000:05:00.0", "h1:licences"}
    assert left["h1"][1] == {"HW_CPU_X86_AVX2", "CUSTOM_SITE_RACK_7"}
    assert left["h1:licences"][2]["CUSTOM_LICENCE"][0] == 3


def test_what_others_cannot_let_go_of_is_said(reported_compute, monkeypatch):
    """Another writer is faster each time: the rest goes, and one sentence says what did not."""
    cloud, client = reported_compute, reported_compute.connect()
    put, root = client.put, cloud.root

    def late(path, body=None):
        if path == f"/resource_providers/{root}/traits":
            cloud.traits(root, f"CUSTOM_SITE_{uuid.uuid4().hex.upper()}")
        return put(path, body)

    monkeypatch.setattr(client, "put", late)
    gone = removal.remove(client, "h1")
    assert gone.removed == CHILDREN
    assert gone.failed == (
        "Provider h1 could not be written: others changed it 12 times meanwhile.",
    )


def test_all_hosts_are_those_of_which_anything_is_there(empty_cloud, reported_compute):
    cloud = reported_compute
    for name in ("not-ours", "drained"):
        cloud.compute(name)
    Reporter(cloud.client).drain("drained", on=True)
    BeatWriter(cloud.client, "long-gone").beat()
    assert removal.hosts(cloud.client) == ("drained", "h1", "long-gone")
    for host in removal.hosts(cloud.client):
        removal.remove(cloud.client, host)
    assert removal.hosts(cloud.client) == ()
    assert set(cloud.everything()) == {"h1", "not-ours", "drained"}


POOL_OF_G1 = ("rgpu:g1:cpu", "rgpu:g1:gpu-a", "rgpu:g1:gpu-b", "rgpu:g1:nic-eth1", "rgpu:g1")


@pytest.mark.parametrize("compute_node", [False, True])
def test_what_a_host_lends_goes_with_it_be_it_novas_or_not(empty_cloud, compute_node):
    cloud = empty_cloud
    if compute_node:
        cloud.compute("g1")
    before, words = cloud.everything(), known(cloud)
    PoolReporter(cloud.client).sync(pool("g1", gpus=("a", "b")))
    assert removal.hosts(cloud.client) == ("g1",)
    client = cloud.connect()
    would = removal.remove(client, "g1", dry_run=True)
    assert (client.counters.writes, would) == (0, Removal(POOL_OF_G1))
    assert removal.remove(cloud.client, "g1") == would
    assert (cloud.everything(), removal.hosts(cloud.client)) == (before, ())
    assert removal.remove(cloud.client, "g1") == Removal()
    removal.forget(cloud.client, removal.vocabulary(cloud.client))
    assert known(cloud) == words


def test_what_leases_hold_of_a_host_stays_until_they_are_released(empty_cloud):
    cloud, lease = empty_cloud, str(uuid.uuid4())
    PoolReporter(cloud.client).sync(pool("g1", gpus=("a", "b")))
    cloud.claim(lease, allocations={cloud.uuid("rgpu:g1:gpu-a"): {names.REMOTE_GPU_MEMORY_MB: 100}})
    would = removal.remove(cloud.client, "g1", dry_run=True)
    gone = removal.remove(cloud.client, "g1")
    assert gone == would
    assert gone.removed == ("rgpu:g1:cpu", "rgpu:g1:gpu-b", "rgpu:g1:nic-eth1")
    assert gone.held == (
        f"Provider rgpu:g1:gpu-a stays and takes no new leases: 1 hold a part of it ({lease}). "
        "Release them, and do this again.",
    )
    assert (gone.failed, removal.hosts(cloud.client)) == ((), ("g1",))
    cloud.client.delete(f"/allocations/{lease}")
    assert removal.remove(cloud.client, "g1").removed == ("rgpu:g1:gpu-a", "rgpu:g1")
    assert cloud.everything() == {}


def test_of_a_cloud_that_never_had_an_agent_nothing_is_removed(one_compute):
    assert removal.hosts(one_compute.client) == ()
    words = removal.vocabulary(one_compute.client)
    assert (words.traits, words.classes) == ((), ())


def test_traits_and_classes_go_last_and_those_of_others_stay(one_compute):
    """Placement then is as it was before, but for what others took over of ours."""
    cloud = one_compute
    cloud.child(cloud.root, "h1:licences", "CUSTOM_SITE_LICENCES", CUSTOM_LICENCE=3)
    before = known(cloud)
    agent, tree = Reporter(cloud.client), desired_tree("h1", four_nodes(), SETTINGS)
    agent.sync(tree)
    link = "CUSTOM_GPU_LINK_NV2_0_1"
    cloud.child(cloud.root, "h1_0000:05:00.0", link)
    removal.remove(cloud.client, "h1")
    words = removal.vocabulary(cloud.client)
    assert removal.forget(cloud.client, words) == (link,)
    assert known(cloud) == before | {link}
    assert removal.forget(cloud.client, words) == (link,)
    for _ in range(2):  # the first pass finds out that what it has made once is gone
        agent.sync(tree)
    assert cloud.everything().keys() >= as_literal(tree).keys()


@pytest.mark.parametrize(
    ("spec", "asked"),
    [
        ("resources:CUSTOM_RDT_CLOS", True),
        ("resources_NODE:CUSTOM_LLC_WAY", True),
        ("trait:CUSTOM_NUMA_EXT_TIER_LC", True),
        ("trait_N0:CUSTOM_NUMA_EXT_TIER_BE", True),
        ("resources:VCPU", False),
        ("numa_ext:tier", False),
    ],
)
def test_what_flavors_ask_placement_for_is_known(reported_compute, spec, asked):
    assert removal.vocabulary(reported_compute.client).asked_for(["hw:cpu_policy", spec]) is asked


def test_a_scheduler_that_runs_on_sees_the_host_go(reported_compute):
    cloud = reported_compute
    view = FleetView(cloud.adapter, background=False)
    view.refresh()
    assert view.snapshot().host(cloud.root) is not None
    removal.remove(cloud.client, "h1")
    view.refresh()
    assert view.snapshot().host(cloud.root) is None
    removal.forget(cloud.client, removal.vocabulary(cloud.client))
    for _ in range(2):  # it finds out that the traits by which it asks are gone
        view.try_refresh()
    assert (view.stats.last_error, view.snapshot().hosts) == ("", {})
    cloud.reporter.forget()
    cloud.reporter.sync(cloud.tree)
    view = FleetView(cloud.adapter, background=False)
    view.refresh()
    assert view.snapshot().host(cloud.root) is not None


def root_traits(cloud):
    return set(cloud.client.get(f"/resource_providers/{cloud.root}/traits")["traits"])


def test_a_drained_host_offers_no_tier_whatever_its_agent_publishes(reported_compute):
    cloud = reported_compute
    server = claim_ways(cloud)
    done = Reporter(cloud.connect()).drain("h1", on=True)
    assert [change.detail for change in done.changes] == [
        "+CUSTOM_NUMA_EXT_DRAINED -CUSTOM_NUMA_EXT_TIER_BE -CUSTOM_NUMA_EXT_TIER_LC"
    ]
    passes = [cloud.reporter.sync(cloud.tree) for _ in range(2)]
    passes.append(Reporter(cloud.connect()).sync(cloud.tree))
    assert [one.writes for one in passes] == [0, 0, 0]
    assert root_traits(cloud).isdisjoint(TierTrait)
    assert cloud.client.get(f"/allocations/{server}")["allocations"], "it stays"
    assert Reporter(cloud.connect()).drain("h1", on=True).writes == 0


def test_an_undrained_host_gets_its_tiers_from_its_agent(reported_compute):
    cloud = reported_compute
    before = cloud.everything()
    operator = Reporter(cloud.connect())
    operator.drain("h1", on=True)
    cloud.reporter.sync(cloud.tree)
    assert [c.detail for c in operator.drain("h1", on=False).changes] == [
        "-CUSTOM_NUMA_EXT_DRAINED"
    ]
    assert root_traits(cloud).isdisjoint(TierTrait), "no agent has said so yet"
    assert operator.drain("h1", on=False).writes == 0
    cloud.reporter.sync(cloud.tree)
    assert cloud.everything() == before


def test_schedulers_see_a_drained_host_at_their_next_look(reported_compute):
    cloud = reported_compute
    view = FleetView(cloud.adapter, background=False)
    view.refresh()
    Reporter(cloud.connect()).drain("h1", on=True)
    view.refresh()
    assert view.stats.full_reads == 1
    assert names.DRAINED in view.snapshot().host(cloud.root).traits


def test_a_beat_of_another_owners_is_not_removed(empty_cloud):
    empty_cloud.client.post("/resource_providers", {"name": "beat:h1"})
    assert not beats.remove(empty_cloud.client, "h1")
    assert set(empty_cloud.everything()) == {"beat:h1"}
