# SPDX-License-Identifier: Apache-2.0
"""The score of hosts: bounded, monotonic where it should be, neutral about what is unknown."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_numa_ext.policy.numa.candidates import Candidate
from nova_numa_ext.policy.numa.cells import CpuPolicy, GuestCell, HostCell
from nova_numa_ext.policy.numa.score import (
    SCORED,
    HostOffer,
    Score,
    combine,
    most_spare,
    spare,
    terms,
)
from nova_numa_ext.policy.terms import Term
from placement_traits.names import NeighbourTrait
from tests.support.fleet import amount, at, be, domain, host, hosts, lc

EQUAL = dict.fromkeys(SCORED, 1.0)


def cell(number, free=4, memory_mb=4096, used_mb=0):
    return HostCell(
        number,
        number // 2,
        frozenset(range(4)),
        0,
        4,
        free,
        tuple((n,) for n in range(free)),
        1,
        True,
        memory_mb,
        used_mb,
    )


def scores(request, offers, multipliers):
    most = most_spare(map(spare, offers))
    found = [terms(request, offer, most) for offer in offers]
    rows = [[row[each] for each in SCORED] for row in found]
    weights = [[row[each] for each in SCORED] for row in multipliers]
    values = combine(np.array(rows, float), np.array(weights, float))
    return [Score(value, row) for value, row in zip(values, found, strict=True)]


def term(request, offer, which):
    return scores(request, [offer], [EQUAL])[0].terms[which]


def better(request, good, bad):
    first, second = scores(request, [good, bad], [EQUAL, EQUAL])
    return first.value > second.value


def test_be_goes_where_no_lc_lives():
    assert better(
        be(), HostOffer(host(domain(0))), HostOffer(host(domain(0, neighbours=[NeighbourTrait.LC])))
    )


def test_be_prefers_most_spare_bandwidth_in_megabytes_not_in_percent():
    """F-004-44: half of a big host is more than three quarters of a small one."""
    big = HostOffer(host(domain(0, bandwidth=(100_000, 50_000))))
    small = HostOffer(host(domain(0, bandwidth=(10_000, 2_500)), name="h2"))
    assert better(be(), big, small)


CROSS_ONLY = {**dict.fromkeys(SCORED, 0.0), Term.CROSS_SOCKET_BANDWIDTH: 1.0}


def sockets(*free, name="h1"):
    """A host with one L3 domain of so much free bandwidth on each socket."""
    return host(
        *(
            domain(2 * number, bandwidth=(10_000, 10_000 - each))
            for number, each in enumerate(free)
        ),
        name=name,
    )


def test_be_goes_to_the_host_with_most_spare_cross_socket_bandwidth():
    """F-004-44: as much is free in all, but there it is on one socket, and pages have nowhere to go."""
    lonely, shared = HostOffer(sockets(10_000, 0)), HostOffer(sockets(5_000, 5_000, name="h2"))
    assert better(be(), shared, lonely)
    first, second = scores(be(), [shared, lonely], [CROSS_ONLY, CROSS_ONLY])
    assert (first.value, second.value) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("nodes", "claims", "local", "cross_socket"),
    [
        (None, (), 7_000, 3_000 + 2_000),
        ((0,), (), 3_000, 7_000 + 2_000),
        ((2, 4), (), 7_000 + 2_000, 3_000),
        (None, (4,), 2_000, 3_000 + 7_000),
    ],
)
def test_spare_bandwidth_is_local_or_on_other_sockets(nodes, claims, local, cross_socket):
    """Local is where the server lives; one that may live anywhere lives on the socket with most of it."""
    taken = tuple((f"l3-{number}", amount(0, 100)) for number in claims)
    candidate = Candidate(0, taken, tuple(uuid for uuid, _ in taken)) if claims else None
    view = sockets(3_000, 7_000, 2_000)
    found = spare(HostOffer(view, home=at(nodes, view), candidate=candidate))
    assert (found.local, found.cross_socket) == (local, cross_socket)


def test_spare_bandwidth_is_the_sum_over_the_domains_of_a_socket_and_never_negative():
    """Domains 0 and 1 are on socket 0; what is taken of domain 2 beyond its capacity takes from no other."""
    view = host(
        domain(0, bandwidth=(10_000, 6_000)),
        domain(1, bandwidth=(10_000, 7_000)),
        domain(2, bandwidth=(10_000, 12_000)),
    )
    found = spare(HostOffer(view))
    assert (found.local, found.cross_socket) == (4_000 + 3_000, 0)
    assert spare(HostOffer()) is None


@pytest.mark.parametrize(
    ("request_", "counts"),
    [(be(), True), (be(**{"numa_ext:memory_policy": "local"}), False), (lc(), False)],
)
def test_cross_socket_bandwidth_counts_for_servers_whose_pages_may_go_there(request_, counts):
    offer = HostOffer(sockets(5_000, 5_000))
    assert (term(request_, offer, Term.CROSS_SOCKET_BANDWIDTH) is not None) == counts


@pytest.mark.parametrize(("nodes", "value"), [((0, 1), 1.0), ((1, 2), 0.5)])
def test_a_numa_guest_on_one_socket_is_best(nodes, value):
    offer = HostOffer(cells=tuple(cell(n) for n in range(4)), home=at(nodes, host()))
    assert term(lc(), offer, Term.SLICES) == value


@pytest.mark.parametrize(("vcpus", "value"), [(4, 1.0), (5, 0.5), (17, 0.0)])
def test_a_floating_guest_likes_hosts_where_one_node_would_do(vcpus, value):
    offer = HostOffer(cells=tuple(cell(n) for n in range(4)))
    assert term(be(vcpus=vcpus), offer, Term.SLICES) == value


@pytest.mark.parametrize(
    ("nodes", "value"),
    [((0,), 1.0), ((1,), 0.5), ((0, 1), 1.0), (None, 1.0), ((2,), 0.5)],
)
def test_neighbours_are_those_where_the_server_will_live(nodes, value):
    """It claims domain 0; a devil lives in domain 1, a best-effort server in domain 2."""
    devil, best_effort = [NeighbourTrait.DEVIL], [NeighbourTrait.BE]
    view = host(domain(0), domain(1, neighbours=devil), domain(2, neighbours=best_effort))
    claims = Candidate(0, (("l3-0", amount(3)),), ("l3-0",))
    rabbit = lc(3, **{"numa_ext:interference_class": "rabbit"})
    offer = HostOffer(view, home=at(nodes, view), candidate=claims)
    assert term(rabbit, offer, Term.NEIGHBOURS) == value


STRICT_DEVIL = {
    "numa_ext:interference_class": "devil",
    "resources_NODE:CUSTOM_LLC_NEIGHBOURHOOD": "1",
}


@pytest.mark.parametrize(("claimed", "value"), [(0, 0.0), (1, 1.0), (2, 1.0)])
def test_a_strict_devil_likes_domains_that_have_a_devil(claimed, value):
    """By Placement's count in domain 1, by the agent's word in domain 2; the neighbours themselves are welcome."""
    view = host(
        domain(0),
        domain(1, neighbourhood=(1_000, 1)),
        domain(2, neighbours=[NeighbourTrait.DEVIL]),
    )
    claims = Candidate(0, ((f"l3-{claimed}", amount(3)),), (f"l3-{claimed}",))
    offer = HostOffer(view, home=at((claimed,), view), candidate=claims)
    assert term(lc(3, **STRICT_DEVIL), offer, Term.DEVIL_PACKING) == value
    assert term(lc(3, **STRICT_DEVIL), offer, Term.NEIGHBOURS) == 1.0
    loose = lc(3, **{"numa_ext:interference_class": "devil"})
    assert term(loose, offer, Term.DEVIL_PACKING) is None


def test_a_host_where_a_strict_server_will_not_live_where_it_claims_comes_last():
    """nova-compute binds it to node 1, whose domain Placement does not offer; its neighbours may be gone by then."""
    claims = Candidate(0, (("l3-0", amount(3)),), ("l3-0",))
    view = host(domain(0), domain(1))
    offer = HostOffer(view, home=at((1,), view), candidate=claims)
    assert term(lc(3, **STRICT_DEVIL), offer, Term.NEIGHBOURS) == 0.0
    loose = lc(3, **{"numa_ext:interference_class": "devil"})
    assert term(loose, offer, Term.NEIGHBOURS) == 1.0


def test_ways_and_bandwidth_count_what_stays_free_after_the_server():
    candidate = Candidate(0, (("l3-0", amount(3, 4000)),), ("l3-0",))
    offer = HostOffer(host(domain(0, ways=(12, 3)), domain(1)), candidate=candidate)
    assert term(lc(3, 4000), offer, Term.WAYS) == 0.5
    assert term(lc(3, 4000), offer, Term.BANDWIDTH) == 0.6


def test_leftovers_too_small_for_another_such_server_are_fragments():
    shape = GuestCell(0, 2, 1024, CpuPolicy.DEDICATED)
    whole = HostOffer(
        cells=(cell(0, free=4), cell(1, free=4)), home=at((0,), host()), guest=(shape,)
    )
    broken = HostOffer(
        cells=(cell(0, free=3), cell(1, free=3)), home=at((0,), host()), guest=(shape,)
    )
    assert term(lc(), whole, Term.FRAGMENTATION) == 1.0
    assert term(lc(), broken, Term.FRAGMENTATION) == 0.5


def test_an_unknown_host_scores_the_mean_of_the_known_ones():
    lonely, shared = (
        HostOffer(host(domain(0))),
        HostOffer(host(domain(0, neighbours=[NeighbourTrait.LC]))),
    )
    first, second, unknown = scores(be(), [lonely, shared, HostOffer()], [EQUAL] * 3)
    assert unknown.value == pytest.approx((first.value + second.value) / 2)
    assert set(unknown.terms.values()) == {None}


def test_a_term_that_is_unknown_for_all_hosts_is_left_out():
    [only] = scores(be(), [HostOffer(host(domain(0)))], [EQUAL])
    assert {term for term, value in only.terms.items() if value is None} == {
        Term.SLICES,
        Term.DEVIL_PACKING,
        Term.WAYS,
        Term.FRAGMENTATION,
        Term.GPU,
        Term.CROSS_SOCKET_BANDWIDTH,
        Term.NET_BLOCK,
    }
    assert only.value == 1.0


def test_a_multiplier_of_zero_leaves_a_term_out():
    deaf = {**EQUAL, Term.NEIGHBOURS: 0.0}
    lonely, shared = (
        HostOffer(host(domain(0))),
        HostOffer(host(domain(0, neighbours=[NeighbourTrait.LC]))),
    )
    first, second = scores(be(), [lonely, shared], [deaf, deaf])
    assert first.value == second.value


weights = st.fixed_dictionaries({each: st.floats(0.0, 5.0) for each in SCORED})


@given(st.lists(st.tuples(hosts(), weights), min_size=1, max_size=4), st.sampled_from([be(), lc()]))
def test_scores_stay_in_their_bounds(rows, request_):
    result = scores(request_, [HostOffer(view) for view, _ in rows], [w for _, w in rows])
    for score in result:
        assert 0.0 <= score.value <= 1.0
        assert all(value is None or 0.0 <= value <= 1.0 for value in score.terms.values())
