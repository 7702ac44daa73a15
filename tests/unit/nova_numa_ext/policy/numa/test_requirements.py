# SPDX-License-Identifier: Apache-2.0
"""Who may go where, and what is said to those who may not."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_numa_ext.policy.numa import requirements as admission
from nova_numa_ext.policy.numa import whatif
from nova_numa_ext.policy.numa.cells import HostCell
from nova_numa_ext.policy.numa.multipliers import Multipliers
from nova_numa_ext.policy.numa.score import SCORED
from nova_numa_ext.policy.terms import SENTENCES, Term, sentence
from placement_traits import names
from placement_traits.fleet_arrays import FleetArrays
from placement_traits.names import RdtTrait, TierTrait
from placement_traits.reason import Reason
from placement_traits.request import parse
from placement_traits.snapshot import FleetSnapshot, ViewState
from placement_traits.workload_request import L3Amount
from tests.support.fleet import ALL_TRAITS, be, domain, host, hosts, lc

EQUAL = Multipliers(dict.fromkeys(SCORED, 1.0))


def said(reasons):
    return [sentence(reason) for reason in reasons]


def test_a_host_that_has_everything_lacks_nothing():
    assert whatif.lacking(lc(), host(domain(0)), {"PCPU": 2, "MEMORY_MB": 1024}) == ()


def test_missing_resources_of_novas_own_are_sentences_too():
    full = {"PCPU": 0, "VCPU": 0, "MEMORY_MB": 512}
    assert said(whatif.lacking(lc(), host(domain(0)), full)) == [
        "dedicated CPUs free: 0, requested: 2",
        "memory free: 512 MiB, requested: 1024 MiB",
    ]
    [first, _] = said(whatif.lacking(be(vcpus=2, memory_mb=1024), host(domain(0)), full))
    assert first == "shared CPUs free: 0, requested: 2"


@pytest.mark.parametrize(
    ("traits", "words"),
    [
        (ALL_TRAITS - {TierTrait.LC}, "does not accept the tier"),
        (ALL_TRAITS - {RdtTrait.L3_CAT}, "no L3 cache allocation"),
    ],
)
def test_a_missing_capability_is_named(traits, words):
    [text] = said(admission.capabilities(lc(), host(domain(0), traits=traits)))
    assert words in text


def test_a_host_without_agent_takes_no_tier_but_any_other_server():
    assert said(admission.capabilities(be(), None)) == [
        "no host agent has published this host to Placement"
    ]
    assert admission.capabilities(parse({}, vcpus=1, memory_mb=1), None) == ()


@pytest.mark.parametrize(
    ("request_", "view", "text"),
    [
        (lc(), host(domain(0), clos=(6, 6)), "classes of service free: 0, requested: 1"),
        (lc(14), host(domain(0), domain(1)), "L3 ways free in the best domain: 13, requested: 14"),
        (
            lc(bandwidth_mbps=9000),
            host(domain(0, bandwidth=(10_000, 2000))),
            "memory bandwidth free in the best L3 domain: 8000 MB/s, requested: 9000 MB/s",
        ),
        (
            lc(ways=10, bandwidth_mbps=9000),
            host(domain(0, ways=(13, 6)), domain(1, bandwidth=(10_000, 5000))),
            "L3 domains that can hold it: 0, requested: 1",
        ),
    ],
)
def test_a_missing_amount_is_named_with_what_is_there(request_, view, text):
    assert said(admission.amounts(request_, view)) == [text]


def test_bandwidth_is_admitted_up_to_equality():
    """Sum of the declared plus the new one may reach the capacity (F-004-43)."""
    view = host(domain(0, bandwidth=(10_000, 6000)))
    assert admission.amounts(lc(bandwidth_mbps=4000), view) == ()
    assert admission.amounts(lc(bandwidth_mbps=4001), view) != ()


def test_two_groups_need_two_domains_of_their_own():
    two = parse(
        {
            "numa_ext:tier": "LC",
            "hw:cpu_policy": "dedicated",
            "hw:numa_nodes": "2",
            "resources:CUSTOM_RDT_CLOS": "1",
            "resources_N0:CUSTOM_LLC_WAY": "4",
            "resources_N1:CUSTOM_LLC_WAY": "8",
            "group_policy": "isolate",
        },
        vcpus=2,
        memory_mb=1024,
    )
    assert admission.amounts(two, host(domain(0), domain(1, ways=(13, 8)))) == ()
    alone = admission.amounts(two, host(domain(0), domain(1, ways=(13, 10))))
    assert said(alone) == ["L3 domains that can hold it: 1, requested: 2"]


def test_a_strict_rabbit_needs_a_whole_neighbourhood():
    rabbit = lc(
        **{
            "numa_ext:interference_class": "rabbit",
            "resources_NODE:CUSTOM_LLC_NEIGHBOURHOOD": "1000",
        }
    )
    a_devil = domain(0, neighbourhood=(1_000, 1))
    assert admission.amounts(rabbit, host(a_devil, domain(1))) == ()
    assert said(admission.amounts(rabbit, host(a_devil))) == [
        "cache neighbourhood free in the best L3 domain: 999, requested: 1000"
    ]
    older = replace(domain(0), neighbourhood=None)
    assert said(admission.amounts(rabbit, host(older))) == [
        "cache neighbourhood free in the best L3 domain: 0, requested: 1000"
    ]


def cell(number, free_memory_mb):
    return HostCell(
        number,
        0,
        frozenset(range(4)),
        0,
        4,
        4,
        ((0,), (1,), (2,), (3,)),
        1,
        True,
        4096,
        4096 - free_memory_mb,
    )


def test_a_sensitive_floating_guest_needs_a_node_that_holds_it_whole():
    sensitive = be(memory_mb=2048, **{"numa_ext:remote_memory": "sensitive"})
    assert admission.local_memory(sensitive, [cell(0, 1024), cell(1, 2048)]) == ()
    assert admission.local_memory(sensitive, [cell(0, 1024), cell(1, 2047)]) != ()
    assert admission.local_memory(be(memory_mb=2048), [cell(0, 1024)]) == ()


def test_the_fleet_is_asked_in_order_of_usefulness():
    full = host(domain(0), clos=(6, 6), name="a-full")
    free = host(domain(0), name="b-free")
    fleet = FleetSnapshot(FleetArrays.of((full, free)), 1.0, ViewState.FRESH)
    answers = whatif.ask(lc(), fleet, multipliers=EQUAL)
    assert [answer.host.name for answer in answers] == ["b-free", "a-full"]


@pytest.mark.parametrize(
    ("used", "last", "chosen"),
    [
        (lambda number: 13 if number < 8 else 0, 4, range(8, 16)),
        (lambda number: 9 if number else 0, 13, range(8)),
    ],
    ids=["half are full", "only the first holds the last group"],
)
def test_a_what_if_for_many_domains_follows_no_dead_ends(used, last, chosen):
    """Eight groups could be dealt to 16 domains in 500 million ways."""
    view = host(*(domain(number, ways=(13, used(number))) for number in range(16)))
    groups = (*(L3Amount(f"_{number}", 4, 0) for number in range(7)), L3Amount("_7", last, 0))
    fleet = FleetSnapshot(FleetArrays.of([view]), 1.0, ViewState.FRESH)
    (answer,) = whatif.ask(replace(lc(), l3=groups), fleet, multipliers=EQUAL)
    assert (answer.reasons, answer.l3) == ((), tuple(chosen))


def test_a_drained_host_is_refused_as_such_and_only_to_servers_with_a_tier():
    """Its tiers are gone, too; why they are is what helps."""
    traits = frozenset({names.HOST, names.DRAINED})
    assert admission.lacking_traits(lc(), traits) == (
        Reason(Term.DRAINED, "present", names.DRAINED),
    )
    assert admission.lacking_traits(replace(lc(), tier=None), traits) == ()


def test_every_requirement_has_a_sentence():
    requirements = list(Term)[: list(Term).index(Term.NO_CELLS)]
    assert set(requirements) == set(SENTENCES)


@given(hosts(), st.integers(0, 14), st.integers(0, 11))
def test_no_reason_means_that_some_domain_holds_it_all(view, ways, thousands):
    request = lc(ways, thousands * 1000)
    holds = any(d.ways.free >= ways and d.bandwidth_mbps.free >= thousands * 1000 for d in view.l3)
    assert (admission.amounts(request, view) == ()) == holds
