# SPDX-License-Identifier: Apache-2.0
"""The simple placement rule: where each managed server of this host shall be. Pure.

Nova has placed *dedicated* servers already, CPU by CPU and cell by cell: they are kept there, all their threads where
libvirt pinned them (emulator threads too: moving them to other CPUs would use CPUs that nova did not account for them).

A *floating* server gets home nodes inside the CPUs that nova lets it share (``cpu_shared_set``). Sets of nodes are
compared in this order, first difference decides:

1. its memory fits beside what nova promised to bound servers and what floating ones before it were granted there
2. there is a CPU for each vCPU
3. fewest nodes
4. no latency-critical server in the L3 domains (for one of those: nobody at all, but they are dedicated)
5. nearest to its passed-through devices: the scheduler chose them with their place in mind
6. its memory is there, when it cannot be moved (a VFIO device pins it where it happened to be at the start)
7. it lives there already
8. interference classes that do not like each other in its L3 domains, floating or dedicated
9. floating vCPUs per CPU that already live there
10. memory it has there already
11. nearest to each other, then lowest numbers

Resource control follows the CPUs: a latency-critical server wants its ways in the L3 domains of its cells, in as many
as its flavor has groups of them; a best-effort server wants a bandwidth level in the L3 domains it shares with one, and
all bandwidth elsewhere.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from typing import Final

from host_agent.decide.cores.l3_groups import deal
from host_agent.decide.pages.policy import Room, fit, wanted_shares
from host_agent.model.assignment import Assignment, Decision, Guest, Observation
from host_agent.model.partition import PartitionRequest
from host_agent.model.workload import Activity
from placement_traits.errors import CapabilityMissingError, InvalidValueError
from placement_traits.interference import penalty
from placement_traits.names import InterferenceClass, MemoryPolicy, Tier
from placement_traits.reason import Reason
from placement_traits.request import WorkloadRequest
from placement_traits.topology import HostTopology

_FULL_PERCENT: Final = 100

Homes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class PlacementSettings:
    """What the operator chooses.

    :param be_mba_percent: bandwidth level of best-effort servers beside a latency-critical one
    :param margin_mb: MiB that stay free on every node
    """

    be_mba_percent: int = 50
    margin_mb: int = 256


@dataclass(frozen=True, slots=True)
class _Host:
    """What the rule looks at, computed once per decision."""

    topology: HostTopology
    sets: "_Sets"
    lc_l3: frozenset[int]
    exclusive: frozenset[int]
    room: Room
    settings: PlacementSettings


class _Sets:
    """Sets of CPUs and nodes that the rule asks for again and again, each computed once per decision.

    :param lc_l3: L3 domains of latency-critical servers
    :param lc_cores: their cores
    """

    def __init__(
        self, topology: HostTopology, lc_l3: frozenset[int], lc_cores: frozenset[int]
    ) -> None:
        self._topology = topology
        self._lc_l3 = lc_l3
        self._lc_cores = lc_cores
        self.online = frozenset(topology.cpus)
        self.quiet = cache(self._quiet)
        self.l3 = cache(self._l3)
        self.by_node = cache(self._by_node)
        self.near = cache(self._near)

    def _quiet(self, chosen: frozenset[int], vcpus: int) -> frozenset[int]:
        """Leave out the L3 domains, or at least the cores, of latency-critical servers while enough CPUs remain.

        A core is shared by its threads, and unless MBA throttles per thread so is its throttling.
        """
        topology = self._topology
        other_l3 = frozenset(cpu for cpu in chosen if topology.l3_of_cpu(cpu) not in self._lc_l3)
        if len(other_l3) >= vcpus:
            return other_l3
        other_cores = frozenset(
            cpu for cpu in chosen if topology.core_of_cpu(cpu).id not in self._lc_cores
        )
        return other_cores or chosen

    def _l3(self, chosen: frozenset[int]) -> frozenset[int]:
        """L3 domains of CPUs."""
        found = map(self._topology.l3_of_cpu, chosen)
        return frozenset(l3 for l3 in found if l3 is not None)

    def _by_node(self, allowed: frozenset[int]) -> dict[int, frozenset[int]]:
        """Node -> CPUs among the allowed ones."""
        topology = self._topology
        return {
            node: allowed.intersection(topology.cpus_of_node(node)) for node in topology.node_ids
        }

    def _near(self, usable: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Each usable node with its nearest usable ones, in every number.

        Linear in the nodes for each number, where all subsets would be exponential.
        """
        ordered = [
            [near for near in self._topology.nodes_by_distance(node) if near in usable]
            for node in usable
        ]
        sizes = range(1, len(usable) + 1)
        return tuple({tuple(sorted(near[:size])): None for size in sizes for near in ordered})


