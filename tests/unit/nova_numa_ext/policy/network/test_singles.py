# SPDX-License-Identifier: Apache-2.0
"""Where a server of no group is least in the way."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from nova_numa_ext.policy.network.groups import GroupRequest, LeafPlan
from nova_numa_ext.policy.network.singles import IN_USE, values
from placement_traits.names import UplinkShare
from tests.support.fabrics import Groups, fabric, leafs_of


def test_the_fullest_leaf_in_use_then_the_last_idle_one_then_those_of_a_quiet_group() -> None:
    groups = Groups(fabric([18] * 6))
    assert isinstance(groups.start("quiet", GroupRequest(32, UplinkShare.QUIET)), LeafPlan)
    found = values(groups.leafs, [16, 16, 0, 2, 9, 0])
    assert found[:2] == [0.0, 0.0]
    assert found[4] > found[3] > IN_USE > found[5] > found[2] > 0.0


def test_pods_of_an_exclusive_group_are_its_own() -> None:
    groups = Groups(fabric([18] * 6))
    found = groups.start("exclusive", GroupRequest(40, UplinkShare.EXCLUSIVE))
    assert isinstance(found, LeafPlan)
    pods = groups.pods("exclusive")
    of_pod = [leaf.pod in pods for leaf in groups.leafs.leafs]
    assert [value == 0.0 for value in values(groups.leafs, [0] * 6)] == of_pod


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 25)), min_size=1, max_size=8))
def test_values_are_a_share_of_one(sizes: list[tuple[int, int]]) -> None:
    leafs = leafs_of(fabric([size for size, _ in sizes]))
    found = values(replace(leafs, uplinks={}), [used for _, used in sizes])
    assert all(0.0 < value <= 1.0 for value in found)
