# SPDX-License-Identifier: Apache-2.0
"""The order of allocation candidates: total, stable, explained."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_numa_ext.policy.numa.candidates import Candidate, order
from placement_traits.names import NeighbourTrait
from placement_traits.reason import Reason
from placement_traits.request import parse
from tests.support.fleet import amount, at, be, domain, host, hosts, lc

RABBIT = {"numa_ext:interference_class": "rabbit"}
DEVIL = {"numa_ext:interference_class": "devil"}


def on(index, *numbers, ways=4, fallback=False):
    """A candidate that takes ways from the L3 domains ``numbers``."""
    l3 = tuple((f"l3-{number}", amount(ways)) for number in numbers)
    return Candidate(index, l3, tuple(uuid for uuid, _ in l3), fallback)


def taking(index, ways):
    """A candidate that takes so many ways from each L3 domain."""
    l3 = tuple((uuid, amount(count)) for uuid, count in ways.items())
    return Candidate(index, l3, tuple(ways))


def lc_of_groups(*ways):
    """A latency-critical request with a group of ways for each of its guest cells."""
    groups = {f"resources_N{n}:CUSTOM_LLC_WAY": str(count) for n, count in enumerate(ways)}
    return parse(
        {
            "numa_ext:tier": "LC",
            "hw:cpu_policy": "dedicated",
            "hw:numa_nodes": str(len(ways)),
            "resources:CUSTOM_RDT_CLOS": "1",
            "group_policy": "isolate",
            **groups,
        },
        vcpus=2,
        memory_mb=1024,
    )


def first(request, view, candidates, nodes=None, **more):
    return order(request, view, candidates, lambda _: at(nodes, view), **more)[0].candidate.index


def test_the_domain_of_the_predicted_node_comes_first():
    view = host(*(domain(number) for number in range(4)))
    assert first(lc(), view, [on(i, i) for i in range(4)], nodes=(2,)) == 2


def test_a_candidate_that_nova_will_drop_comes_last():
    """With it the devices are on nodes where the guest does not fit; what nova claims is what is scored."""
    view = host(domain(0), domain(1))
    dropped, claimed = on(0, 0), on(1, 1, fallback=True)
    ranked = order(
        lc(), view, [dropped, claimed], lambda c: at((0,), view) if c is claimed else None
    )
    assert [each.candidate for each in ranked] == [claimed, dropped]
    assert ranked[1].rank.loses_to(ranked[0].rank) == Reason("no_cells", 1, 0)


def test_each_group_goes_to_the_domain_of_its_own_guest_cell():
    """The first guest cell asks for 6 ways, the second for 2; nova may put the first on node 1."""
    view = host(domain(0), domain(1))
    unequal = lc_of_groups(6, 2)
    straight = taking(0, {"l3-0": 6, "l3-1": 2})
    swapped = taking(1, {"l3-0": 2, "l3-1": 6})
    assert first(unequal, view, [straight, swapped], nodes=(1, 0)) == 1
    assert first(unequal, view, [straight, swapped], nodes=(0, 1)) == 0


def test_equal_groups_may_be_swapped():
    view = host(domain(0), domain(1))
    [ranked] = order(lc_of_groups(4, 4), view, [on(0, 0, 1)], lambda _: at((1, 0), view))
    assert ranked.rank.off_node == 0


def test_a_group_away_counts_for_its_domain_and_for_the_cell_without():
    view = host(domain(0), domain(1), domain(2))
    kept = order(
        lc_of_groups(6, 2),
        view,
        [taking(0, {"l3-0": 6, "l3-2": 2}), taking(1, {"l3-0": 2, "l3-1": 6})],
        lambda _: at((0, 1), view),
    )
    assert [(each.candidate.index, each.rank.off_node) for each in kept] == [(0, 2), (1, 4)]


def test_dedicated_inventory_beats_the_fallback_even_on_another_node():
    view = host(domain(0), domain(1))
    assert first(lc(), view, [on(0, 0, fallback=True), on(1, 1)], nodes=(0,)) == 1


def test_what_an_earlier_server_of_the_request_took_comes_last():
    view = host(domain(0, ways=(13, 12)), domain(1))
    assert first(lc(), view, [on(0, 0), on(1, 1)], nodes=(0,), taken=frozenset({"l3-0"})) == 1


def test_a_device_that_an_earlier_server_of_the_request_used_up_comes_last():
    free, full = on(0, 0), replace(on(1, 0), providers=("gpu-0", "l3-0"), parts={"gpu-0": 2})
    assert first(lc(), host(domain(0)), [full, free], left={"gpu-0": 1}) == 0
    assert first(lc(), host(domain(0)), [full, free], left={"gpu-0": 2, "gpu-1": 0}) == 1


def test_a_domain_that_the_request_has_used_but_not_used_up_is_as_good_as_before():
    """Both servers of the request fit there, and nova-compute will pick its node."""
    view = host(domain(0, ways=(13, 4)), domain(1))
    assert first(lc(), view, [on(0, 0), on(1, 1)], nodes=(0,), taken=frozenset({"l3-0"})) == 0


def test_an_old_view_alone_does_not_overrule_placement():
    """Placement offers the domain although our view still shows it as full."""
    view = host(domain(0, ways=(13, 13)), domain(1))
    assert first(lc(), view, [on(0, 0), on(1, 1)], nodes=(0,)) == 0


def test_a_domain_of_both_nodes_covers_a_guest_of_two_nodes():
    """Sub-NUMA clusters: one L3 over two nodes."""
    view = host(domain(0, nodes=(0, 1)), domain(1, nodes=(2, 3)))
    assert first(lc(), view, [on(0, 0), on(1, 1)], nodes=(2, 3)) == 1


@pytest.mark.parametrize("neighbour", [NeighbourTrait.BE, NeighbourTrait.DEVIL])
def test_a_lonely_domain_is_better(neighbour):
    view = host(domain(0, neighbours=[neighbour]), domain(1))
    assert first(lc(**DEVIL), view, [on(0, 0), on(1, 1)]) == 1


def test_a_forbidden_neighbour_puts_the_candidate_last_and_says_why():
    view = host(domain(0, neighbours=[NeighbourTrait.DEVIL]), domain(1, ways=(13, 9)))
    best, other = order(lc(**RABBIT), view, [on(0, 0), on(1, 1)], lambda _: None)
    assert (best.candidate.index, other.candidate.index) == (1, 0)
    reason = other.rank.loses_to(best.rank)
    assert (reason.term, reason.value, reason.against) == ("class_penalty", 2, 0)


STRICT_DEVIL = {**DEVIL, "resources_NODE:CUSTOM_LLC_NEIGHBOURHOOD": "1"}
STRICT_RABBIT = {**RABBIT, "resources_NODE:CUSTOM_LLC_NEIGHBOURHOOD": "1000"}


@pytest.mark.parametrize(
    "has_devil", [{"neighbours": [NeighbourTrait.DEVIL]}, {"neighbourhood": (1_000, 1)}]
)
def test_a_strict_devil_goes_where_a_devil_is_so_that_domains_stay_for_rabbits(has_devil):
    """By Placement's count, or as the agent publishes one that only states its class."""
    view = host(domain(0), domain(1, **has_devil, ways=(13, 4)))
    assert first(lc(**STRICT_DEVIL), view, [on(0, 0), on(1, 1)]) == 1
    if "neighbours" in has_devil:
        assert first(lc(**DEVIL), view, [on(0, 0), on(1, 1)]) == 0, "others are better apart"


