# SPDX-License-Identifier: Apache-2.0
"""Whether a decision still stands: a new one would be the same. Pure.

Most rounds find the host as the one before left it, and to decide about a hundred servers costs more than to look at
them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from host_agent.decide.cores.nova_cpus import free_for_floating
from host_agent.model.assignment import Assignment, Decision, Guest, Observation


@dataclass(frozen=True, slots=True)
class Standing:
    """A decision, and what it was made of.

    :param observation: the look that it was made for
    :param room_mb: NUMA node -> MiB that floating servers had
    :param left_mb: NUMA node -> MiB of these that are left when all pages are where they shall be, and all of a
        server's on each of its home nodes, too
    """

    observation: Observation
    decision: Decision
    room_mb: Mapping[int, float]
    left_mb: Mapping[int, float]

    def holds(self, now: Observation, margin_mb: float) -> bool:
        """Tell whether the decision holds for another look at the host, too.

        Free memory changes all the time. Less of it changes no decision while the margin stays free behind all pages
        that have, or were granted, their place; up to half of the margin is let go without a new one where it does
        not. More of it is used after the next full pass. That a node passes a mark of
        :class:`~host_agent.decide.pages.policy.Room` ends the decision at once.

        :param margin_mb: MiB that stay free on every node
        """
        before = self.observation
        if before.topology != now.topology or len(before.guests) != len(now.guests):
            return False
        return all(map(_same, before.guests, now.guests)) and self._has_room(
            free_for_floating(now), margin_mb
        )

    def _has_room(self, now_mb: Mapping[int, float], margin_mb: float) -> bool:
        return self.room_mb.keys() == now_mb.keys() and all(
            _mark(now_mb[node], margin_mb) == _mark(room, margin_mb)
            and (
                self.left_mb[node] - (room - now_mb[node]) > margin_mb
                or room - now_mb[node] <= margin_mb / 2
            )
            for node, room in self.room_mb.items()
        )


def standing(observation: Observation, decision: Decision) -> Standing:
    """Return a decision with what it was made of."""
    room = free_for_floating(observation)
    left = dict(room)
    for assignment in decision.assignments:
        guest = observation.get(assignment.uuid)
        if guest is None or assignment.bound:
            continue
        for node, more in _to_come(guest, assignment).items():
            left[node] = left.get(node, 0.0) - max(0.0, more)
    return Standing(observation, decision, room, left)


def _to_come(guest: Guest, assignment: Assignment) -> dict[int, float]:
    """Return NUMA node -> MiB of a server that are to come there, or for which its home was chosen."""
    resident = guest.resident_mb
    total = sum(resident.values())
    away = total - sum(resident.get(node, 0.0) for node in assignment.nodes)
    more = dict.fromkeys(assignment.nodes, away)
    for node, share in (assignment.memory_shares or {}).items():
        more[node] = max(more.get(node, 0.0), share * total - resident.get(node, 0.0))
    return more


def _same(before: Guest, now: Guest) -> bool:
    """Tell whether a guest is the same to a decision, which asks for no thread and no sample."""
    return (
        before.workload == now.workload
        and (before.process is None) == (now.process is None)
        and before.ram == now.ram
        and before.gpus == now.gpus
    )


def _mark(room_mb: float, margin_mb: float) -> int:
    """Return how many of the two marks are passed: promises are covered, and the margin is free."""
    return (room_mb >= 0) + (room_mb > margin_mb)
