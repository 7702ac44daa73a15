# SPDX-License-Identifier: Apache-2.0
"""Limits of best-effort servers of a leaf: bounded whatever hosts say, and never more than the uplinks."""

from hypothesis import given
from hypothesis import strategies as st

from nova_numa_ext.policy.network.uplink_limits import limit
from placement_traits.leaf_limits import LeafLimit, NetworkDemand

SAID = st.integers(-10, 10**9)
DEMANDS = st.lists(st.builds(NetworkDemand, SAID, SAID, SAID), max_size=20)
BEFORE = st.none() | st.builds(LeafLimit, st.integers(0, 10**6), st.integers(1, 10**6))


@given(st.integers(1, 10**6), DEMANDS, BEFORE, st.floats(0.01, 0.9))
def test_no_host_gets_less_than_its_part_of_what_may_not_be_kept(
    uplink: int, said: list[NetworkDemand], before: LeafLimit | None, most: float
) -> None:
    """Lies, of all hosts together, keep no more than the share; each of n hosts has an n-th of the rest."""
    found = limit(uplink, said, before, most)
    if found is None or not found.kept:
        return
    assert found.kept <= most * uplink
    sending = sum(each.best_effort > 0 for each in said)
    assert found.best_effort >= max(1, (uplink - found.kept) // max(1, sending))
    assert found.best_effort <= max(1, uplink - found.kept)


@given(st.integers(100, 10**6), st.lists(st.integers(1, 10**6), min_size=1, max_size=20), BEFORE)
def test_all_together_keep_to_what_is_left(
    uplink: int, rates: list[int], before: LeafLimit | None
) -> None:
    """Of those who tell the truth, and send no more than they did where they were not held."""
    asked = NetworkDemand(asked=uplink // 10)
    found = limit(uplink, [asked, *(NetworkDemand(0, rate) for rate in rates)], before, 0.3)
    assert found is not None
    left = uplink - found.kept
    assert sum(min(rate, found.best_effort) for rate in rates) <= max(left, len(rates))


@given(st.integers(1, 10**6), BEFORE)
def test_a_limit_that_nobody_asks_for_ends(uplink: int, before: LeafLimit | None) -> None:
    for _ in range(100):
        if before is None:
            return
        after = limit(uplink, [NetworkDemand(0, 10**9)], before, 0.3)
        assert after is None or before.best_effort < after.best_effort < uplink
        before = after
    raise AssertionError(before)


def test_who_is_at_the_limit_would_send_more() -> None:
    """TCP sends a little less than it may: that is no room for all to send as much as goes."""
    asked = NetworkDemand(asked=1000)
    before = LeafLimit(1000, 4500)
    held = [NetworkDemand(0, 4300), NetworkDemand(0, 4300)]
    assert limit(10_000, [asked, *held], before, 0.3) == before
    freed = [NetworkDemand(0, 4300), NetworkDemand(0, 2000)]
    assert limit(10_000, [asked, *freed], before, 0.3) == LeafLimit(1000, 7000)
