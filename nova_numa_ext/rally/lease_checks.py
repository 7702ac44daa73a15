# SPDX-License-Identifier: Apache-2.0
"""Does a server get the leases of remote GPUs that its flavor asks for, and how long is one that moves out of use?

All of it is what the job service shows. What a program in the server notices of a move, that program has to tell.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nova_numa_ext.cli.jobs_client import JobsClient, Lease
from nova_numa_ext.policy.remote_gpu.leases import LeaseState
from nova_numa_ext.rally.cloud_checks import NotInTimeError
from placement_traits.errors import NumaExtError

_PAUSE_S: Final = 1.0
_LOOK_S: Final = 0.2
_ENDS: Final = frozenset({LeaseState.RELEASING, LeaseState.GONE})
COLUMNS: Final = ("lease", "from", "to", "with its memory", "out of use at most, s", "whole, s")


class LeaseStaysError(NumaExtError):
    """A lease that was to move has not: no other GPU had room, it could not be carried, or it has ended."""


@dataclass(frozen=True, slots=True)
class WatchedMove:
    """A lease has gone from a GPU to another one.

    :param lease: its uuid
    :param source: host of the GPU that it left
    :param destination: host of the other one
    :param carried: with all that its process had in memory
    :param out_of_use_s: from the last look at which its server could use it to the first one after, seconds: no less
        than it was, and more by two looks at most
    :param whole_s: from the request on, seconds
    """

    lease: str
    source: str
    destination: str
    carried: bool
    out_of_use_s: float
    whole_s: float


class LeaseChecks:
    """Leases of the servers of a task.

    :param jobs: the job service, as the administrator
    """

    def __init__(
        self,
        jobs: JobsClient,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._jobs, self._clock, self._sleep = jobs, clock, sleep

    def attached(self, server: str, count: int, within_s: float) -> list[Lease]:
        """Wait until a server can use all its leases; return them.

        :param server: its uuid
        :param count: leases that its flavor asks for
        :raises NotInTimeError: it cannot
        """
        deadline = self._clock() + within_s
        while True:
            found = self._of(server)
            used = [each for each in found if each["state"] == LeaseState.ATTACHED]
            if len(used) >= count:
                return used
            if self._clock() >= deadline:
                raise NotInTimeError(
                    f"{server} can use {len(used)} of {count} leases after {within_s:g} s: {_words(found)}"
                )
            self._sleep(_PAUSE_S)

    def move(self, lease: Lease, pool: str, within_s: float) -> WatchedMove:
        """Have a lease moved, and wait until its server can use it there.

        :param lease: attached
        :param pool: host of the other GPU; '' any
        :raises LeaseStaysError: it is where it was, or ends
        :raises NotInTimeError: it is on its way
        """
        begun_s = used_s = self._clock()
        carried = False
        shown = self._jobs.move_lease(lease["id"], pool)
        while True:
            move, state = shown["move"], shown["state"]
            carried = carried or bool(move and move["carried"])
            if state == LeaseState.ATTACHED and shown["gpu"] != lease["gpu"]:
                there_s = self._clock()
                return WatchedMove(
                    lease["id"],
                    lease["host"],
                    shown["host"],
                    carried,
                    there_s - used_s,
                    there_s - begun_s,
                )
            if state in _ENDS or (state == LeaseState.ATTACHED and move is None):
                raise LeaseStaysError(f"it has not moved: {_words([shown])}")
            if self._clock() >= begun_s + within_s:
                raise NotInTimeError(f"not there after {within_s:g} s: {_words([shown])}")
            self._sleep(_LOOK_S)
            looked_s = self._clock()
            shown = self._jobs.lease(lease["id"])
            if shown["state"] == LeaseState.ATTACHED and shown["gpu"] == lease["gpu"]:
                used_s = looked_s

    def left(self, server: str, within_s: float) -> list[str]:
        """Return the leases that a deleted server still has, once it has none or the time is over."""
        deadline = self._clock() + within_s
        while True:
            found = [each for each in self._of(server) if each["state"] != LeaseState.GONE]
            if not found or self._clock() >= deadline:
                return [_words([each]) for each in found]
            self._sleep(_PAUSE_S)

    def _of(self, server: str) -> list[Lease]:
        listed = self._jobs.leases(all_projects=True)
        return [each for each in listed if each["server_id"] == server]


def rows(moves: Sequence[WatchedMove]) -> list[list[Any]]:
    """Return a row of :data:`COLUMNS` for each move."""
    return [
        [
            each.lease,
            each.source,
            each.destination,
            "yes" if each.carried else "no",
            round(each.out_of_use_s, 2),
            round(each.whole_s, 2),
        ]
        for each in moves
    ]


def chart(moves: Sequence[WatchedMove]) -> dict[str, Any]:
    """Return the longest of some moves as the chart that Rally's ``add_output(additive=...)`` takes, one at least."""
    return {
        "title": "Seconds of the longest move of a lease",
        "chart_plugin": "Lines",
        "data": [
            ["out of use at most", max(each.out_of_use_s for each in moves)],
            ["whole", max(each.whole_s for each in moves)],
        ],
    }


def _words(leases: Sequence[Lease]) -> str:
    """Return where leases are and why, for people."""
    return (
        "; ".join(
            f"lease {each['id']} is {each['state']}"
            + "".join(f", {reason['sentence']}" for reason in each["reasons"])
            for each in leases
        )
        or "it has no lease"
    )
