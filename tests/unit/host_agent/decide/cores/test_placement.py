# SPDX-License-Identifier: Apache-2.0
"""The simple placement rule on hosts where L3 domains, nodes and cores do not coincide."""

from dataclasses import replace
from typing import Any

import pytest

from emulation.servers import BE_SPECS, LC_SPECS, Server
from host_agent.conf.options import Options
from host_agent.conf.rdt import RdtOptions
from host_agent.decide.cores.placement import decide
from host_agent.model.assignment import Assignment, Guest, Observation
from host_agent.model.process import Process, RamRange
from host_agent.model.terms import Term
from host_agent.model.workload import Activity, Cell, parse
from placement_traits.reason import Reason
from placement_traits.topology import Core, HostTopology, L3Domain, NumaNode, Socket


def host(cores: list[tuple[int, int, tuple[int, ...]]]) -> HostTopology:
    """Cores as (node, L3, CPUs); nodes are in one socket."""
    nodes = sorted({node for node, _, _ in cores})
    domains = sorted({l3 for _, l3, _ in cores})
    return HostTopology(
        sockets=(Socket(0),),
        nodes=tuple(NumaNode(node, 0, 4096) for node in nodes),
        l3_domains=tuple(
            L3Domain(l3, 0, tuple(sorted({n for n, other, _ in cores if other == l3})))
            for l3 in domains
        ),
        cores=tuple(Core(i, node, 0, l3, cpus) for i, (node, l3, cpus) in enumerate(cores)),
    )


# Two L3 domains in one node, as on EPYC.
EPYC = host([(0, 0, (0,)), (0, 0, (1,)), (0, 1, (2,)), (0, 1, (3,))])
# One L3 over two nodes, as with sub-NUMA clusters.
CLUSTERS = host([(0, 0, (0,)), (0, 0, (1,)), (1, 0, (2,)), (1, 0, (3,))])
# Two threads per core, one L3.
SMT = host([(0, 0, (0, 4)), (0, 0, (1, 5)), (0, 0, (2, 6)), (0, 0, (3, 7))])


def run(
    topology: HostTopology, *servers: Server, memory: dict[int, int] | None = None
) -> dict[str, Assignment]:
    """Decide; return assignments by title."""
    process = Process(1, 1, "0-1", ())
    kib = tuple((node, mb * 1024) for node, mb in (memory or {0: 64}).items())
    ram = (RamRange(0x1000, 0x2000, (), 4, 0, kib),)
    guests = tuple(Guest(parse(s.xml, Activity.RUNNING), process, ram) for s in servers)
    free = dict.fromkeys(topology.node_ids, 4096)
    decided = decide(
        Observation(topology, guests, free), {}, Options(rdt=RdtOptions(be_mba_percent=40))
    )
    titles = {s.uuid: s.title for s in servers}
    return {titles[desired.uuid]: desired for desired in decided.assignments}


def lc(*cpus: int, **specs: str) -> Server:
    return Server("lc", {**LC_SPECS, **specs}, cpus=cpus, vcpus=len(cpus))


def be(vcpus: int = 1, shared: str = "0-7", **specs: str) -> Server:
    return Server("be", {**BE_SPECS, **specs}, vcpus=vcpus, shared=shared)


def test_within_a_node_the_other_l3_domain_is_taken() -> None:
    found = run(EPYC, lc(0), be(2))
    assert found["be"].vcpu_cpus[0] == {2, 3}
    assert found["be"].partition is not None
    assert found["be"].partition.mba_percent == {1: 100}


def test_where_the_other_l3_domain_is_too_small_it_is_shared_and_throttled() -> None:
    found = run(EPYC, lc(0), be(3))
    assert found["be"].vcpu_cpus[0] == {1, 2, 3}
    assert found["be"].partition is not None
    assert found["be"].partition.mba_percent == {0: 40, 1: 100}


def test_a_cache_over_two_nodes_cannot_be_left_by_changing_the_node() -> None:
    found = run(CLUSTERS, lc(0), be(1, shared="1-3"))
    assert found["be"].partition is not None
    assert found["be"].partition.mba_percent == {0: 40}


def test_best_effort_never_shares_a_core_with_a_latency_critical_server() -> None:
    found = run(SMT, lc(0, 1), be(2, shared="2-7"))
    assert found["be"].vcpu_cpus[0] == {2, 3, 6, 7}


WHOLE = {
    "numa_ext:interference_class": "rabbit",
    "resources_NODE:CUSTOM_LLC_NEIGHBOURHOOD": "1000",
}


