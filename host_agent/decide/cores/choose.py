# SPDX-License-Identifier: Apache-2.0
"""Where a floating server goes: the slots there are on a host, best first by the one rule. Pure.

::

    mapping on    exact_slots ─┐
                               ├─► rank (ranking.py) ─► the first is taken
    mapping off    wide_slots ─┘

Exact slots are sets of idle cores, one per vCPU: every set of core groups that could be best where there are few of
them, otherwise sets that grow from each group over its neighbours. Wide slots are the shared CPUs of every set of
nodes where there are few, otherwise of each node and its nearest ones. Both ways a place that an interference class
forbids, or where a latency-critical server lives, is left out first, and is taken when there is no other.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import Final, Protocol, TypeAlias

from host_agent.decide.cores.ranking import SlotRank, Ties, rank
from host_agent.decide.cores.slots import (
    CoreGroup,
    CoreLayout,
    Kinds,
    MappedServer,
    Occupancy,
    Slot,
)
from host_agent.model.pages import apportion
from placement_traits.interference import may_share
from placement_traits.names import InterferenceClass

EXACT_GROUPS: Final = 8
"""Up to this many core groups every set of them is looked at; above, growths from each group."""

EXACT_NODES: Final = 6
"""Up to this many nodes every set of them is looked at for a wide slot; above, each with its nearest ones."""

RankedSlot: TypeAlias = tuple[SlotRank, Slot]


class HasRoom(Protocol):
    """What is asked of memory: :class:`~host_agent.decide.pages.policy.Room`, or who remembers the answers."""

    def covers(
        self, memory_mb: float, resident_mb: Mapping[int, float], nodes: tuple[int, ...], home: bool
    ) -> bool:
        """See :meth:`host_agent.decide.pages.policy.Room.covers`."""


# -- a core for each vCPU ----------------------------------------------------------------------------------------------


def exact_slots(
    occupancy: Occupancy, server: MappedServer, *, one_group: bool = False
) -> list[RankedSlot]:
    """Return slots with a core for each vCPU, best first; empty when the server does not fit.

    With few groups, or when the server fits one group, the list holds every set of groups that could be best.

    :param occupancy: the host without the server
    :param one_group: only slots within one group
    """
    free = occupancy.free(server)
    if sum(map(len, free.values())) < server.vcpus:
        return []
    ranked: dict[tuple[int, ...], RankedSlot] = {}
    for cpus in _exact_cpus(occupancy, server, free, one_group):
        key = tuple(sorted(cpus))
        if key in ranked:
            continue
        memory = occupancy.memory_for(server, cpus)
        if memory is not None:
            slot = Slot(tuple(cpus), memory)
            ranked[key] = (rank(occupancy, server, slot), slot)
    return sorted(ranked.values(), key=_best_first)


def _best_first(found: RankedSlot) -> tuple[SlotRank, tuple[int, ...]]:
    return found[0], found[1].cpus


def _exact_cpus(
    occupancy: Occupancy,
    server: MappedServer,
    free: Mapping[int, list[int]],
    one_group: bool,
) -> Iterator[list[int]]:
    vcpus = server.vcpus
    single = [index for index, cpus in free.items() if len(cpus) >= vcpus]
    for index in single:
        yield free[index][:vcpus]
    layout = occupancy.layout
    least = min((_shunned(occupancy, server, layout.groups[i].l3) for i in single), default=2)
    # Beside an LC, several groups are better only where they are on the same node.
    if one_group or least == 0 or (least == 1 and layout.node_is_group):
        return
    if len(free) <= EXACT_GROUPS:
        for size in range(2, len(free) + 1):
            for members in combinations(free, size):
                if sum(len(free[index]) for index in members) >= vcpus:
                    yield from _fillings(free, members, vcpus)
        return
    yield from _growths(occupancy, server, free)


def _shunned(occupancy: Occupancy, server: MappedServer, l3: int) -> int:
    """Return how much a server keeps out of an L3 domain: 2 forbidden by the classes, 1 for an LC's sake, 0 not."""
    return _kept_out(server.interference_class, occupancy.kinds_in(l3))


@cache
def _kept_out(mine: InterferenceClass, neighbours: Kinds) -> int:
    if not all(may_share(mine, other) for other, _critical in neighbours):
        return 2
    return int(any(critical for _other, critical in neighbours))


