# SPDX-License-Identifier: Apache-2.0
"""How good would the GPUs of ten thousand hosts be for a server? A guess over arrays, for the order of judging only.

The utility of :mod:`.utility` by NUMA nodes instead of by GPUs: how many of a node's GPUs are free is known, but not
which. Sets are one socket, or the sockets with most free GPUs; in each the nodes with most free GPUs are used first.
Distances are those of the levels, shortened by the share of pairs that have a direct link.

Shapes: ``H`` hosts, ``C`` NUMA nodes of the largest host, ``S`` sockets of all hosts. Nodes without GPUs may be absent.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from nova_numa_ext.policy.gpu.candidate_sets import GpuRequest, GpuRules
from nova_numa_ext.policy.gpu.graph import LEVEL_WEIGHTS
from nova_numa_ext.policy.gpu.job import comm_profile
from placement_traits.names import GPU_COMM_TRAITS, GpuPolicy

Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

_WEIGHTS: Final = (0, *GPU_COMM_TRAITS)
_REMEMBERED: Final = 256  # profiles with an operator's rules
_NOTHING_KNOWN: Final = 1 << 0  # busy GPUs of which no weight is published


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """The GPUs of hosts by NUMA node.

    :param socket: of each node, H x C
    :param total: GPUs near it, H x C
    :param free: those of them that are free, H x C
    :param usable: those of them that the server may have, H x C
    :param weights: bit *w* for each communication weight *w* that is published near the node, H x C
    :param direct: share of the pairs of one node, of two nodes of one socket, and of two sockets that have a direct
        link, 3 x H
    :param switched: the GPUs are behind PCIe switches, H
    """

    socket: Integers
    total: Integers
    free: Integers
    usable: Integers
    weights: Integers
    direct: Floats
    switched: Mask


def utility(request: GpuRequest, rules: GpuRules, count: int, gpus: NodeGpus) -> Floats:
    """Return the utility of the GPUs that a server would probably get on each host, NaN where there are too few, H.

    :param count: GPUs that it requests
    """
    sockets = _Sockets.of(gpus)
    if not sockets.members:
        return np.full(len(gpus.total), np.nan)
    distances = _distances(gpus, sockets)
    communicates = request.comm > 0 or request.policy is GpuPolicy.PACK
    around = _Around(request, rules, sockets)
    best, found = np.full(len(gpus.total), -np.inf), np.full(len(gpus.total), np.nan)
    for allowed in sockets.sets():
        taken = _taken(count, gpus, sockets, allowed)
        of_socket = sockets.sums(taken)
        away = _communication(count, taken, of_socket, distances) if communicates else 0.0
        utilities = 1.0 - rules.options.communication * away - around.cost(of_socket > 0)
        keys = _preference(request.policy, utilities, away, of_socket)
        keys = np.where(taken.sum(axis=1) == count, keys, -np.inf)
        found = np.where(keys > best, utilities, found)
        best = np.maximum(best, keys)
    return found


def _preference(
    policy: GpuPolicy, utilities: Floats, away: Floats | float, of_socket: Integers
) -> Floats:
    """Keys by which a policy prefers sets, largest first; what it looks at before the utility weighs more."""
    before: Floats | float = 0.0
    if policy is GpuPolicy.PACK:
        before = -10.0 * away
    elif policy is GpuPolicy.SPREAD:
        before = 10.0 * (of_socket > 0).sum(axis=1)
    return np.asarray(utilities + before, np.float64)


@dataclass(frozen=True, slots=True)
class _Sockets:
    """GPUs by socket.

    :param members: nodes of each socket, S masks of H x C
    :param total: GPUs, H x S
    :param free: free ones, H x S
    :param weights: as of :class:`NodeGpus`; of busy GPUs only, H x S
    :param place: of each socket among those of its host, by GPUs that the server may have, most first, H x S
    """

    members: tuple[Mask, ...]
    total: Integers
    free: Integers
    weights: Integers
    place: Integers

    @classmethod
    def of(cls, gpus: NodeGpus) -> "_Sockets":
        members = tuple(
            gpus.socket == socket for socket in np.unique(gpus.socket[gpus.total > 0]).tolist()
        )
        total, free, usable = (
            _sums(members, each) for each in (gpus.total, gpus.free, gpus.usable)
        )
        published = [np.bitwise_or.reduce(gpus.weights * nodes, axis=1) for nodes in members]
        weights = np.stack(published, axis=1) if members else total
        weights = np.where(weights > 0, weights, _NOTHING_KNOWN) * (total > free)
        place = np.argsort(np.argsort(-usable, axis=1, kind="stable"), axis=1)
        return cls(members, total, free, weights, place)

    def sums(self, of_node: Integers) -> Integers:
        """Sum what is counted by node."""
        return _sums(self.members, of_node)

    def sets(self) -> Iterator[Mask]:
        """Yield sets of sockets, H x S: each alone, then so many of those with most."""
        count = len(self.members)
        for socket in range(count):
            yield np.broadcast_to(np.arange(count) == socket, self.place.shape)
        for most in range(2, count + 1):
            yield self.place < most


def _sums(members: tuple[Mask, ...], of_node: Integers) -> Integers:
    columns = [(of_node * nodes).sum(axis=1) for nodes in members]
    return np.stack(columns, axis=1) if columns else np.zeros((len(of_node), 0), np.int64)


def _taken(count: int, gpus: NodeGpus, sockets: _Sockets, allowed: Mask) -> Integers:
    """GPUs taken of each node, H x C: of the sockets with most first, in them of the nodes with most."""
    usable, place = np.zeros_like(gpus.usable), np.zeros_like(gpus.usable)
    for number, nodes in enumerate(sockets.members):
        usable += gpus.usable * nodes * allowed[:, number, None]
        place += sockets.place[:, number, None] * nodes
    ordered = np.lexsort((-usable, place), axis=-1)
    each = np.take_along_axis(usable, ordered, axis=1)
    before = np.cumsum(each, axis=1) - each
    taken = np.zeros_like(usable)
    np.put_along_axis(taken, ordered, np.clip(count - before, 0, each), axis=1)
    return taken


def _distances(gpus: NodeGpus, sockets: _Sockets) -> Floats:
    """Distance of two GPUs, by levels as of :attr:`NodeGpus.direct`, over that of the host's farthest pair, 3 x H."""
    weights = LEVEL_WEIGHTS
    deep = np.any([(nodes.sum(axis=1) > 1) for nodes in sockets.members], axis=0)
    node = 2 * (weights.gpu + weights.upper * gpus.switched)
    levels = np.stack([node, node + 2 * weights.upper, node + 2 * weights.upper * (1 + deep)])
    shares, with_node = gpus.direct, gpus.total > 0
    there = np.stack(
        [
            (gpus.total > 1).any(axis=1),
            np.any([(with_node & nodes).sum(axis=1) > 1 for nodes in sockets.members], axis=0),
            (sockets.total > 0).sum(axis=1) > 1,
        ]
    )
    farthest = np.where(there & (shares < 1), levels, weights.gpu).max(axis=0)
    found: Floats = np.minimum(1.0, (shares * weights.gpu + (1 - shares) * levels) / farthest)
    return found


