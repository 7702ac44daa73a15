# SPDX-License-Identifier: Apache-2.0
"""SLA plug-ins: samples in, passed or failed out. One that saw no sample fails.

The base class would pass before the first sample, so success begins as False here. What :meth:`add_iteration` returns
is another thing: whether the task may go on (``rally task start --abort-on-sla-failure``).
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Generic, Self, TypeVar

from rally import consts
from rally.task import sla

from nova_numa_ext.rally import samples
from nova_numa_ext.rally.limits import FaultLimit, Limit, RatioLimit, ShareLimit
from nova_numa_ext.rally.samples import Topic

Iteration = Mapping[str, Any]


_LimitT = TypeVar("_LimitT", bound=Limit)


class _Limited(sla.SLA, Generic[_LimitT]):  # type: ignore[misc]
    """An SLA that keeps a limit, which all processes of a run fill together."""

    limit: _LimitT

    def __init__(self, criterion_value: Mapping[str, Any]) -> None:
        super().__init__(criterion_value)
        self.limit = self._made(criterion_value)
        self.success = False

    def add_iteration(self, iteration: Iteration) -> bool:
        """Count what an iteration has seen; False when the limit is broken."""
        self._add(iteration)
        return self._judged()

    def merge(self, other: Self) -> bool:
        """Count what another process has counted."""
        self.limit.merge(other.limit)
        return self._judged()

    def details(self) -> str:
        """Return a sentence for people."""
        return f"{self._words()} - {self.status()}"

    def _judged(self) -> bool:
        self.success = self.limit.kept
        return not self.limit.broken

    def _made(self, criterion_value: Mapping[str, Any]) -> _LimitT:
        """Return the limit that a task asks for."""
        raise NotImplementedError

    def _add(self, iteration: Iteration) -> None:
        """Add an iteration's samples to the limit."""
        raise NotImplementedError

    def _words(self) -> str:
        """Return what was seen, and what is allowed."""
        raise NotImplementedError


class _Faults(_Limited[FaultLimit]):
    """Faults of one topic over all iterations."""

    TOPIC: ClassVar[Topic]
    CONFIG_SCHEMA: ClassVar = {
        "type": "object",
        "$schema": consts.JSON_SCHEMA,
        "properties": {
            "max": {"type": "integer", "minimum": 0},
            "at_least": {"type": "integer", "minimum": 1},
        },
        "required": ["max"],
        "additionalProperties": False,
    }

    def _made(self, criterion_value: Mapping[str, int]) -> FaultLimit:
        return FaultLimit(criterion_value["max"], criterion_value.get("at_least", 1))

    def _add(self, iteration: Iteration) -> None:
        for looked_at, faults in samples.of(iteration, self.TOPIC):
            self.limit.add(looked_at, faults)

    def _words(self) -> str:
        return self.limit.details(self.TOPIC)


@sla.configure(name="numa_ext_placement")
class PlacementAgrees(_Faults):
    """Most servers whose decision, allocation in Placement and place on the host may differ."""

    TOPIC = Topic.PLACEMENT


@sla.configure(name="numa_ext_read_back")
class HostDoesWhatWasAllocated(_Faults):
    """Most servers for which kernel and libvirt may show less than what was allocated."""

    TOPIC = Topic.READ_BACK


@sla.configure(name="numa_ext_overlap")
class NoSharedWays(_Faults):
    """Most L3 ways that two latency-critical servers may share; at_least counts pairs of such servers."""

    TOPIC = Topic.OVERLAP


@sla.configure(name="numa_ext_orphans")
class NothingIsLeft(_Faults):
    """Most allocations, groups and domains that may be left of deleted servers."""

    TOPIC = Topic.ORPHANS


@sla.configure(name="numa_ext_scaled")
class GroupsFollowTheirLoad(_Faults):
    """Most loads at which an elastic group may miss its size; at_least counts loads."""

    TOPIC = Topic.SCALED


@sla.configure(name="numa_ext_scaling_limits")
class GroupsKeepTheirLimits(_Faults):
    """Most looks at an elastic group, and decisions on it, that may be outside its limits."""

    TOPIC = Topic.SCALING_LIMITS


@sla.configure(name="numa_ext_sharing")
class GroupsKeepApart(_Faults):
    """Most groups that may share uplinks with another one; at_least counts groups of several leafs."""

    TOPIC = Topic.SHARING


@sla.configure(name="numa_ext_objective")
class ObjectiveIsMet(_Limited[ShareLimit]):
    """Least share of readings in which the 99th percentile is within its objective."""

    CONFIG_SCHEMA: ClassVar = {
        "type": "object",
        "$schema": consts.JSON_SCHEMA,
        "properties": {"least_share": {"type": "number", "minimum": 0, "maximum": 1}},
        "required": ["least_share"],
        "additionalProperties": False,
    }

    def _made(self, criterion_value: Mapping[str, float]) -> ShareLimit:
        return ShareLimit(criterion_value["least_share"])

    def _add(self, iteration: Iteration) -> None:
        for looked_at, faults in samples.of(iteration, Topic.OBJECTIVE):
            self.limit.add(looked_at, faults)

    def _words(self) -> str:
        return self.limit.details(Topic.OBJECTIVE)


@sla.configure(name="numa_ext_ratio")
class TakesNotMuchLonger(_Limited[RatioLimit]):
    """Largest ratio of the median durations of two atomic actions of the same run."""

    CONFIG_SCHEMA: ClassVar = {
        "type": "object",
        "$schema": consts.JSON_SCHEMA,
        "properties": {
            "action": {"type": "string"},
            "reference": {"type": "string"},
            "max": {"type": "number", "minimum": 0, "exclusiveMinimum": True},
        },
        "required": ["action", "reference", "max"],
        "additionalProperties": False,
    }

    def _made(self, criterion_value: Mapping[str, Any]) -> RatioLimit:
        return RatioLimit(criterion_value["max"])

    def _add(self, iteration: Iteration) -> None:
        actions = iteration["atomic_actions"]
        self.limit.measured_s += samples.durations(actions, self.criterion_value["action"])
        self.limit.reference_s += samples.durations(actions, self.criterion_value["reference"])

    def _words(self) -> str:
        action, reference = self.criterion_value["action"], self.criterion_value["reference"]
        return self.limit.details(action, reference)