def _growths(
    occupancy: Occupancy, server: MappedServer, free: Mapping[int, list[int]]
) -> Iterator[list[int]]:
    """Grow from every group over sets of as few chassis as possible, clean groups first and near groups first."""
    layout, vcpus = occupancy.layout, server.vcpus
    groups = [layout.groups[index] for index in free]
    shunned = {group.index: _shunned(occupancy, server, group.l3) for group in groups}
    room: Counter[int] = Counter()
    clean_room: Counter[int] = Counter()
    for group in groups:
        cpus = len(free[group.index])
        room[group.chassis] += cpus
        clean_room[group.chassis] += cpus if shunned[group.index] < 2 else 0
    offered = room
    for size in range(1, len(room) + 1):
        clean = fits = False
        for members in combinations(sorted(room), size):
            if sum(offered[chassis] for chassis in members) < vcpus:
                continue
            fits = True
            inside = [group for group in groups if group.chassis in members]
            for anchor in inside:
                for order in _orders(occupancy, anchor, inside, free, shunned):
                    taken = _fill(free, [group.index for group in order], vcpus)
                    used = {layout.group_of_cpu[cpu].index for cpu in taken}
                    clean = clean or all(shunned[index] < 2 for index in used)
                    yield taken
        if clean:
            return
        # More chassis than needed are worth it only without forbidden neighbours.
        offered = clean_room if fits else offered


def _orders(
    occupancy: Occupancy,
    anchor: CoreGroup,
    inside: Sequence[CoreGroup],
    free: Mapping[int, list[int]],
    shunned: Mapping[int, int],
) -> Iterator[list[CoreGroup]]:
    def key(group: CoreGroup) -> tuple[bool, int, int, int]:
        own = (group.chassis != anchor.chassis, occupancy.layout.distance(anchor, group))
        return (*own, -len(free[group.index]), group.index)

    near = sorted(inside, key=key)
    yield near
    yield sorted(near, key=lambda group: shunned[group.index])
    by_size = sorted(near, key=lambda group: -len(free[group.index]))
    yield sorted(by_size, key=lambda group: (group.chassis != anchor.chassis, shunned[group.index]))


def _fill(free: Mapping[int, list[int]], order: Sequence[int], vcpus: int) -> list[int]:
    """Take CPUs group by group; the remainder goes to the best-fitting group among those as near as the next one."""
    taken: list[int] = []
    for position, index in enumerate(order):
        rest = vcpus - len(taken)
        if rest <= 0:
            break
        if len(free[index]) >= rest:
            fitting = [i for i in order[position : position + 4] if len(free[i]) >= rest]
            index = min(fitting, key=lambda i: (len(free[i]), order.index(i)))  # noqa: PLW2901
        taken += free[index][:rest]
    return taken


def _fillings(
    free: Mapping[int, list[int]], members: Sequence[int], vcpus: int
) -> Iterator[list[int]]:
    """Fill all groups of a set but one, which takes the remainder; each in turn."""
    for last in members:
        order = [index for index in members if index != last] + [last]
        taken: list[int] = []
        for index in order:
            taken += free[index][: vcpus - len(taken)]
        if len(taken) == vcpus and taken[-1] in free[last]:
            yield taken


# -- the CPUs of home nodes --------------------------------------------------------------------------------------------


def best_wide_slot(
    occupancy: Occupancy, server: MappedServer, ties: Ties, room: HasRoom
) -> RankedSlot | None:
    """Return the best set of home nodes with the CPUs that nova shares there; None when it may run on no online CPU.

    :param occupancy: the host without the server
    :param server: its ``memory_mb`` is what it holds now
    :param room: memory that floating servers may have
    """
    best: RankedSlot | None = None
    for slot in wide_slots(occupancy, server, ties, room):
        if best is not None and _no_more_nodes(occupancy, best, slot):
            break
        found = rank(occupancy, server, slot, ties), slot
        best = found if best is None else min(best, found, key=_best_first)
    return best


def _no_more_nodes(occupancy: Occupancy, best: RankedSlot, slot: Slot) -> bool:
    """Tell that no slot of so many nodes can be better: nothing that is compared before their number is wrong."""
    found = best[0]
    flawless = not found.overbooked and not found.violations and found.chassis == 1
    return flawless and len(occupancy.layout.nodes(slot)) > found.nodes


