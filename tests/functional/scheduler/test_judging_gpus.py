# SPDX-License-Identifier: Apache-2.0
"""One host judged for a server that requests devices: over random fleets, and by story."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nova import objects
from nova.pci.stats import PciDeviceStats
from nova.scheduler import host_manager

from nova_numa_ext.policy.picks import Pick
from nova_numa_ext.scheduler import decision, gpus, nova_objects
from nova_numa_ext.scheduler.judge import DecisionContext
from placement_traits.fleet import Amount, DeviceView, GpuView, HostView, L3View
from placement_traits.fleet_arrays import FleetArrays
from placement_traits.names import GPU_COMM_TRAITS, GpuLink, InterferenceClass, TierTrait
from placement_traits.snapshot import FleetSnapshot, ViewState
from tests.functional.scheduler.conftest import BE, LC, request_spec
from tests.functional.scheduler.test_judging import (
    START,
    best_first,
    check,
    contexts,
    host,
    idle_cell,
    picks,
    pinned_guest,
    small_guest,
)

pytestmark = pytest.mark.usefixtures("drawn_guests")

REQUEST = "11111111-1111-1111-1111-111111111111"
POLICIES = ("legacy", "required", "preferred", "socket")
# What Placement looks at stands in an alias, too; nova's pools do not have it.
SPECS = (
    {"vendor_id": "10de"},
    {"vendor_id": "10de", "resource_class": "gpu"},
    {"resource_class": "gpu", "traits": "hw_nvlink", "dev_type": "type-PCI"},
)


@st.composite
def gpu_host(draw, number):
    """A HostState with up to four GPUs, some free, some shared; one may be unknown to nova or to us."""
    state, view = draw(host(number))
    count = draw(st.integers(0, 4))
    addresses = [f"0000:{each:02x}:00.0" for each in range(count)]
    nodes = [draw(st.sampled_from([None, 0, 1, 2])) for _ in addresses]
    uuids = [f"{state.uuid}-{address}" for address in addresses]
    state.pci_stats = PciDeviceStats(state.numa_topology)
    state.pci_stats.pools = [
        {
            "vendor_id": "10de",
            "product_id": "20b0",
            "dev_type": "type-PCI",
            "numa_node": node,
            "address": address,
            "rp_uuid": uuid,
            "count": draw(st.sampled_from([1, 1, 0])),
        }
        for uuid, address, node in zip(uuids, addresses, nodes, strict=True)
    ]
    if view is not None:
        pair = {addresses[0]: {addresses[1]: GpuLink.NV2}} if count > 1 else {}
        marks = st.frozensets(st.sampled_from([*GPU_COMM_TRAITS.values()]), max_size=1)
        view = replace(
            view,
            l3=tuple(
                replace(domain, neighbours=domain.neighbours | draw(marks)) for domain in view.l3
            ),
            gpus=tuple(
                GpuView(f"our-{uuid}", address, node, None, pair.get(address, {}))
                for uuid, address, node in zip(uuids, addresses, nodes, strict=True)
            ),
            devices=tuple(
                DeviceView(uuid, address, Amount(draw(st.integers(1, 2)), draw(st.integers(0, 1))))
                for uuid, address in zip(uuids, addresses, strict=True)
            )[: draw(st.sampled_from([count, count, 1]))],
        )
    state.allocation_candidates = draw(gpu_candidates(state, view))
    return state, view


@st.composite
def gpu_candidates(draw, state, view):
    """One or two free GPUs each, with ways of one domain or none."""
    free = [pool["rp_uuid"] for pool in state.pci_stats.pools if pool["count"]]
    domains = [domain.uuid for domain in view.l3] if view is not None else []
    found = []
    for _ in range(draw(st.integers(1, 5)) if free else 0):
        taken = draw(st.lists(st.sampled_from(free), min_size=1, max_size=2, unique=True))
        allocations = {state.uuid: {"resources": {"PCPU": 1}}}
        allocations |= {uuid: {"resources": {"CUSTOM_GPU": 1}} for uuid in taken}
        if domains and draw(st.booleans()):
            allocations[draw(st.sampled_from(domains))] = {"resources": {"CUSTOM_LLC_WAY": 1}}
        groups = {f"{REQUEST}-{each}": [uuid] for each, uuid in enumerate(taken)}
        found.append({"allocations": allocations, "mappings": {"": [state.uuid], **groups}})
    return found


@st.composite
def gpu_picks(draw, hosts):
    """Servers with GPUs placed lately."""
    pick = draw(picks(hosts))
    [state] = [state for state, _ in hosts if state.uuid == pick.host]
    uuids = [pool["rp_uuid"] for pool in state.pci_stats.pools]
    taken = draw(st.lists(st.sampled_from(uuids), max_size=2, unique=True)) if uuids else []
    return replace(pick, gpus=tuple(sorted(taken)), gpu_comm=draw(st.integers(0, 4)))


@st.composite
def gpu_questions(draw):
    """Hosts, a request for devices and what the scheduler knows besides."""
    hosts = [draw(gpu_host(number)) for number in range(draw(st.integers(1, 4)))]
    flavor = {
        **draw(st.sampled_from([BE, LC])),
        "numa_ext:gpu_policy": draw(st.sampled_from(["topo", "pack", "spread", "topo_p"])),
        "numa_ext:gpu_comm": str(draw(st.integers(0, 4))),
        "numa_ext:min_utility": draw(st.sampled_from(["0", "0.4", "0.8"])),
    }
    asked = objects.InstancePCIRequest(
        request_id=REQUEST,
        # Without an alias nova takes it for a port's and looks at no candidate.
        alias_name=draw(st.sampled_from(["gpu", None])),
        count=draw(st.integers(1, 2)),
        spec=[draw(st.sampled_from(SPECS))],
        numa_policy=draw(st.sampled_from(POLICIES)),
    )
    spec = request_spec(
        flavor,
        numa_topology=draw(st.none() | small_guest(1) | small_guest(1) | small_guest(2)),
        instance_uuid="server",
        pci_requests=objects.InstancePCIRequests(requests=[asked]),
    )
    placed = tuple(draw(st.lists(gpu_picks(hosts), max_size=2)))
    context = contexts(draw, hosts, placed, planner=gpus.GpuPlanner())
    return [state for state, _ in hosts], spec, context


def asking(questions):
    """So many random fleets and requests."""
    return settings(
        max_examples=questions,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )


@asking(40)
@given(gpu_questions())
def test_a_host_passes_with_its_best_gpus_first_or_says_why_not(nova_configuration, question):
    check(*question)


@pytest.mark.long
@asking(400)
@given(gpu_questions())
def test_hosts_of_many_fleets_pass_with_their_best_gpus_first(nova_configuration, question):
    check(*question)


@asking(40)
@given(gpu_questions())
def test_an_answer_that_hosts_share_is_novas_own_about_each(nova_configuration, question):
    """Hosts with devices that look alike are asked about once; nova is asked about each here."""
    compare_with_nova(*question)


@pytest.mark.long
@asking(400)
@given(gpu_questions())
def test_answers_that_hosts_of_many_fleets_share_are_novas_own(nova_configuration, question):
    compare_with_nova(*question)


def compare_with_nova(states, spec, _context):
    last_word = nova_objects.LastWord(spec)
    requests = spec.pci_requests.requests
    for state in states:
        cells = nova_objects.host_facts(state).cells
        for raw in state.allocation_candidates:
            accepts = last_word.on(state).about(raw)
            for cell in cells:
                guest = [objects.InstanceNUMACell(id=cell.id)]
                novas = state.pci_stats.support_requests(requests, raw["mappings"], guest)
                assert accepts((cell.id,)) == novas


def sockets_of_gpus(*free):
    """A host with three GPUs on socket 0, the first two linked, and two on socket 1; one candidate per free pair."""
    state = host_manager.HostState("h1", "h1", "cell")
    state.uuid, state.instances, state.updated, state.numa_topology = "root", {}, START, None
    state.pci_stats = None
    addresses = [f"0000:{number}1:00.0" for number in range(5)]
    nodes = (0, 0, 0, 1, 1)
    l3 = tuple(L3View(f"l3-{n}", n, (n,), n, 0, None, None, frozenset()) for n in (0, 1))
    view = HostView(
        "root",
        "h1",
        frozenset(),
        None,
        l3,
        tuple(
            GpuView(
                f"our-{n}", address, nodes[n], None, {addresses[1]: GpuLink.NV2} if n == 0 else {}
            )
            for n, address in enumerate(addresses)
        ),
        tuple(DeviceView(f"gpu-{n}", each, Amount(1, 0)) for n, each in enumerate(addresses)),
    )
    state.allocation_candidates = [
        {
            "allocations": {f"gpu-{n}": {"resources": {"CUSTOM_FPGA": 1}} for n in pair},
            "mappings": {},
        }
        for pair in free
    ]
    return state, view


def orders(flavor, state, view, *earlier, request=(), guest=None):
    """Positions of the candidates of a request for a device, best first."""
    flavor = {"resources:CUSTOM_FPGA": "1", **flavor}
    spec = request_spec(flavor, instance_uuid="server", numa_topology=guest)
    return best_first(spec, state, view, earlier, request)


def report_free(state, *numbers):
    """Let nova-compute say that GPUs are free."""
    state.pci_stats = PciDeviceStats(None)
    state.pci_stats.pools = [
        {"dev_type": "type-PCI", "numa_node": 0, "rp_uuid": f"gpu-{number}", "count": 1}
        for number in numbers
    ]


def gpu_job(*numbers, comm=0):
    gpus = tuple(f"gpu-{number}" for number in numbers)
    return Pick("other", "root", None, InterferenceClass.SHEEP, gpus=gpus, gpu_comm=comm)


@pytest.mark.parametrize(("minimum", "best"), [("0", [0, 1]), ("0.5", [1, 0])])
def test_a_set_below_the_minimum_utility_comes_after_all_others(nova_configuration, minimum, best):
    """``pack`` prefers the linked pair, but beside a job that disturbs it is not good enough: the host still serves."""
    flavor = {
        "numa_ext:gpu_policy": "pack",
        "numa_ext:gpu_comm": "4",
        "numa_ext:min_utility": minimum,
    }
    state, view = sockets_of_gpus((0, 1), (3, 4))
    assert orders(flavor, state, view, gpu_job(2, comm=4)) == best


@pytest.mark.parametrize(("used_mb", "best"), [((0, 1024), [0, 1]), ((1024, 0), [1, 0])])
def test_a_gpu_of_the_node_that_nova_will_pick_comes_first(nova_configuration, used_mb, best):
    """Nova picks the emptier of two nodes; nothing else makes one GPU better than the other."""
    state, view = sockets_of_gpus((0,), (3,))
    cells = [idle_cell(node, memory_usage=used) for node, used in enumerate(used_mb)]
    state.numa_topology = objects.NUMATopology(cells=cells)
    assert orders({"numa_ext:gpu_policy": "topo"}, state, view, guest=pinned_guest()) == best


@pytest.mark.parametrize(("minimum", "passes"), [("0", True), ("0.7", False)])
def test_a_set_that_nova_will_drop_does_not_stand_for_its_host(nova_configuration, minimum, passes):
    """The linked pair is the best set, but its node has no room: nova claims the other pair, whose utility counts."""
    flavor = {**BE, "pci_passthrough:alias": "gpu:2", "numa_ext:gpu_comm": "4"}
    flavor |= {"numa_ext:gpu_policy": "topo", "numa_ext:min_utility": minimum}
    state, view = sockets_of_gpus((0, 1), (3, 4))
    view = replace(view, traits=frozenset({TierTrait.BE}))
    full = idle_cell(0, pinned_cpus=set(idle_cell(0).pcpuset))
    state.numa_topology = objects.NUMATopology(cells=[full, idle_cell(1)])
    report_free(state, 0, 1, 3, 4)
    for pool in state.pci_stats.pools:
        pool["numa_node"] = int(pool["rp_uuid"] in {"gpu-3", "gpu-4"})
    for raw in state.allocation_candidates:
        raw["mappings"] = {f"{REQUEST}-{n}": [uuid] for n, uuid in enumerate(raw["allocations"])}
    asked = objects.InstancePCIRequest(
        request_id=REQUEST, alias_name="gpu", count=2, spec=[{}], numa_policy="legacy"
    )
    spec = request_spec(
        flavor,
        instance_uuid="server",
        numa_topology=pinned_guest(),
        pci_requests=objects.InstancePCIRequests(requests=[asked]),
    )
    context = DecisionContext(FleetSnapshot(FleetArrays.of([view]), 1.0, ViewState.FRESH))
    judged = decision.decide(decision.parse_spec(spec), spec, [state], context).verdicts["root"]
    assert [each.candidate.index for each in judged.candidates] == [1, 0]
    below = any(reason.term == "gpu_utility_below_minimum" for reason in judged.reasons)
    assert below != passes


def test_what_the_requests_earlier_server_has_used_up_comes_last(nova_configuration):
    """What the request's earlier server has taken cannot be claimed; what an earlier request's has, can."""
    flavor = {"numa_ext:gpu_policy": "topo"}
    state, view = sockets_of_gpus((0,), (1,))
    assert orders(flavor, state, view, gpu_job(0)) == [0, 1]
    assert orders(flavor, state, view, request=(gpu_job(0),)) == [1, 0]


def test_a_gpu_that_the_request_has_used_up_disturbs_its_neighbours(nova_configuration):
    """It is still offered, but the earlier server of the request is on it."""
    flavor = {"numa_ext:gpu_policy": "topo", "numa_ext:gpu_comm": "4"}
    state, view = sockets_of_gpus((0,), (1,), (2,), (3,), (4,))
    assert orders(flavor, state, view) == [0, 1, 2, 3, 4]
    assert orders(flavor, state, view, request=(gpu_job(0, comm=4),)) == [3, 4, 1, 2, 0]


def test_a_gpu_that_an_earlier_request_has_just_taken_is_busy_though_nova_compute_calls_it_free(
    nova_configuration,
):
    """Placement offers it no longer; nova-compute tells so only after its next update."""
    flavor = {"numa_ext:gpu_policy": "topo", "numa_ext:gpu_comm": "4"}
    state, view = sockets_of_gpus((1,), (2,), (3,), (4,))
    report_free(state, 0)
    assert orders(flavor, state, view)[0] == 0
    assert orders(flavor, state, view, gpu_job(0, comm=4))[:2] == [2, 3]


def test_a_free_gpu_that_no_candidate_has_disturbs_nobody(nova_configuration):
    """Placement shows only some candidates of a large host: what nova-compute calls free is no neighbour."""
    flavor = {"numa_ext:gpu_policy": "topo", "numa_ext:gpu_comm": "4"}
    state, view = sockets_of_gpus((1,), (3,))
    marked = {GPU_COMM_TRAITS[4]}
    view = replace(
        view,
        l3=tuple(
            replace(domain, neighbours=frozenset(marked if domain.l3_id == 0 else ()))
            for domain in view.l3
        ),
    )
    assert orders(flavor, state, view) == [1, 0]
    report_free(state, 0, 2, 4)
    assert orders(flavor, state, view) == [0, 1]


@pytest.mark.parametrize(("state", "refused"), [(ViewState.FRESH, True), (ViewState.STALE, False)])
def test_gpus_that_cannot_be_judged_are_refused_only_by_a_view_that_may_be_trusted(
    nova_configuration, state, refused
):
    """No agent tells where they are, and the server asks for a minimum."""
    flavor = {"resources:CUSTOM_FPGA": "1", "numa_ext:min_utility": "0.5"}
    host, view = sockets_of_gpus((0,))
    view = replace(view, gpus=(), devices=())
    spec = request_spec(flavor, instance_uuid="server")
    context = DecisionContext(FleetSnapshot(FleetArrays.of([view]), 1.0, state))
    parsed = decision.parse_spec(spec)
    judged = decision.decide(parsed, spec, [host], context)
    assert bool(judged.refused) == refused
