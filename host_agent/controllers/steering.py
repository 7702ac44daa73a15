# SPDX-License-Identifier: Apache-2.0
"""From the simple placement rule to the full one: cores by the mapping, memory by BWAP. Pure.

``refine`` takes the decision of :mod:`host_agent.controllers.placement`, which is safe and coarse (home nodes, threads
float on their CPUs), and replaces what the run-time controllers know better, for *floating managed* servers only:

* each vCPU gets a core of its own from :mod:`host_agent.controllers.mapping`; a server that finds no room there (an
  overcommitted host) keeps the coarse placement, and the reason says so;
* memory shares follow its memory policy over the nodes of those cores, at the point where BWAP's search stands;
* resource control follows the cores: bandwidth levels are for the L3 domains shared with a latency-critical server.

A latency-critical server counts as a rabbit, whatever its flavor declares, unless it is a devil: it is delicate by
definition, so rabbits and devils keep out of its L3 domains while there is another place.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from host_agent.assignment import Assignment, Decision, Guest, Observation
from host_agent.controllers import bwap, mapping
from host_agent.controllers.memory_policy import fit, wanted_shares
from host_agent.controllers.page_moves import apportion, share_error
from host_agent.controllers.slots import Layout, Server, Slot
from host_agent.controllers.weights import Shares, uniform
from host_agent.privileged.shapes import PartitionWish
from nova_numa_ext.policy.reason import Reason
from placement_traits.errors import CapabilityMissingError
from placement_traits.names import InterferenceClass, MemoryPolicy, RemoteMemory, Tier
from placement_traits.topology import HostTopology


@dataclass(frozen=True, slots=True)
class Counters:
    """Performance counters of one server since the last round; None where not measured.

    :param ipc: instructions per cycle
    :param mpi: L3 misses per instruction
    :param stall_rate: stalled cycles per second and vCPU
    """

    ipc: float | None = None
    mpi: float | None = None
    stall_rate: float | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """The operator's choices.

    :param mapper: of the mapping
    :param search: of BWAP's search
    :param be_mba_percent: bandwidth level of best-effort servers beside a latency-critical one
    :param dead_band: share of the memory that may be elsewhere when pages count as placed
    """

    mapper: mapping.Settings = field(default_factory=mapping.Settings)
    search: bwap.Settings = field(default_factory=bwap.Settings)
    be_mba_percent: int = 50
    dead_band: float = 0.02


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a round has seen.

    :param now_s: monotonic time, seconds
    :param observation: the host
    :param counters: UUID -> counters
    :param canonical: worker set -> canonical weights, from the calibration; empty when never calibrated
    :param room_mb: node -> MiB free for floating servers, what they hold already not included
    """

    now_s: float
    observation: Observation
    counters: Mapping[str, Counters] = field(default_factory=dict)
    canonical: Mapping[frozenset[int], Shares] = field(default_factory=dict)
    room_mb: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class State:
    """What the controllers remember.

    :param mapper: of the mapping
    :param searches: UUID -> BWAP's search
    """

    mapper: mapping.State = field(default_factory=mapping.State)
    searches: Mapping[str, bwap.State] = field(default_factory=dict)


def refine(
    decision: Decision, inputs: Inputs, state: State, settings: Settings, layout: Layout
) -> tuple[Decision, State]:
    """Return the decision with exact cores and memory shares for floating servers, and the new state.

    :param decision: of the simple rule
    :param layout: the host's cells, prepared once per topology
    """
    mapped, why = mapping.decide(
        _mapping_observation(inputs, settings.mapper, layout),
        state.mapper,
        settings.mapper,
        layout,
    )
    lc_l3 = frozenset(
        l3
        for wanted in decision.assignments
        if wanted.partition is not None and wanted.partition.tier == Tier.LC
        for l3 in wanted.partition.domains
    )
    searches: dict[str, bwap.State] = {}
    refined = []
    for wanted in decision.assignments:
        guest = inputs.observation.get(wanted.uuid)
        slot = mapped.slots.get(wanted.uuid)
        if guest is None or not _steerable(guest):
            refined.append(wanted)
            continue
        reasons = why.get(wanted.uuid, ())
        if slot is None:
            refined.append(replace(wanted, reasons=(*wanted.reasons, *reasons)))
            continue
        pinned = _with_cores(wanted, slot, inputs.observation.topology, lc_l3, settings)
        memory = _memory(guest, slot, inputs, state.searches.get(wanted.uuid), settings)
        if memory.search is not None:
            searches[wanted.uuid] = memory.search
        all_reasons = (*wanted.reasons, *reasons, *memory.reasons)
        refined.append(replace(pinned, memory_shares=memory.shares, reasons=all_reasons))
    unplaced = {**decision.unplaced, **{u: why[u] for u in decision.unplaced if u in why}}
    return Decision(tuple(refined), unplaced), State(mapped, searches)


def _steerable(guest: Guest) -> bool:
    return guest.workload.floating and guest.workload.request is not None and not guest.hands_off


# -- cores -------------------------------------------------------------------------------------------------------------


def _mapping_observation(
    inputs: Inputs, settings: mapping.Settings, layout: Layout
) -> mapping.Observation:
    """Translate; servers that float unmanaged have no place of their own and are left out."""
    servers, actual, measured = {}, {}, {}
    for guest in inputs.observation.guests:
        slot = _own_cores(guest, layout)
        if slot is None and not _steerable(guest):
            continue
        servers[guest.uuid] = _server(guest)
        if slot is not None:
            actual[guest.uuid] = slot
        counters = inputs.counters.get(guest.uuid, Counters())
        value = counters.ipc if settings.metric is mapping.Metric.IPC else counters.mpi
        if value is not None:
            measured[guest.uuid] = value
    return mapping.Observation(inputs.now_s, servers, actual, measured)


