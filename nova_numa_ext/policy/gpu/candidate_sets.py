# SPDX-License-Identifier: Apache-2.0
"""How good are the GPUs that an allocation candidate would take?

The GPUs of a host, their places and links are in the view of the fleet. Which of them are free is what Placement has
just offered: a GPU of any candidate is free, all others are busy. Who is on the busy ones is known by communication
weight: from this scheduler's own recent picks, GPU by GPU, and from what the agents publish near each L3 domain. Busy
GPUs of which nothing is known belong to a neighbour that neither suffers nor disturbs.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

from nova_numa_ext.policy.gpu.distances import Measured
from nova_numa_ext.policy.gpu.graph import GpuGraph, mask_of, members, shared
from nova_numa_ext.policy.gpu.job import (
    COMM_PROFILES,
    GpuJob,
    ProfileStore,
    comm_profile,
    flavor_job,
)
from nova_numa_ext.policy.gpu.placement import SHOWN_DECIMALS, choose, preference, rank
from nova_numa_ext.policy.gpu.utility import THIRDS, HostGpus, Neighbour, Terms, UtilityOptions
from nova_numa_ext.policy.picks import Pick
from nova_numa_ext.policy.terms import Term
from placement_traits.fleet import HostView
from placement_traits.names import GPU_COMM_TRAITS, GpuPolicy
from placement_traits.reason import Reason
from placement_traits.topology import Gpu, GpuEdge, HostTopology, NumaNode, Socket
from placement_traits.workload_request import WorkloadRequest

_MEMORY: Final = 1 << 12


@dataclass(frozen=True, slots=True)
class GpuRules:
    """What the operator decides about GPUs.

    :param options: weights of the utility
    :param store: profiles; a flavor's own profile bears its name, the others are named by communication weight
    :param measured: distances of GPUs by their addresses; the hosts' graphs carry them, so rules that differ in them
        alone give one answer for one graph
    """

    options: UtilityOptions = THIRDS
    store: ProfileStore = COMM_PROFILES
    measured: Measured = field(default_factory=dict, compare=False)


DEFAULT_RULES: Final = GpuRules()


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """What a server requests of its GPUs.

    :param policy: in which order sets are preferred
    :param comm: communication weight, 0 to 4
    :param min_utility: utility below which a set is refused
    :param profile: name in the store
    """

    policy: GpuPolicy
    comm: int
    min_utility: float
    profile: str

    @classmethod
    def of(cls, request: WorkloadRequest, flavor: str, rules: GpuRules) -> "GpuRequest":
        """Read a request.

        :param flavor: name of the flavor, which may have a profile of its own
        """
        profile = flavor if flavor in rules.store.profiles else comm_profile(request.gpu_comm)
        return cls(request.gpu_policy, request.gpu_comm, request.min_utility, profile)

    @property
    def unknown(self) -> tuple[Reason, ...]:
        """Why a host is refused whose GPUs cannot be judged; nothing when the server requests no minimum."""
        if self.min_utility <= 0:
            return ()
        return (Reason(Term.GPU_UNKNOWN, self.min_utility),)

    def job(self, gpus: int) -> GpuJob:
        """Return the job of so many GPUs."""
        return flavor_job(gpus, self.comm, self.min_utility, profile=self.profile)


@dataclass(frozen=True, slots=True, eq=False)
class GpuMap:
    """The GPUs of one host; they change only when the host is read again.

    :param graph: their distances
    :param nodes: NUMA node of each, None where firmware does not report it
    :param number_of: GPU by provider that servers allocate from; some GPUs have none, some several
    """

    graph: GpuGraph
    nodes: tuple[int | None, ...]
    number_of: Mapping[str, int]

    def mask(self, providers: Iterable[str]) -> int:
        """Return the GPUs behind some providers."""
        return mask_of({self.number_of[uuid] for uuid in providers if uuid in self.number_of})


def gpu_map(host: HostView, measured: Measured = MappingProxyType({})) -> GpuMap:
    """Find the GPUs of a host; hosts whose GPUs look alike share one graph.

    :param measured: distances that replace those of the levels, by the addresses of all GPUs of a host
    """
    addresses = tuple(gpu.address for gpu in host.gpus)
    graph = shared(_topology(host), measured.get(addresses))
    position = {address: number for number, address in enumerate(graph.gpus)}
    return GpuMap(
        graph,
        tuple(gpu.node for gpu in host.gpus),
        {
            device.uuid: position[device.address]
            for device in host.devices
            if device.address in position
        },
    )


def _topology(host: HostView) -> HostTopology:
    socket_of = {node: domain.socket for domain in host.l3 for node in domain.nodes}
    nodes = {gpu.node for gpu in host.gpus if gpu.node is not None} | socket_of.keys()
    return HostTopology(
        sockets=tuple(Socket(socket) for socket in sorted(set(socket_of.values()))),
        nodes=tuple(NumaNode(node, socket_of.get(node)) for node in sorted(nodes)),
        gpus=tuple(Gpu(gpu.address, gpu.node, gpu.switch) for gpu in host.gpus),
        gpu_links=tuple(
            GpuEdge(gpu.address, other, link)
            for gpu in host.gpus
            for other, link in sorted(gpu.links.items())
            if gpu.address < other
        ),
    )


def occupied(gpus: GpuMap, host: HostView, free: int, recent: Iterable[Pick] = ()) -> HostGpus:
    """Return the GPUs of a host with the jobs that run on the busy ones.

    :param free: mask of the free GPUs
    :param recent: this scheduler's recent picks on the host; one whose GPUs are free again is not there
    """
    return occupancy(gpus, published(gpus, host), free, recent).host()


class GpuOccupancy(NamedTuple):
    """All that the utility of a host's GPU sets depends on, equal where hosts look alike and are occupied alike.

    :param graph: all its GPUs
    :param nodes: NUMA node of each
    :param free: mask of the free ones
    :param published: communication weights that the agent has published, for each socket of the graph
    :param known: communication weight and mask of the jobs of which more is known
    """

    graph: GpuGraph
    nodes: tuple[int | None, ...]
    free: int
    published: tuple[frozenset[int], ...]
    known: tuple[tuple[int, int], ...] = ()

    def host(self) -> HostGpus:
        """Return the GPUs with the jobs that run on the busy ones."""
        graph, free = self.graph, self.free
        neighbours = [Neighbour(comm_profile(comm), mask) for comm, mask in self.known]
        rest = graph.all & ~free & ~_union(mask for _, mask in self.known)
        for members_of, weights in zip(graph.socket_masks, self.published, strict=True):
            if not rest & members_of:
                continue
            mine = {comm for comm, mask in self.known if mask & members_of}
            for comm in sorted(weights - mine or weights) or (0,):
                neighbours.append(Neighbour(comm_profile(comm), rest & members_of))
        return HostGpus(graph, free, tuple(neighbours))


def occupancy(
    gpus: GpuMap, weights: tuple[frozenset[int], ...], free: int, recent: Iterable[Pick] = ()
) -> GpuOccupancy:
    """Return the situation of one host's GPUs.

    :param weights: what :func:`published` returns for it
    :param free: mask of the free GPUs
    :param recent: this scheduler's recent picks on the host; one whose GPUs are free again is not there
    """
    masks = [(pick.gpu_comm, gpus.mask(pick.gpus)) for pick in recent]
    known = tuple([(comm, mask) for comm, mask in masks if mask and not mask & free])
    return GpuOccupancy(gpus.graph, gpus.nodes, free, weights, known)


def parts_left(host: HostView, picks: Iterable[Pick]) -> dict[str, int]:
    """Return the free parts of each device from which earlier servers of the same request have taken some.

    Nova got the candidates of all these servers from Placement before the first one was claimed, so they still offer
    such devices. Several servers may share a device (vGPUs), and one may take several parts of it.

    :param picks: the earlier servers on the host
    """
    taken = Counter(uuid for pick in picks for uuid in pick.gpus)
    if not taken:
        return {}
    return {
        device.uuid: device.amount.free - taken[device.uuid]
        for device in host.devices
        if device.uuid in taken
    }


def lacking(left: Mapping[str, int], parts: Mapping[str, int]) -> frozenset[str]:
    """Return the devices that have no longer what a candidate would take of them: the claim would fail.

    :param left: what :func:`parts_left` returns
    :param parts: what the candidate takes, by provider
    """
    return frozenset([uuid for uuid, free in left.items() if uuid in parts and parts[uuid] > free])


def published(gpus: GpuMap, host: HostView) -> tuple[frozenset[int], ...]:
    """Communication weights that the agent has published, for each socket of the graph."""
    found: dict[int, frozenset[int]] = {}
    for domain in host.l3:
        weights = frozenset(
            weight for weight, trait in GPU_COMM_TRAITS.items() if trait in domain.neighbours
        )
        near = mask_of(number for number, node in enumerate(gpus.nodes) if node in domain.nodes)
        for socket in members(gpus.graph.touched(near)) if weights else ():
            found[socket] = found.get(socket, frozenset()) | weights
    return tuple(found.get(socket, frozenset()) for socket in range(len(gpus.graph.socket_masks)))


def _union(masks: Iterable[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union


@dataclass(frozen=True, slots=True)
class GpuSet:
    """The GPUs of one candidate, judged.

    :param addresses: their PCI addresses, ascending
    :param providers: providers that the server would allocate them from, ascending; empty where the set stands for
        equal ones of many hosts
    :param nodes: their NUMA nodes, ascending, unknown ones left out
    :param terms: what they cost
    :param preference: place in the policy's order, smaller is better
    :param enough: the utility reaches the server's minimum
    """

    addresses: tuple[str, ...]
    providers: tuple[str, ...]
    nodes: tuple[int, ...]
    terms: Terms
    preference: tuple[float, ...]
    enough: bool

    @property
    def utility(self) -> float:
        """U of the set."""
        return self.terms.utility

    def away(self, nodes: Sequence[int] | None) -> int:
        """Return how many of its NUMA nodes the server's own are not, 0 where those are not known."""
        return 0 if nodes is None else len(set(self.nodes) - set(nodes))


