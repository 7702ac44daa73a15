# SPDX-License-Identifier: Apache-2.0
"""The scheduler's own picks stand in for what no agent has reported yet."""

from dataclasses import replace

from nova_numa_ext.policy.picks import Pick, with_amounts, with_neighbours, without_class
from placement_traits.names import InterferenceClass, NeighbourTrait, Tier
from tests.support.fleet import amount, domain, host

TWO = host(domain(0), domain(1))


def pick(tier=Tier.LC, interference_class=InterferenceClass.DEVIL, **more):
    return Pick("server", "root-h1", tier, interference_class, **more)


def neighbours(view):
    return [set(each.neighbours) for each in view.l3]


def test_a_pick_is_a_neighbour_in_the_domain_it_takes_from():
    lc_devil = {NeighbourTrait.LC, NeighbourTrait.DEVIL}
    assert neighbours(with_neighbours(TWO, [pick(l3=(("l3-1", amount(4)),))])) == [set(), lc_devil]


def test_a_numa_guest_without_amounts_is_where_its_nodes_are():
    assert neighbours(
        with_neighbours(TWO, [pick(Tier.BE, InterferenceClass.SHEEP, nodes=(0,))])
    ) == [
        {NeighbourTrait.BE},
        set(),
    ]


def test_a_floating_guest_shows_its_tier_everywhere_and_its_class_only_where_there_is_no_choice():
    assert neighbours(with_neighbours(TWO, [pick(Tier.BE)])) == [{NeighbourTrait.BE}] * 2
    [only] = neighbours(with_neighbours(host(domain(0)), [pick(Tier.BE)]))
    assert only == {NeighbourTrait.BE, NeighbourTrait.DEVIL}


def test_amounts_of_picks_are_taken_from_their_domains():
    view = with_amounts(
        TWO, [pick(l3=(("l3-0", amount(4, 1000)),)), pick(l3=(("l3-0", amount(2)),))]
    )
    assert [each.ways.free for each in view.l3] == [7, 13]
    assert [each.bandwidth_mbps.free for each in view.l3] == [9000, 10_000]
    view = with_amounts(TWO, [pick(l3=(("l3-0", replace(amount(4), neighbourhood=1_000)),))])
    assert [each.neighbourhood.free for each in view.l3] == [0, 1_000]


def test_no_picks_no_change():
    assert with_neighbours(TWO, []) is TWO
    assert with_amounts(TWO, []) is TWO


def test_a_server_is_not_its_own_neighbour():
    home = host(domain(0, neighbours=[NeighbourTrait.RABBIT, NeighbourTrait.LC]))
    assert neighbours(without_class(home, InterferenceClass.RABBIT)) == [{NeighbourTrait.LC}]
    assert neighbours(without_class(home, InterferenceClass.DEVIL)) == neighbours(home)
    assert neighbours(without_class(home, InterferenceClass.SHEEP)) == neighbours(home)
