# SPDX-License-Identifier: Apache-2.0
"""The life of a job::

    QUEUED -> PLANNED -> CLAIMED -> BUILDING -> RUNNING -> ENDING -> DONE | FAILED | CANCELLED
      ^         |  |        |           |          |       ^  |
      |         |  +--------+-----------+----------+-------+  |
      +---------+---------------------------------------------+

A plan for which nothing was requested yet goes back to the queue, or ends, at once. All other jobs go through
ENDING, in which servers are deleted and claims are released, and from there to the queue (postponed, preempted) or to
their end.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from placement_traits.errors import NumaExtError


class JobState(StrEnum):
    """Where a job is in its life."""

    QUEUED = "queued"  # waits for a plan, or is held
    PLANNED = "planned"  # has places, holds nothing yet
    CLAIMED = "claimed"  # holds what Placement must hold before servers are made
    BUILDING = "building"  # its servers are being made
    RUNNING = "running"  # all that are kept are ACTIVE
    ENDING = "ending"  # its servers are being deleted, its claims released
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        """Nothing follows."""
        return not TRANSITIONS[self]

    @property
    def active(self) -> bool:
        """The job has places: it counts among those that run, for limits and for what is free."""
        return self in _ACTIVE


TRANSITIONS: Final[Mapping[JobState, frozenset[JobState]]] = MappingProxyType(
    {
        JobState.QUEUED: frozenset({JobState.PLANNED, JobState.FAILED, JobState.CANCELLED}),
        JobState.PLANNED: frozenset(
            {
                JobState.CLAIMED,
                JobState.QUEUED,
                JobState.ENDING,
                JobState.FAILED,
                JobState.CANCELLED,
            }
        ),
        JobState.CLAIMED: frozenset({JobState.BUILDING, JobState.ENDING}),
        JobState.BUILDING: frozenset({JobState.RUNNING, JobState.ENDING}),
        JobState.RUNNING: frozenset({JobState.ENDING}),
        JobState.ENDING: frozenset(
            {JobState.QUEUED, JobState.DONE, JobState.FAILED, JobState.CANCELLED}
        ),
        JobState.DONE: frozenset(),
        JobState.FAILED: frozenset(),
        JobState.CANCELLED: frozenset(),
    }
)
"""What may follow each state."""

_ACTIVE: Final = frozenset(
    {JobState.PLANNED, JobState.CLAIMED, JobState.BUILDING, JobState.RUNNING, JobState.ENDING}
)


class TransitionError(NumaExtError):
    """A job would go where its state does not lead.

    :param job: its uuid
    :param state: where it is
    :param to: where it should have gone
    """

    def __init__(self, job: str, state: JobState, to: JobState) -> None:
        super().__init__(job, state, to)
        self.job, self.state, self.to = job, state, to

    def __str__(self) -> str:
        allowed = ", ".join(sorted(TRANSITIONS.get(self.state, ()))) or "nothing, it has ended"
        return f"Job {self.job} is {self.state} and cannot become {self.to}; allowed: {allowed}."


def check_transition(job: str, state: JobState, to: JobState) -> None:
    """Raise :class:`TransitionError` where a state does not lead to another."""
    if to not in TRANSITIONS[state]:
        raise TransitionError(job, state, to)