class _Placed:
    """The servers that have their place already, alike ones together: each candidate is compared with all of them."""

    def __init__(self) -> None:
        self._kinds: Counter[tuple[InterferenceClass, frozenset[int]]] = Counter()
        self._vcpus: Counter[tuple[int, ...]] = Counter()

    def add(self, host: _Host, guest: Guest, found: Assignment) -> None:
        """Take note of a server."""
        used = frozenset[int]().union(*found.vcpu_cpus.values())
        self._kinds[_class(guest), host.sets.l3(used)] += 1
        if guest.workload.floating:
            self._vcpus[found.nodes] += guest.workload.domain.vcpus

    def penalty(self, kind: InterferenceClass, domains: frozenset[int]) -> int:
        """How unwelcome a server of this class is to all in these L3 domains."""
        return sum(
            servers * penalty(kind, other)
            for (other, l3), servers in self._kinds.items()
            if l3 & domains
        )

    def living(self, nodes: Sequence[int]) -> int:
        """Count the vCPUs that share the CPUs of these nodes."""
        return sum(
            vcpus for homes, vcpus in self._vcpus.items() if not set(homes).isdisjoint(nodes)
        )


def decide(observation: Observation, homes: Homes, settings: PlacementSettings) -> Decision:
    """Decide where all managed servers shall be.

    :param observation: the host now
    :param homes: where floating servers live by the last decision
    :param settings: the operator's choices
    """
    managed = [guest for guest in observation.guests if guest.workload.request is not None]
    host = _host(observation, managed, settings)
    assignments: list[Assignment] = []
    unplaced: dict[str, tuple[Reason, ...]] = {}
    placed = _Placed()
    for guest in sorted(managed, key=lambda g: (g.workload.floating, g.uuid not in homes, g.uuid)):
        if not guest.workload.floating:
            found = _dedicated(host, guest)
            assignments.append(found)
            placed.add(host, guest, found)
            continue
        if guest.hands_off and guest.uuid not in homes:
            continue  # it is just being started: where its memory is will be known when it runs
        try:
            found = _floating(host, guest, homes.get(guest.uuid, ()), placed)
        except CapabilityMissingError as error:
            unplaced[guest.uuid] = (Reason("no_home", str(error)),)
            continue
        assignments.append(found)
        placed.add(host, guest, found)
        host = replace(host, room=_left(host.room, guest, found))
    return Decision(tuple(assignments), unplaced)


def _host(observation: Observation, managed: Sequence[Guest], settings: PlacementSettings) -> _Host:
    topology = observation.topology
    lc_cpus = {
        cpu
        for guest in managed
        if guest.workload.tier is Tier.LC
        for cpu in _pinned(guest, topology)
    }
    lc_l3 = frozenset(l3 for cpu in lc_cpus if (l3 := topology.l3_of_cpu(cpu)) is not None)
    lc_cores = frozenset(topology.core_of_cpu(cpu).id for cpu in lc_cpus)
    return _Host(
        topology,
        _Sets(topology, lc_l3, lc_cores),
        lc_l3,
        exclusive_cpus(observation),
        Room(free_for_floating(observation), settings.margin_mb),
        settings,
    )


def exclusive_cpus(observation: Observation) -> frozenset[int]:
    """Return the CPUs that nova has given to one server alone, whether it is managed by us or not."""
    return frozenset(cpu for guest in observation.guests for cpu in _exclusive(guest))


def _exclusive(guest: Guest) -> Iterable[int]:
    """Return CPUs that nova gives to nobody else.

    Those are pinned one to one; a NUMA guest with shared CPUs has each vCPU pinned to all shared CPUs of its cell.
    """
    alone = Counter(
        next(iter(chosen))
        for chosen in guest.workload.domain.vcpu_pins.values()
        if len(chosen) == 1
    )
    return (cpu for cpu, vcpus in alone.items() if vcpus == 1)


def _pinned(guest: Guest, topology: HostTopology) -> Iterable[int]:
    online = set(topology.cpus)
    for chosen in guest.workload.domain.vcpu_pins.values():
        yield from chosen & online


