# SPDX-License-Identifier: Apache-2.0
"""Slots of servers on a NUMA host, and who holds which. Pure.

The host is seen as *core groups*: the cores that share a NUMA node and an L3 domain. A *slot* is a set of CPUs with
room for a server's memory, in one of two widths:

========  ===========================================================================================================
exact     a core for each vCPU: what a server gets from the mapping
wide      all CPUs that nova shares on one or several nodes; the vCPUs float there: what it gets when the mapping is off
          or has no core left for each vCPU
========  ===========================================================================================================

Which slot is better is decided in :mod:`host_agent.decide.cores.ranking`, which slots there are, and which one is
taken, in :mod:`host_agent.decide.cores.choose`.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Final

from placement_traits.names import InterferenceClass
from placement_traits.topology import HostTopology

_SPREADS: Final = 4096

Kinds = frozenset[tuple[InterferenceClass, bool]]
"""(interference class, latency-critical) of some servers."""


@dataclass(frozen=True, slots=True)
class CoreGroup:
    """Cores that share a NUMA node and an L3 domain.

    :param index: position in :attr:`CoreLayout.groups`
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
class MappedServer:
    """What a choice between slots needs to know of a server.

    :param name: unique on the host
    :param vcpus: number of vCPUs
    :param memory_mb: memory that its slot must have room for, MiB
    :param interference_class: sheep, rabbit or devil; a latency-critical server is a rabbit unless it is a devil
    :param remote_sensitive: remote memory hurts
    :param movable: floating and managed: its vCPUs and pages may go anywhere in ``allowed_cpus``
    :param allowed_cpus: CPUs nova lets it use; None, all
    :param latency_critical: best-effort servers keep out of its L3 domains
    """

    name: str
    vcpus: int
    memory_mb: int
    interference_class: InterferenceClass = InterferenceClass.SHEEP
    remote_sensitive: bool = False
    movable: bool = True
    allowed_cpus: frozenset[int] | None = None
    latency_critical: bool = False


@dataclass(frozen=True, slots=True)
class Slot:
    """One place for a server.

    :param cpus: vCPU -> CPU; of a wide slot the CPUs that all its vCPUs float on, ascending
    :param memory_mb: NUMA node -> MiB of its memory
    :param wide: the vCPUs share the CPUs, also with others
    """

    cpus: tuple[int, ...]
    memory_mb: Mapping[int, int] = field(default_factory=dict)
    wide: bool = False

    @property
    def shares(self) -> dict[int, float]:
        """NUMA node -> share of the memory."""
        total = sum(self.memory_mb.values())
        return {node: mb / total for node, mb in sorted(self.memory_mb.items()) if mb and total}