def _server(guest: Guest) -> Server:
    domain, request = guest.workload.domain, guest.workload.request
    kind = request.interference_class if request else InterferenceClass.SHEEP
    if guest.workload.tier is Tier.LC and kind is InterferenceClass.SHEEP:
        kind = InterferenceClass.RABBIT
    return Server(
        guest.uuid,
        domain.vcpus,
        domain.memory_mb,
        kind,
        request is not None and request.remote_memory is RemoteMemory.SENSITIVE,
        _steerable(guest) and not guest.pages_stay,
        domain.vcpu_cpuset,
    )


def _own_cores(guest: Guest, layout: Layout) -> Slot | None:
    """Return where a guest sits when each of its vCPUs is pinned to one CPU.

    The memory of one that may be steered belongs with its cores, wherever it is now: it is brought there.
    """
    cpus = guest.vcpu_cpus
    pins = [next(iter(cpus[vcpu])) for vcpu in sorted(cpus) if len(cpus[vcpu]) == 1]
    if len(pins) < guest.workload.domain.vcpus or any(p not in layout.cell_of_cpu for p in pins):
        return None
    if not _steerable(guest):
        return Slot(tuple(pins), {node: round(mb) for node, mb in guest.resident_mb.items()})
    nodes = Counter(layout.cell_of_cpu[cpu].node for cpu in pins)
    shares = {node: count / len(pins) for node, count in nodes.items()}
    return Slot(tuple(pins), apportion(guest.workload.domain.memory_mb, shares))


def _with_cores(
    wanted: Assignment,
    slot: Slot,
    topology: HostTopology,
    lc_l3: frozenset[int],
    settings: Settings,
) -> Assignment:
    domains = tuple(
        sorted({l3 for cpu in slot.cpus if (l3 := topology.l3_of_cpu(cpu)) is not None})
    )
    partition: PartitionWish | None = wanted.partition
    if partition is not None and partition.tier == Tier.BE:
        levels = tuple((l3, settings.be_mba_percent if l3 in lc_l3 else 100) for l3 in domains)
        partition = partition._replace(domains=domains, mba_percent=levels)
    return replace(
        wanted,
        nodes=tuple(sorted({topology.node_of_cpu(cpu) for cpu in slot.cpus})),
        vcpu_cpus={vcpu: frozenset({cpu}) for vcpu, cpu in enumerate(slot.cpus)},
        partition=partition,
    )


# -- memory ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Memory:
    """What was decided about one server's pages; ``shares`` None leaves them where they are."""

    shares: dict[int, float] | None
    reasons: tuple[Reason, ...] = ()
    search: bwap.State | None = None


def _memory(
    guest: Guest, slot: Slot, inputs: Inputs, known: bwap.State | None, settings: Settings
) -> _Memory:
    request = guest.workload.request
    assert request is not None, "only managed servers are steered"
    if guest.pages_stay:
        return _Memory(None, (Reason("memory_stays", guest.pages_stay),))
    topology = inputs.observation.topology
    policy = request.memory_policy
    if policy is MemoryPolicy.LOCAL:
        return _fitted(slot.shares, guest, inputs)
    vcpus = Counter(topology.node_of_cpu(cpu) for cpu in slot.cpus)
    if policy not in (MemoryPolicy.BWAP, MemoryPolicy.BWAP_UNIFORM):
        wanted = wanted_shares(policy, vcpus_per_node=vcpus, nodes=topology.node_ids)
        return _fitted(wanted, guest, inputs)
    workers = frozenset(vcpus)
    canonical = inputs.canonical.get(workers) if policy is MemoryPolicy.BWAP else None
    search = bwap.State(canonical or uniform(topology.node_ids), workers)
    if known is not None and (known.canonical, known.workers) == (search.canonical, workers):
        search = known  # other cores or another calibration start a new search
    done = _searched(guest, inputs, search, settings)
    if policy is MemoryPolicy.BWAP and canonical is None:
        used = Reason(
            "memory_policy_used", MemoryPolicy.BWAP_UNIFORM, "bandwidths never calibrated"
        )
        return replace(done, reasons=(used, *done.reasons))
    return done


def _searched(guest: Guest, inputs: Inputs, search: bwap.State, settings: Settings) -> _Memory:
    """Go on with a search: it measures when the pages are where they *can* be, room considered."""
    counters = inputs.counters.get(guest.uuid, Counters())
    now = _fitted(search.wanted, guest, inputs)
    arrived = (
        now.shares is not None
        and share_error(guest.memory_shares, now.shares) <= settings.dead_band
    )
    seen = bwap.Observation(inputs.now_s, arrived, counters.stall_rate, counters.mpi)
    search, reasons = bwap.decide(seen, search, settings.search)
    wanted = _fitted(search.wanted, guest, inputs)
    return _Memory(wanted.shares, (*reasons, *wanted.reasons), search)


def _fitted(wanted: Shares | None, guest: Guest, inputs: Inputs) -> _Memory:
    resident = guest.resident_mb
    if not resident or not wanted:
        return _Memory(dict(wanted) if wanted else None)
    room = {
        node: inputs.room_mb.get(node, 0.0) + resident.get(node, 0.0)
        for node in inputs.observation.topology.node_ids
    }
    try:
        shares, clipped = fit(wanted, sum(resident.values()), room, sorted(wanted))
    except CapabilityMissingError as error:
        return _Memory(None, (Reason("memory_stays", str(error)),))
    return _Memory(shares, clipped)
