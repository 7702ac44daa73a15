# SPDX-License-Identifier: Apache-2.0
"""One host judged for one server, on nova's HostStates: over random fleets, candidates and guests, and by story."""

import datetime
import itertools
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from nova import objects
from nova.scheduler import host_manager
from nova.virt import hardware

from nova_numa_ext.policy.numa.score import SCORED
from nova_numa_ext.policy.picks import Pick
from nova_numa_ext.policy.terms import Term
from nova_numa_ext.scheduler import decision, judge, nova_objects
from nova_numa_ext.scheduler.judge import DecisionContext
from placement_traits.fleet import Amount, HostView, L3View
from placement_traits.fleet_arrays import FleetArrays
from placement_traits.names import (
    InterferenceClass,
    NeighbourTrait,
    PackingTrait,
    RdtTrait,
    Tier,
    TierTrait,
)
from placement_traits.snapshot import FleetSnapshot, ViewState
from placement_traits.workload_request import L3Amount
from tests.functional.scheduler.conftest import BE, LC, request_spec
from tests.support.nova_cells import guest_topology, host_cell, pools

pytestmark = pytest.mark.usefixtures("drawn_guests")

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


def contexts(draw, hosts, placed, **known):
    """What the scheduler knows besides: the view of the hosts, fresh or not, and picks of this request or of others."""
    return DecisionContext(
        FleetSnapshot(
            FleetArrays.of(view for _, view in hosts if view is not None),
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
    return [state for state, _ in hosts], spec, contexts(draw, hosts, placed)


def best_first(spec, state, view, earlier=(), request=()):
    """Positions of one host's candidates, best first.

    :param earlier: recent picks of other requests
    :param request: those of this one
    """
    context = DecisionContext(
        FleetSnapshot(FleetArrays.of([view]), 1.0, ViewState.FRESH),
        {view.root_uuid: [*earlier, *request]},
        request,
    )
    [found] = decision.decide(decision.parse_spec(spec), spec, [state], context).passed
    return [ranked.candidate.index for ranked in found.candidates]


@pytest.mark.parametrize("flavor", FLAVORS)
def test_no_host_is_no_fault(nova_configuration, flavor):
    context = DecisionContext(FleetSnapshot(FleetArrays.of(()), 1.0, ViewState.FRESH))
    spec = request_spec(flavor)
    judged = decision.decide(decision.parse_spec(spec), spec, [], context)
    assert (judged.passed, judged.refused) == ([], [])


def asking(questions):
    """So many random fleets and requests."""
    return settings(
        max_examples=questions,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )


@asking(40)
@given(questions())
def test_a_host_passes_with_its_best_candidate_first_or_says_why_not(nova_configuration, question):
    check(*question)


@pytest.mark.long
@asking(400)
@given(questions())
def test_hosts_of_many_fleets_pass_with_their_best_candidate_first(nova_configuration, question):
    check(*question)


def check(states, spec, context):
    """What is recorded as a pick is what nova will claim, and what is weighed are the hosts that pass."""
    parsed = decision.parse_spec(spec)
    judged = decision.decide(parsed, spec, states, context)
    assert [found.uuid for found in (*judged.passed, *judged.refused)] == sorted(
        (state.uuid for state in states), key=lambda uuid: bool(judged.verdicts[uuid].reasons)
    )
    for found in judged.passed:
        [state] = [state for state in states if state.uuid == found.uuid]
        offered = state.allocation_candidates
        decision.reorder(state, found)
        ours = state.allocation_candidates
        assert all(one in offered for one in ours)
        assert bool(ours) == bool(offered)
        ranks = [ranked.rank for ranked in found.candidates]
        assert ranks == sorted(ranks)
        pick = judged.pick(found.uuid)
        taken = ours[0]["allocations"] if ours else {}
        view = context.snapshot.host(found.uuid)
        domains = {domain.uuid for domain in view.l3} if view is not None else set()
        assert {uuid for uuid, _ in pick.l3} == domains & taken.keys()
        assert set(pick.gpus) <= taken.keys()
    uuids = [found.uuid for found in judged.passed]
    result = judged.scores(uuids, np.ones((len(uuids), len(SCORED))))
    assert ((result.values >= 0) & (result.values <= 1)).all()
    known = result.rows[~np.isnan(result.rows)]
    assert ((known >= 0) & (known <= 1)).all()


GUESTS = small_guest(3) | guest_topology()


@asking(50)
@given(host(0), GUESTS)
def test_a_host_refused_at_first_sight_is_one_that_nova_refuses(nova_configuration, found, guest):
    compare_with_nova(found, guest)


@pytest.mark.long
@asking(1000)
@given(host(0), GUESTS)
def test_a_thousand_hosts_refused_at_first_sight_are_refused_by_nova(
    nova_configuration, found, guest
):
    compare_with_nova(found, guest)


def compare_with_nova(found, guest):
    state, _ = found
    assume(state.numa_topology is not None)
    state.allocation_candidates = [{"allocations": {}, "mappings": {}}]
    spec = request_spec(LC, numa_topology=guest)
    pcpus = judge.dedicated_alike(decision.parse_spec(spec).guest)
    if pcpus and not nova_objects.room(state, pcpus, len(guest.cells)):
        fit = hardware.numa_fit_instance_to_host(state.numa_topology, guest.obj_clone(), None)
        assert fit is None


def test_a_host_without_room_costs_no_look_at_the_view(nova_configuration):
    """Where a cloud is nearly sold out, this is most of the work."""
    state, view = two_domains((16, 10))
    taken = idle_cell(0, pinned_cpus=set(range(4)))
    state.numa_topology = objects.NUMATopology(cells=[taken])
    context = DecisionContext(mock.Mock(spec=FleetSnapshot, state=ViewState.FRESH))
    spec = request_spec(LC, numa_topology=pinned_guest())
    [found] = decision.decide(decision.parse_spec(spec), spec, [state], context).refused
    assert [reason.term for reason in found.reasons] == [Term.NUMA_CELLS]
    assert not context.snapshot.host.called  # type: ignore[attr-defined]
    state.numa_topology.cells[0].pinned_cpus = {0, 1, 2}
    context = DecisionContext(FleetSnapshot(FleetArrays.of([view]), 1.0, ViewState.FRESH))
    assert decision.decide(decision.parse_spec(spec), spec, [state], context).passed


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
    assert best_first(request_spec(BE, instance_uuid="server"), state, view, (), request) == best


def test_bandwidth_is_compared_with_the_host_that_has_most_to_spare(nova_configuration):
    """Neither host's candidate chooses a domain: the server would live on the socket with most free bandwidth."""
    small, small_view = two_domains((16, 2), (16, 1))
    large, large_view = two_domains((16, 10), (16, 5))
    large.uuid, large_view = "big", replace(large_view, root_uuid="big", name="h2")
    for state in (small, large):
        state.allocation_candidates = [
            {"allocations": {state.uuid: {"resources": {"VCPU": 1}}}, "mappings": {}}
        ]
    views = (small_view, large_view)
    context = DecisionContext(FleetSnapshot(FleetArrays.of(views), 1.0, ViewState.FRESH))
    spec = request_spec(BE, instance_uuid="server")
    judged = decision.decide(decision.parse_spec(spec), spec, [small, large], context)
    result = judged.scores(["root", "big"], np.ones((2, len(SCORED))))
    at = [SCORED.index(term) for term in (Term.BANDWIDTH, Term.CROSS_SOCKET_BANDWIDTH)]
    assert result.rows[:, at].tolist() == [[2 / 10, 1 / 5], [1.0, 1.0]]
