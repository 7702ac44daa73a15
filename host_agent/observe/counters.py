# SPDX-License-Identifier: Apache-2.0
"""Performance counters of servers: IPC, misses per instruction, stalls; from perf_event, libvirt or the host model.

What hardware counts is a total since it was opened; a reading is the difference to the last one. A figure that cannot
be (a counter that ran backwards or hardly at all, more misses than instructions) is not measured: ``None`` and never a
guess. The controllers hold for some samples and then do without.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from host_agent.machine.privileged.api import Privileged
from host_agent.model.assignment import Guest, Observation
from host_agent.model.counters import Counters
from host_agent.model.process import Role, ThreadCount
from host_agent.model.workload import Activity
from placement_traits.errors import NumaExtError

LOG = logging.getLogger(__name__)

LEAST_RUNNING: Final = 0.01
"""Smallest part of the time that a shared counter must have counted to be scaled up."""

HIGHEST_IPC: Final = 12.0
"""No core retires more instructions per cycle."""

_SLACK: Final = 1.05  # counters of a group are read one after the other


@dataclass(frozen=True, slots=True)
class Readings:
    """What one look at the counters gave.

    :param counters: UUID -> counters since the last look; a server that was not measured is missing
    :param source: where they come from, ``""`` for nowhere
    :param problem: why servers are missing, ``""`` when nothing went wrong
    """

    counters: Mapping[str, Counters] = field(default_factory=dict)
    source: str = ""
    problem: str = ""


class CounterSource(Protocol):
    """Where counters come from."""

    def read(self, observation: Observation, now_s: float) -> Readings:
        """Return what was counted since the last call; must not block.

        :param observation: the servers and their threads
        :param now_s: monotonic time, seconds
        """


class NoCounters:
    """``[counters]source = none``."""

    def read(self, observation: Observation, now_s: float) -> Readings:
        """Count nothing."""
        return Readings()


# -- hardware ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Totals:
    """What one thread did between two readings, scaled to all of the time; None where not counted."""

    cycles: float | None
    instructions: float | None
    misses: float | None
    stalls: float | None


class Differences:
    """Makes readings of totals."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, int], ThreadCount] = {}
        self._at_s: float | None = None

    def since(self, counts: Iterable[ThreadCount], now_s: float) -> dict[str, Counters]:
        """Return UUID -> counters since the last call; a server with a new thread is not measured this time."""
        now = {(count.uuid, count.tid): count for count in counts}
        elapsed_s = now_s - self._at_s if self._at_s is not None else 0.0
        before, self._before, self._at_s = self._before, now, now_s
        if elapsed_s <= 0:
            return {}
        parts: dict[str, list[Totals | None]] = defaultdict(list)
        for key, count in now.items():
            parts[count.uuid].append(_difference(before.get(key), count))
        return {
            uuid: _counters(threads, elapsed_s)
            for uuid, found in parts.items()
            if len(threads := [one for one in found if one is not None]) == len(found)
        }


def _difference(before: ThreadCount | None, now: ThreadCount) -> Totals | None:
    """Return what was counted between two readings, scaled to the whole time; None when it cannot be right."""
    if before is None:
        return None
    enabled = now.enabled_ns - before.enabled_ns
    running = now.running_ns - before.running_ns
    if enabled < 0 or running < 0 or running > enabled * _SLACK:
        return None
    if enabled == 0:  # the thread slept all the time
        return Totals(0.0, 0.0, 0.0, 0.0)
    if running < LEAST_RUNNING * enabled:
        return None

    def scaled(new: int, old: int) -> float | None:
        return (new - old) * enabled / running if 0 <= old <= new else None

    return Totals(
        scaled(now.cycles, before.cycles),
        scaled(now.instructions, before.instructions),
        scaled(now.misses, before.misses),
        scaled(now.stalls, before.stalls),
    )


def _counters(threads: Sequence[Totals], elapsed_s: float) -> Counters:
    cycles = _sum(thread.cycles for thread in threads)
    instructions = _sum(thread.instructions for thread in threads)
    misses = _sum(thread.misses for thread in threads)
    stalls = _sum(thread.stalls for thread in threads)
    possible = stalls is not None and (cycles is None or stalls <= cycles * _SLACK)
    return Counters(
        ipc=_ratio(instructions, cycles, HIGHEST_IPC),
        mpi=_ratio(misses, instructions, 1.0),
        stall_rate=stalls / elapsed_s / len(threads) if stalls is not None and possible else None,
    )


def _sum(values: Iterable[float | None]) -> float | None:
    found = list(values)
    return sum(v for v in found if v is not None) if found and None not in found else None


def _ratio(above: float | None, below: float | None, most: float) -> float | None:
    """Return a ratio that can be, None for others and for a server that did nothing."""
    if above is None or not below:
        return None
    value = above / below
    return value if 0.0 <= value <= most else None


