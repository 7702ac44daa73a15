# SPDX-License-Identifier: Apache-2.0
"""What a bandwidth level is a share of, where levels are absolute: what the CPUs of one L3 domain draw from memory.

AMD's limits are of the traffic of one L3 domain in steps of 1/8 GB/s, up to 256 GB/s, several times what the few cores
of a domain can draw: half of that limits nothing. So each domain reads memory of its nearest node as fast as it can;
the least of them is what 100 % stands for, because best-effort servers of any domain are to be slowed down. Whether
limits do anything here is then seen at some of them.

Source: Linux Documentation/filesystems/resctrl.rst, "Memory bandwidth Allocation (AMD)".
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol

from host_agent.model.rdt import (
    EIGHTH_GBPS_MBPS,
    BandwidthControl,
    BandwidthUnit,
)
from host_agent.model.traffic import NodeBandwidth
from placement_traits.errors import CapabilityMissingError
from placement_traits.topology import HostTopology

_TRIED_PERCENT: Final = (50, 20)
_TOLERANCE: Final = 1.5  # of the limit: what a domain may draw and still be taken for limited


class Load(Protocol):
    """Readers on the CPUs of L3 domains; :class:`~host_agent.observe.calibration.timing.TimingProfiler` by domain."""

    def profile(
        self,
        workers: Sequence[int],
        nodes: Sequence[int],
        watch: Callable[[Sequence[int], float], None],
    ) -> NodeBandwidth:
        """Read memory of ``nodes`` from ``workers``; ``watch`` is called with the readers' thread ids once they run."""


class Groups(Protocol):
    """Limits threads; :class:`~host_agent.machine.rdt.calibration.CalibrationGroups`."""

    def limited(
        self, l3: int, level: int
    ) -> AbstractContextManager[Callable[[Sequence[int]], bool]]:
        """Give what limits threads in one L3 domain, and tells whether they still ran."""


@dataclass(frozen=True, slots=True)
class LevelBandwidth:
    """What one L3 domain drew at one level.

    :param l3: the domain
    :param percent: the level, 100 is no limit
    :param mbps: measured
    """

    l3: int
    percent: int
    mbps: float


def calibrate_levels(
    control: BandwidthControl | None,
    topology: HostTopology,
    load: Load,
    groups: Groups,
    *,
    progress: Callable[[str], object] = lambda _line: None,
) -> tuple[int, tuple[LevelBandwidth, ...]]:
    """Measure a host.

    :param control: what bandwidth allocation can do here
    :param groups: limits the readers
    :param progress: called before each measurement
    :returns: what 100 % stands for, MB/s, and all measurements
    :raises CapabilityMissingError: levels of this host are no absolute ones, or limits do not limit
    """
    if control is None or control.unit is not BandwidthUnit.EIGHTH_GBPS:
        raise CapabilityMissingError(
            "bandwidth levels of this host are not absolute (AMD's are): there is nothing to calibrate"
        )
    awake = [domain for domain in topology.l3_domains if not topology.sleeps(domain.id)]
    found = []
    for domain in awake:
        progress(f"L3 {domain.id}, without a limit")
        mbps = load.profile([domain.id], domain.nodes[:1], lambda _readers, _seconds: None)
        found.append(LevelBandwidth(domain.id, 100, mbps[domain.nodes[0]][domain.id]))
    least = min(found, key=lambda each: each.mbps)
    nodes = next(domain.nodes for domain in awake if domain.id == least.l3)[:1]
    for percent in _TRIED_PERCENT:
        limit_mbps = least.mbps * percent / 100
        progress(f"L3 {least.l3}, limited to {limit_mbps:.0f} MB/s")
        with groups.limited(least.l3, _level(control, limit_mbps)) as move:
            mbps = load.profile([least.l3], nodes, lambda readers, _seconds: _move(move, readers))
        drawn = mbps[nodes[0]][least.l3]
        if drawn > _TOLERANCE * limit_mbps:
            raise CapabilityMissingError(
                f"L3 {least.l3} drew {drawn:.0f} MB/s under a limit of {limit_mbps:.0f}: limits do not work here, so "
                "leave [rdt]full_bandwidth_mbps at 0"
            )
        found.append(LevelBandwidth(least.l3, percent, drawn))
    return int(least.mbps), tuple(found)


def _level(control: BandwidthControl, mbps: float) -> int:
    return min(max(round(mbps / EIGHTH_GBPS_MBPS), control.min_bandwidth, 1), control.max_bandwidth)


def _move(move: Callable[[Sequence[int]], bool], readers: Sequence[int]) -> None:
    if not move(readers):
        raise CapabilityMissingError("the readers ended before they were limited: raise --seconds")
