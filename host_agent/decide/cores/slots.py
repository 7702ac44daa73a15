# SPDX-License-Identifier: Apache-2.0
"""Where a server could sit on a NUMA machine, and how good each place is.

The machine is seen as *cells*: the cores that share a NUMA node and an L3 domain. A *slot* gives every vCPU of a server
a CPU of its own and its memory a node. Slots are compared term by term, the first difference decides (:class:`Rank`):

1. ``violations``: neighbours in an L3 domain that the class matrix forbids
2. ``chassis``, ``nodes``, ``sockets``, ``l3_domains``: fewest slices, the widest gap first
3. ``memory_away``: memory that does not fit on the slot's own nodes (counted for remote-sensitive servers)
4. ``crowd``: neighbours that are allowed but better apart
5. ``distance``: SLIT distance between the slices, weighted by vCPUs
6. ``left_over``: free CPUs left on the touched cells (best fit keeps whole cells for others)

Forbidden neighbours come before slices because a rabbit must not meet a rabbit or a devil while any allowed slot
exists; a slot is *good* when it has no violation and no more slices than the server needs on an empty machine.

Source: Lakew et al., section 4.1 and tables 3 and 4.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

from placement_traits.interference import may_share, penalty
from placement_traits.names import InterferenceClass
from placement_traits.reason import Reason
from placement_traits.topology import HostTopology

EXACT_CELLS: Final = 8
"""Up to this many cells every set of cells is looked at; above, growths from each cell."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Cores that share a NUMA node and an L3 domain.

    :param index: position in :attr:`Layout.cells`
    :param cores: online threads of each core
    :param capacity: vCPUs that fit without sharing
    """

    index: int
    node: int
    l3: int
    socket: int
    chassis: int
    cores: tuple[tuple[int, ...], ...]
    capacity: int


@dataclass(frozen=True, slots=True)
class Server:
    """What the mapping needs to know of a server.

    :param name: unique on the host
    :param vcpus: number of vCPUs
    :param memory_mb: guest memory, MiB
    :param interference_class: sheep, rabbit or devil
    :param remote_sensitive: remote memory hurts
    :param movable: floating and managed: its vCPUs and pages may go anywhere in ``allowed_cpus``
    :param allowed_cpus: CPUs nova lets it use; None, all
    """

    name: str
    vcpus: int
    memory_mb: int
    interference_class: InterferenceClass = InterferenceClass.SHEEP
    remote_sensitive: bool = False
    movable: bool = True
    allowed_cpus: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class Slot:
    """One place for a server.

    :param cpus: vCPU -> CPU
    :param memory_mb: NUMA node -> MiB of its memory
    """

    cpus: tuple[int, ...]
    memory_mb: Mapping[int, int] = field(default_factory=dict)

    @property
    def shares(self) -> dict[int, float]:
        """NUMA node -> share of the memory."""
        total = sum(self.memory_mb.values())
        return {node: mb / total for node, mb in sorted(self.memory_mb.items()) if mb and total}


@dataclass(frozen=True, slots=True, order=True)
class Rank:
    """How good a slot is; smaller is better, terms in order of weight."""

    violations: int
    chassis: int
    nodes: int
    sockets: int
    l3_domains: int
    memory_away: int
    crowd: int
    distance: int
    left_over: int

    def reasons(self, against: "Rank | None" = None) -> tuple[Reason, ...]:
        """Return the terms that differ from ``against``, or all that are not zero."""
        return tuple(
            Reason(f"slot_{term}", value, "" if against is None else getattr(against, term))
            for term in ("violations", "chassis", "nodes", "memory_away", "crowd", "distance")
            if (value := getattr(self, term)) != (0 if against is None else getattr(against, term))
        )


class Layout:
    """A host's cells, memory and distances, prepared once.

    :param topology: the host; only online CPUs are in it
    :param use_siblings: put vCPUs on all threads of a core; False leaves siblings idle
    """

    def __init__(self, topology: HostTopology, use_siblings: bool = False) -> None:
        groups: dict[tuple[int, int, int], list[tuple[int, ...]]] = defaultdict(list)
        for core in topology.cores:
            l3 = core.l3 if core.l3 is not None else -core.node - 1
            groups[(core.node, l3, core.socket)].append(core.cpus)
        self.topology = topology
        self.use_siblings = use_siblings
        self.cells = tuple(
            Cell(
                index,
                node,
                l3,
                socket,
                topology.socket(socket).chassis,
                tuple(cores),
                sum(map(len, cores)) if use_siblings else len(cores),
            )
            for index, ((node, l3, socket), cores) in enumerate(sorted(groups.items()))
        )
        self.cell_of_cpu = {cpu: cell for cell in self.cells for core in cell.cores for cpu in core}
        self.memory_mb = {node.id: node.memory_mb or 0 for node in topology.nodes}
        self._distance = {
            (a.index, b.index): topology.distance(a.node, b.node)
            for a in self.cells
            for b in self.cells
        }

    @property
    def capacity(self) -> int:
        """vCPUs that fit without sharing."""
        return sum(cell.capacity for cell in self.cells)

    def distance(self, a: Cell, b: Cell) -> int:
        """Return the SLIT distance of two cells."""
        return self._distance[a.index, b.index]

    def fewest(self, vcpus: int) -> tuple[int, int]:
        """Return the fewest (chassis, nodes) that hold ``vcpus`` on the empty machine."""
        by_chassis, by_node = Counter[int](), Counter[int]()
        for cell in self.cells:
            by_chassis[cell.chassis] += cell.capacity
            by_node[cell.node] += cell.capacity
        return _fewest(by_chassis.values(), vcpus), _fewest(by_node.values(), vcpus)


def _fewest(sizes: Iterable[int], wanted: int) -> int:
    total = 0
    count = 0
    for size in sorted(sizes, reverse=True):
        if total >= wanted:
            break
        total += size
        count += 1
    return max(1, count)


class Occupancy:
    """Who sits where; a cheap working copy for searches.

    :param layout: the host
    :param servers: all servers by name
    :param slots: slots of those that are placed
    :param reserve_share: part of a node's memory per core that is kept for each free core of the node
    """

    def __init__(
        self,
        layout: Layout,
        servers: Mapping[str, Server],
        slots: Mapping[str, Slot],
        reserve_share: float = 0.25,
    ) -> None:
        self.layout = layout
        self.servers = servers
        self.reserve_share = reserve_share
        self.slots: dict[str, Slot] = {}
        self._users: Counter[int] = Counter()
        self._in_l3: dict[int, Counter[str]] = defaultdict(Counter)
        self._held_mb: Counter[int] = Counter()
        for name, slot in slots.items():
            self.put(name, slot)

    def put(self, name: str, slot: Slot) -> None:
        """Place a server."""
        self.slots[name] = slot
        for cpu in slot.cpus:
            self._users[cpu] += 1
            self._in_l3[self.layout.cell_of_cpu[cpu].l3][name] += 1
        self._held_mb.update(slot.memory_mb)

    def take(self, name: str) -> Slot:
        """Remove a server and return its slot."""
        slot = self.slots.pop(name)
        for cpu in slot.cpus:
            self._users[cpu] -= 1
            l3 = self.layout.cell_of_cpu[cpu].l3
            self._in_l3[l3][name] -= 1
            if self._in_l3[l3][name] == 0:
                del self._in_l3[l3][name]
        self._held_mb.subtract(slot.memory_mb)
        return slot

    def neighbours(self, l3_ids: Iterable[int]) -> set[str]:
        """Return the servers in any of the L3 domains."""
        return {name for l3 in l3_ids for name in self._in_l3[l3]}

    def free(self, server: Server) -> dict[int, list[int]]:
        """Return cell index -> CPUs that the server may have for itself: idle and, without siblings, on idle cores."""
        result = {}
        for cell in self.layout.cells:
            idle = self._idle(cell, server.allowed_cpus)
            if idle:
                result[cell.index] = idle
        return result

    def _idle(self, cell: Cell, allowed: frozenset[int] | None = None) -> list[int]:
        idle: list[int] = []
        for core in cell.cores:
            mine = [cpu for cpu in core if allowed is None or cpu in allowed]
            if self.layout.use_siblings:
                idle += [cpu for cpu in mine if not self._users[cpu]]
            elif not any(self._users[cpu] for cpu in core):
                idle += mine[:1]
        return idle

    def free_mb(self, node: int) -> int:
        """Return the memory of a node that no server holds, MiB."""
        return self.layout.memory_mb[node] - self._held_mb[node]

    def l3_domains(self, slot: Slot) -> set[int]:
        """Return the L3 domains a slot touches."""
        return {self.layout.cell_of_cpu[cpu].l3 for cpu in slot.cpus}

    def rank(self, server: Server, slot: Slot) -> Rank:
        """Rank a slot for a server that is not placed now."""
        cells = Counter(self.layout.cell_of_cpu[cpu].index for cpu in slot.cpus)
        touched = [self.layout.cells[index] for index in cells]
        others = [
            self.servers[name].interference_class
            for name in self.neighbours({cell.l3 for cell in touched})
        ]
        mine = server.interference_class
        nodes = {cell.node for cell in touched}
        away = sum(mb for node, mb in slot.memory_mb.items() if node not in nodes)
        idle = sum(len(self._idle(cell)) for cell in touched)
        return Rank(
            violations=sum(not may_share(mine, other) for other in others),
            chassis=len({cell.chassis for cell in touched}),
            nodes=len(nodes),
            sockets=len({cell.socket for cell in touched}),
            l3_domains=len({cell.l3 for cell in touched}),
            memory_away=away if server.remote_sensitive else 0,
            crowd=sum(
                2 * penalty(mine, other) + (InterferenceClass.DEVIL in (mine, other))
                for other in others
            ),
            distance=sum(
                cells[a.index] * cells[b.index] * self.layout.distance(a, b)
                for a, b in combinations(touched, 2)
            ),
            left_over=idle - server.vcpus,
        )

    def rank_of(self, name: str) -> Rank:
        """Rank the slot of a server that is placed."""
        slot = self.take(name)
        rank = self.rank(self.servers[name], slot)
        self.put(name, slot)
        return rank

    def good(self, server: Server, rank: Rank) -> bool:
        """Tell whether a rank is as good as the server could get on an empty machine, but for distance and crowd."""
        return rank.violations == 0 and (rank.chassis, rank.nodes) == self.layout.fewest(
            server.vcpus
        )

    def memory_for(self, server: Server, cpus: Sequence[int]) -> dict[int, int] | None:
        """Return NUMA node -> MiB for a server on ``cpus``, near first; None when the host has too little.

        Each node of the slot gets its part in proportion to the vCPUs there. A server with much memory and few vCPUs
        leaves a reserve for every core that stays free beside it, so that those cores stay usable; what does not fit
        goes to the nearest nodes, and into the reserves only when all else is full. A remote-sensitive server may use
        half of the reserve: where local memory is scarce it gets more of it.
        """
        here = Counter(self.layout.cell_of_cpu[cpu].node for cpu in cpus)
        kept = self.reserve_share * (0.5 if server.remote_sensitive else 1.0)
        result: Counter[int] = Counter()
        rest = server.memory_mb
        for node, count in sorted(here.items()):
            part = min(rest, -(-server.memory_mb * count // server.vcpus))
            granted = max(0, min(part, self._room(node, count, kept)))
            result[node] += granted
            rest -= granted
        for keep_reserve in (True, False):
            for node in self._nearest(here) if rest > 0 else ():
                room = self._room(node, here[node], kept) if keep_reserve else self.free_mb(node)
                granted = max(0, min(rest, room - result[node]))
                result[node] += granted
                rest -= granted
                if rest == 0:
                    break
        return {node: mb for node, mb in sorted(result.items()) if mb} if rest <= 0 else None

    def _nearest(self, here: Mapping[int, int]) -> list[int]:
        """Return all nodes, those of ``here`` first, then by distance to the nearest of them."""

        def key(node: int) -> tuple[bool, int, int]:
            near = min(self.layout.topology.distance(own, node) for own in here)
            return node not in here, near, node

        return sorted(self.layout.memory_mb, key=key)

    def _room(self, node: int, taking: int, reserve_share: float) -> int:
        cells = [cell for cell in self.layout.cells if cell.node == node]
        idle = sum(len(self._idle(cell)) for cell in cells) - taking
        per_core = self.layout.memory_mb[node] / max(1, sum(cell.capacity for cell in cells))
        return int(self.free_mb(node) - reserve_share * per_core * max(0, idle))

    def slots_for(self, server: Server, *, one_cell: bool = False) -> list[tuple[Rank, Slot]]:
        """Return candidate slots, best first; empty when the server does not fit.

        With few cells, or when the server fits one cell, the list holds every set of cells that could be best.

        :param one_cell: only slots within one cell
        """
        free = self.free(server)
        if sum(map(len, free.values())) < server.vcpus:
            return []
        ranked: dict[tuple[int, ...], tuple[Rank, Slot]] = {}
        for cpus in self._candidates(server, free, one_cell):
            key = tuple(sorted(cpus))
            if key in ranked:
                continue
            memory = self.memory_for(server, cpus)
            if memory is not None:
                slot = Slot(tuple(cpus), memory)
                ranked[key] = (self.rank(server, slot), slot)
        return sorted(ranked.values(), key=lambda item: (item[0], item[1].cpus))

    def _candidates(
        self, server: Server, free: Mapping[int, list[int]], one_cell: bool
    ) -> Iterator[list[int]]:
        wanted = server.vcpus
        single = [index for index, cpus in free.items() if len(cpus) >= wanted]
        for index in single:
            yield free[index][:wanted]
        if one_cell or (single and not self._crowded(server, single)):
            return
        if len(free) <= EXACT_CELLS:
            for size in range(2, len(free) + 1):
                for members in combinations(free, size):
                    if sum(len(free[index]) for index in members) >= wanted:
                        yield from _fillings(free, members, wanted)
            return
        yield from self._growths(server, free, wanted)

    def _crowded(self, server: Server, indices: Iterable[int]) -> bool:
        return all(self._forbidden(server, self.layout.cells[index].l3) for index in indices)

    def _forbidden(self, server: Server, l3: int) -> bool:
        return any(
            not may_share(server.interference_class, self.servers[name].interference_class)
            for name in self._in_l3[l3]
        )

    def _growths(
        self, server: Server, free: Mapping[int, list[int]], wanted: int
    ) -> Iterator[list[int]]:
        """Grow from every cell over sets of as few chassis as possible, clean cells first and near cells first."""
        cells = [self.layout.cells[index] for index in free]
        forbidden = {cell.index: self._forbidden(server, cell.l3) for cell in cells}
        room: Counter[int] = Counter()
        for cell in cells:
            room[cell.chassis] += len(free[cell.index])
        clean_room = Counter(
            {
                chassis: sum(
                    len(free[cell.index])
                    for cell in cells
                    if cell.chassis == chassis and not forbidden[cell.index]
                )
                for chassis in room
            }
        )
        offered = room
        for size in range(1, len(room) + 1):
            clean = fits = False
            for members in combinations(sorted(room), size):
                if sum(offered[chassis] for chassis in members) < wanted:
                    continue
                fits = True
                inside = [cell for cell in cells if cell.chassis in members]
                for anchor in inside:
                    for order in self._orders(anchor, inside, free, forbidden):
                        taken = _fill(free, [cell.index for cell in order], wanted)
                        used = {self.layout.cell_of_cpu[cpu].index for cpu in taken}
                        clean = clean or not any(forbidden[index] for index in used)
                        yield taken
            if clean:
                return
            # More chassis than needed are worth it only without forbidden neighbours.
            offered = clean_room if fits else offered

    def _orders(
        self,
        anchor: Cell,
        inside: Sequence[Cell],
        free: Mapping[int, list[int]],
        forbidden: Mapping[int, bool],
    ) -> Iterator[list[Cell]]:
        def key(cell: Cell) -> tuple[bool, int, int, int]:
            own = (cell.chassis != anchor.chassis, self.layout.distance(anchor, cell))
            return (*own, -len(free[cell.index]), cell.index)

        near = sorted(inside, key=key)
        yield near
        yield sorted(near, key=lambda cell: forbidden[cell.index])
        by_size = sorted(near, key=lambda cell: -len(free[cell.index]))
        yield sorted(
            by_size, key=lambda cell: (cell.chassis != anchor.chassis, forbidden[cell.index])
        )


def _fill(free: Mapping[int, list[int]], order: Sequence[int], wanted: int) -> list[int]:
    """Take CPUs cell by cell; the remainder goes to the best-fitting cell among those as near as the next one."""
    taken: list[int] = []
    for position, index in enumerate(order):
        rest = wanted - len(taken)
        if rest <= 0:
            break
        if len(free[index]) >= rest:
            fitting = [i for i in order[position : position + 4] if len(free[i]) >= rest]
            index = min(fitting, key=lambda i: (len(free[i]), order.index(i)))  # noqa: PLW2901
        taken += free[index][:rest]
    return taken


def _fillings(
    free: Mapping[int, list[int]], members: Sequence[int], wanted: int
) -> Iterator[list[int]]:
    """Fill all cells of a set but one, which takes the remainder; each in turn."""
    for last in members:
        order = [index for index in members if index != last] + [last]
        taken: list[int] = []
        for index in order:
            taken += free[index][: wanted - len(taken)]
        if len(taken) == wanted and taken[-1] in free[last]:
            yield taken
