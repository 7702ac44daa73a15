# SPDX-License-Identifier: Apache-2.0
"""How many more servers fit on a host, and what keeps the next one out."""

import functools
import itertools
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from nova_numa_ext.policy.numa import capacity, whatif
from nova_numa_ext.policy.numa.capacity import HostCapacity, Obstacle
from nova_numa_ext.policy.numa.whatif import GpusAsked
from nova_numa_ext.policy.terms import Term
from placement_traits.fleet import Amount
from placement_traits.names import TierTrait
from placement_traits.request import parse
from placement_traits.workload_request import L3Amount
from tests.support.fleet import ALL_TRAITS, domain, host, lc

PLENTY = {"PCPU": 100, "VCPU": 100, "MEMORY_MB": 100_000}
NO_GPUS = GpusAsked((), frozenset())


def with_free(number, ways, bandwidth_mbps=10_000):
    return replace(domain(number), ways=Amount(ways, 0), bandwidth_mbps=Amount(bandwidth_mbps, 0))


def group(ways, bandwidth_mbps=0, name="_NODE"):
    return L3Amount(name, ways, bandwidth_mbps, 0)


def test_the_smallest_amount_says_how_many_fit_and_is_in_the_way():
    request = replace(lc(vcpus=2, memory_mb=1024), clos=1, l3=(group(4, 3_000),))
    two = host(with_free(0, 11, 9_000), with_free(1, 4, 9_000))
    found = capacity.of_host(request, two, {"PCPU": 20, "MEMORY_MB": 8192}, NO_GPUS)
    assert found.limits[Term.DEDICATED_CPUS] == 10
    assert found.limits[Term.MEMORY] == 8
    assert found.limits[Term.L3_WAYS] == 2 + 1
    assert found.limits[Term.MEMORY_BANDWIDTH] == 3 + 3
    assert (found.fits, found.in_the_way) == (3, (Term.L3_WAYS,))
    assert (
        found.without(Term.L3_WAYS)
        == min(limit for term, limit in found.limits.items() if term is not Term.L3_WAYS) - 3
    )


def test_a_guest_whose_cpus_are_in_part_dedicated_needs_both_kinds():
    """100 dedicated and two shared CPUs are free: all but the shared ones would last for long."""
    mixed = {"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "2-3"}
    found = capacity.of_host(
        parse(mixed, vcpus=4, memory_mb=64),
        host(domain(0)),
        {"PCPU": 100, "VCPU": 2, "MEMORY_MB": 8192},
        NO_GPUS,
    )
    assert (found.limits[Term.DEDICATED_CPUS], found.limits[Term.SHARED_CPUS]) == (50, 1)
    assert (found.fits, found.in_the_way) == (1, (Term.SHARED_CPUS,))


def test_ways_in_one_domain_and_bandwidth_in_another_are_no_place():
    request = replace(lc(), l3=(group(4, 4_000),))
    apart = host(with_free(0, 8, 1_000), with_free(1, 1, 8_000))
    found = capacity.of_host(request, apart, PLENTY, NO_GPUS)
    assert (found.limits[Term.L3_WAYS], found.limits[Term.MEMORY_BANDWIDTH]) == (2, 2)
    assert (found.fits, found.in_the_way) == (0, (Term.L3_DOMAINS,))


def test_a_host_that_is_not_able_to_do_it_is_in_the_way_itself():
    deaf = host(with_free(0, 8), traits=ALL_TRAITS - {TierTrait.LC})
    found = capacity.of_host(lc(), deaf, PLENTY, NO_GPUS)
    assert (found.fits, found.in_the_way) == (0, (Term.TIER,))
    assert found.without(Term.TIER) > 0


def test_obstacles_are_counted_over_the_fleet():
    cpus, ways = Term.DEDICATED_CPUS, Term.L3_WAYS
    hosts = [
        HostCapacity(host(), {cpus: 3, ways: 1}),
        HostCapacity(host(), {cpus: 0, ways: 0}),
        HostCapacity(host(), {cpus: 2, ways: 7}),
    ]
    assert capacity.obstacles(hosts) == (Obstacle(cpus, 2, 5), Obstacle(ways, 2, 2))


def fit(groups, free, count):
    """Whether so many servers fit, by trying everything: each group of a server in a domain of its own."""

    @functools.cache  # servers in another order leave the same
    def fits(free, count):
        if not count:
            return True
        for chosen in itertools.permutations(range(len(free)), len(groups)):
            left = list(free)
            for at, asked in zip(chosen, groups, strict=True):
                left[at] = tuple(have - want for have, want in zip(left[at], asked, strict=True))
            if all(min(amounts) >= 0 for amounts in left) and fits(tuple(left), count - 1):
                return True
        return False

    return fits(tuple(free), count)


AMOUNT = st.tuples(st.integers(0, 5), st.integers(0, 5))
ASKED = st.tuples(st.integers(1, 3), st.integers(0, 3))


@settings(max_examples=150, deadline=None)
@given(st.lists(AMOUNT, min_size=1, max_size=3), ASKED, st.integers(1, 2))
def test_of_alike_groups_exactly_as_many_fit_as_trying_everything_shows(free, asked, groups):
    domains = [with_free(number, *amounts) for number, amounts in enumerate(free)]
    found = capacity.servers([group(*asked, name=f"_N{at}") for at in range(groups)], domains)
    assert fit([asked] * groups, free, found)
    assert not fit([asked] * groups, free, found + 1)


@settings(max_examples=150, deadline=None)
@given(st.lists(AMOUNT, min_size=2, max_size=3), ASKED, ASKED)
def test_of_unequal_groups_what_is_counted_fits_and_none_is_told_only_where_none_does(
    free, first, second
):
    domains = [with_free(number, *amounts) for number, amounts in enumerate(free)]
    groups = [group(*first, name="_N0"), group(*second, name="_N1")]
    found = capacity.servers(groups, domains)
    assert fit([first, second], free, found)
    assert (found == 0) == (next(whatif.holding(groups, domains), None) is None)