@pytest.mark.parametrize("kind", ["devil", "rabbit"])
def test_a_floating_devil_keeps_off_a_neighbourhood_that_a_rabbit_has_claimed(kind: str) -> None:
    """Even where it must share CPUs: best effort gives way to what was promised. A sheep may stay."""
    found = run(EPYC, lc(0, **WHOLE), be(3, **{"numa_ext:interference_class": kind}))
    assert found["be"].vcpu_cpus[0] == {2, 3}
    assert run(EPYC, lc(0, **WHOLE), be(3))["be"].vcpu_cpus[0] == {1, 2, 3}


def test_a_floating_devil_stays_where_nova_shares_no_other_cpu_with_it() -> None:
    found = run(EPYC, lc(0, **WHOLE), be(1, "1", **{"numa_ext:interference_class": "devil"}))
    assert found["be"].vcpu_cpus[0] == {1}


def two_cells(*cells: tuple[int, ...], ways: tuple[int, int] = (3, 5)) -> Guest:
    """An LC server with a group of ways per guest cell; CPUs by cell."""
    specs = {
        **LC_SPECS,
        "hw:numa_nodes": str(len(cells)),
        "resources_N0:CUSTOM_LLC_WAY": str(ways[0]),
        "resources_N1:CUSTOM_LLC_WAY": str(ways[1]),
        "group_policy": "isolate",
    }
    del specs["resources_NODE:CUSTOM_LLC_WAY"]
    pins = tuple(cpu for cell in cells for cpu in cell)
    workload = parse(Server("lc", specs, cpus=pins, vcpus=len(pins)).xml, Activity.RUNNING)
    assert workload.request is not None, workload.problem
    vcpus = iter(range(len(pins)))
    guest_cells = tuple(
        Cell(number, frozenset(next(vcpus) for _ in cpus), 32, frozenset({number}))
        for number, cpus in enumerate(cells)
    )
    return Guest(replace(workload, domain=replace(workload.domain, cells=guest_cells)))


def lc_ways(topology: HostTopology, guest: Guest) -> tuple[dict[int, int], list[str]]:
    decided = decide(Observation(topology, (guest,)), {}, Options())
    [desired] = decided.assignments
    assert desired.partition is not None
    return dict(desired.partition.ways), [str(reason) for reason in desired.reasons]


def test_ways_are_taken_in_as_many_l3_domains_as_were_claimed() -> None:
    found = run(EPYC, lc(0, 2, 3))["lc"]
    assert found.partition is not None
    assert (found.partition.domains, found.partition.ways) == ((0, 1), {1: 4})
    assert Reason(Term.NOT_EXCLUSIVE, 0, 1, "L3 0") in found.reasons
    even = run(EPYC, lc(3, 0))["lc"].partition
    assert even is not None
    assert even.ways == {0: 4}


def test_amounts_are_distributed_by_guest_cell_and_not_by_number_of_the_domain() -> None:
    taken, reasons = lc_ways(EPYC, two_cells((3,), (1,)))
    assert taken == {1: 3, 0: 5}
    assert not any("not_exclusive" in reason for reason in reasons)


def test_two_cells_in_one_l3_domain_do_not_take_more_there_than_one_group() -> None:
    assert lc_ways(CLUSTERS, two_cells((0,), (2,)))[0] == {0: 3}


def test_every_policy_gives_shares_of_its_own() -> None:
    shares = {
        policy: run(CLUSTERS, be(1, shared="0-1", **{"numa_ext:memory_policy": policy}))[
            "be"
        ].memory_shares
        for policy in ("local", "first_touch", "autonuma", "uniform_workers", "uniform_all", "bwap")
    }
    assert shares == {
        "local": {0: 1.0, 1: 0.0},
        "first_touch": None,
        "autonuma": None,
        "uniform_workers": {0: 1.0, 1: 0.0},
        "uniform_all": {0: 0.5, 1: 0.5},
        "bwap": {0: 1.0, 1: 0.0},
    }


def test_a_fallback_of_the_policy_is_a_reason() -> None:
    found = run(CLUSTERS, be(1))
    assert any("calibrate" in str(reason) for reason in found["be"].reasons)


def test_a_server_without_a_tier_stays_in_the_default_group() -> None:
    plain = Server("plain", {"numa_ext:interference_class": "rabbit"}, shared="0-3")
    found = run(EPYC, plain)
    assert found["plain"].partition is None
    assert found["plain"].vcpu_cpus[0]


