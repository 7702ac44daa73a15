# SPDX-License-Identifier: Apache-2.0
"""One rule for slots of both widths: they agree with each other and with brute force."""

from collections.abc import Iterator
from dataclasses import astuple, replace
from itertools import combinations

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from emulation.physics.machines import grid
from host_agent.decide.cores import choose
from host_agent.decide.cores.choose import best_wide_slot, exact_slots, wide_slots
from host_agent.decide.cores.ranking import NO_TIES, SlotRank, Ties, rank
from host_agent.decide.cores.slots import CoreLayout, MappedServer, Occupancy, Slot
from host_agent.decide.pages.policy import Room
from placement_traits.names import InterferenceClass
from placement_traits.topology import HostTopology, L3Domain

SHEEP, RABBIT, DEVIL = InterferenceClass.SHEEP, InterferenceClass.RABBIT, InterferenceClass.DEVIL
NODE_MB = 16384

kinds = st.sampled_from([SHEEP, RABBIT, DEVIL])


def lc(name: str, vcpus: int) -> MappedServer:
    return MappedServer(name, vcpus, 64, RABBIT, movable=False, latency_critical=True)


def two_caches(nodes: int, cores: int) -> HostTopology:
    """A host with two L3 domains per node."""
    whole = grid(1, nodes, 2 * cores, memory_mb_per_node=NODE_MB)
    return replace(
        whole,
        l3_domains=tuple(L3Domain(l3, l3 // 2, (l3 // 2,)) for l3 in range(2 * nodes)),
        cores=tuple(replace(core, l3=core.id // cores) for core in whole.cores),
    )


AN_L3_PER_NODE = [
    grid(*size, memory_mb_per_node=NODE_MB, nodes_per_socket=2)
    for size in ((1, 2, 3), (1, 3, 3), (1, 4, 2), (2, 2, 2), (2, 3, 2))
]
SMALL = [*AN_L3_PER_NODE, two_caches(2, 2), two_caches(1, 3)]


@st.composite
def hosts(draw: st.DrawFn, topologies: list[HostTopology]) -> tuple[Occupancy, MappedServer]:
    """A host with servers on any of its cores, and a newcomer."""
    layout = CoreLayout(draw(st.sampled_from(topologies)))
    cpus = draw(st.permutations(sorted(layout.group_of_cpu)))
    servers, slots, taken = {}, {}, 0
    for number, vcpus in enumerate(draw(st.lists(st.integers(1, 2), min_size=1, max_size=6))):
        name = f"s{number}"
        mine = cpus[taken : taken + vcpus]
        if len(mine) < vcpus:
            break
        kind = draw(st.one_of(kinds, st.none()))
        servers[name] = lc(name, vcpus) if kind is None else MappedServer(name, vcpus, 64, kind)
        slots[name] = Slot(tuple(mine))
        taken += vcpus
    newcomer = MappedServer("new", draw(st.integers(1, 4)), 64, draw(kinds))
    servers["new"] = newcomer
    return Occupancy(layout, servers, slots), newcomer


def best_wide(
    occupancy: Occupancy, server: MappedServer, ties: Ties = NO_TIES
) -> tuple[SlotRank, Slot]:
    found = best_wide_slot(occupancy, server, ties, room(occupancy))
    assert found is not None
    return found


def room(occupancy: Occupancy) -> Room:
    return Room(dict.fromkeys(occupancy.layout.topology.node_ids, float(NODE_MB)))


def above_the_cores(found: SlotRank) -> tuple[object, ...]:
    """The terms down to the sockets: those below look at single cores, of which a wide slot has more."""
    names = list(SlotRank.__dataclass_fields__)
    return astuple(found)[: names.index("l3_domains")]


@settings(max_examples=300, deadline=None)
@given(hosts(AN_L3_PER_NODE))
def test_slots_of_both_widths_are_equally_good_where_both_exist(
    world: tuple[Occupancy, MappedServer],
) -> None:
    """With the same neighbours, and a core for each vCPU, on a host with an L3 domain per node.

    Nothing that is compared above single cores differs, and a server that fits one node gets the same node.
    """
    occupancy, newcomer = world
    exact = exact_slots(occupancy, newcomer)
    assume(exact)
    (narrow, slot), (wide, home) = exact[0], best_wide(occupancy, newcomer)
    assert above_the_cores(narrow) == above_the_cores(wide)
    if narrow.nodes == 1:
        assert occupancy.layout.nodes(slot) == occupancy.layout.nodes(home)


def all_exact(occupancy: Occupancy, server: MappedServer) -> Iterator[SlotRank]:
    idle = [cpu for cpus in occupancy.free(server).values() for cpu in cpus]
    for cpus in combinations(idle, server.vcpus):
        memory = occupancy.memory_for(server, cpus)
        assert memory is not None
        yield rank(occupancy, server, Slot(cpus, memory))


@settings(max_examples=400, deadline=None)
@given(hosts(SMALL))
def test_the_exact_slot_is_the_best_of_all_sets_of_cores(
    world: tuple[Occupancy, MappedServer],
) -> None:
    occupancy, newcomer = world
    best = min(all_exact(occupancy, newcomer), default=None)
    found = exact_slots(occupancy, newcomer)
    assert (found[0][0] if found else None) == best


@settings(max_examples=150, deadline=None)
@given(hosts(SMALL), st.sets(st.integers(0, 3), max_size=2))
def test_the_wide_slot_is_the_best_of_all_sets_of_nodes(
    world: tuple[Occupancy, MappedServer], home: set[int]
) -> None:
    """Looking at no more nodes than needed loses nothing, wherever the server is now."""
    occupancy, newcomer = world
    ties = Ties(home=tuple(sorted(home)))
    slots = wide_slots(occupancy, newcomer, ties, room(occupancy))
    best = min(rank(occupancy, newcomer, slot, ties) for slot in slots)
    assert best_wide(occupancy, newcomer, ties)[0] == best


FOUR_NODES = CoreLayout(grid(1, 4, 4, memory_mb_per_node=NODE_MB))


def test_a_sheep_keeps_out_of_the_cache_of_an_lc_at_either_width() -> None:
    """By the class matrix it may be there, and best fit would put it there."""
    sheep = MappedServer("new", 2, 64)
    occupancy = Occupancy(
        FOUR_NODES, {"lc": lc("lc", 2), "new": sheep}, {"lc": Slot((0, 1), {0: 64})}
    )
    assert occupancy.layout.nodes(exact_slots(occupancy, sheep)[0][1]) == (1,)
    assert occupancy.layout.nodes(best_wide(occupancy, sheep)[1]) == (1,)


def test_a_class_drives_a_server_from_home_only_when_it_is_latency_critical() -> None:
    rabbit = MappedServer("new", 1, 64, RABBIT)
    devil = MappedServer("other", 1, 64, DEVIL)
    for other, stays in ((devil, True), (lc("other", 1), False)):
        servers = {"other": other, "new": rabbit}
        occupancy = Occupancy(FOUR_NODES, servers, {"other": Slot((0,), {0: 64})})
        found = best_wide(occupancy, rabbit, Ties(home=(0,)))[1]
        assert (occupancy.layout.nodes(found) == (0,)) is stays


def test_wide_slots_of_servers_that_come_fill_a_node_before_they_share_a_cpu() -> None:
    servers = {f"s{n}": MappedServer(f"s{n}", 2, 64) for n in range(9)}
    occupancy = Occupancy(FOUR_NODES, servers, {})
    for name, server in servers.items():
        occupancy.put(name, best_wide(occupancy, server)[1])
    home_nodes = [occupancy.layout.nodes(slot) for slot in occupancy.slots.values()]
    assert home_nodes == [(0,), (0,), (1,), (1,), (2,), (2,), (3,), (3,), (0,)]


def test_a_rabbit_takes_two_nodes_rather_than_a_devil_at_either_width() -> None:
    """Node 0 has room beside the devil; nodes 1 to 3 have half of what it needs."""
    fillers = {f"s{n}": MappedServer(f"s{n}", 2, 64) for n in (1, 2, 3)}
    rabbit = MappedServer("new", 3, 64, RABBIT)
    servers = {"devil": MappedServer("devil", 1, 64, DEVIL), **fillers, "new": rabbit}
    slots = {f"s{n}": Slot((4 * n, 4 * n + 1)) for n in (1, 2, 3)}
    occupancy = Occupancy(FOUR_NODES, servers, {"devil": Slot((0,)), **slots})
    for slot in (exact_slots(occupancy, rabbit)[0][1], best_wide(occupancy, rabbit)[1]):
        assert len(occupancy.layout.nodes(slot)) == 2
        assert 0 not in occupancy.layout.nodes(slot)


def test_a_sheep_takes_cores_of_two_caches_rather_than_share_one_with_an_lc() -> None:
    """On one node that costs no slice: three caches of three cores, an LC in one, one core left in the others."""
    cores = grid(1, 1, 9, memory_mb_per_node=NODE_MB)
    layout = CoreLayout(
        replace(
            cores,
            l3_domains=tuple(L3Domain(l3, 0, (0,)) for l3 in range(3)),
            cores=tuple(replace(core, l3=core.id // 3) for core in cores.cores),
        )
    )
    sheep = MappedServer("new", 2, 64)
    servers = {"lc": lc("lc", 1), "a": sheep, "b": sheep, "new": sheep}
    slots = {"lc": Slot((0,)), "a": Slot((3, 4)), "b": Slot((6, 7))}
    assert set(exact_slots(Occupancy(layout, servers, slots), sheep)[0][1].cpus) == {5, 8}


def test_a_remainder_goes_where_it_fits_best_among_the_nearest() -> None:
    """Five vCPUs: four fill the first group, and the last takes the only core of the third, not one of four."""
    free = {0: [0, 1, 2, 3], 1: [4, 5, 6, 7], 2: [8]}
    assert choose._fill(free, [0, 1, 2], 5) == [0, 1, 2, 3, 8]
