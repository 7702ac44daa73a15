# SPDX-License-Identifier: Apache-2.0
"""Performance counters for the host of :mod:`benchmarks.agent_world`, on a machine that has none.

The helper opens and reads groups of four counters a thread as on a compute host; the events in them are the kernel's
own (task clock), which each machine has. What they count is replaced by a program that uses much memory and stalls the
less the nearer its pages are together: each search for a spread goes on to its last step.
"""

import random
import time
from collections.abc import Callable
from typing import Final

from host_agent.machine.privileged.perf import PerfEvents
from host_agent.machine.privileged.pmu import PerfEvent

_TASK_CLOCK: Final = PerfEvent(1, 1)  # PERF_TYPE_SOFTWARE, PERF_COUNT_SW_TASK_CLOCK
_CYCLES_PER_S: Final = 3e9
_IPC: Final = 0.5
_MISSES_PER_INSTRUCTION: Final = 0.02
_STALLED: Final = 0.8  # part of the cycles while pages are spread over very many nodes
_SPARED: Final = 0.6  # part of these stalls that goes when all pages are on one node
_NOISE: Final = 0.02
_NS: Final = 1e9


class ShownCounters(PerfEvents):
    """The kernel's calls with other events and other figures.

    :param together: thread -> largest part of its server's memory on one node
    :param clock: seconds, monotonic

    :ivar shown: readings so far
    """

    def __init__(
        self, together: Callable[[int], float], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._together = together
        self._clock = clock
        self._noise = random.Random(0)
        self._threads: dict[int, int] = {}
        self._read: dict[int, tuple[float, tuple[float, ...]]] = {}
        self.shown = 0

    def open(self, event: PerfEvent, tid: int, group: int, *, guest_only: bool) -> int:
        """Open the kernel's own counter of a thread in place of another."""
        del event, guest_only
        descriptor = super().open(_TASK_CLOCK, tid, group, guest_only=False)
        if group < 0:
            self._threads[descriptor] = tid
            self._read[descriptor] = self._clock(), (0.0,) * 5
        return descriptor

    def read(self, descriptor: int, events: int) -> tuple[int, ...]:
        """Read the group; return times, cycles, instructions, misses and stalls of a program that always runs."""
        super().read(descriptor, events)
        self.shown += 1
        return self._made_up(descriptor)

    def cost_s(self, times: int) -> float:
        """Return the processor time of making up one reading, seconds: the mean of so many; 0 with no counter open."""
        descriptors = list(self._threads)
        if not descriptors:
            return 0.0
        begun_s = time.thread_time()
        for number in range(times):
            self._made_up(descriptors[number % len(descriptors)])
        return (time.thread_time() - begun_s) / times

    def _made_up(self, descriptor: int) -> tuple[int, ...]:
        before_s, totals = self._read[descriptor]
        now_s = self._clock()
        part = _STALLED * (1.0 - _SPARED * self._together(self._threads[descriptor]))
        instructions = _CYCLES_PER_S * _IPC
        rates = (
            _NS,
            _CYCLES_PER_S,
            instructions,
            instructions * _MISSES_PER_INSTRUCTION,
            _CYCLES_PER_S * part * self._noise.gauss(1.0, _NOISE),
        )
        passed_s = now_s - before_s
        totals = tuple(total + rate * passed_s for total, rate in zip(totals, rates, strict=True))
        self._read[descriptor] = now_s, totals
        shown = tuple(map(round, totals))
        return shown[0], *shown

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        super().close(descriptor)
        self._threads.pop(descriptor, None)
        self._read.pop(descriptor, None)