def test_without_a_shared_set_the_dedicated_cpus_of_others_are_left_out() -> None:
    found = run(EPYC, lc(0, 2), be(1, shared=""))
    assert found["be"].vcpu_cpus[0] == {1, 3}


def pinned_to_its_cell(cell: str, **specs: str) -> Guest:
    """A guest with hw:numa_nodes and shared CPUs: nova pins it to all shared CPUs of the cell."""
    named = Server("numa", {**BE_SPECS, "hw:numa_nodes": "1", **specs}, cpus=(0,))
    xml = named.xml.replace(
        "<vcpupin vcpu='0' cpuset='0'/>", f"<vcpupin vcpu='0' cpuset='{cell}'/>"
    )
    return Guest(parse(xml, Activity.RUNNING))


def test_numa_guests_with_shared_cpus_leave_the_others_theirs() -> None:
    floating = Guest(parse(be(1, shared="").xml, Activity.RUNNING), Process(1, 1, "0-1", ()))
    guests = (pinned_to_its_cell("0-1"), pinned_to_its_cell("2-3"), floating)
    decided = decide(Observation(CLUSTERS, guests), {}, Options())
    assert not decided.unplaced
    desired = decided.get(floating.uuid)
    assert desired is not None
    assert desired.vcpu_cpus[0] in ({0, 1}, {2, 3})


def animal(kind: str, *cpus: int, **fields: Any) -> Server:
    """A dedicated server where CPUs are given, otherwise a floating one."""
    specs = {"numa_ext:interference_class": kind}
    if cpus:
        specs |= {"hw:cpu_policy": "dedicated", "hw:numa_nodes": "1"}
    return Server(kind, specs, cpus=cpus, **{"shared": "0-7", **fields})


def test_a_floating_devil_keeps_away_from_a_dedicated_rabbit() -> None:
    apart = run(
        host([(n, n, (2 * n, 2 * n + 1)) for n in range(4)]), animal("rabbit", 0), animal("devil")
    )
    assert apart["devil"].nodes == (1,)


def test_a_class_matters_in_the_whole_cache_and_only_there() -> None:
    """Nodes 0 and 1 share a cache; the rabbit is in node 1."""
    cluster = host([(0, 0, (0, 1)), (1, 0, (2, 3)), (2, 1, (4, 5))])
    assert run(cluster, animal("rabbit", 2, node=1), animal("devil"))["devil"].nodes == (2,)


# Two sockets of two nodes each; the far ones are 40 away.
SOCKETS = replace(
    host([(node, node, (2 * node, 2 * node + 1)) for node in range(4)]),
    distances=((10, 16, 40, 40), (16, 10, 40, 40), (40, 40, 10, 16), (40, 40, 16, 10)),
)


def with_gpus(
    nodes: dict[str, int | None], memory: dict[int, int], home_nodes: tuple[int, ...] = ()
) -> Assignment:
    """Decide about one floating server with devices on NUMA nodes."""
    server = be(1)
    workload = parse(server.xml, Activity.RUNNING)
    workload = replace(workload, domain=replace(workload.domain, hostdevs=tuple(nodes)))
    kib = tuple((node, mb * 1024) for node, mb in memory.items())
    ram = (RamRange(0x1000, 0x2000, (), 4, 0, kib),)
    guest = Guest(workload, Process(1, 1, "0-3", ()), ram, gpus=nodes)
    observed = Observation(SOCKETS, (guest,), dict.fromkeys(range(4), 4096))
    known = {guest.uuid: home_nodes} if home_nodes else {}
    [desired] = decide(observed, known, Options()).assignments
    return desired


def test_f_000_22_a_floating_server_lives_at_its_gpu() -> None:
    """F-000-22: vCPUs and emulator on the node of the device, though the server lived and has its memory elsewhere.

    The memory itself is pinned by VFIO and stays.
    """
    desired = with_gpus({"0000:81:00.0": 2}, {0: 64}, home_nodes=(0,))
    assert desired.nodes == (2,)
    assert desired.vcpu_cpus == {0: {4, 5}}
    assert desired.emulator_cpus == {4, 5}


def test_f_000_22_several_gpus_draw_it_to_the_node_nearest_to_all() -> None:
    """F-000-22: two devices on one socket and one on the other."""
    gpus = {"0000:01:00.0": 0, "0000:81:00.0": 2, "0000:82:00.0": 3}
    assert with_gpus(gpus, {0: 64}).nodes in ((2,), (3,))


def test_devices_whose_node_are_unknown_draw_it_nowhere() -> None:
    assert with_gpus({"0000:01:00.0": None}, {1: 64}).nodes == (1,)