class GpuOffer:
    """The GPU sets that one host offers to one server.

    :param gpu_request: what the server asks
    :param rules: the operator's choices
    :param gpus: the host's GPUs
    :param host: which of them are free, and who is on the others
    :param sets: providers of each candidate
    """

    def __init__(
        self,
        gpu_request: GpuRequest,
        rules: GpuRules,
        gpus: GpuMap,
        host: HostGpus,
        sets: Iterable[Sequence[str]],
    ) -> None:
        self._request = gpu_request
        self._rules = rules
        self._gpus = gpus
        self._host = host
        masks = frozenset(gpus.mask(providers) for providers in sets) - {0}
        self._judged = judge(gpu_request, rules, host, gpus.nodes, masks)

    def of(self, providers: Sequence[str]) -> GpuSet | None:
        """Return the GPUs among a candidate's providers, None when there are none."""
        judged = self._judged.get(self._gpus.mask(providers))
        if judged is None:
            return None
        return replace(
            judged, providers=tuple(uuid for uuid in providers if uuid in self._gpus.number_of)
        )

    def refusal(self, best: GpuSet) -> tuple[Reason, ...]:
        """Return why the best set is refused and what would be needed; nothing when it is good enough."""
        if best.enough:
            return ()
        return below_minimum(
            self._request, self._rules, self._host, len(best.addresses), best.terms
        )


