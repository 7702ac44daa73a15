# SPDX-License-Identifier: Apache-2.0
"""Resource control in a round: when partitions are looked at again, what is reported of them, and the fallback.

Groups are made or checked when anything changed, and now and then to find tampering. Meanwhile the SLO controller
writes levels itself (:class:`LevelWriter`): what it has written is no tampering.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from host_agent.apply.partition_events import Classes, beyond_levels, class_changes, shared_classes
from host_agent.apply.report import ActionReport
from host_agent.conf.rdt import RdtOptions
from host_agent.machine.privileged.api import Privileged
from host_agent.model.assignment import Decision, Guest, Observation
from host_agent.model.journal import Result
from host_agent.model.partition import PartitionPlace, PartitionReport, PartitionRequest, Write
from host_agent.model.terms import sentence
from placement_traits.errors import NumaExtError
from placement_traits.names import Tier
from placement_traits.reason import Reason

LOG = logging.getLogger(__name__)


class Partitioner(Protocol):
    """What is needed of :class:`~host_agent.apply.partitions.Partitions`."""

    def partition(self, requests: Sequence[PartitionRequest], *, write: bool) -> PartitionReport:
        """Make true what is requested, or say what would be written."""


class LevelWriter(Protocol):
    """What is needed of a controller that writes bandwidth levels of groups itself."""

    def placed(self, places: Mapping[str, PartitionPlace]) -> None:
        """Take note where each server is, right after the groups were made or checked."""

    def superseded(self) -> frozenset[str]:
        """Return the groups whose levels it has written since ``placed``."""

    def suspect(self) -> bool:
        """Tell, once, that groups may have changed and must be looked at now."""


class NoLevels:
    """No such controller runs."""

    def placed(self, places: Mapping[str, PartitionPlace]) -> None:
        """Need nothing."""

    def superseded(self) -> frozenset[str]:
        """Have written nothing."""
        return frozenset()

    def suspect(self) -> bool:
        """Suspect nothing."""
        return False


@dataclass(slots=True)
class _Partitioned:
    """What was last requested of resource control, and the answer."""

    key: object
    at: float
    places: Mapping[str, PartitionPlace]
    shared: Classes
    good: bool


class ResourceControl:
    """Partitions and CPU time of servers.

    :param partitions: gives servers the partitions that they request
    :param privileged: the seam
    :param report: where actions are reported
    :param options: the operator's
    :param levels: the SLO controller
    """

    def __init__(
        self,
        partitions: Partitioner,
        privileged: Privileged,
        report: ActionReport,
        options: RdtOptions,
        levels: LevelWriter | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._partitions = partitions
        self._privileged = privileged
        self._report = report
        self._options = options
        # After a hang that was long enough for the dead-man switch, the first round looks.
        self._every_s = min(options.verify_s, options.release_after_s)
        self._levels = levels or NoLevels()
        self._clock = clock
        self._partitioned: _Partitioned | None = None
        self._limited: tuple[tuple[bool, tuple[tuple[str, int], ...]], float] | None = None
        self._places: dict[str, PartitionPlace] = {}

    def gone(self, uuid: str) -> None:
        """Forget a server."""
        self._places.pop(uuid, None)

    def partition(
        self, decision: Decision, observation: Observation, *, act: bool
    ) -> Mapping[str, PartitionPlace]:
        """Ask for the partitions when anything changed, and now and then to find tampering.

        :param act: false: only report what would be written
        :returns: by server, where it is now; nothing where only what would be written was reported
        """
        rdt = self._options
        if not rdt.enabled:
            return {}
        requests = tuple(
            assignment.partition for assignment in decision.assignments if assignment.partition
        )
        if observation.topology.rdt is None:  # no failure of an action: discovery has reported it
            if requests:
                self._report.noted(
                    None, "partition", "no resctrl file system is mounted: no partitions"
                )
            return {}
        # A domain that wakes up has the kernel's defaults: all ways for every group.
        domains = observation.topology.rdt.l3_ids
        key = (act, requests, _threads(requests, observation), domains)
        last = self._partitioned
        now = self._clock()
        suspect = self._levels.suspect()
        if last and last.key == key and now - last.at < self._every_s and not suspect:
            return last.places
        superseded = self._levels.superseded()
        report = self._partitions.partition(requests, write=act)
        if not act:
            self._report_would(report, observation)
            shared = shared_classes(requests, report.places)
            self._partitioned = _Partitioned(key, now, {}, shared, False)
            return {}
        repeated = last is not None and last.good and last.key == key
        self._report_written(report, superseded, repeated=repeated)
        for place in report.places:
            self._report_place(observation.get(place.uuid), place, report.problem)
        places = {place.uuid: place for place in report.places}
        shared = shared_classes(requests, report.places)
        for event in class_changes(last.shared if last else shared, shared):
            self._report.done(
                None, event.change, what={"group": event.group, "servers": event.servers}
            )
        at = -math.inf if report.again else now
        self._partitioned = _Partitioned(key, at, places, shared, not report.problem)
        self._levels.placed(places)
        return places

    def _report_written(
        self, report: PartitionReport, superseded: frozenset[str], *, repeated: bool
    ) -> None:
        """Report what was written.

        :param superseded: groups whose levels the SLO controller had written before
        :param repeated: the same was requested before, and done: what was written undoes foreign writes
        """
        if report.problem:
            self._report.failed(None, "partition", report.problem)
        elif repeated and (
            foreign := beyond_levels(report.writes, superseded | self._levels.superseded())
        ):
            LOG.warning(
                "others have changed RDT groups; put right: %s", "; ".join(map(str, foreign))
            )
            self._report.done(None, "repair", what={"writes": _texts(report.writes)})
        elif report.writes:
            self._report.done(None, "partition", what={"writes": _texts(report.writes)})
        else:
            self._report.settled("", "partition")

    def _report_would(self, report: PartitionReport, observation: Observation) -> None:
        """Report what would be written."""
        if report.problem:
            self._report.failed(None, "partition", report.problem)
        elif report.writes:
            self._report.would(None, "partition", what={"writes": _texts(report.writes)})
        for place in report.places:
            if place.moved:
                guest = observation.get(place.uuid)
                self._report.would(guest, "join", what={"group": place.group})

    def _report_place(self, guest: Guest | None, place: PartitionPlace, reported: str) -> None:
        what = {
            "group": place.group,
            "monitor": place.monitor,
            "threads": place.moved,
            "exclusive": place.exclusive,
        }
        # What a fresh agent finds is no event, but for a server that is not as protected as it was promised.
        before = self._places.get(place.uuid) or replace(place, exclusive=_critical(guest))
        self._places[place.uuid] = place
        if place.problem and place.problem != reported:
            self._report.failed(guest, "join", place.problem, what=what)
        elif place.moved:
            self._report.done(guest, "join", what=what, reasons=tuple(map(str, place.reasons)))
        elif not place.problem and _standing(place) != _standing(before):
            self._report.entry(
                guest, "place", Result.NOTED, what=what, reasons=tuple(map(str, place.reasons))
            )
        if _critical(guest) and before.exclusive and not place.exclusive and not place.problem:
            LOG.warning(
                "server %s is not exclusive: %s",
                place.uuid,
                "; ".join(map(sentence, place.reasons)),
            )

    def limit_cpu_time(self, decision: Decision, observation: Observation, *, act: bool) -> None:
        """Throttle best-effort servers by CPU time where their memory traffic cannot be.

        Where that is switched off what an earlier agent has left is released: once, and again while that fails.

        :param act: false: only report what would be written
        """
        rdt, capability = self._options, observation.topology.rdt
        used = rdt.enabled and rdt.cpu_time_fallback and not (capability and capability.mba)
        levels = tuple(
            (request.uuid, min(request.mba_percent.values()))
            for assignment in decision.assignments
            if used
            and (request := assignment.partition)
            and request.running
            and request.mba_percent
        )
        now, last = self._clock(), self._limited
        if last and last[0] == (act, levels) and now - last[1] < self._every_s:
            return
        try:
            report = self._privileged.limit_cpu_time(levels, act)
        except (NumaExtError, OSError) as error:
            self._report.failed(None, "throttle", str(error))
            return
        done = not used and not report.problems
        self._limited = (act, levels), math.inf if done else now
        if report.writes:
            report_action = self._report.done if act else self._report.would
            report_action(None, "throttle", what={"writes": report.writes})
        for uuid, problem in report.problems:
            self._report.failed(observation.get(uuid), "throttle", problem)


def _texts(writes: Sequence[Write]) -> tuple[str, ...]:
    return tuple(map(str, writes))


def _critical(guest: Guest | None) -> bool:
    return guest is not None and guest.workload.tier is Tier.LC


def _standing(place: PartitionPlace) -> tuple[str, bool, tuple[Reason, ...]]:
    return place.group, place.exclusive, place.reasons


def _threads(requests: tuple[PartitionRequest, ...], observation: Observation) -> frozenset[int]:
    """All threads that belong into a group: a new one makes the partitions be looked at again."""
    found: set[int] = set()
    for request in requests:
        guest = observation.get(request.uuid)
        if guest and guest.process:
            found.update(thread.tid for thread in guest.process.threads)
    return frozenset(found)
