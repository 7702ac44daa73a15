# SPDX-License-Identifier: Apache-2.0
"""Random quiet groups that come and go in the real Placement: what the policy keeps, Placement shows (I1 to I7).

The account that the policy's own tests check is held against what Placement answers after each step; so what holds for
the one holds for the other.
"""

import uuid
from dataclasses import replace
from random import Random

import pytest

from nova_numa_ext.fabrics import GroupOwner, PlacementFabrics
from nova_numa_ext.policy.network.groups import GroupRequest, LeafPlan, PlanOptions
from nova_numa_ext.policy.network.planner import plan
from placement_traits.fabric_tree import FabricWriter
from placement_traits.names import LEAF_REMAINDER, UplinkShare
from tests.support.fabrics import Groups, fabric

PLAN = fabric([18] * 12, leafs_per_pod=4)
SIZES = (1, 2, 4, 8, 16, 17, 18, 19, 32, 36, 40, 48, 54, 64, 96)
OPTIONS = PlanOptions()


@pytest.fixture
def fabrics(empty_cloud):
    """The fabric without the hosts' own providers: what is held is all that matters here."""
    FabricWriter(empty_cloud.client).apply(PLAN)
    return PlacementFabrics(empty_cloud.client)


def play(fabrics: PlacementFabrics, jobs: int, seed: int) -> int:
    """Let so many groups come, each with a random end; returns how many had a place."""
    random, account, placed = Random(seed), Groups(PLAN), 0
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
            placed += 1
        remainders = {leaf.name for leaf in account.leafs.leafs if LEAF_REMAINDER in leaf.held}
        assert {leaf for _, _, leaf in account.sharing_leafs()} <= remainders
    return placed


def _request(random: Random) -> GroupRequest:
    return GroupRequest(random.choice(SIZES), UplinkShare.QUIET)


def test_placement_shows_what_the_policy_keeps(fabrics):
    assert play(fabrics, 40, seed=1) >= 20


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_placement_shows_what_the_policy_keeps_of_ten_thousand_groups(fabrics):
    assert play(fabrics, 10_000, seed=2) >= 5_000
