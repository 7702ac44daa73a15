# SPDX-License-Identifier: Apache-2.0
"""How good a set of GPUs of a host is for a job: a utility in [0, 1].

Amaral 2019 (section 4.1) minimises ``a_cc t/t_w + a_b I/I_w + a_d w/w_w`` (Eq. 1): communication,
interference and fragmentation, each divided by its worst case. Its utility (Eq. 2, the sum of reciprocals) cannot
be used as printed: Eq. 4 falls when interference rises, so its reciprocal rewards interference; one GPU (t = 0) and
a full host (w = 0) divide by zero; and every placement of its own example scores above its thresholds of 0.3 and
0.5. We use the complement of Eq. 1 instead::

    U = 1 - (a_cc T + a_b B + a_d F)

T
    mean distance of communicating tasks, weighted by their edges (Eq. 3), over the farthest pair of the host; 0 for
    one GPU
B
    mean over the job and all jobs that run on the host of (slowdown - 1) / (worst slowdown - 1): what the job
    suffers *and* causes (Eq. 4 with collocation / solo time). A job is slowed down by those it shares a socket's
    buses with, by the strongest of them; what running jobs do to each other already does not count
F
    mean share of free GPUs of the sockets that the placement touches, before the placement (Eq. 5): taking the last
    GPUs of a broken socket is good, breaking a whole one is not

The weights are options; the experiments of Amaral use one third each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from nova_numa_ext.policy.gpu.graph import GpuGraph, members
from nova_numa_ext.policy.gpu.job import GpuJob, JobGraph, ProfileStore
from nova_numa_ext.policy.terms import Term
from placement_traits.errors import InvalidValueError
from placement_traits.reason import Reason

# Utilities are compared at this many decimals, so that the order of additions never breaks a tie.
DECIMALS: Final = 9


@dataclass(frozen=True, slots=True)
class UtilityOptions:
    """Weights of the three terms, which are >= 0 and sum to 1, and how far the search for the best GPUs goes.

    :param worst_slowdown: run time in the worst surrounding over run time alone (figure 13: 1.30)
    :param exact_limit: assignments of tasks to GPUs up to which all are compared; above it, dual recursive
        bipartitioning
    """

    communication: float = 1 / 3
    interference: float = 1 / 3
    fragmentation: float = 1 / 3
    worst_slowdown: float = 1.30
    exact_limit: int = 20_000

    def __post_init__(self) -> None:
        weights = (self.communication, self.interference, self.fragmentation)
        if not (min(weights) >= 0 and abs(sum(weights) - 1.0) <= 1e-6):
            raise InvalidValueError("utility weights", weights, "three numbers >= 0 with sum 1")
        if not self.worst_slowdown > 1:
            raise InvalidValueError("worst_slowdown", self.worst_slowdown, "a number > 1")

    def share(self, slowdown: float) -> float:
        """Return a slowdown as a share of the worst one, at most 1."""
        return min(1.0, (slowdown - 1.0) / (self.worst_slowdown - 1.0))


THIRDS: Final = UtilityOptions()


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A job that runs on the host.

    :param profile: name in the profile store
    :param gpus: mask of its GPUs
    """

    profile: str
    gpus: int


@dataclass(frozen=True, slots=True)
class HostGpus:
    """The GPUs of a host now.

    :param graph: all its GPUs
    :param free: mask of the free ones
    :param neighbours: jobs on the others
    :param bandwidth_mbps: memory bandwidth that is free, MB/s; None when it is not counted
    """

    graph: GpuGraph
    free: int
    neighbours: tuple[Neighbour, ...] = ()
    bandwidth_mbps: int | None = None

    def fits(self, job: GpuJob, part: JobGraph) -> bool:
        """Return whether a part of a job passes the constraints: free GPUs and free memory bandwidth."""
        return part.tasks <= self.free.bit_count() and self.has_bandwidth(job)

    def has_bandwidth(self, job: GpuJob) -> bool:
        """Return whether the memory bandwidth that each part of a job needs is free."""
        return self.bandwidth_mbps is None or job.bandwidth_mbps <= self.bandwidth_mbps