class PerfCounters:
    """Counters of vCPU threads by perf_event_open, through the privileged side.

    :param privileged: the seam
    """

    def __init__(self, privileged: Privileged) -> None:
        self._privileged = privileged
        self._differences = Differences()

    def read(self, observation: Observation, now_s: float) -> Readings:
        """See :class:`CounterSource`."""
        wanted = [
            (guest.uuid, _vcpu_threads(guest)) for guest in observation.guests if measured(guest)
        ]
        try:
            report = self._privileged.count(wanted)
        except (NumaExtError, OSError) as error:
            return Readings(problem=str(error))
        counters = self._differences.since(report.counts, now_s)
        return Readings(counters, "perf" if report.counts else "", report.problem)


class LibvirtCounters:
    """Totals that libvirt counts, where nova has turned them on (``[libvirt]enabled_perf_events``).

    They miss vCPUs that were plugged in later and are not corrected for shared counters: the second choice.

    :param totals: UUID -> event -> total, as libvirt names them
    """

    def __init__(self, totals: Callable[[], Mapping[str, Mapping[str, int]]]) -> None:
        self._totals = totals
        self._differences = Differences()

    def read(self, observation: Observation, now_s: float) -> Readings:
        """See :class:`CounterSource`."""
        try:
            totals = self._totals()
        except NumaExtError as error:
            return Readings(problem=str(error))
        counts = [
            _libvirt_count(guest.uuid, found, now_s)
            for guest in observation.guests
            if measured(guest) and (found := totals.get(guest.uuid))
        ]
        counters = {
            uuid: _per_vcpu(one, guest)
            for uuid, one in self._differences.since(counts, now_s).items()
            if (guest := observation.get(uuid)) is not None
        }
        problem = "" if counts else "nova has no [libvirt]enabled_perf_events"
        return Readings(counters, "libvirt" if counts else "", problem)


def _libvirt_count(uuid: str, found: Mapping[str, int], now_s: float) -> ThreadCount:
    now_ns = int(now_s * 1e9)
    names = ("cpu_cycles", "instructions", "cache_misses", "stalled_cycles_backend")
    cycles, instructions, misses, stalls = (found.get(name, -1) for name in names)
    return ThreadCount(uuid, 0, now_ns, now_ns, cycles, instructions, misses, stalls)


def _per_vcpu(counters: Counters, guest: Guest) -> Counters:
    rate = counters.stall_rate
    vcpus = guest.workload.domain.vcpus
    return Counters(counters.ipc, counters.mpi, rate / vcpus if rate is not None else None)


def _vcpu_threads(guest: Guest) -> tuple[int, ...]:
    threads = guest.process.threads if guest.process else ()
    return tuple(thread.tid for thread in threads if thread.role == Role.VCPU)


def measured(guest: Guest) -> bool:
    """Tell whether a server is to be measured: managed and running."""
    managed = guest.workload.request is not None
    return managed and guest.workload.activity is Activity.RUNNING and guest.process is not None


# -- others ------------------------------------------------------------------------------------------------------------


class FirstOf:
    """``[counters]source = auto``: the first source that counts anything.

    :param sources: best first
    """

    def __init__(self, *sources: CounterSource) -> None:
        self._sources = sources

    def read(self, observation: Observation, now_s: float) -> Readings:
        """See :class:`CounterSource`."""
        problems = []
        for source in self._sources:
            found = source.read(observation, now_s)
            if found.source:
                return found
            if found.problem:
                problems.append(found.problem)
        return Readings(problem="; ".join(problems))


class Shared:
    """One stack of counters for all who need them: each reading of its one reader is handed to the others, too.

    A second stack would open each performance counter twice, and a second reader of this one would halve the time
    between readings for both.

    :param inner: the source
    :param others: called with each reading and its time, in the reader's thread; must not block
    """

    def __init__(
        self,
        inner: CounterSource,
        others: Sequence[Callable[[Mapping[str, Counters], float], None]],
    ) -> None:
        self._inner, self._others = inner, others

    def read(self, observation: Observation, now_s: float) -> Readings:
        """See :class:`CounterSource`."""
        found = self._inner.read(observation, now_s)
        for take in self._others:
            take(found.counters, now_s)
        return found


class ToldOnce:
    """Says in the log when counters come, go, or come from elsewhere.

    :param inner: the source
    """

    def __init__(self, inner: CounterSource) -> None:
        self._inner = inner
        self._said: tuple[str, str] | None = None

    def read(self, observation: Observation, now_s: float) -> Readings:
        """See :class:`CounterSource`."""
        found = self._inner.read(observation, now_s)
        state = (found.source, found.problem)
        if state != self._said and any(measured(guest) for guest in observation.guests):
            self._said = state
            if found.source:
                LOG.info("performance counters: %s%s", found.source, _because(found.problem))
            else:
                LOG.warning(
                    "no performance counters, mapping goes by classes alone and BWAP does not search%s",
                    _because(found.problem),
                )
        return found


def _because(problem: str) -> str:
    return f": {problem}" if problem else ""
