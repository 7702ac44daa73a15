# SPDX-License-Identifier: Apache-2.0
"""Which hosts are judged first, over plain arrays."""

import numpy as np
import pytest

from nova_numa_ext.policy.numa import shortlist
from nova_numa_ext.policy.numa.cells import CpuPolicy, GuestCell
from nova_numa_ext.policy.numa.score import SCORED
from nova_numa_ext.policy.numa.shortlist import Asked, Devices, Known, Size
from placement_traits.fleet_arrays import UNKNOWN, FleetArrays
from placement_traits.names import NeighbourTrait
from tests.support.fleet import domain, host, lc


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


def guessed(request, *views):
    """Coarse scores of hosts whose NUMA cells are not known yet."""
    arrays = FleetArrays.of(views)
    known = Known(
        np.zeros((len(views), 0), shortlist.CELL), np.zeros((len(views), 0), shortlist.POOL)
    )
    weights = np.ones((len(views), len(SCORED)))
    return shortlist.coarse(Asked(request, ()), arrays, np.arange(len(views)), known, weights)


def possible(cpus, pools, *, count=1, guest_cells=1, policy="legacy"):
    """Whether a host with so many free dedicated CPUs on its nodes and (kind, node, devices) seems to have room."""
    cells = np.zeros((1, len(cpus)), shortlist.CELL)
    for node, free in enumerate(cpus):
        cells[0, node] = (node, 0, 0, 0, free, 4096, 4096, 0, True)
    known = Known(cells, np.array([pools], shortlist.POOL).reshape(1, -1))
    guest = (GuestCell(2, 2, 512, CpuPolicy.DEDICATED),) * guest_cells
    asked = Asked(lc(), guest, devices=(Devices(count, np.array([True, False]), policy),))
    weights = np.ones((1, len(SCORED)))
    arrays = FleetArrays.of([host(domain(0))])
    [found] = shortlist.coarse(asked, arrays, np.arange(1), known, weights).possible
    return found


@pytest.mark.parametrize(
    ("pools", "fits"),
    [
        ([], False),
        ([(1, 0, 4)], False),  # devices of another kind
        ([(0, 0, 0)], False),  # taken
        ([(0, 1, 4)], False),  # near a node without room
        ([(0, 0, 1)], True),
        ([(0, UNKNOWN, 1)], True),
    ],
)
def test_a_host_without_devices_near_free_cpus_comes_last(pools, fits):
    assert possible([2, 0], pools) == fits


@pytest.mark.parametrize(
    ("policy", "node", "fits"),
    [
        ("legacy", UNKNOWN, True),
        ("required", UNKNOWN, False),
        ("required", 0, True),
        ("preferred", 1, True),
        ("socket", 1, True),
        ("legacy", 1, False),
    ],
)
def test_devices_count_where_novas_affinity_policy_lets_them(policy, node, fits):
    assert possible([2, 0], [(0, node, 1)], policy=policy) == fits


@pytest.mark.parametrize(("count", "fits"), [(4, True), (5, False)])
def test_devices_near_all_cells_of_a_guest_count_together(count, fits):
    pools = [(0, 0, 1), (0, 1, 2), (0, 2, 2), (0, 3, 4)]
    assert possible([2, 2, 2, 0], pools, count=count, guest_cells=2) == fits


def test_a_floating_guest_has_its_devices_anywhere():
    assert possible([0, 0], [(0, 1, 2)], count=2, guest_cells=0)
    assert not possible([0, 0], [(0, 1, 2)], count=3, guest_cells=0)


STRICT = {
    "numa_ext:interference_class": "devil",
    "resources_NODE:CUSTOM_LLC_NEIGHBOURHOOD": "1",
}


@pytest.mark.parametrize(
    "has_devil", [{"neighbours": [NeighbourTrait.DEVIL]}, {"neighbourhood": (1_000, 3)}]
)
def test_a_strict_devil_is_guessed_where_devils_are(has_devil):
    quiet, noisy = host(domain(0), name="quiet"), host(domain(0, **has_devil), name="noisy")
    found = guessed(lc(**STRICT), quiet, noisy)
    assert found.scores[0] < found.scores[1]


def test_a_class_is_a_preference_here_as_well():
    """The filter refuses no host for its neighbours, so none comes last as if it would."""
    quiet = host(domain(0), name="quiet")
    noisy = host(domain(0, neighbours=[NeighbourTrait.DEVIL]), name="noisy")
    found = guessed(lc(**{"numa_ext:interference_class": "rabbit"}), quiet, noisy)
    assert found.possible.all()
    assert found.scores[0] > found.scores[1]


def test_a_taken_neighbourhood_is_not_guessed_as_claimed():
    rabbit = lc(
        **{
            "numa_ext:interference_class": "rabbit",
            "resources_NODE:CUSTOM_LLC_NEIGHBOURHOOD": "1000",
        }
    )
    free, full = (
        host(domain(0), name="free"),
        host(domain(0, neighbourhood=(1_000, 1)), name="full"),
    )
    found = guessed(rabbit, free, full)
    assert found.scores[0] > found.scores[1]
