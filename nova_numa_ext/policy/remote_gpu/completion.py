# SPDX-License-Identifier: Apache-2.0
"""What a place costs a job: DRMaestro's utility of the completion time (Amaral 2019, section 5.3.2).

=====  ===========================================================================================================
11     ``U = (goal - t) / goal``, times ``(10 - z) / 9`` where the goal is missed; z in [1, 10], 1 is most important
12     ``c = (1 - U) P`` for a place; P is 1 where the job prefers it, :data:`OTHER` elsewhere
13     ``c = (1 - U) + W`` for staying in the queue, W rounds after it came; U is 0 there
=====  ===========================================================================================================

P, z, the steps of W and U of a job that waits have no values in the publication; those here make its example (figure
3) come out: a job waits one round for a GPU of its own host before it takes a remote one. W bounds that for any job.

The network-aware policy (section 5.6.5.1) adds ``load / most * factor`` to the cost of a place, and expects a run that
is longer by the same, both only where a GPU is remote: the load of the place's network as a share of what it carries,
and how much the network slows the job down.
"""

from dataclasses import dataclass
from typing import Final

from nova_numa_ext.policy.jobs.postponing import takes_any
from placement_traits.errors import InvalidValueError

PREFERRED: Final = 1.0
OTHER: Final = 2.0
LEAST_IMPORTANT: Final = 10.0


@dataclass(frozen=True, slots=True)
class Goal:
    """When a job should have ended.

    :param within_s: seconds after its start
    :param importance: z: 1 when a miss is worst, 10 when it does not matter
    :raises InvalidValueError: a number outside its range
    """

    within_s: float
    importance: float = 1.0

    def __post_init__(self) -> None:
        if not self.within_s > 0:
            raise InvalidValueError("completion time goal", self.within_s, "seconds > 0")
        if not 1 <= self.importance <= LEAST_IMPORTANT:
            raise InvalidValueError("importance of the goal", self.importance, "1 to 10")

    def utility(self, expected_s: float) -> float:
        """Return the utility of an expected completion time (Eq. 11), at most 1."""
        left = (self.within_s - expected_s) / self.within_s
        return left if left >= 0 else left * (LEAST_IMPORTANT - self.importance) / 9


def place_cost(utility: float, preference: float) -> float:
    """Return the cost of a place (Eq. 12)."""
    return (1 - utility) * preference


def queue_cost(rounds: int) -> float:
    """Return the cost of staying in the queue after so many rounds in it (Eq. 13)."""
    return 1.0 + rounds


def network_cost(load: float, most: float, factor: float) -> float:
    """Return what the network-aware policy adds to the cost of a place.

    :param load: load of its network
    :param most: what that network carries, in the same unit
    :param factor: sensitivity of the job, run time under full load over that alone, less 1
    """
    return load / most * factor


def expected_s(alone_s: float, load: float, most: float, factor: float) -> float:
    """Return the expected run time under a load of the network, seconds."""
    return alone_s * (1 + network_cost(load, most, factor))


def postpones(goal: Goal, expected: float, postponed: int, most: int | None) -> bool:
    """Return whether a job waits for a place where it meets its goal.

    :param expected: seconds at the best place there is
    :param postponed: how often it has waited for that reason
    :param most: after how often it takes any place; DRMaestro: 10
    """
    return expected > goal.within_s and not takes_any(postponed, most)
