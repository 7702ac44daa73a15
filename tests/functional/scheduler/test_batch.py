# SPDX-License-Identifier: Apache-2.0
"""Many hosts decided at once against each host judged alone, over random fleets, candidates and guests."""

import datetime
import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from nova import objects
from nova.scheduler import host_manager

from nova_numa_ext.policy.numa import score
from nova_numa_ext.policy.numa.arrays import MOST_BITS
from nova_numa_ext.policy.numa.score import SCORED, HostOffer
from nova_numa_ext.policy.picks import Pick
from nova_numa_ext.policy.terms import Term
from nova_numa_ext.scheduler import decision, nova_objects
from nova_numa_ext.scheduler.host_table import HostTable
from nova_numa_ext.scheduler.judge import Judge, Surroundings
from placement_traits.fleet import Amount, FleetSnapshot, HostView, L3View, ViewState
from placement_traits.names import (
    InterferenceClass,
    NeighbourTrait,
    PackingTrait,
    RdtTrait,
    Tier,
    TierTrait,
)
from placement_traits.request import L3Amount
from tests.functional.scheduler.conftest import BE, LC, request_spec
from tests.functional.scheduler.test_prediction import guest_topology, host_cell, pools

FLAVORS = (
    LC,
    BE,
    {"numa_ext:interference_class": "rabbit"},
    {**LC, "numa_ext:interference_class": "rabbit"},
    {**BE, "numa_ext:interference_class": "devil"},
    {**BE, "numa_ext:remote_memory": "sensitive"},
)
TRAITS = [TierTrait.LC, TierTrait.BE, RdtTrait.L3_CAT, PackingTrait.PACK, PackingTrait.SPREAD]
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
seconds = itertools.count()  # no two states of hosts are of the same time

amounts = st.none() | st.builds(Amount, st.integers(0, 16), st.integers(0, 17))


@st.composite
def views(draw, number):
    """What an agent has published: up to four L3 domains anywhere on up to five nodes."""
    ids = draw(st.lists(st.integers(0, 8), unique=True, max_size=4))
    l3 = tuple(
        L3View(
            f"{number}-{draw(st.integers(0, 9))}-{l3_id}",
            l3_id,
            tuple(sorted(draw(st.sets(st.integers(0, 4), max_size=3)))),
            draw(st.integers(0, 2)),
            0,
            draw(amounts),
            draw(amounts),
            draw(st.frozensets(st.sampled_from(list(NeighbourTrait)), max_size=3)),
        )
        for l3_id in sorted(ids)
    )
    traits = draw(st.frozensets(st.sampled_from(TRAITS), min_size=2))
    return HostView(f"root{number}", f"h{number}", traits, None, l3)


@st.composite
def candidates(draw, view, root):
    """One for each domain as Placement offers them, or up to five, some alike, with amounts of up to two domains."""
    domains = [domain.uuid for domain in view.l3] if view is not None else []
    found = []
    if draw(st.booleans()):
        taken = {"resources": {"CUSTOM_LLC_WAY": 1}}
        allocations = [{root: {"resources": {"PCPU": 2}}, uuid: taken} for uuid in domains]
        return [{"allocations": each, "mappings": {}} for each in allocations]
    for _ in range(draw(st.integers(0, 5))):
        used = draw(st.sets(st.sampled_from(domains), max_size=2)) if domains else set()
        cpus = draw(st.sampled_from(["PCPU", "VCPU"]))
        allocations = {root: {"resources": {cpus: 2}}}
        for uuid in draw(st.permutations(sorted(used))):
            taken = {
                "CUSTOM_LLC_WAY": draw(st.integers(0, 4)),
                "CUSTOM_MEMORY_BANDWIDTH_MBPS": draw(st.integers(0, 4)),
            }
            allocations[uuid] = {"resources": taken}
        if draw(st.booleans()):
            allocations[draw(st.sampled_from(["disk1", "disk2"]))] = {"resources": {"DISK_GB": 1}}
        found.append({"allocations": allocations, "mappings": {}})
    return found


def idle_cell(number, threads=1, **used):
    """A cell of 4 cores that holds any :func:`small_guest`."""
    cpus = sorted(range(number * 16, number * 16 + threads * 4))
    values = {
        "id": number,
        "socket": number // 2,
        "cpuset": set(cpus),
        "pcpuset": set(cpus),
        "memory": 4096,
        "memory_usage": 0,
        "cpu_usage": 0,
        "pinned_cpus": set(),
        "siblings": [set(range(core, core + threads)) for core in cpus[::threads]],
        "mempages": [objects.NUMAPagesTopology(size_kb=4, total=4096 * 256, used=0, reserved=0)],
        "network_metadata": objects.NetworkMetadata(physnets=set(), tunneled=False),
    }
    return objects.NUMACell(**{**values, **used})