@lru_cache(maxsize=_MEMORY)
def judge(
    gpu_request: GpuRequest,
    rules: GpuRules,
    host: HostGpus,
    nodes: tuple[int | None, ...],
    masks: frozenset[int],
) -> Mapping[int, GpuSet]:
    """Judge sets of GPUs, once for all hosts that look alike and are occupied alike; returns them by mask.

    :param nodes: NUMA node of each GPU
    """
    by_size: dict[int, list[tuple[int, ...]]] = {}
    for mask in sorted(masks):
        by_size.setdefault(mask.bit_count(), []).append(tuple(members(mask)))
    return {
        placement.mask: GpuSet(
            tuple(host.graph.gpus[number] for number in placement.gpus),
            (),
            tuple(
                sorted({node for number in placement.gpus if (node := nodes[number]) is not None})
            ),
            placement.terms,
            preference(placement, host.graph, gpu_request.policy),
            placement.utility >= gpu_request.min_utility,
        )
        for size, numbers in by_size.items()
        for placement in rank(
            gpu_request.job(size),
            host,
            numbers,
            gpu_request.policy,
            store=rules.store,
            options=rules.options,
        )
    }


def best_of_host(
    gpu_request: GpuRequest, rules: GpuRules, view: HostView, amounts: Sequence[int]
) -> tuple[GpuSet | None, tuple[Reason, ...]]:
    """Return the best GPUs of a host for a what-if, by what the view knows, and what the host lacks.

    :param amounts: parts that the server asks for of each GPU; a shared GPU may serve several of them
    """
    gpus = gpu_map(view, rules.measured)
    most = max(amounts)
    free = [d for d in view.devices if d.uuid in gpus.number_of and d.amount.free >= most]
    room = sum(device.amount.free // most for device in free)
    if room < len(amounts):
        return None, (Reason(Term.GPUS_FREE, room, len(amounts)),)
    mask = gpus.mask(device.uuid for device in free)
    host = occupied(gpus, view, mask)
    size = min(len(amounts), mask.bit_count())
    choice = choose(
        gpu_request.job(size), host, gpu_request.policy, store=rules.store, options=rules.options
    )
    if choice.best is None:
        return None, choice.reasons
    taken = [d.uuid for d in free if gpus.number_of[d.uuid] in choice.best.gpus]
    found = GpuOffer(gpu_request, rules, gpus, host, [taken]).of(taken)
    reasons = below_minimum(gpu_request, rules, host, size, choice.best.terms)
    return found, () if choice.satisfied else reasons


def below_minimum(
    gpu_request: GpuRequest, rules: GpuRules, host: HostGpus, gpus: int, terms: Terms
) -> tuple[Reason, ...]:
    """Return the reasons of a refusal.

    :param gpus: number of GPUs
    :param terms: of the best set that was offered
    """
    choice = choose(
        gpu_request.job(gpus), host, gpu_request.policy, store=rules.store, options=rules.options
    )
    if choice.satisfied and choice.best is not None:
        names = ", ".join(host.graph.gpus[number] for number in choice.best.gpus)
        needed = Reason(Term.GPU_NOT_OFFERED, names)
    else:
        needed = choice.reasons[-1]
    postponed = (Reason(Term.GPU_POSTPONED, gpu_request.policy.value),)
    waits = gpu_request.policy is GpuPolicy.TOPO_P and needed.term != Term.GPU_NEVER
    return (
        Reason(
            Term.GPU_BELOW_MINIMUM, round(terms.utility, SHOWN_DECIMALS), gpu_request.min_utility
        ),
        *terms.reasons[1:],
        needed,
        *(postponed if waits else ()),
    )