def free_for_floating(observation: Observation) -> dict[int, float]:
    """MiB per node for floating servers: free, less what nova promised to bound servers and is not resident yet."""
    room = {node: float(observation.free_mb.get(node, 0)) for node in observation.topology.node_ids}
    for guest in observation.guests:
        for cell in guest.workload.domain.cells:
            if len(cell.host_nodes) == 1:
                (node,) = cell.host_nodes
                resident = guest.resident_mb.get(node, 0.0)
                room[node] = room.get(node, 0.0) - max(0.0, cell.memory_mb - resident)
    return room


# -- servers that nova has placed --------------------------------------------------------------------------------------


def _dedicated(host: _Host, guest: Guest) -> Assignment:
    domain, request = guest.workload.domain, _request(guest)
    online = host.sets.online
    pins = {vcpu: chosen & online for vcpu, chosen in domain.vcpu_pins.items() if chosen & online}
    nodes = tuple(sorted({host.topology.node_of_cpu(cpu) for c in pins.values() for cpu in c}))
    reasons = [Reason("cpus", "nova's pins", "dedicated")]
    total = sum(cell.memory_mb for cell in domain.cells)
    shares: dict[int, float] = {}
    for cell in domain.cells:
        for node in cell.host_nodes:
            part = cell.memory_mb / total / len(cell.host_nodes)
            shares[node] = shares.get(node, 0.0) + part
    if not request.memory_policy_applies:
        reasons.append(Reason("memory_policy", request.memory_policy, "local: bound by nova"))
    else:
        reasons.append(Reason("memory", "local", "bound by nova"))
    wish = _wish(host, guest, pins)
    reasons.extend(_wish_reasons(wish, host, request))
    return Assignment(
        guest.uuid,
        nodes,
        pins,
        domain.emulator_pin,
        shares or None,
        bound=True,
        partition=wish,
        reasons=tuple(reasons),
    )


# -- floating servers --------------------------------------------------------------------------------------------------


def _floating(
    host: _Host,
    guest: Guest,
    home: tuple[int, ...],
    placed: _Placed,
) -> Assignment:
    domain = guest.workload.domain
    online = host.sets.online
    shared = domain.vcpu_cpuset
    allowed = online - host.exclusive if shared is None else online & shared
    cpus_of = host.sets.by_node(allowed)
    usable = tuple(node for node, chosen in cpus_of.items() if chosen)
    if not usable:
        raise CapabilityMissingError(f"server {guest.uuid} may run on no online CPU of this host")
    rank = min(
        _rank(host, guest, cpus_of, nodes, home=home, placed=placed)
        for nodes in host.sets.near(usable)
    )
    best = rank.numbers
    chosen = host.sets.quiet(frozenset().union(*(cpus_of[n] for n in best)), domain.vcpus)
    shares, memory_reasons = _memory(host, guest, best)
    pins = dict.fromkeys(range(domain.vcpus), chosen)
    wish = _wish(host, guest, pins)
    # What the emulator does for a device it does near it; else nova's choice stays.
    emulator = chosen if guest.gpus else None
    reasons = (
        Reason("home_nodes", ",".join(map(str, best)), f"{len(usable)} nodes with shared CPUs"),
        Reason("lc_in_l3_domain", rank.beside_lc, 0),
        Reason("class_penalty", rank.penalty, 0),
        *memory_reasons,
        *_wish_reasons(wish, host, _request(guest)),
    )
    return Assignment(
        guest.uuid,
        best,
        pins,
        emulator,
        shares,
        partition=wish,
        reasons=reasons,
    )


@dataclass(frozen=True, slots=True, order=True)
class _Rank:
    """The order of the module's list; smaller is better."""

    memory_lacks: bool
    cpus_lack: bool
    nodes: int
    beside_lc: int
    from_gpus: int
    pinned_away: float
    elsewhere: bool
    penalty: int
    load: float
    memory_away: float
    spread: int
    numbers: tuple[int, ...]


def _rank(
    host: _Host,
    guest: Guest,
    cpus_of: Mapping[int, frozenset[int]],
    nodes: tuple[int, ...],
    *,
    home: tuple[int, ...],
    placed: _Placed,
) -> _Rank:
    domain = guest.workload.domain
    chosen = frozenset().union(*(cpus_of[node] for node in nodes))
    quiet = host.sets.quiet(chosen, domain.vcpus)
    resident = guest.resident_mb
    has = sum(resident.get(node, 0.0) for node in nodes)
    domains = host.sets.l3(quiet)
    total = sum(resident.values())
    covered = host.room.covers(max(total, 1.0), resident, nodes, nodes == home)
    away = round(1.0 - has / total, 3) if total else 0.0
    return _Rank(
        memory_lacks=not covered and not domain.immovable,
        cpus_lack=len(chosen) < domain.vcpus,
        nodes=len(nodes),
        beside_lc=len(host.lc_l3 & domains),
        from_gpus=_from_gpus(host.topology, guest, nodes),
        pinned_away=away if domain.immovable else 0.0,
        elsewhere=nodes != home,
        penalty=placed.penalty(_class(guest), domains),
        load=placed.living(nodes) / len(chosen),
        memory_away=away,
        spread=sum(host.topology.distance(a, b) for a, b in combinations(nodes, 2)),
        numbers=nodes,
    )