def test_a_neighbourhood_that_an_earlier_server_of_the_request_has_taken_comes_last():
    """Its claim would fail, so a domain away from the expected node is better."""
    view = host(domain(0, neighbourhood=(1_000, 1_000)), domain(1))
    whole = replace(amount(4), neighbourhood=1_000)
    candidates = [Candidate(i, ((f"l3-{i}", whole),), (f"l3-{i}",)) for i in range(2)]
    ranked = order(
        lc(**STRICT_RABBIT), view, candidates, lambda _: at((0,), view), taken=frozenset({"l3-0"})
    )
    assert [each.candidate.index for each in ranked] == [1, 0]


def test_a_worse_candidate_says_on_what_it_loses():
    view = host(domain(0), domain(1, ways=(13, 5)))
    best, other = order(lc(), view, [on(0, 1), on(1, 0)], lambda _: None)
    reason = other.rank.loses_to(best.rank)
    assert (reason.term, reason.value, reason.against) == ("ways_free", -8, -13)


requests = st.sampled_from(
    [lc(), lc(**RABBIT), lc(**DEVIL), be(), be(**DEVIL), lc(**STRICT_RABBIT), lc(**STRICT_DEVIL)]
)


@st.composite
def situations(draw):
    view = draw(hosts())
    numbers = st.lists(st.integers(0, len(view.l3) - 1), unique=True, max_size=2)
    candidates = [
        on(index, *draw(numbers), ways=draw(st.integers(0, 13)), fallback=draw(st.booleans()))
        for index in range(draw(st.integers(0, 6)))
    ]
    nodes = draw(st.none() | st.just((0,)) | st.just((1, 2)))
    return draw(requests), view, candidates, nodes


@given(situations(), st.randoms(use_true_random=False))
def test_the_order_does_not_depend_on_the_order_of_arrival(situation, random):
    request, view, candidates, nodes = situation
    straight = [
        ranked.rank for ranked in order(request, view, candidates, lambda _: at(nodes, view))
    ]
    shuffled = random.sample(candidates, len(candidates))
    again = [ranked.rank for ranked in order(request, view, shuffled, lambda _: at(nodes, view))]
    assert again == straight


@given(situations())
def test_no_candidate_is_lost(situation):
    request, view, candidates, nodes = situation
    ranked = order(request, view, candidates, lambda _: at(nodes, view))
    assert sorted(each.candidate.index for each in ranked) == [c.index for c in candidates]
