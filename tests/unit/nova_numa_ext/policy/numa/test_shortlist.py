# SPDX-License-Identifier: Apache-2.0
"""Which hosts are judged first, over plain arrays."""

import numpy as np
import pytest

from nova_numa_ext.policy.numa import shortlist
from nova_numa_ext.policy.numa.shortlist import Size


def test_hosts_that_seem_impossible_come_last_but_they_come():
    totals, possible = np.array([3.0, 1.0, 2.0, 4.0]), np.array([False, True, True, False])
    assert shortlist.order(totals, possible).tolist() == [2, 1, 3, 0]


@pytest.mark.parametrize(
    ("option", "servers", "size"), [(128, 1, 128), (128, 64, 128), (128, 100, 200)]
)
def test_a_list_is_at_least_twice_as_long_as_the_request(option, servers, size):
    assert Size.of(option, servers, attempts=3) == Size(size, 3)


@pytest.mark.parametrize(("servers", "least"), [(1, 8), (4, 8), (32, 64)])
def test_so_many_hosts_must_pass_all_filters(servers, least):
    assert shortlist.enough(servers) == least


def test_the_hosts_that_bound_what_a_weigher_says_are_in_the_list():
    """Nova stretches each weigher over the hosts at hand: without them the same gap would weigh more."""
    totals, possible = np.arange(10.0), np.arange(10) != 5
    weigher = np.array([5.0, 1, 2, 3, 4, 99, 6, 7, 8, 9])  # host 5 has most, but cannot serve
    ordered = shortlist.order(totals, possible)
    found = shortlist.chosen(ordered, possible, [weigher], ["cell"] * 10, Size(2))
    assert found.tolist() == [9, 8, 1]


def test_a_cell_with_one_of_the_best_hosts_has_enough_to_try_again():
    """After a failed build nova tries only hosts of the cell of the first one."""
    totals = np.arange(12.0)
    # The best is in the small cell.
    cells = [*["small"] * 4, *["large"] * 7, "small"]
    ordered = shortlist.order(totals, np.ones(12, bool))
    found = shortlist.chosen(ordered, np.ones(12, bool), [], cells, Size(4, per_cell=3))
    assert found.tolist() == [11, 10, 9, 8, 3, 2]
