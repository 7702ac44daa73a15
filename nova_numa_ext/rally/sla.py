# SPDX-License-Identifier: Apache-2.0
"""SLA plug-ins: samples in, passed or failed out. One that saw no sample fails.

The base class would pass before the first sample, so success begins as False here. What :meth:`add_iteration` returns
is another thing: whether the task may go on (``rally task start --abort-on-sla-failure``).
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from rally import consts
from rally.task import sla

from nova_numa_ext.rally import samples
from nova_numa_ext.rally.limits import FaultLimit, RatioLimit, ShareLimit
from nova_numa_ext.rally.samples import Topic

Iteration = Mapping[str, Any]


class _Faults(sla.SLA):  # type: ignore[misc]
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

    def __init__(self, criterion_value: Mapping[str, int]) -> None:
        super().__init__(criterion_value)
        self.limit = FaultLimit(criterion_value["max"], criterion_value.get("at_least", 1))
        self.success = False

    def add_iteration(self, iteration: Iteration) -> bool:
        """Count the samples of an iteration; False when the limit is broken."""
        for looked_at, faults in samples.of(iteration, self.TOPIC):
            self.limit.add(looked_at, faults)
        self.success = self.limit.kept
        return not self.limit.broken

    def merge(self, other: Self) -> bool:
        """Count what another process has counted."""
        self.limit.merge(other.limit)
        self.success = self.limit.kept
        return not self.limit.broken

    def details(self) -> str:
        """Return a sentence for people."""
        return f"{self.limit.details(self.TOPIC)} - {self.status()}"


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


@sla.configure(name="numa_ext_objective")
class ObjectiveIsMet(sla.SLA):  # type: ignore[misc]
    """Least share of readings in which the 99th percentile is within its objective."""

    CONFIG_SCHEMA: ClassVar = {
        "type": "object",
        "$schema": consts.JSON_SCHEMA,
        "properties": {"least_share": {"type": "number", "minimum": 0, "maximum": 1}},
        "required": ["least_share"],
        "additionalProperties": False,
    }

    def __init__(self, criterion_value: Mapping[str, float]) -> None:
        super().__init__(criterion_value)
        self.limit = ShareLimit(criterion_value["least_share"])
        self.success = False

    def add_iteration(self, iteration: Iteration) -> bool:
        """Count the readings of an iteration; later ones may still mend the share."""
        for looked_at, faults in samples.of(iteration, Topic.OBJECTIVE):
            self.limit.add(looked_at, faults)
        self.success = self.limit.kept
        return True

    def merge(self, other: Self) -> bool:
        """Count what another process has counted."""
        self.limit.merge(other.limit)
        self.success = self.limit.kept
        return True

    def details(self) -> str:
        """Return a sentence for people."""
        return f"{self.limit.details(Topic.OBJECTIVE)} - {self.status()}"


@sla.configure(name="numa_ext_ratio")
class TakesNotMuchLonger(sla.SLA):  # type: ignore[misc]
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

    def __init__(self, criterion_value: Mapping[str, Any]) -> None:
        super().__init__(criterion_value)
        self.limit = RatioLimit(criterion_value["max"])
        self.success = False

    def add_iteration(self, iteration: Iteration) -> bool:
        """Take the durations of an iteration; later ones may still mend the medians."""
        actions = iteration["atomic_actions"]
        self.limit.measured_s += samples.durations(actions, self.criterion_value["action"])
        self.limit.reference_s += samples.durations(actions, self.criterion_value["reference"])
        self.success = self.limit.kept
        return True

    def merge(self, other: Self) -> bool:
        """Take the durations that another process has seen."""
        self.limit.merge(other.limit)
        self.success = self.limit.kept
        return True

    def details(self) -> str:
        """Return a sentence for people."""
        action, reference = self.criterion_value["action"], self.criterion_value["reference"]
        return f"{self.limit.details(action, reference)} - {self.status()}"