@dataclass(frozen=True, slots=True)
class Terms:
    """The three costs of a placement, each in [0, 1], and the utility they make."""

    communication: float
    interference: float
    fragmentation: float
    utility: float

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """The terms as reasons, held against their best case."""
        return (
            Reason(Term.GPU_UTILITY, self.utility, 1.0),
            Reason(Term.GPU_COMMUNICATION, self.communication, 0.0),
            Reason(Term.GPU_INTERFERENCE, self.interference, 0.0),
            Reason(Term.GPU_FRAGMENTATION, self.fragmentation, 0.0),
        )


def communication(graph: GpuGraph, part: JobGraph, gpus: Sequence[int]) -> float:
    """Return T in [0, 1] for the GPU of each task."""
    if not part.edges:
        return 0.0
    cost = sum(weight * graph.distances[gpus[a]][gpus[b]] for a, b, weight in part.edges)
    return cost / (part.total * graph.farthest)


def slowdowns(graph: GpuGraph, jobs: Sequence[Neighbour], store: ProfileStore) -> list[float]:
    """Return the slowdown of each job by the strongest of the others that it shares a socket with, >= 1."""
    touched = [graph.touched(job.gpus) for job in jobs]
    return [
        max(
            (
                store.slowdown(victim.profile, other.profile)
                for j, other in enumerate(jobs)
                if j != i and touched[i] & touched[j]
            ),
            default=1.0,
        )
        for i, victim in enumerate(jobs)
    ]


class Scene:
    """One part of a job looking at one host: costs of GPU sets, as cheap as possible.

    Interference and fragmentation depend only on the sockets that a set touches, so they are remembered per set of
    sockets.
    """

    def __init__(
        self,
        part: JobGraph,
        profile: str,
        host: HostGpus,
        store: ProfileStore,
        options: UtilityOptions,
    ) -> None:
        self.part = part
        self.host = host
        self.graph = host.graph
        self.options = options
        self._profile = profile
        self._store = store
        self._before = slowdowns(host.graph, host.neighbours, store)
        self._sockets = [host.graph.touched(neighbour.gpus) for neighbour in host.neighbours]
        self._by_sockets: dict[int, tuple[float, float, float]] = {}

    def around(self, sockets: int) -> tuple[float, float, float]:
        """Return (B, F, their weighted sum) of a placement that touches exactly ``sockets``."""
        found = self._by_sockets.get(sockets)
        if found is None:
            interference, fragmentation = self._interference(sockets), self._fragmentation(sockets)
            cost = (
                self.options.interference * interference
                + self.options.fragmentation * fragmentation
            )
            found = self._by_sockets[sockets] = (interference, fragmentation, cost)
        return found

    def utility(self, distance: float, sockets: int) -> float:
        """Return U from T and the sockets touched."""
        utility = 1.0 - self.options.communication * distance - self.around(sockets)[2]
        return round(utility, DECIMALS)

    def distance(self, gpus: Sequence[int]) -> float:
        """Return T of an assignment (GPU of each task)."""
        return communication(self.graph, self.part, gpus)

    def terms(self, gpus: Sequence[int]) -> Terms:
        """Return all terms of an assignment (GPU of each task)."""
        sockets = 0
        for gpu in gpus:
            sockets |= 1 << self.graph.sockets[gpu]
        distance = self.distance(gpus)
        interference, fragmentation, _ = self.around(sockets)
        return Terms(distance, interference, fragmentation, self.utility(distance, sockets))

    def _interference(self, sockets: int) -> float:
        suffered = 1.0
        total = 0.0
        for neighbour, touched, before in zip(
            self.host.neighbours, self._sockets, self._before, strict=True
        ):
            after = before
            if touched & sockets:
                suffered = max(suffered, self._store.slowdown(self._profile, neighbour.profile))
                after = max(before, self._store.slowdown(neighbour.profile, self._profile))
            total += self.options.share(after) - self.options.share(before)
        return (total + self.options.share(suffered)) / (len(self.host.neighbours) + 1)

    def _fragmentation(self, sockets: int) -> float:
        shares = [
            (self.graph.socket_masks[s] & self.host.free).bit_count()
            / self.graph.socket_masks[s].bit_count()
            for s in members(sockets)
        ]
        return sum(shares) / len(shares)