class CoreLayout:
    """A host's core groups, memory and distances, prepared once.

    :param topology: the host; only its online CPUs count
    :param use_siblings: put vCPUs on all threads of a core; False leaves siblings idle
    """

    def __init__(self, topology: HostTopology, use_siblings: bool = False) -> None:
        groups: dict[tuple[int, int, int], list[tuple[int, ...]]] = defaultdict(list)
        for core in filter(lambda core: core.cpus, topology.cores):
            l3 = core.l3 if core.l3 is not None else -core.node - 1
            groups[(core.node, l3, core.socket)].append(core.cpus)
        self.topology = topology
        self.use_siblings = use_siblings
        self.groups = tuple(
            CoreGroup(
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
        self.group_of_cpu = {
            cpu: group for group in self.groups for core in group.cores for cpu in core
        }
        self.l3_of_cpu = {cpu: group.l3 for cpu, group in self.group_of_cpu.items()}
        self.memory_mb = {node.id: node.memory_mb or 0 for node in topology.nodes}
        self.cpus_of_node = {
            node: frozenset(topology.cpus_of_node(node)) for node in topology.node_ids
        }
        self.l3_ids = tuple(sorted({group.l3 for group in self.groups}))
        self.spread = lru_cache(_SPREADS)(self._spread)
        self.node_distance = cache(between_nodes(topology))

    @property
    def capacity(self) -> int:
        """vCPUs that fit without sharing."""
        return sum(group.capacity for group in self.groups)

    @property
    def node_is_group(self) -> bool:
        """Each NUMA node has its cores in one group."""
        return len({group.node for group in self.groups}) == len(self.groups)

    def distance(self, a: CoreGroup, b: CoreGroup) -> int:
        """Return how far two groups are from each other: by the bandwidth between them, by SLIT if that is unknown.

        Of sets of nodes with equal shares, the one with the smallest sum has the most aggregate bandwidth between its
        nodes: AsymSched's rule for worker sets, which Gureya 2021 follows.
        """
        return self.node_distance(a.node, b.node)

    def nodes(self, slot: Slot) -> tuple[int, ...]:
        """Return the NUMA nodes of a slot's CPUs, ascending."""
        return tuple(sorted({self.groups[index].node for index in self.spread(slot.cpus)}))

    def nodes_text(self, slot: Slot) -> str:
        """Return :meth:`nodes` for a reason."""
        return "nodes " + ",".join(map(str, self.nodes(slot)))

    def _spread(self, cpus: tuple[int, ...]) -> Mapping[int, int]:
        """Return group index -> how many of the CPUs are there; in the attribute ``spread`` each is kept."""
        return Counter(self.group_of_cpu[cpu].index for cpu in cpus)

    def fewest(self, vcpus: int) -> tuple[int, int]:
        """Return the fewest (chassis, nodes) that hold ``vcpus`` on the empty machine."""
        by_chassis, by_node = Counter[int](), Counter[int]()
        for group in self.groups:
            by_chassis[group.chassis] += group.capacity
            by_node[group.node] += group.capacity
        return _fewest(by_chassis.values(), vcpus), _fewest(by_node.values(), vcpus)


def between_nodes(topology: HostTopology) -> Callable[[int, int], int]:
    """Return the distance of two nodes: what their paths lack to the widest one in steps of 5 %, unmeasured SLIT.

    A measured node is 0 from itself, however wide its own path: parts of one node are no farther apart than those of
    another. The steps keep what is noise between two measurements from deciding before what comes after the distance.
    """
    mbps = topology.read_bandwidth_mbps
    if mbps is None:
        return topology.distance
    widest = max(map(max, mbps))
    row = {node: position for position, node in enumerate(topology.node_ids)}

    def lacking(a: int, b: int) -> int:
        if a == b:
            return 0
        both = mbps[row[a]][row[b]] + mbps[row[b]][row[a]]
        return round(20 * (2 * widest - both) / widest)

    return lacking


def _fewest(sizes: Iterable[int], vcpus: int) -> int:
    total = 0
    count = 0
    for size in sorted(sizes, reverse=True):
        if total >= vcpus:
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
        layout: CoreLayout,
        servers: Mapping[str, MappedServer],
        slots: Mapping[str, Slot],
        reserve_share: float = 0.25,
    ) -> None:
        self.layout = layout
        self.servers = servers
        self.reserve_share = reserve_share
        self.slots: dict[str, Slot] = {}
        # Of a Counter what is missing costs a call of Python: these are asked for CPUs a thousand times a round.
        self._users: defaultdict[int, int] = defaultdict(int)
        self._floating: defaultdict[int, float] = defaultdict(float)
        self._in_l3: dict[int, Counter[str]] = defaultdict(Counter)
        # Gathered when they are asked for, until a server comes or goes.
        self._kinds: dict[int, Kinds] = {}
        self._critical_cpus: frozenset[int] | None = None
        self._held_mb: Counter[int] = Counter()
        self._idle_cores: dict[int, int] = {}
        for name, slot in slots.items():
            self.put(name, slot)

    def put(self, name: str, slot: Slot) -> None:
        """Place a server."""
        self.slots[name] = slot
        self._count(name, slot, 1)
        self._held_mb.update(slot.memory_mb)

    def take(self, name: str) -> Slot:
        """Remove a server and return its slot."""
        slot = self.slots.pop(name)
        self._count(name, slot, -1)
        self._held_mb.subtract(slot.memory_mb)
        return slot

    def put_all(self, slots: Mapping[str, Slot]) -> None:
        """Place servers together, those that are placed in other slots: none is in another's way."""
        for name in slots.keys() & self.slots.keys():
            self.take(name)
        for name, slot in slots.items():
            self.put(name, slot)

    def _count(self, name: str, slot: Slot, sign: int) -> None:
        if slot.wide:
            part = sign * self.servers[name].vcpus / len(slot.cpus)
            for cpu in slot.cpus:
                self._floating[cpu] += part
        else:
            for cpu in slot.cpus:
                self._users[cpu] += sign
        for index, cpus in self.layout.spread(slot.cpus).items():
            self._idle_cores.pop(index, None)
            l3 = self.layout.groups[index].l3
            self._in_l3[l3][name] += sign * cpus
            if self._in_l3[l3][name] == 0:
                del self._in_l3[l3][name]
            self._kinds.pop(l3, None)
        server = self.servers.get(name)
        if server is None or server.latency_critical:
            self._critical_cpus = None

    def vcpus_on(self, cpus: Collection[int]) -> float:
        """Return how many vCPUs run there; those that float count with the part of their CPUs that is among these."""
        return round(sum(map(self._users.__getitem__, cpus)) + self.floating_on(cpus), 6)

    def floating_on(self, cpus: Collection[int]) -> float:
        """Return how many of :meth:`vcpus_on` float."""
        return sum(map(self._floating.__getitem__, cpus))

    def latency_critical_in(self, l3: int) -> bool:
        """Tell whether a latency-critical server has a CPU in an L3 domain."""
        return any(critical for _kind, critical in self.kinds_in(l3))

    def kinds_in(self, l3: int) -> Kinds:
        """Return which kinds of servers have a CPU in an L3 domain."""
        if l3 not in self._kinds:
            found = (self.servers[name] for name in self._in_l3[l3])
            self._kinds[l3] = frozenset((s.interference_class, s.latency_critical) for s in found)
        return self._kinds[l3]

    def neighbours(self, l3_ids: Iterable[int]) -> set[str]:
        """Return the servers in any of the L3 domains."""
        return {name for l3 in l3_ids for name in self._in_l3[l3]}

    def latency_critical_cpus(self) -> frozenset[int]:
        """Return all CPUs of the cores on which a latency-critical server runs."""
        if self._critical_cpus is None:
            topology = self.layout.topology
            self._critical_cpus = frozenset(
                thread
                for name, slot in self.slots.items()
                if self.servers[name].latency_critical
                for cpu in slot.cpus
                for thread in topology.core_of_cpu(cpu).cpus
            )
        return self._critical_cpus

    def free(self, server: MappedServer) -> dict[int, list[int]]:
        """Return group index -> CPUs that the server may have for itself: idle and, without siblings, on idle cores."""
        result = {}
        for group in self.layout.groups:
            idle = self.idle(group, server.allowed_cpus)
            if idle:
                result[group.index] = idle
        return result

    def idle(self, group: CoreGroup, allowed: frozenset[int] | None = None) -> list[int]:
        """Return CPUs of a group on which no vCPU is pinned, one per core without siblings."""
        idle: list[int] = []
        for core in group.cores:
            mine = [cpu for cpu in core if allowed is None or cpu in allowed]
            if self.layout.use_siblings:
                idle += [cpu for cpu in mine if not self._users[cpu]]
            elif not any(self._users[cpu] for cpu in core):
                idle += mine[:1]
        return idle

    def idle_cores(self, group: CoreGroup) -> int:
        """Count the CPUs of :meth:`idle` that all servers together may have."""
        if group.index not in self._idle_cores:
            self._idle_cores[group.index] = len(self.idle(group))
        return self._idle_cores[group.index]

    def free_mb(self, node: int) -> int:
        """Return the memory of a node that no server holds, MiB."""
        return self.layout.memory_mb[node] - self._held_mb[node]

    def l3_domains(self, slot: Slot) -> set[int]:
        """Return the L3 domains a slot touches."""
        return {self.layout.groups[index].l3 for index in self.layout.spread(slot.cpus)}

    def memory_for(self, server: MappedServer, cpus: Sequence[int]) -> dict[int, int] | None:
        """Return NUMA node -> MiB for a server on ``cpus``, near first; None when the host has too little.

        Each node of the slot gets its part in proportion to the vCPUs there. A server with much memory and few vCPUs
        leaves a reserve for every core that stays free beside it, so that those cores stay usable; what does not fit
        goes to the nearest nodes, and into the reserves only when all else is full. A remote-sensitive server may use
        half of the reserve: where local memory is scarce it gets more of it.
        """
        here = Counter(self.layout.group_of_cpu[cpu].node for cpu in cpus)
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
            near = min(self.layout.node_distance(own, node) for own in here)
            return node not in here, near, node

        return sorted(self.layout.memory_mb, key=key)

    def _room(self, node: int, taking: int, reserve_share: float) -> int:
        groups = [group for group in self.layout.groups if group.node == node]
        idle = sum(map(self.idle_cores, groups)) - taking
        per_core = self.layout.memory_mb[node] / max(1, sum(group.capacity for group in groups))
        return int(self.free_mb(node) - reserve_share * per_core * max(0, idle))
