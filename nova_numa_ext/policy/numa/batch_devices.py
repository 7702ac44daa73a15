# SPDX-License-Identifier: Apache-2.0
"""Devices in the allocation candidates of many hosts, as :mod:`.batch` reads them.

What a GPU set is worth depends on the shape of the host, on which of its GPUs are free, on who is on the others, and on
the job. A fleet has few shapes, so the same few situations come again and again: each is judged once
(:class:`JudgedSets`), and a candidate is the number of its set. Shapes: ``N`` candidates of all hosts, ``S`` different
sets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from nova_numa_ext.policy.gpu.candidate_sets import (
    GpuOccupancy,
    GpuRequest,
    GpuRules,
    GpuSet,
    below_minimum,
    judge,
)
from nova_numa_ext.policy.gpu.utility import HostGpus
from nova_numa_ext.policy.numa.arrays import MOST_BITS, Bits, Floats, Integers, Mask
from placement_traits.reason import Reason

NO_SET: Final = -1
_NO_GPUS: Final = (np.inf,)


class JudgedSets:
    """GPU sets of one decision, each judged once for all hosts in the same situation.

    :param gpu_request: what the server asks
    :param rules: the operator's choices
    """

    def __init__(self, gpu_request: GpuRequest, rules: GpuRules) -> None:
        self.gpu_request = gpu_request
        self.sets: list[GpuSet] = []
        self._rules = rules
        self._hosts: list[HostGpus] = []
        self._number: dict[GpuOccupancy, dict[int, int]] = {}
        self._refusals: dict[int, tuple[Reason, ...]] = {}

    def numbers(self, there: GpuOccupancy, masks: Sequence[int]) -> list[int]:
        """Return the number of each GPU set of one host, :data:`NO_SET` for one without GPUs.

        :param masks: the sets
        """
        number = self._number.get(there)
        if number is None:
            number = self._number[there] = {0: NO_SET}
        missing = frozenset(masks).difference(number)
        if missing:
            host = there.host()
            for mask, found in judge(
                self.gpu_request, self._rules, host, there.nodes, missing
            ).items():
                number[mask] = len(self.sets)
                self.sets.append(found)
                self._hosts.append(host)
        return [number[mask] for mask in masks]

    def refusal(self, number: int, *, fresh: bool) -> tuple[Reason, ...]:
        """Return why a host is refused whose best candidate has this set; nothing when it is good enough.

        :param fresh: the view of Placement may be trusted
        """
        if number == NO_SET:
            return self.gpu_request.unknown if fresh else ()
        best = self.sets[number]
        if best.enough:
            return ()
        reasons = self._refusals.get(number)
        if reasons is None:
            reasons = self._refusals[number] = below_minimum(
                self.gpu_request, self._rules, self._hosts[number], len(best.addresses), best.terms
            )
        return reasons


@dataclass(frozen=True, slots=True)
class CandidateDevices:
    """Devices of the candidates.

    :param near: N, cells (bits) of the host that nova accepts with the candidate's devices
    :param number: N, the candidate's GPU set, :data:`NO_SET` without
    :param parts: N, what the candidate takes of its GPUs' providers
    :param taken: N, how many of these have no longer that much after earlier servers of the request
    :param judged: the sets
    """

    near: Bits
    number: Integers
    parts: Sequence[Mapping[str, int]]
    taken: Integers
    judged: JudgedSets

    def columns(self) -> "Columns":
        """Return what the order of candidates depends on."""
        sets = self.judged.sets
        preferences = [one.preference for one in sets] or [_NO_GPUS]
        width = len(preferences[0])
        addresses = {one: rank for rank, one in enumerate(sorted({s.addresses for s in sets}))}
        # The last row is for candidates without GPUs, whose number is NO_SET.
        return Columns(
            np.array([*(not one.enough for one in sets), False], bool)[self.number],
            np.array([*(_bits(one.nodes) for one in sets), 0], np.uint64)[self.number],
            np.array([*preferences[: len(sets)], (np.inf,) * width])[self.number],
            np.array([*(addresses[one.addresses] for one in sets), NO_SET])[self.number],
        )

    def utility(self, candidates: Integers) -> Floats:
        """Return U of the GPU sets of some candidates, NaN without."""
        known = np.array([*(one.utility for one in self.judged.sets), np.nan])
        found: Floats = known[self.number[candidates]]
        return found


@dataclass(frozen=True, slots=True)
class Columns:
    """GPU sets of the candidates in the terms of :class:`.candidates.CandidateRank`.

    :param below: N, the set is below the server's minimum utility
    :param nodes: N, NUMA nodes (bits) of its GPUs
    :param preference: N x numbers, its place in the policy's order
    :param addresses: N, its place in the order of addresses
    """

    below: Mask
    nodes: Bits
    preference: Floats
    addresses: Integers


def _bits(nodes: Sequence[int]) -> int:
    """Nodes as bits; a host with other numbers is decided alone."""
    return sum(1 << node for node in nodes if 0 <= node < MOST_BITS)
