# SPDX-License-Identifier: Apache-2.0
"""Random quiet groups that come and go in the real Placement: I1 to I7 hold of what it answers, after each of them.

Who holds what, and what each leaf is for, is read from Placement; and it is what the policy's own account says.
"""

import uuid
from dataclasses import replace
from random import Random

import pytest

from nova_numa_ext.fabrics import FabricState, GroupOwner, PlacementFabrics
from nova_numa_ext.policy.network.groups import GroupRequest, LeafPlan, PlanOptions
from nova_numa_ext.policy.network.planner import plan
from placement_traits.client import PlacementClient
from placement_traits.fabric_tree import FabricWriter
from placement_traits.names import LEAF_CLASSES, UplinkShare
from tests.support.fabrics import Groups, fabric
from tests.support.network_invariants import Running, running, violated

BLOCK = 16
PLAN = fabric([18] * 12, leafs_per_pod=4)
SIZES = (1, 2, 4, 8, 16, 17, 18, 19, 32, 36, 40, 48, 54, 64, 96)
OPTIONS = PlanOptions()


@pytest.fixture
def client(empty_cloud):
    """A Placement with the fabric, without the hosts' own providers: what is held is all that matters here."""
    FabricWriter(empty_cloud.client).apply(PLAN)
    return empty_cloud.client


def play(client: PlacementClient, jobs: int, seed: int) -> int:
    """Let so many groups come, each with a random end; returns how many had a place."""
    random, account, placed, asked = Random(seed), Groups(PLAN), 0, dict[str, int]()
    fabrics = PlacementFabrics(client)
    for _ in range(jobs):
        while account.plans and random.random() < 0.5:
            gone = random.choice(sorted(account.plans))
            fabrics.release(gone)
            account.end(gone)
        group, request = str(uuid.UUID(int=random.getrandbits(128))), _request(random)
        (state,) = fabrics.read()
        free = {leaf.name: leaf.free for leaf in account.leafs.leafs}
        seen = replace(
            state.leafs,
            leafs=tuple(replace(leaf, free=free[leaf.name]) for leaf in state.leafs.leafs),
        )
        shown = {node: held for node, held in seen.uplinks.items() if held}
        assert replace(seen, uplinks=shown) == account.leafs
        found = plan(seen, request, OPTIONS)
        if isinstance(found, LeafPlan):
            fabrics.claim(state, GroupOwner(group, "p", "u"), found)
            assert account.start(group, request) == found
            asked[group] = request.hosts
            placed += 1
        (after,) = fabrics.read()
        there = {each: answered(client, after, each, asked[each]) for each in account.plans}
        assert violated(after.leafs, there, BLOCK) == []
    return placed


def answered(client: PlacementClient, state: FabricState, group: str, hosts: int) -> Running:
    """Return what Placement says that a group holds of leafs."""
    found = client.get(f"/allocations/{group}")["allocations"]
    claims = {
        leaf: {key: n for key, n in of.items() if key in LEAF_CLASSES}
        for leaf in PLAN.leafs
        if (of := found.get(state.providers[leaf], {}).get("resources"))
    }
    return running(hosts, {leaf: sum(of.values()) for leaf, of in claims.items()}, claims)


def _request(random: Random) -> GroupRequest:
    return GroupRequest(random.choice(SIZES), UplinkShare.QUIET)


def test_placement_shows_what_the_policy_keeps(client):
    assert play(client, 16, seed=1) >= 8


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(2, 10))
def test_placement_shows_what_the_policy_keeps_of_ten_thousand_groups(client, seed):
    """All seeds together are as many."""
    assert play(client, 1_250, seed) >= 625