def _communication(count: int, taken: Integers, of_socket: Integers, distances: Floats) -> Floats:
    """Mean distance of the pairs of a set, over that of the farthest pair, H."""
    pairs = count * (count - 1) / 2
    near = (taken * (taken - 1) / 2).sum(axis=1)
    in_socket = (of_socket * (of_socket - 1) / 2).sum(axis=1)
    node, socket, far = distances
    found: Floats = near * node + (in_socket - near) * socket + (pairs - in_socket) * far
    return found / max(1.0, pairs)


class _Around:
    """Interference and fragmentation of sets, by the sockets that they touch.

    :param sockets: GPUs by socket
    """

    def __init__(self, request: GpuRequest, rules: GpuRules, sockets: _Sockets) -> None:
        self._options = rules.options
        self._free = sockets.free / np.maximum(1, sockets.total)
        rows = _interferences(request.profile, rules)
        jobs, caused, suffered = rows[:, sockets.weights]
        self._jobs, self._caused, self._suffered = jobs.sum(axis=1), caused, suffered

    def cost(self, touched: Mask) -> Floats:
        """Return what a set costs, H.

        :param touched: sockets that it touches, H x S
        """
        suffered = (self._suffered * touched).max(axis=1, initial=0.0)
        caused = (self._caused * touched).sum(axis=1)
        share = (self._free * touched).sum(axis=1) / np.maximum(1, touched.sum(axis=1))
        found: Floats = (
            self._options.interference * (caused + suffered) / (self._jobs + 1)
            + self._options.fragmentation * share
        )
        return found


@lru_cache(maxsize=_REMEMBERED)
def _interferences(profile: str, rules: GpuRules) -> Floats:
    """Return the answers of :func:`_interference` for all bits of weights, 3 x 2 ** weights."""
    rows = [_interference(profile, rules, bits) for bits in range(1 << len(_WEIGHTS))]
    found = np.array(rows).T
    found.setflags(write=False)
    return found


def _interference(profile: str, rules: GpuRules, bits: int) -> tuple[float, float, float]:
    """Return the jobs on a socket, what they suffer more, summed up, and what the new one suffers.

    :param profile: of the new job, in the store
    :param bits: of the jobs' communication weights
    """
    slowdown, share = rules.store.slowdown, rules.options.share
    jobs = [comm_profile(weight) for weight in _WEIGHTS if bits >> weight & 1]
    caused = 0.0
    for job in jobs:
        before = max((slowdown(job, other) for other in jobs if other != job), default=1.0)
        caused += share(max(before, slowdown(job, profile))) - share(before)
    suffered = max((slowdown(profile, job) for job in jobs), default=1.0)
    return float(len(jobs)), caused, share(suffered)