@st.composite
def roomy_cell(draw, number, threads):
    """An :func:`idle_cell` of which some may be taken."""
    cpus = sorted(idle_cell(number, threads).cpuset)
    return idle_cell(
        number,
        threads,
        memory_usage=draw(st.sampled_from([0, 512, 1024])),
        cpu_usage=draw(st.integers(0, 2)),
        pinned_cpus=draw(st.sets(st.sampled_from(cpus), max_size=3)),
    )


def pinned_guest():
    """A guest of one dedicated CPU."""
    cell = objects.InstanceNUMACell(
        id=0, cpuset=set(), pcpuset={0}, memory=256, cpu_policy="dedicated", pagesize=None
    )
    return objects.InstanceNUMATopology(cells=[cell], emulator_threads_policy=None)


@st.composite
def small_guest(draw, most_cells=2):
    """A guest of equal cells."""
    policy, cpus = draw(st.sampled_from(["shared", "dedicated"])), draw(st.integers(1, 3))
    threads = draw(st.sampled_from([None, "isolate", "require"])) if policy == "dedicated" else None
    guest = [
        objects.InstanceNUMACell(
            id=number,
            cpuset=set(range(number * cpus, (number + 1) * cpus)) if policy == "shared" else set(),
            pcpuset=set(range(number * cpus, (number + 1) * cpus))
            if policy == "dedicated"
            else set(),
            memory=256,
            cpu_policy=policy,
            cpu_thread_policy=threads,
            pagesize=None,
        )
        for number in range(draw(st.integers(1, most_cells)))
    ]
    return objects.InstanceNUMATopology(cells=guest, emulator_threads_policy=None)


@st.composite
def host(draw, number):
    """A HostState with our view of it (or none)."""
    view = draw(st.none() | views(number))
    state = host_manager.HostState(f"h{number}", f"h{number}", "cell")
    state.uuid = f"root{number}"
    threads = draw(st.sampled_from([1, 2]))
    count = draw(st.integers(0, 4))
    roomy = draw(st.booleans())
    cell = roomy_cell if roomy else host_cell
    cells = [draw(cell(each, threads)) for each in range(count)]
    state.numa_topology = objects.NUMATopology(cells=cells) if cells else None
    state.cpu_allocation_ratio = draw(st.sampled_from([1.0, 4.0]))
    state.ram_allocation_ratio = draw(st.sampled_from([1.0, 1.5]))
    devices = draw(st.lists(st.sampled_from([None, 0, 1]), max_size=2))
    state.pci_stats = draw(st.none() | st.just(Devices(devices)))
    state.updated = START + datetime.timedelta(seconds=next(seconds))
    state.instances = {"server": None} if draw(st.booleans()) else {}
    state.allocation_candidates = draw(candidates(view, state.uuid))
    return state, view


class Devices:
    """The part of PciDeviceStats that says where free devices are."""

    def __init__(self, nodes):
        self.pools = [pool.to_dict() for pool in pools(nodes)]


@st.composite
def picks(draw, hosts):
    """Servers placed lately, some of them of this request."""
    state, view = draw(st.sampled_from(hosts))
    domains = [domain.uuid for domain in view.l3] if view is not None else []
    used = draw(st.lists(st.sampled_from(domains), unique=True, max_size=1)) if domains else []
    return Pick(
        "other",
        state.uuid,
        draw(st.sampled_from([None, *Tier])),
        draw(st.sampled_from(list(InterferenceClass))),
        tuple((uuid, L3Amount("", draw(st.integers(0, 4)), 1)) for uuid in used),
        draw(st.sampled_from([None, (0,), (1, 2)])),
    )


def surroundings(draw, hosts, placed, **known):
    """What the scheduler knows besides: the view of the hosts, fresh or not, and picks of this request or of others."""
    return Surroundings(
        FleetSnapshot(
            {view.root_uuid: view for _, view in hosts if view is not None},
            1.0,
            draw(st.sampled_from([ViewState.FRESH, ViewState.FRESH, ViewState.STALE])),
        ),
        {pick.host: [pick] for pick in placed},
        placed if draw(st.booleans()) else (),
        pack=draw(st.booleans()),
        **known,
    )


@st.composite
def questions(draw):
    """Hosts, a request and what the scheduler knows besides."""
    hosts = [draw(host(number)) for number in range(draw(st.integers(1, 4)))]
    flavor = draw(st.sampled_from(FLAVORS))
    guest = draw(st.none() | guest_topology() | small_guest())
    spec = request_spec(flavor, numa_topology=guest, instance_uuid="server")
    placed = tuple(draw(st.lists(picks(hosts), max_size=2)))
    return [state for state, _ in hosts], spec, surroundings(draw, hosts, placed)


