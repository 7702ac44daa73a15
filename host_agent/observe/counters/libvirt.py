# SPDX-License-Identifier: Apache-2.0
"""Totals that libvirt counts, where nova has turned them on (``[libvirt]enabled_perf_events``).

They miss vCPUs that were plugged in later and are not corrected for shared counters: the second choice.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from host_agent.machine.libvirt import AgentEndsError
from host_agent.model.assignment import Guest, Observation
from host_agent.model.counters import ServerCounters
from host_agent.model.process import ThreadCount
from host_agent.observe.counters.differences import Differences
from host_agent.observe.counters.source import Readings, measured
from placement_traits.errors import NumaExtError


class LibvirtCounters:
    """ServerCounters through libvirt.

    :param totals: UUID -> event -> total, as libvirt names them
    """

    def __init__(self, totals: Callable[[], Mapping[str, Mapping[str, int]]]) -> None:
        self._totals = totals
        self._differences = Differences()
        self._last = Readings()

    def read(
        self, observation: Observation, now_s: float, only: Collection[str] | None = None
    ) -> Readings:
        """See :class:`.source.CounterSource`."""
        try:
            totals = self._totals()
        except AgentEndsError:
            return replace(self._last, counters={})  # nothing has changed but that none is counted
        except NumaExtError as error:
            return Readings(problem=str(error))
        counts = [
            _libvirt_count(guest.uuid, found, now_s)
            for guest in observation.guests
            if measured(guest, only) and (found := totals.get(guest.uuid))
        ]
        counters = {
            uuid: _per_vcpu(one, guest)
            for uuid, one in self._differences.since(counts, now_s, only).items()
            if (guest := observation.get(uuid)) is not None
        }
        problem = "" if counts else "nova has no [libvirt]enabled_perf_events"
        self._last = Readings(counters, "libvirt" if counts else "", problem)
        return self._last


def _libvirt_count(uuid: str, found: Mapping[str, int], now_s: float) -> ThreadCount:
    now_ns = int(now_s * 1e9)
    names = ("cpu_cycles", "instructions", "cache_misses", "stalled_cycles_backend")
    cycles, instructions, misses, stalls = (found.get(name, -1) for name in names)
    return ThreadCount(uuid, 0, now_ns, now_ns, cycles, instructions, misses, stalls)


def _per_vcpu(counters: ServerCounters, guest: Guest) -> ServerCounters:
    rate = counters.stall_rate
    vcpus = guest.workload.domain.vcpus
    return ServerCounters(counters.ipc, counters.mpi, rate / vcpus if rate is not None else None)
