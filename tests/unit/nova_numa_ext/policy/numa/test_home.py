# SPDX-License-Identifier: Apache-2.0
"""Which L3 domain each request group of a guest belongs to."""

from nova_numa_ext.policy.numa.cells import (
    CpuPolicy,
    GuestCell,
    HostCell,
    Pinning,
    Prediction,
)
from nova_numa_ext.policy.numa.home import home
from placement_traits.fleet import L3View

PINNED = GuestCell(0, 2, 512, CpuPolicy.DEDICATED)


def l3(number, *nodes, cpus=()):
    return L3View(f"l3-{number}", number, nodes, 0, 0, None, None, frozenset(), cpus=cpus)


def cell(number, *pcpus, shared=()):
    cores = tuple((cpu,) for cpu in pcpus)
    counts = (0, len(pcpus), len(pcpus))
    return HostCell(number, 0, frozenset(shared), *counts, cores, 1, False, 4096, 0)


def groups(pins, guest, host, domains):
    """The domains of each cell's group, where nova puts guest cells on nodes with such pins."""
    nodes = tuple(node for node, _ in pins)
    prediction = Prediction(nodes, tuple(Pinning(tuple(cpus)) for _, cpus in pins))
    found = home(prediction, guest, host, domains)
    return [sorted(group) for group in found.groups], sorted(found.domains)


def test_where_a_node_has_one_domain_the_node_is_enough():
    host, domains = [cell(0, 0, 1), cell(1, 2, 3)], [l3(0, 0), l3(1, 1)]
    assert groups([(1, (2, 3))], [PINNED], host, domains) == ([["l3-1"]], ["l3-1"])


def test_of_several_domains_on_a_node_the_one_with_most_of_the_pinned_cpus():
    host = [cell(0, *range(8))]
    domains = [l3(0, 0, cpus=((0, 3),)), l3(1, 0, cpus=((4, 7),))]
    everything = ["l3-0", "l3-1"]
    assert groups([(0, (3, 4, 5))], [PINNED], host, domains) == ([["l3-1"]], everything)
    assert groups([(0, (2, 3, 4, 5))], [PINNED], host, domains) == ([["l3-0"]], everything)


def test_without_published_cpus_any_domain_of_the_node():
    domains = [l3(0, 0), l3(1, 0)]
    [found], _ = groups([(0, (4, 5))], [PINNED], [cell(0, *range(8))], domains)
    assert found == ["l3-0", "l3-1"]


def test_two_cells_in_one_domain_do_not_share_it():
    """Sub-NUMA clusters of 4 CPUs under two domains that both touch both."""
    host = [cell(0, *range(4)), cell(1, *range(4, 8))]
    domains = [l3(0, 0, 1, cpus=((0, 5),)), l3(1, 1, cpus=((6, 7),))]
    pins = [(0, (0, 1)), (1, (4, 5))]
    assert groups(pins, [PINNED] * 2, host, domains) == ([["l3-0"], []], ["l3-0"])
    pins = [(0, (0, 1)), (1, (5, 6))]
    assert groups(pins, [PINNED] * 2, host, domains)[0] == [["l3-0"], ["l3-1"]]


def test_the_cpus_that_a_cell_has_for_its_own_decide_where_it_is_counted():
    """It also runs where the CPUs are that it shares; without any of its own those decide."""
    host = [cell(0, 4, 5, 6, 7, shared=(0, 1))]
    domains = [l3(0, 0, cpus=((0, 3),)), l3(1, 0, cpus=((4, 7),))]
    mixed = GuestCell(2, 3, 512, CpuPolicy.MIXED)
    assert groups([(0, (4, 5, 6))], [mixed], host, domains) == ([["l3-1"]], ["l3-0", "l3-1"])
    shared = GuestCell(2, 0, 512, CpuPolicy.SHARED)
    assert groups([(0, ())], [shared], host, domains) == ([["l3-0"]], ["l3-0"])


def test_a_cell_with_the_number_of_one_node_and_the_cpus_of_another_is_where_its_cpus_are():
    host, domains = [cell(0, 0, 1), cell(1, 2, 3)], [l3(0, 0), l3(1, 1)]
    assert groups([(0, (2, 3))], [PINNED], host, domains)[0] == [["l3-1"]]


def test_a_cell_that_nova_left_without_its_cpus_has_no_group():
    """Nova's search can take a guest cell for packed that it never packed; the agent then finds no CPU to count."""
    host, domains = [cell(0, 0, 1), cell(1, 2, 3)], [l3(0, 0), l3(1, 1)]
    assert groups([(0, ()), (1, (2, 3))], [PINNED] * 2, host, domains)[0] == [[], ["l3-1"]]