def wide_slots(
    occupancy: Occupancy, server: MappedServer, ties: Ties, room: HasRoom
) -> Iterator[Slot]:
    """Yield the wide slots of a server, fewest nodes first; see :func:`best_wide_slot`."""
    layout = occupancy.layout
    cpus_of, shunned = _shared_cpus(layout, server), _all_shunned(occupancy, server)
    clean = {
        node
        for node, cpus in cpus_of.items()
        if any(not shunned[layout.group_of_cpu[cpu].l3] for cpu in cpus)
    }
    for nodes in _node_sets(layout, tuple(cpus_of), clean):
        cpus = set[int]().union(*(cpus_of[node] for node in nodes))
        slot = Slot(_quiet(occupancy, server.vcpus, cpus, shunned), wide=True)
        yield replace(slot, memory_mb=_memory(server, layout.nodes(slot), ties, room))


def wide_slot_at(occupancy: Occupancy, server: MappedServer, home: Collection[int]) -> Slot | None:
    """Return the wide slot of a server on its home nodes; None when nova shares no CPU there."""
    cpus_of = _shared_cpus(occupancy.layout, server)
    cpus = set[int]().union(*(cpus_of.get(node, frozenset()) for node in home))
    shunned = _all_shunned(occupancy, server)
    return Slot(_quiet(occupancy, server.vcpus, cpus, shunned), wide=True) if cpus else None


def _shared_cpus(layout: CoreLayout, server: MappedServer) -> dict[int, frozenset[int]]:
    """Return node -> online CPUs that the server may run on, for nodes that have any."""
    online = layout.group_of_cpu.keys()
    allowed = online if server.allowed_cpus is None else online & server.allowed_cpus
    return {
        node: chosen
        for node in layout.topology.node_ids
        if (chosen := layout.cpus_of_node[node] & allowed)
    }


def _all_shunned(occupancy: Occupancy, server: MappedServer) -> dict[int, int]:
    return {l3: _shunned(occupancy, server, l3) for l3 in occupancy.layout.l3_ids}


def _node_sets(
    layout: CoreLayout, usable: tuple[int, ...], clean: Collection[int]
) -> list[tuple[int, ...]]:
    """Return sets of nodes: all where there are few, otherwise each node with its nearest ones, in every number."""
    if len(usable) <= EXACT_NODES:
        sizes = range(1, len(usable) + 1)
        return [nodes for size in sizes for nodes in combinations(usable, size)]
    found: set[tuple[int, ...]] = set()
    for among in (usable, clean):
        for node in among:
            near = [other for other in layout.topology.nodes_by_distance(node) if other in among]
            found |= {tuple(sorted(near[:size])) for size in range(1, len(near) + 1)}
    return sorted(found, key=lambda nodes: (len(nodes), nodes))


def _quiet(
    occupancy: Occupancy, vcpus: int, cpus: set[int], shunned: Mapping[int, int]
) -> tuple[int, ...]:
    """Leave out shunned L3 domains, or at least the cores of latency-critical servers, while a CPU per vCPU remains.

    That is an idle one where there are so many, on a host that nova overcommits any. A core is shared by its threads,
    and unless MBA throttles per thread so is its throttling.
    """
    l3_of = occupancy.layout.l3_of_cpu
    kept_out = [shunned[l3_of[cpu]] for cpu in cpus]
    choices = [
        {cpu for cpu, level in zip(cpus, kept_out, strict=True) if level <= tolerated}
        for tolerated in sorted({*kept_out})
    ]
    quiet = next(
        (
            chosen
            for used in (occupancy.vcpus_on, lambda _cpus: 0.0)
            for chosen in choices
            if len(chosen) - used(chosen) >= vcpus
        ),
        cpus,
    )
    return tuple(sorted(quiet - occupancy.latency_critical_cpus() or quiet))


def _memory(
    server: MappedServer, nodes: tuple[int, ...], ties: Ties, room: HasRoom
) -> dict[int, int]:
    """Return room for all of a server's memory, or for nothing of it: half of it is no reason to go there."""
    fits = room.covers(server.memory_mb, ties.resident_mb, nodes, nodes == ties.home)
    if not fits and not ties.pages_stay:
        return {}
    return apportion(server.memory_mb, dict.fromkeys(nodes, 1.0 / len(nodes)))
