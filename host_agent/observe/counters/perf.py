# SPDX-License-Identifier: Apache-2.0
"""Counters of vCPU threads by perf_event_open."""

from collections.abc import Collection

from host_agent.machine.privileged.api import Privileged
from host_agent.model.assignment import Observation
from host_agent.observe.counters.differences import Differences
from host_agent.observe.counters.source import Readings, measured
from placement_traits.errors import NumaExtError


class PerfCounters:
    """Counters through the privileged side.

    :param privileged: the seam
    """

    def __init__(self, privileged: Privileged) -> None:
        self._privileged = privileged
        self._differences = Differences()

    def read(
        self, observation: Observation, now_s: float, only: Collection[str] | None = None
    ) -> Readings:
        """See :class:`.source.CounterSource`."""
        threads = [
            (guest.uuid, guest.vcpu_threads)
            for guest in observation.guests
            if measured(guest, only)
        ]
        try:
            report = self._privileged.count(threads, only is not None)
        except (NumaExtError, OSError) as error:
            return Readings(problem=str(error))
        counters = self._differences.since(report.counts, now_s, only)
        return Readings(counters, "perf" if report.counts else "", report.problem)