def alone(parsed, spec, states, around):
    """Each host judged by itself."""
    judge = Judge(parsed.request, parsed.guest, spec, around, nova_objects.KnownHosts())
    return [judge.verdict(state) for state in states]


def order_both_ways(spec, state, view, earlier=(), request=()):
    """Positions of one host's candidates, best first, as decided over arrays; checked against the host judged alone.

    :param earlier: recent picks of other requests
    :param request: those of this one
    """
    around = Surroundings(
        FleetSnapshot({view.root_uuid: view}, 1.0, ViewState.FRESH),
        {view.root_uuid: [*earlier, *request]},
        request,
    )
    parsed = decision.parse_spec(spec)
    judged = decision.decide(parsed, spec, [state], around, HostTable(nova_objects.KnownHosts()))
    assert judged.verdicts == {}, "decided over arrays"
    assert judged.passed == [0]
    [verdict] = alone(parsed, spec, [state], around)
    found = list(judged.order(0))
    assert found == [ranked.candidate.index for ranked in verdict.ordering.kept]
    return found


def scores_alone(request, verdicts):
    offers = [verdict.offer or HostOffer() for verdict in verdicts]
    most = score.most_spare(map(score.spare, offers))
    rows = [score.terms(request, offer, most) for offer in offers]
    return np.array([[row[term] for term in SCORED] for row in rows], float)


@pytest.mark.parametrize("flavor", FLAVORS)
def test_no_host_is_no_fault(nova_configuration, flavor):
    around = Surroundings(FleetSnapshot({}, 1.0, ViewState.FRESH))
    spec = request_spec(flavor)
    judged = decision.decide(
        decision.parse_spec(spec), spec, [], around, HostTable(nova_objects.KnownHosts())
    )
    assert judged.passed == []


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(questions(), questions())
def test_many_hosts_at_once_are_decided_as_each_alone(nova_configuration, before, question):
    """Whatever the table of hosts has seen before: the hosts in other states, in another order."""
    check(before, question)


def check(before, question):
    """Decide both with one table of hosts, and compare the second decision with that about each host."""
    table = HostTable(nova_objects.KnownHosts())
    states, spec, around = before
    decision.decide(decision.parse_spec(spec), spec, states[::-1], around, table)
    states, spec, around = question
    parsed = decision.parse_spec(spec)
    judged = decision.decide(parsed, spec, states, around, table)
    event(f"together: {len(states) - len(judged.verdicts)} of {len(states)} hosts")
    verdicts = alone(parsed, spec, states, around)
    assert [judged.reasons.get(at, ()) for at in range(len(states))] == [
        verdict.reasons for verdict in verdicts
    ]
    for at in judged.passed:
        verdict, pick = verdicts[at], judged.pick(at)
        kept = [ranked.candidate.index for ranked in verdict.ordering.kept]
        assert list(judged.order(at)) == kept
        best = verdict.offer.candidate
        taken = {uuid: (each.ways, each.bandwidth_mbps) for uuid, each in pick.l3}
        assert taken == {
            uuid: (each.ways, each.bandwidth_mbps) for uuid, each in (best.l3 if best else ())
        }
        assert set(pick.nodes or ()) == set(verdict.offer.nodes or ())
        gpus = verdict.ordering.kept[0].gpus if kept else None
        assert pick.gpus == (gpus.providers if gpus else ())
    if judged.passed:
        weights = np.ones((len(judged.passed), len(SCORED)))
        expected = scores_alone(parsed.request, [verdicts[at] for at in judged.passed])
        result = judged.scores(judged.passed, weights)
        np.testing.assert_allclose(result.rows, expected, rtol=1e-12)
        np.testing.assert_allclose(result.values, score.combine(expected, weights), rtol=1e-12)


def test_kinds_of_hosts_that_exist_no_more_are_forgotten():
    """Each decision walks over all kinds, and every change of an agent's traits makes a new one."""
    table = HostTable(nova_objects.KnownHosts())
    states = [host_manager.HostState(f"h{n}", f"h{n}", "cell") for n in range(3)]
    for state in states:
        state.uuid, state.numa_topology, state.updated = state.host, None, None
    for number in range(50):
        views = [
            HostView(state.uuid, state.host, frozenset({f"CUSTOM_{number}_{n % 2}"}), None, ())
            for n, state in enumerate(states)
        ]
        hosts, _, _ = table.read(states, views)
        assert [hosts.kinds[kind].traits for kind in hosts.kind] == [v.traits for v in views]
        assert len(hosts.kinds) <= 5


