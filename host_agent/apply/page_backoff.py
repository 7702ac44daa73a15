# SPDX-License-Identifier: Apache-2.0
"""How long pages that do not move are left alone.

Each attempt walks the page tables of the whole guest, under its ``mmap_lock``, and the look at what it left walks them
again: 1.2 s of a CPU per 100 GB of small pages. The kernel does not move pages that another process maps, too
(merged by KSM, memory shared with virtiofsd or a vhost-user process), and most of them stay so.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from host_agent.model.pages import share_error
from host_agent.model.process import MoveReport, Target

_FIRST_S: Final = 60.0
_LONGEST_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class _Stuck:
    """What a walk has left.

    :param pause_s: how long nothing is tried
    :param until_s: when it is tried again
    """

    targets: tuple[Target, ...]
    left_kb: int
    pause_s: float
    until_s: float


class PageBackoff:
    """Servers whose pages did not all go where they should; a walk that moves little doubles the wait for the next.

    :param clock: seconds, monotonic
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stuck: dict[str, _Stuck] = {}

    def stuck_kb(self, uuid: str, targets: Sequence[Target], dead_band: float) -> int:
        """Return how much of a server stays where it is for now, KiB; 0: its pages may be moved.

        :param targets: where they shall go; other ones than the kernel refused are tried at once
        :param dead_band: shares that differ less are the same
        """
        stuck = self._stuck.get(uuid)
        if stuck is None or not _alike(stuck.targets, targets, dead_band):
            return 0
        return stuck.left_kb if self._clock() < stuck.until_s else 0

    def walked(
        self, uuid: str, targets: Sequence[Target], report: MoveReport, dead_band: float
    ) -> None:
        """Take note of what a call of the mover did; what has not ended goes on at once."""
        if not report.over:
            return
        before = self._stuck.pop(uuid, None)
        if not report.failed and not report.problem:
            return
        pause = _FIRST_S
        if before and _alike(before.targets, targets, dead_band):
            moving = report.moved_kb > report.remaining_kb
            pause = _FIRST_S if moving else min(2 * before.pause_s, _LONGEST_S)
        left = max(report.remaining_kb, 1)
        self._stuck[uuid] = _Stuck(tuple(targets), left, pause, self._clock() + pause)

    def gone(self, uuid: str) -> None:
        """Forget a server."""
        self._stuck.pop(uuid, None)


def _alike(before: Sequence[Target], now: Sequence[Target], dead_band: float) -> bool:
    return [(t.start, t.end) for t in before] == [(t.start, t.end) for t in now] and all(
        share_error(dict(old.shares), dict(new.shares)) <= dead_band
        for old, new in zip(before, now, strict=True)
    )
