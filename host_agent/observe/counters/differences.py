# SPDX-License-Identifier: Apache-2.0
"""From totals to IPC, misses per instruction and stalls.

What hardware counts is a total since it was opened; a reading is the difference to the last one. A figure that cannot
be (a counter that ran backwards or hardly at all, more misses than instructions) is not measured: ``None`` and never a
guess. The controllers hold for some samples and then do without.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from host_agent.model.counters import ServerCounters
from host_agent.model.process import ThreadCount

LEAST_RUNNING: Final = 0.01
"""Smallest part of the time that a shared counter must have counted to be scaled up."""

HIGHEST_IPC: Final = 12.0
"""No core retires more instructions per cycle."""

_SLACK: Final = 1.05  # counters of a group are read one after the other


class Totals(NamedTuple):
    """What one thread did between two readings, scaled to all of the time; None where not counted."""

    cycles: float | None
    instructions: float | None
    misses: float | None
    stalls: float | None


class Differences:
    """Makes readings of totals."""

    def __init__(self) -> None:
        self._before: dict[str, _Reading] = {}

    def since(
        self, counts: Iterable[ThreadCount], now_s: float, only: Collection[str] | None = None
    ) -> dict[str, ServerCounters]:
        """Return UUID -> counters since the server was read last; one with a new thread is not measured this time.

        :param only: UUIDs of servers that were read, the others wait for their next reading; None: all
        """
        threads: dict[str, dict[int, ThreadCount]] = defaultdict(dict)
        for count in counts:
            threads[count.uuid][count.tid] = count
        before, now = (
            self._before,
            {uuid: _Reading(now_s, found) for uuid, found in threads.items()},
        )
        waiting = {} if only is None else {u: r for u, r in before.items() if u not in only}
        self._before = waiting | now
        found = {uuid: reading.since(before.get(uuid)) for uuid, reading in now.items()}
        return {uuid: counters for uuid, counters in found.items() if counters is not None}


@dataclass(frozen=True, slots=True)
class _Reading:
    """Totals of a server's threads, by thread, at a time."""

    at_s: float
    threads: Mapping[int, ThreadCount]

    def since(self, before: "_Reading | None") -> ServerCounters | None:
        """Return what was counted between two readings; None where not all threads were."""
        if before is None or self.at_s <= before.at_s:
            return None
        parts = [
            part
            for tid, count in self.threads.items()
            if (part := _difference(before.threads.get(tid), count)) is not None
        ]
        counted = len(parts) == len(self.threads)
        return _counters(parts, self.at_s - before.at_s) if counted else None


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


def _counters(threads: Sequence[Totals], elapsed_s: float) -> ServerCounters:
    if not threads:
        return ServerCounters()
    cycles, instructions, misses, stalls = map(_sum, zip(*threads, strict=True))
    possible = stalls is not None and (cycles is None or stalls <= cycles * _SLACK)
    return ServerCounters(
        ipc=_ratio(instructions, cycles, HIGHEST_IPC),
        mpi=_ratio(misses, instructions, 1.0),
        stall_rate=stalls / elapsed_s / len(threads) if stalls is not None and possible else None,
    )


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _ratio(above: float | None, below: float | None, most: float) -> float | None:
    """Return a ratio that can be, None for others and for a server that did nothing."""
    if above is None or not below:
        return None
    value = above / below
    return value if 0.0 <= value <= most else None
