# SPDX-License-Identifier: Apache-2.0
"""Arrival: fewest slices, class matrix, memory near; and the reshuffle against brute force."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulation.physics.machines import grid
from host_agent.conf.mapping import MappingOptions
from host_agent.decide.cores.choose import exact_slots
from host_agent.decide.cores.ranking import good
from host_agent.decide.cores.reshuffle import SearchLimitError, reshuffle
from host_agent.decide.cores.slots import CoreLayout, MappedServer, Occupancy, Slot
from placement_traits.interference import may_share
from placement_traits.names import InterferenceClass
from placement_traits.presets import load

SHEEP, RABBIT, DEVIL = InterferenceClass.SHEEP, InterferenceClass.RABBIT, InterferenceClass.DEVIL
BIG = CoreLayout(load("numaconnect-6x6x8").topology)


def test_f_001_01_the_preset_has_six_server_nodes_of_six_nodes_of_eight_cores() -> None:
    """Levels: core, L3 domain, NUMA node, socket, chassis."""
    topology = load("numaconnect-6x6x8").topology
    assert [len(found) for found in (topology.chassis_ids, topology.nodes, topology.cores)] == [
        6,
        36,
        288,
    ]
    assert {len(topology.cpus_of_node(node)) for node in topology.node_ids} == {8}
    assert len(topology.l3_domains) >= 36
    assert len(topology.sockets) >= 18
    assert BIG.capacity == 288


SMALL = CoreLayout(grid(1, 4, 4, memory_mb_per_node=16384, nodes_per_socket=2))


def server(
    name: str, vcpus: int = 4, kind: InterferenceClass = SHEEP, mb: int = 4096
) -> MappedServer:
    return MappedServer(name, vcpus, mb, kind)


def host(layout: CoreLayout, *placed: tuple[MappedServer, tuple[int, ...]]) -> Occupancy:
    """A host with servers on the first free CPUs of the given nodes."""
    occupancy = Occupancy(layout, {s.name: s for s, _ in placed}, {})
    for one, nodes in placed:
        cpus = [
            cpu
            for cell in layout.groups
            if cell.node in nodes
            for cpu in occupancy.free(one).get(cell.index, [])
        ][: one.vcpus]
        memory = occupancy.memory_for(one, cpus)
        assert memory is not None
        occupancy.put(one.name, Slot(tuple(cpus), memory))
    return occupancy


def join(occupancy: Occupancy, newcomer: MappedServer) -> tuple[int, ...]:
    """Place a newcomer on its best slot and return its nodes."""
    occupancy.servers = {**occupancy.servers, newcomer.name: newcomer}
    _, slot = exact_slots(occupancy, newcomer)[0]
    occupancy.put(newcomer.name, slot)
    return tuple(sorted({occupancy.layout.group_of_cpu[cpu].node for cpu in slot.cpus}))


def test_f_001_05_a_server_that_fits_a_node_sits_on_one() -> None:
    for vcpus in (1, 4, 8):
        assert len(join(host(BIG), server("s", vcpus))) == 1


def test_f_001_05_sixteen_vcpus_take_two_nodes_of_one_socket() -> None:
    nodes = join(host(BIG), server("s", 16))
    assert len(nodes) == 2
    assert len({BIG.topology.node(node).socket for node in nodes}) == 1


def test_f_001_05_seventy_two_vcpus_span_exactly_two_servers_and_nine_nodes() -> None:
    nodes = join(host(BIG), server("huge", 72, mb=288 * 1024))
    assert len(nodes) == 9
    chassis = {BIG.topology.chassis_of_node(node) for node in nodes}
    assert len(chassis) == 2
    assert BIG.topology.distance(nodes[0], nodes[-1]) == 160  # neighbours in the torus


def test_f_001_03_a_rabbit_takes_a_worse_place_before_it_meets_a_devil() -> None:
    crowded = host(
        SMALL,
        (server("d0", 2, DEVIL), (0,)),
        (server("d1", 2, DEVIL), (1,)),
        (server("d2", 2, DEVIL), (2,)),
        (server("s3", 3, SHEEP), (3,)),
    )
    assert join(crowded, server("r", 1, RABBIT)) == (3,)


def test_devils_share_only_when_they_must() -> None:
    occupancy = host(SMALL, (server("d0", 2, DEVIL), (0,)))
    assert join(occupancy, server("d1", 2, DEVIL)) != (0,)
    full = host(
        SMALL,
        (server("d0", 2, DEVIL), (0,)),
        *((server(f"s{n}", 4), (n,)) for n in (1, 2, 3)),
    )
    assert join(full, server("d1", 2, DEVIL)) == (0,)


@settings(max_examples=60, deadline=None)
@given(
    kinds=st.lists(st.sampled_from([SHEEP, RABBIT, DEVIL]), min_size=1, max_size=8),
    sizes=st.lists(st.integers(1, 6), min_size=8, max_size=8),
)
def test_f_001_03_no_rabbit_is_disturbed_while_an_allowed_slot_exists(
    kinds: list[InterferenceClass], sizes: list[int]
) -> None:
    occupancy = Occupancy(SMALL, {}, {})
    for number, (kind, size) in enumerate(zip(kinds, sizes, strict=False)):
        newcomer = server(f"v{number}", size, kind, mb=256)
        occupancy.servers = {**occupancy.servers, newcomer.name: newcomer}
        free = occupancy.free(newcomer)
        clean = sum(
            len(cpus)
            for index, cpus in free.items()
            if all(
                may_share(kind, occupancy.servers[name].interference_class)
                for name in occupancy.neighbours([SMALL.groups[index].l3])
            )
        )
        candidates = exact_slots(occupancy, newcomer)
        if not candidates:
            assert sum(map(len, free.values())) < size
            continue
        rank, slot = candidates[0]
        assert (rank.violations == 0) == (clean >= size)
        assert len(set(slot.cpus)) == size
        occupancy.put(newcomer.name, slot)
    used = [cpu for slot in occupancy.slots.values() for cpu in slot.cpus]
    assert len(used) == len(set(used)), "never two vCPUs on a core"


def test_f_001_04_siblings_stay_idle_unless_asked_for() -> None:
    smt = grid(1, 2, 2, memory_mb_per_node=8192, threads_per_core=2)
    alone = CoreLayout(smt)
    both = CoreLayout(smt, use_siblings=True)
    assert (alone.capacity, both.capacity) == (4, 8)
    cores = {smt.core_of_cpu(cpu).id for cpu in _cpus(alone, 4)}
    assert len(cores) == 4
    assert exact_slots(Occupancy(alone, {"s": server("s", 5)}, {}), server("s", 5)) == []
    assert len(_cpus(both, 5)) == 5


def _cpus(layout: CoreLayout, vcpus: int) -> tuple[int, ...]:
    one = server("s", vcpus)
    return exact_slots(Occupancy(layout, {"s": one}, {}), one)[0][1].cpus


def test_f_001_06_memory_of_a_sensitive_server_is_on_its_nodes() -> None:
    sensitive = replace(server("s", 12, mb=24_000), remote_sensitive=True)
    occupancy = host(SMALL)
    rank, slot = exact_slots(Occupancy(SMALL, {"s": sensitive}, {}), sensitive)[0]
    nodes = {SMALL.group_of_cpu[cpu].node for cpu in slot.cpus}
    assert sum(share for node, share in slot.shares.items() if node in nodes) >= 0.99
    assert rank.memory_away == 0
    assert sum(map(len, occupancy.free(MappedServer("any", 1, 1)).values())) == 16


def test_f_001_07_a_ram_heavy_server_leaves_memory_for_the_other_cores() -> None:
    heavy = server("heavy", 1, mb=20_000)
    occupancy = Occupancy(SMALL, {"heavy": heavy}, {}, reserve_share=0.25)
    slot = exact_slots(occupancy, heavy)[0][1]
    occupancy.put("heavy", slot)
    (home,) = {SMALL.group_of_cpu[cpu].node for cpu in slot.cpus}
    assert occupancy.free_mb(home) >= 3 * 0.25 * 16384 / 4
    assert max(slot.memory_mb, key=slot.memory_mb.__getitem__) == home
    others = sorted(set(slot.memory_mb) - {home}, key=lambda n: SMALL.topology.distance(home, n))
    assert SMALL.topology.distance(home, others[0]) == 16, "the rest is as near as possible"
    small = server("small", 3, mb=3000)
    memory = occupancy.memory_for(small, occupancy.free(small)[home])
    assert memory == {home: 3000}


def test_where_local_memory_is_scarce_a_sensitive_server_gets_more_of_it() -> None:
    local = {}
    for sensitive in (False, True):
        heavy = replace(server("heavy", 1, mb=20_000), remote_sensitive=sensitive)
        slot = exact_slots(Occupancy(SMALL, {"heavy": heavy}, {}), heavy)[0][1]
        local[sensitive] = slot.shares[SMALL.group_of_cpu[slot.cpus[0]].node]
    assert local[True] > local[False] > 0.5


def test_a_server_that_is_larger_than_all_memory_finds_no_slot() -> None:
    too_big = server("s", 1, mb=70_000)
    assert exact_slots(Occupancy(SMALL, {"s": too_big}, {}), too_big) == []


def test_nova_s_shared_set_is_respected() -> None:
    inside = replace(server("s", 3), allowed_cpus=frozenset(range(6, 12)))
    slot = exact_slots(Occupancy(SMALL, {"s": inside}, {}), inside)[0][1]
    assert set(slot.cpus) <= set(range(6, 12))


def test_a_core_with_a_stranger_on_one_thread_is_not_free() -> None:
    smt = CoreLayout(grid(1, 1, 2, memory_mb_per_node=8192, threads_per_core=2))
    stranger = replace(server("dedicated", 1), movable=False)
    occupancy = Occupancy(smt, {"dedicated": stranger}, {"dedicated": Slot((1,), {0: 100})})
    assert occupancy.free(server("s")) == {0: [2]}


# -- reshuffling ---


def test_f_001_08_one_sheep_moves_so_that_the_newcomer_gets_a_node() -> None:
    occupancy = host(
        SMALL,
        (server("a", 2), (0,)),
        (server("b", 2), (1,)),
        (server("c", 4), (2,)),
        (server("d", 4), (3,)),
    )
    found = reshuffle(occupancy, server("new", 4), MappingOptions())
    assert found is not None
    assert found.moved in (("a",), ("b",))
    assert len({SMALL.group_of_cpu[cpu].node for cpu in found.slots["new"].cpus}) == 1


def test_the_cheaper_of_two_equal_moves_is_made() -> None:
    occupancy = host(
        SMALL,
        (server("big", 2, mb=8000), (0,)),
        (server("light", 2, mb=1000), (1,)),
        (server("c", 4), (2,)),
        (server("d", 4), (3,)),
    )
    found = reshuffle(occupancy, server("new", 4), MappingOptions())
    assert found is not None
    assert found.moved == ("light",)


def test_who_makes_room_is_not_torn_over_more_nodes() -> None:
    """Its four vCPUs are on two nodes, and beside the newcomer four cores are left on three."""
    occupancy = Occupancy(SMALL, {}, {})
    fixed = {
        name: replace(server(name, len(cpus)), movable=False)
        for name, cpus in (("x", (6, 7)), ("y", (8, 9, 10)), ("z", (12, 13, 14)))
    }
    occupancy.servers = {"a": server("a", 4), **fixed}
    for name, cpus in (
        ("a", (0, 1, 4, 5)),
        ("x", (6, 7)),
        ("y", (8, 9, 10)),
        ("z", (12, 13, 14)),
    ):
        occupancy.put(name, Slot(cpus, {}))
    assert reshuffle(occupancy, server("new", 4), MappingOptions()) is None
    occupancy.take("z")
    found = reshuffle(occupancy, server("new", 4), MappingOptions())
    assert found is not None, "there is a whole node for it again"
    assert found.moved == ("a",)


def test_servers_that_nova_placed_never_move() -> None:
    fixed = tuple((replace(server(f"f{n}", 2), movable=False), (n,)) for n in range(4))
    assert reshuffle(host(SMALL, *fixed), server("new", 4), MappingOptions()) is None


def test_the_search_is_bounded_by_operations_not_by_time() -> None:
    placed = [(server(f"s{n}", 2, RABBIT), (n,)) for n in range(4)]
    with pytest.raises(SearchLimitError, match="2 operations"):
        reshuffle(
            host(SMALL, *placed), server("new", 4, RABBIT), MappingOptions(reshuffle_operations=2)
        )


def test_of_those_that_move_the_largest_is_placed_first() -> None:
    """It has the fewest places: smaller ones first take 526 operations for the same answer, that there is none."""
    placed = {
        server("v0", 1, DEVIL, 512): (12,),
        server("v1", 3, SHEEP, 512): (8, 9, 10),
        server("v2", 3, DEVIL, 512): (0, 1, 2),
        server("v3", 3, DEVIL, 512): (4, 5, 6),
        server("v4", 2, SHEEP, 512): (13, 14),
    }
    newcomer = server("new", 3, SHEEP, 512)
    slots = {one.name: Slot(cpus, {0: 512}) for one, cpus in placed.items()}
    servers = {one.name: one for one in (*placed, newcomer)}
    options = MappingOptions(reshuffle_moves=5, reshuffle_operations=250)
    assert reshuffle(Occupancy(SMALL, servers, slots), newcomer, options) is None


def _one_node_worlds(seed: int) -> Iterator[tuple[Occupancy, MappedServer]]:
    chance = random.Random(seed)
    for _ in range(30):
        occupancy = Occupancy(SMALL, {}, {})
        for number in range(chance.randint(3, 5)):
            one = server(
                f"v{number}", chance.randint(1, 3), chance.choice([SHEEP, RABBIT, DEVIL]), 512
            )
            occupancy.servers = {**occupancy.servers, one.name: one}
            free = occupancy.free(one)
            fitting = [index for index, cpus in free.items() if len(cpus) >= one.vcpus]
            if fitting:
                cpus = free[chance.choice(fitting)][: one.vcpus]
                occupancy.put(one.name, Slot(tuple(cpus), {0: 512}))
        newcomer = server("new", chance.randint(2, 4), chance.choice([SHEEP, RABBIT, DEVIL]), 512)
        occupancy.servers = {**occupancy.servers, "new": newcomer}
        yield occupancy, newcomer


def _brute_force(occupancy: Occupancy, newcomer: MappedServer) -> int | None:
    """Fewest moves over all assignments of all servers to nodes; a moved server must be clean."""
    names = list(occupancy.slots)
    home = {n: SMALL.group_of_cpu[occupancy.slots[n].cpus[0]].node for n in names}
    best = None
    for nodes in product(range(4), repeat=len(names) + 1):
        where = dict(zip([*names, "new"], nodes, strict=True))
        load = [0, 0, 0, 0]
        for name, node in where.items():
            load[node] += occupancy.servers[name].vcpus
        if max(load) > 4:
            continue

        def bad(name: str, where: dict[str, int] = where) -> int:
            mine = occupancy.servers[name].interference_class
            return sum(
                not may_share(mine, occupancy.servers[other].interference_class)
                for other in where
                if other != name and where[other] == where[name]
            )

        moved = [name for name in names if where[name] != home[name]]
        if bad("new") or any(bad(name) for name in moved):
            continue
        if best is None or len(moved) < best:
            best = len(moved)
    return best


@pytest.mark.parametrize("seed", range(4))
def test_f_001_08_the_fewest_servers_move_as_brute_force_finds(seed: int) -> None:
    for occupancy, newcomer in _one_node_worlds(seed):
        expected = _brute_force(occupancy, newcomer)
        candidates = exact_slots(occupancy, newcomer)
        if candidates and good(occupancy, newcomer, candidates[0][0]):
            ours: int | None = 0
        else:
            found = reshuffle(
                occupancy, newcomer, MappingOptions(reshuffle_moves=5, reshuffle_operations=100_000)
            )
            ours = len(found.moved) if found else None
        assert ours == expected
