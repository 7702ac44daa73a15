# SPDX-License-Identifier: Apache-2.0
"""In which L3 domains a server should be counted; agent and controller agree on it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host_agent.decide.amounts.claims import ServerClaim, claimed_elsewhere, parts_of
from host_agent.model.workload import Cell
from nova_numa_ext.policy.numa.claims import Resources, ServerCell, healed
from placement_traits import names
from placement_traits.errors import CapabilityMissingError
from placement_traits.fleet import Amount, HostView, L3View, RdtView
from placement_traits.offers import publish
from placement_traits.request import parse
from placement_traits.topology import HostTopology
from placement_traits.workload_request import WorkloadRequest
from tests.support.hosts import SETTINGS, topologies

LC = {"numa_ext:tier": "LC", "hw:cpu_policy": "dedicated", "resources:CUSTOM_RDT_CLOS": "1"}
PLENTY = Amount(1_000, 0)
"""
Two nodes with two L3 domains each::

    node 0    l3_0  CPUs 0-3    l3_1  CPUs 4-7
    node 1    l3_2  CPUs 8-11   l3_3  CPUs 12-15
"""


def domain(number: int, node: int, *cpus: tuple[int, int]) -> L3View:
    return L3View(f"l3_{number}", number, (node,), 0, 0, PLENTY, PLENTY, frozenset(), PLENTY, cpus)


HOST = HostView(
    "root",
    "h1",
    frozenset(),
    RdtView("rdt", PLENTY),
    tuple(domain(n, n // 2, (4 * n, 4 * n + 3)) for n in range(4)),
)


def request(*ways: int, **more: str) -> WorkloadRequest:
    """A request with a group for each cell."""
    groups = {f"resources_N{n}:CUSTOM_LLC_WAY": str(each) for n, each in enumerate(ways)}
    isolate = {"group_policy": "isolate"} if len(ways) > 1 else {}
    specs = {**LC, "hw:numa_nodes": str(len(ways)), **groups, **isolate, **more}
    return parse(specs, vcpus=8, memory_mb=512)


def ways_of(found: Resources) -> dict[str, int]:
    """Ways by provider."""
    return {p: amounts[names.LLC_WAY] for p, amounts in found.items() if names.LLC_WAY in amounts}


@pytest.mark.parametrize(
    ("cpus", "chosen"),
    [((4, 5), "l3_1"), ((0, 4, 5), "l3_1"), ((3, 4), "l3_0"), ((0, 1), "l3_0")],
    ids=["inside", "most", "as many: the lowest", "first"],
)
def test_of_several_domains_on_a_node_the_one_with_most_of_the_own_cpus(
    cpus: tuple[int, ...], chosen: str
) -> None:
    found = healed(request(4), [ServerCell(0, cpus)], HOST, {}, {})
    assert found == {"rdt": {names.RDT_CLOS: 1}, chosen: {names.LLC_WAY: 4}}


def test_two_cells_are_never_counted_in_one_domain() -> None:
    cells = [ServerCell(0, (0, 1)), ServerCell(0, (2, 3, 4))]
    assert ways_of(healed(request(4, 2), cells, HOST, {}, {})) == {"l3_0": 4, "l3_1": 2}


@pytest.mark.parametrize(
    ("held", "declared", "chosen"),
    [
        ({}, {"l3_0": 500, "l3_1": 100}, "l3_1"),
        ({"l3_0": {names.LLC_WAY: 4}}, {"l3_0": 500}, "l3_0"),
        ({"l3_2": {names.LLC_WAY: 4}}, {}, "l3_0"),
        ({"l3_0": {names.LLC_WAY: 3}}, {"l3_0": 500}, "l3_1"),
    ],
    ids=["least declared", "counted there", "counted on another node", "another amount"],
)
def test_a_cell_without_own_cpus_may_be_counted_in_any_domain_of_its_node(
    held: Resources, declared: dict[str, int], chosen: str
) -> None:
    found = healed(request(4), [ServerCell(0, ())], HOST, held, declared)
    assert ways_of(found) == {chosen: 4}


def test_an_older_agent_does_not_publish_the_cpus_of_domains() -> None:
    blind = HostView("root", "h1", frozenset(), HOST.rdt, tuple(domain(n, 0) for n in range(2)))
    held = {"l3_1": {names.LLC_WAY: 4}}
    assert ways_of(healed(request(4), [ServerCell(0, (1,))], blind, held, {})) == {"l3_1": 4}


def test_two_groups_of_a_floating_server_keep_what_is_right() -> None:
    specs = {
        "numa_ext:tier": "BE",
        "resources_A:CUSTOM_MEMORY_BANDWIDTH_MBPS": "100",
        "resources_B:CUSTOM_MEMORY_BANDWIDTH_MBPS": "200",
        "group_policy": "isolate",
    }
    wanted = parse(specs, vcpus=1, memory_mb=64)
    held = {"l3_0": {names.MEMORY_BANDWIDTH_MBPS: 200}}
    found = healed(wanted, [], HOST, held, {"l3_1": 5, "l3_2": 1, "l3_3": 5})
    assert found == {**held, "l3_2": {names.MEMORY_BANDWIDTH_MBPS: 100}}


def test_what_is_not_ours_is_left_as_it_is() -> None:
    """Nova's part, another's class on our provider, our classes on another host."""
    held = {
        "root": {"PCPU": 2},
        "l3_0": {names.LLC_WAY: 4, "CUSTOM_SITE": 1},
        "elsewhere": {names.LLC_WAY: 4},
    }
    found = healed(request(4), [ServerCell(1, (8,))], HOST, held, {})
    assert found == {
        "root": {"PCPU": 2},
        "l3_0": {"CUSTOM_SITE": 1},
        "elsewhere": {names.LLC_WAY: 4},
        "l3_2": {names.LLC_WAY: 4},
        "rdt": {names.RDT_CLOS: 1},
    }


def test_what_a_host_does_not_have_is_told() -> None:
    with pytest.raises(CapabilityMissingError, match="publishes no L3 domain of node 7"):
        healed(request(4), [ServerCell(7, (0,))], HOST, {}, {})
    bare = HostView("root", "h1", frozenset(), None, HOST.l3)
    with pytest.raises(CapabilityMissingError, match="h1 has no cache allocation"):
        healed(request(4), [ServerCell(0, (0,))], bare, {}, {})
    with pytest.raises(CapabilityMissingError, match="more groups of L3 amounts than the server"):
        healed(request(4, 4), [ServerCell(0, (0,))], HOST, {}, {})
    crowded = [ServerCell(0, ()) for _ in range(3)]
    with pytest.raises(CapabilityMissingError, match="than there are L3 domains"):
        healed(request(1, 1, 1), crowded, HOST, {}, {})


def view_of(topology: HostTopology) -> HostView:
    """A host as its agent publishes it."""
    offers = publish(topology, SETTINGS).offers
    domains = tuple(
        L3View(
            *(f"l3_{d.id}", d.id, d.nodes, d.socket, 0, PLENTY, PLENTY, frozenset(), PLENTY),
            cpus=offers[d.id].cpus,
        )
        for d in topology.l3_domains
    )
    return HostView("root", "h1", frozenset(), RdtView("rdt", PLENTY), domains)


@given(data=st.data())
def test_agent_and_controller_count_a_server_in_the_same_domains(data: st.DataObject) -> None:
    """Else what one reserves the other would never move; servers with CPUs of their own, shared ones, or both."""
    topology = data.draw(topologies())
    with_cpus = [
        node.id
        for node in topology.nodes
        if topology.l3_of_node(node.id) and topology.cores_of_node(node.id)
    ]
    if not with_cpus:
        return
    number = data.draw(st.integers(1, 3))
    pins: dict[int, frozenset[int]] = {}
    guest: list[Cell] = []
    cells: list[ServerCell] = []
    for cell in range(number):
        node = data.draw(st.sampled_from(with_cpus))
        cpus = [cpu for core in topology.cores_of_node(node) for cpu in core.cpus]
        chosen = data.draw(st.lists(st.sampled_from(cpus), max_size=4, unique=True))
        shared = frozenset(cpus) - set(chosen)
        floating = data.draw(st.integers(0 if chosen else 1, 2)) if len(shared) > 1 else 0
        if not chosen and not floating:
            return
        vcpus = range(len(pins), len(pins) + len(chosen) + floating)
        places = [*(frozenset({cpu}) for cpu in chosen), *[shared] * floating]
        pins |= dict(zip(vcpus, places, strict=True))
        guest.append(Cell(cell, frozenset(vcpus), 64, frozenset({node})))
        cells.append(ServerCell(node, tuple(chosen)))
    wanted = request(*(data.draw(st.integers(1, 5)) for _ in range(number)))
    parts = parts_of(topology, guest, pins, wanted.l3)
    ids = [domain.id for domain in topology.l3_domains]
    held = {
        f"l3_{l3}": amount.resources
        for l3, amount in zip(data.draw(st.permutations(ids)), wanted.l3, strict=False)
    }
    try:
        ours = healed(wanted, cells, view_of(topology), held, {})
    except CapabilityMissingError:
        assert len(parts) < number, "the agent makes no claim for such a server, either"
        return
    if len(parts) == number:
        del ours["rdt"]
        there = {int(name.removeprefix("l3_")): {"a": kept} for name, kept in ours.items()}
        assert claimed_elsewhere([ServerClaim("a", "a", parts)], there) == {}