def _from_gpus(topology: HostTopology, guest: Guest, nodes: Sequence[int]) -> int:
    """Sum of the distances from each device of a server, as far as its node is known, to the nearest home node."""
    return sum(
        min(topology.distance(node, gpu) for node in nodes)
        for gpu in guest.gpus.values()
        if gpu is not None
    )


def _memory(
    host: _Host, guest: Guest, nodes: tuple[int, ...]
) -> tuple[dict[int, float] | None, tuple[Reason, ...]]:
    policy = _request(guest).memory_policy
    vcpus = dict.fromkeys(nodes, 1)
    reasons: list[Reason] = [Reason("memory_policy", policy)]
    try:
        shares = wanted_shares(policy, vcpus_per_node=vcpus, nodes=host.topology.node_ids)
    except CapabilityMissingError:
        against = f"{policy} needs `numa-host-agent-ctl calibrate`"
        reasons.append(Reason("memory_policy_used", MemoryPolicy.LOCAL, against))
        shares = wanted_shares(
            MemoryPolicy.LOCAL, vcpus_per_node=vcpus, nodes=host.topology.node_ids
        )
    resident = guest.resident_mb
    if shares is None or not resident:
        return shares, tuple(reasons)
    try:
        limits = host.room.limits_mb(resident)
        fitting, clipped = fit(shares, sum(resident.values()), limits, nodes, resident)
    except (CapabilityMissingError, InvalidValueError) as error:
        return None, (*reasons, Reason("memory_stays", str(error)))
    return fitting, (*reasons, *clipped)


def _left(room: Room, guest: Guest, found: Assignment) -> Room:
    """Room for the next server; pages that are not moved now neither take nor give any."""
    if found.memory_shares is None or guest.pages_stay or guest.hands_off:
        return room
    resident = guest.resident_mb
    total = sum(resident.values())
    return room.dealt(
        resident, {node: share * total for node, share in found.memory_shares.items()}
    )


# -- resource control --------------------------------------------------------------------------------------------------


def _wish(host: _Host, guest: Guest, pins: Mapping[int, frozenset[int]]) -> PartitionRequest | None:
    request = _request(guest)
    if request.tier is None:
        return None
    domains = tuple(sorted(host.sets.l3(frozenset().union(*pins.values()))))
    ways: dict[int, int] = {}
    levels: dict[int, int] = {}
    if request.tier is Tier.LC:
        ways = _ways(host.topology, guest, pins)
    else:
        levels = {
            d: host.settings.be_mba_percent if d in host.lc_l3 else _FULL_PERCENT for d in domains
        }
    running = guest.workload.activity is Activity.RUNNING
    return PartitionRequest(guest.uuid, request.tier, domains, ways, levels, running)


def _ways(
    topology: HostTopology, guest: Guest, pins: Mapping[int, frozenset[int]]
) -> dict[int, int]:
    dealt = deal(topology, guest.workload.domain.cells, pins, _request(guest).l3)
    return {l3: amount.ways for l3, amount in dealt.items() if amount.ways}


def _wish_reasons(
    wish: PartitionRequest | None, host: _Host, request: WorkloadRequest
) -> list[Reason]:
    if wish is None:
        return [Reason("rdt", "default group", "the flavor has no tier")]
    if wish.tier is Tier.LC:
        return [
            Reason(f"ways_l3_{domain}", wish.ways[domain], "flavor")
            if domain in wish.ways
            else Reason(f"not_exclusive_l3_{domain}", 0, f"{len(wish.ways)} domains claimed")
            for domain in wish.domains
            if request.ways
        ]
    return [
        Reason(f"mba_l3_{domain}", level, "an LC lives there" if domain in host.lc_l3 else "no LC")
        for domain, level in wish.mba_percent.items()
    ]


def _class(guest: Guest) -> InterferenceClass:
    return _request(guest).interference_class


def _request(guest: Guest) -> WorkloadRequest:
    request = guest.workload.request
    assert request is not None, "only managed servers are placed"
    return request