def two_domains(*free):
    """A host without NUMA cells; so many ways and so much bandwidth is free in each domain, one candidate for each."""
    l3 = tuple(
        L3View(f"l3-{n}", n, (n,), n, 0, Amount(16, 16 - w), Amount(10, 10 - b), frozenset())
        for n, (w, b) in enumerate(free)
    )
    state = host_manager.HostState("h1", "h1", "cell")
    state.uuid, state.instances, state.updated, state.numa_topology = "root", {}, START, None
    state.pci_stats = None
    wants = {"resources": {"CUSTOM_LLC_WAY": 4, "CUSTOM_MEMORY_BANDWIDTH_MBPS": 4}}
    state.allocation_candidates = [
        {"allocations": {"root": {"resources": {"VCPU": 1}}, domain.uuid: wants}, "mappings": {}}
        for domain in l3
    ]
    return state, HostView("root", "h1", frozenset(TRAITS[:3]), None, l3)


def took(ways, bandwidth_mbps):
    """The request's earlier server is in the first domain."""
    amount = L3Amount("", ways, bandwidth_mbps)
    return Pick("other", "root", Tier.BE, InterferenceClass.SHEEP, (("l3-0", amount),))


@pytest.mark.parametrize(
    ("free", "earlier", "best"),
    [
        pytest.param([(16, 10), (8, 10)], took(4, 4), [0, 1], id="enough of both is left"),
        pytest.param([(16, 10), (8, 10)], took(4, 8), [1, 0], id="bandwidth is used up"),
        pytest.param([(16, 10), (0, 10)], took(14, 0), [1, 0], id="ways are used up"),
        pytest.param([(16, 0), (8, 10)], None, [0, 1], id="Placement knows better than the view"),
    ],
)
def test_a_domain_comes_last_when_the_request_itself_has_used_it_up(
    nova_configuration, free, earlier, best
):
    """Nova asked Placement once for all servers of the request: what an earlier one took is still offered."""
    state, view = two_domains(*free)
    request = (earlier,) if earlier else ()
    assert (
        order_both_ways(request_spec(BE, instance_uuid="server"), state, view, (), request) == best
    )


@pytest.mark.parametrize("odd", [0, 1])
def test_a_host_judged_alone_is_compared_with_those_judged_together(nova_configuration, odd):
    """Two candidates of one host differ in nothing that arrays compare, so it is judged alone; the other has one."""
    small, small_view = two_domains((16, 2), (16, 1))
    large, large_view = two_domains((16, 10), (16, 5))
    large.uuid, large_view = "big", replace(large_view, root_uuid="big", name="h2")
    states = [small, large]
    for number, state in enumerate(states):
        state.allocation_candidates = [
            {
                "allocations": {
                    state.uuid: {"resources": {"VCPU": 1}},
                    disk: {"resources": {"DISK_GB": 1}},
                }
            }
            for disk in (("disk1", "disk2") if number == odd else ("disk1",))
        ]
    views = {view.root_uuid: view for view in (small_view, large_view)}
    around = Surroundings(FleetSnapshot(views, 1.0, ViewState.FRESH))
    spec = request_spec(BE, instance_uuid="server")
    parsed = decision.parse_spec(spec)
    judged = decision.decide(parsed, spec, states, around, HostTable(nova_objects.KnownHosts()))
    assert list(judged.verdicts) == [odd]
    result = judged.scores([0, 1], np.ones((2, len(SCORED))))
    at = [SCORED.index(term) for term in (Term.BANDWIDTH, Term.CROSS_SOCKET_BANDWIDTH)]
    assert result.rows[:, at].tolist() == [[2 / 10, 1 / 5], [1.0, 1.0]]
    expected = scores_alone(parsed.request, alone(parsed, spec, states, around))
    np.testing.assert_array_equal(result.rows, expected)


def test_a_host_without_a_row_does_not_disturb_the_others(nova_configuration):
    """Its NUMA nodes have no bits, and it has more L3 domains than any host that has a row."""
    small, small_view = two_domains((16, 2), (16, 1))
    odd, odd_view = two_domains((16, 10), (16, 5), (16, 5))
    odd.uuid = "odd"
    far = tuple(replace(domain, nodes=(MOST_BITS,)) for domain in odd_view.l3)
    odd_view = replace(odd_view, root_uuid="odd", name="h2", l3=far)
    views = {view.root_uuid: view for view in (small_view, odd_view)}
    around = Surroundings(FleetSnapshot(views, 1.0, ViewState.FRESH))
    spec = request_spec(BE, instance_uuid="server")
    parsed = decision.parse_spec(spec)
    judged = decision.decide(
        parsed, spec, [small, odd], around, HostTable(nova_objects.KnownHosts())
    )
    assert (list(judged.verdicts), judged.passed) == ([1], [0, 1])
    assert [list(judged.order(at)) for at in judged.passed] == [[0, 1], [0, 1, 2]]
