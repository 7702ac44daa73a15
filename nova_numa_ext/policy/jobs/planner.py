# SPDX-License-Identifier: Apache-2.0
"""What the queue needs of a planner: answers about one job, and an account of what planned jobs take.

A planner decides purely from what it is given, so one queue asks whichever it has: the service's that of hosts, which
knows what Placement counts, and the simulator's a strategy, which chooses GPUs and knows neighbours. That both let the
jobs of table 7 start at the same moments is a test (``test_planners_agree.py``). The *view* is what is known of the
fleet and does not change in a round; the *claims* are what jobs take of it beyond what the view shows, and what they
would give back.
"""

from collections.abc import Hashable
from typing import Protocol, Self, TypeVar

from nova_numa_ext.policy.jobs.job import Job
from nova_numa_ext.policy.jobs.plan import Outcome, Plan

PlaceT = TypeVar("PlaceT")
ViewT_contra = TypeVar("ViewT_contra", contravariant=True)
SettingsT_contra = TypeVar("SettingsT_contra", contravariant=True)


class Claims(Protocol[PlaceT]):
    """What jobs take of the fleet; changes while a round goes on."""

    def take(self, job: Job, plan: Plan[PlaceT]) -> None:
        """Put a job on its places."""

    def give(self, job: Job, plan: Plan[PlaceT]) -> None:
        """Take a job off its places."""

    def copy(self) -> Self:
        """Return an account of its own with the same entries."""

    def either(self, other: Self) -> Self:
        """Return what is taken in this account or in another: free is what is free in both."""


ClaimsT_contra = TypeVar("ClaimsT_contra", contravariant=True)


class Planner(Protocol[PlaceT, ViewT_contra, ClaimsT_contra, SettingsT_contra]):
    """Finds places for one job."""

    def kind(self, job: Job, now: float) -> Hashable:
        """Return what the answer about a job depends on: equal kinds get equal answers from equal claims."""

    def plan(
        self,
        job: Job,
        view: ViewT_contra,
        claims: ClaimsT_contra,
        now: float,
        settings: SettingsT_contra,
    ) -> Outcome[PlaceT]:
        """Return places for all parts of a job, a reason to wait, or that it can never run; claims stay as they are."""
