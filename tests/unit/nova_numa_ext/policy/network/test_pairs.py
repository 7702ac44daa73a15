# SPDX-License-Identifier: Apache-2.0
"""Who shares the network with whom, and the six metrics of a log."""

from dataclasses import replace

import pytest

from nova_numa_ext.policy.network.pairs import PlacedGroup, metrics, shares_leaf, shares_pod
from placement_traits.errors import InvalidValueError

# Figure 4.10 of the thesis: A and C between pods 2 and 5, B inside pod 2.
A = PlacedGroup("A", 2, 0.0, 0.0, 10.0, frozenset({"2a", "5a"}), frozenset({"2", "5"}))
B = PlacedGroup("B", 2, 0.0, 0.0, 10.0, frozenset({"2a", "2b"}), frozenset({"2"}))
C = PlacedGroup("C", 2, 0.0, 0.0, 10.0, frozenset({"2b", "5b"}), frozenset({"2", "5"}))


def test_the_figure_of_the_thesis() -> None:
    found = metrics((A, B, C), hosts=12)
    assert (found.leaf_pairs, found.pod_pairs) == (2, 1)
    assert (found.per_group, found.sharing) == (2.0, 1.0)
    assert (found.completion_s, found.utilisation, found.waiting_s) == (10.0, 0.5, 0.0)


def test_who_shares_at_which_level() -> None:
    assert shares_leaf(A, B)
    assert not shares_leaf(A, C)
    assert shares_pod(A, C)
    assert not shares_pod(A, B), "B stays in one pod"


def test_a_group_within_one_leaf_shares_with_no_one() -> None:
    small = replace(B, name="small", leafs=frozenset({"2a"}))
    assert not shares_leaf(A, small)
    assert metrics((A, small), hosts=12).sharing == 0.0


def test_groups_one_after_the_other_do_not_share_and_the_second_has_waited() -> None:
    later = replace(B, name="later", started_at=10.0, ended_at=20.0)
    found = metrics((A, later), hosts=4)
    assert (found.leaf_pairs, found.sharing) == (0, 0.0)
    assert (found.completion_s, found.utilisation, found.waiting_s) == (20.0, 0.5, 5.0)


def test_a_pair_that_shares_at_both_levels_is_one_pair_of_groups() -> None:
    beside = replace(A, name="beside")
    found = metrics((A, beside), hosts=4)
    assert (found.leaf_pairs, found.pod_pairs, found.per_group) == (1, 1, 1.0)


def test_a_log_without_groups_or_time_has_no_metrics() -> None:
    for groups in ((), (replace(A, ended_at=0.0),)):
        with pytest.raises(InvalidValueError):
            metrics(groups, hosts=4)
