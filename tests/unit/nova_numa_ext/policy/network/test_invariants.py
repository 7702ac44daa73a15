# SPDX-License-Identifier: Apache-2.0
"""Random groups that come and go: what holds at each moment whatever came before (I1 to I7 of reference F-003)."""

from collections.abc import Iterable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nova_numa_ext.policy.network.groups import GroupRequest, LeafPlan, PlanOptions, PolicyName
from nova_numa_ext.policy.network.planner import SHARING
from placement_traits.names import LEAF_BLOCK, UplinkShare
from tests.support.fabrics import Groups, fabric
from tests.support.network_invariants import Running, running, violated

SIZE, BLOCK = 18, 16
# How many groups run on the 24 leafs at a time is bounded by their hosts; half of the sizes are small.
SIZES = st.one_of(
    st.integers(1, SIZE),
    st.sampled_from([1, 2, 4, 8, 16, 19, 32, 36, 40, 48, 54, 64, 96, 128]),
    st.integers(SIZE + 1, 200),
)
# A group that comes, or which of those that run goes.
EVENTS = st.lists(
    st.tuples(SIZES, st.integers(0, 2), st.integers(0, 10**6)), min_size=50, max_size=50
)


def played(groups: Groups, events: Iterable[tuple[int, int, int]], share: UplinkShare):
    """Start and end groups; yields the size of each group that has just got a place."""
    for number, (hosts, ending, which) in enumerate(events):
        for _ in range(ending):
            if groups.plans:
                groups.end(sorted(groups.plans)[which % len(groups.plans)])
        name = f"g{number:05}"
        if isinstance(groups.start(name, GroupRequest(hosts, share)), LeafPlan):
            yield name, hosts


def fits(groups: Groups) -> None:
    """No leaf has more hosts than it has, and no group is where another one's claim is."""
    for leaf in groups.leafs.leafs:
        assert leaf.free >= 0
        assert leaf.held_hosts <= leaf.size
        assert leaf.size - leaf.free <= leaf.held_hosts
        held = set(leaf.held)
        assert not held or (held <= {LEAF_BLOCK, "CUSTOM_NUMA_EXT_LEAF_REST"} or len(held) == 1)


@given(EVENTS)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_quiet_groups_keep_the_invariants(events) -> None:
    keeps_the_invariants(events)


@pytest.mark.long
@given(EVENTS)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_ten_thousand_quiet_groups_keep_the_invariants(events) -> None:
    keeps_the_invariants(events)


def keeps_the_invariants(events) -> None:
    """Play 50 groups on 24 leafs in 4 pods."""
    groups = Groups(fabric([SIZE] * 24, leafs_per_pod=6))
    hosts_of: dict[str, int] = {}
    for name, hosts in played(groups, events, UplinkShare.QUIET):
        hosts_of[name] = hosts
        fits(groups)
        seen = {
            each: running(hosts_of[each], groups.hosts(each), found.claims)
            for each, found in groups.plans.items()
        }
        assert violated(groups.leafs, seen, BLOCK) == []


BOTH = frozenset({"l000", "l001"})


@pytest.mark.parametrize(
    ("number", "groups"),
    [
        ("I1", {"a": Running(8, {"l000": 4, "l001": 4}, frozenset())}),
        ("I2", {each: Running(32, {"l000": 16, "l001": 16}, BOTH) for each in "ab"}),
        ("I2", {"a": Running(20, {"l000": 10, "l001": 10}, BOTH)}),
        ("I3", {each: Running(20, {"l000": 16, "l001": 4}, frozenset()) for each in "ab"}),
        (
            "I4",
            {
                "a": Running(32, {"l000": 16, "l001": 16}, frozenset()),
                "b": Running(20, {"l001": 2, "l002": 18}, frozenset()),
            },
        ),
        ("I5, I7", {"a": Running(32, {"l002": 16, "l003": 16}, frozenset())}),
        ("I6", {"a": Running(40, {"l000": 20, "l001": 20}, frozenset())}),
        ("I6", {"a": Running(40, {"l000": 18, "l001": 18}, frozenset())}),
    ],
)
def test_each_violation_is_seen(number, groups) -> None:
    """On four leafs, the last one of which is for groups of one leaf."""
    there = Groups(fabric([SIZE] * 4))
    there.start("small", GroupRequest(4, UplinkShare.QUIET))
    assert violated(there.leafs, {}, BLOCK) == []
    assert number in {one.partition(":")[0] for one in violated(there.leafs, groups, BLOCK)}


@given(EVENTS)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_exclusive_groups_share_nothing(events) -> None:
    """F-003-14: 0 pairs, on leafs and in pods, whatever came before."""
    groups = Groups(fabric([SIZE] * 24, leafs_per_pod=6))
    for name, hosts in played(groups, events, UplinkShare.EXCLUSIVE):
        fits(groups)
        assert sum(groups.hosts(name).values()) == hosts
        assert list(groups.sharing_leafs()) == []
        assert list(groups.sharing_pods()) == []


@pytest.mark.parametrize("policy", SHARING)
@given(events=EVENTS)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_policy_finds_free_hosts_wherever_enough_are(policy: PolicyName, events) -> None:
    groups = Groups(fabric([SIZE] * 12, leafs_per_pod=4))
    options = PlanOptions(shared=policy)
    for number, (hosts, ending, which) in enumerate(events):
        for _ in range(ending):
            if groups.plans:
                groups.end(sorted(groups.plans)[which % len(groups.plans)])
        free = sum(leaf.room for leaf in groups.leafs.leafs)
        found = groups.start(f"g{number:05}", GroupRequest(hosts), options)
        if isinstance(found, LeafPlan):
            assert sum(one.hosts for one in found.places) == hosts
            assert all(leaf.free >= 0 for leaf in groups.leafs.leafs)
            assert found.claims == {}
        else:
            assert free < hosts or policy is PolicyName.BALANCED
