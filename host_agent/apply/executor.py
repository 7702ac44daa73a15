# SPDX-License-Identifier: Apache-2.0
"""The one writer: makes wanted assignments true, and writes only what differs.

Order within a round: pins (a best-effort server leaves the caches of a latency-critical one), then resource control,
then pages, within a time slice that all servers share. Everything is read again after it was written. What fails for
one server is reported and does not keep the others from being served; the same failure is told once, not every round.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from host_agent.apply.partition_events import Classes, beyond_levels, class_changes, shared_classes
from host_agent.conf.agent import Settings
from host_agent.machine.privileged.api import Privileged
from host_agent.model import cpus
from host_agent.model.assignment import (
    Assignment,
    Decision,
    Difference,
    Guest,
    Observation,
    Outcome,
    check,
    difference,
)
from host_agent.model.journal import ActionJournal, Entry, Result
from host_agent.model.partition import PartitionPlace, PartitionReport, PartitionRequest, Write
from host_agent.model.process import MoveLimits, MoveReport
from host_agent.model.terms import Term, sentence
from host_agent.model.workload import Activity
from placement_traits.errors import NumaExtError
from placement_traits.names import Tier
from placement_traits.reason import Reason

LOG = logging.getLogger(__name__)

Count = Callable[[str, Result], None]


def _ignore_count(_action: str, _result: Result) -> None:
    """Count nothing."""


def ignore_places(_places: Mapping[str, PartitionPlace]) -> None:
    """Nobody wants to know."""


class Partitioner(Protocol):
    """What the executor needs of :class:`~host_agent.apply.partitions.Partitions`."""

    def partition(self, requests: Sequence[PartitionRequest], *, write: bool) -> PartitionReport:
        """Make true what is requested, or say what would be written."""


@dataclass(slots=True)
class _Partitioned:
    """What was last asked of resource control, and the answer."""

    key: object
    at: float
    places: Mapping[str, PartitionPlace]
    shared: Classes
    good: bool


class Executor:
    """Makes decisions true.

    :param privileged: the seam; a read-only one for a dry run
    :param partitions: gives servers the resource control that they request
    :param journal: told about every action
    :param settings: limits and switches
    :param migrating: tells whether a live migration of a server is running; asked only before its pages are moved
    :param moved: told when the pages of a server were walked to the end and where they are must be read again
    :param placed: told where each server is in resource control, right after the groups were made or checked
    :param overtaken: tells the groups whose levels the bandwidth controller has written itself since ``placed``
    :param doubted: tells, once, that groups may have changed and must be looked at now
    :param count: counts actions for the metrics
    :param progress: called before each server
    :param dry_run: actions are told as ``would``, and nothing is verified
    """

    def __init__(
        self,
        privileged: Privileged,
        partitions: Partitioner,
        journal: ActionJournal,
        settings: Settings,
        *,
        migrating: Callable[[str], bool],
        moved: Callable[[str], None],
        placed: Callable[[Mapping[str, PartitionPlace]], None] = ignore_places,
        overtaken: Callable[[], frozenset[str]] = frozenset,
        doubted: Callable[[], bool] = bool,
        count: Count = _ignore_count,
        progress: Callable[[], None] = lambda: None,
        dry_run: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._privileged = privileged
        self._partitions = partitions
        self._journal = journal
        self._settings = settings
        self._migrating = migrating
        self._moved = moved
        self._placed = placed
        self._overtaken = overtaken
        self._doubted = doubted
        self._count = count
        self._progress = progress
        self._dry_run = dry_run
        self._clock = clock
        self._partitioned: _Partitioned | None = None
        self._limited: tuple[tuple[tuple[str, int], ...], float] | None = None
        self._told: dict[tuple[str, str], str] = {}
        self._decided: dict[str, Assignment] = {}
        self._places: dict[str, PartitionPlace] = {}

    def apply(
        self, decision: Decision, observation: Observation, slice_s: float
    ) -> dict[str, Outcome]:
        """Make a decision true as far as this round's limits allow.

        :param slice_s: time that page moves of all servers together may take, seconds
        :returns: by server, what was done; a server that the agent may not touch now has no entry
        """
        self._tell_decision(decision, observation)
        outcomes: dict[str, Outcome] = {}
        work: list[tuple[Assignment, Guest, Difference]] = []
        for wanted in decision.assignments:
            self._progress()
            guest = observation.get(wanted.uuid)
            if guest is None:
                continue
            self._tell_sight(guest)
            if guest.hands_off:
                continue
            outcomes[wanted.uuid], todo = self._pin(wanted, guest, observation)
            if todo is not None:
                work.append((wanted, guest, todo))
        places = self._partition(decision, observation)
        self._progress()
        self._limit_cpu_time(decision, observation)
        for uuid, place in places.items():
            if uuid in outcomes:
                outcomes[uuid] = replace(outcomes[uuid], place=place)
        self._move_pages(work, outcomes, slice_s)
        return outcomes

    # -- decisions -----------------------------------------------------------------------------------------------------

    def _tell_decision(self, decision: Decision, observation: Observation) -> None:
        for wanted in decision.assignments:
            if self._decided.get(wanted.uuid) != wanted:
                self._decided[wanted.uuid] = wanted
                guest = observation.get(wanted.uuid)
                reasons = (*wanted.reasons, *(gpu_reasons(wanted, guest) if guest else ()))
                self._tell(
                    guest,
                    "decide",
                    Result.NOTED,
                    what=describe(wanted, guest),
                    reasons=tuple(map(str, reasons)),
                )
        for uuid, reasons in decision.unplaced.items():
            text = "; ".join(map(str, reasons))
            self._fail(observation.get(uuid), "decide", text)
        for uuid in set(self._decided) - {wanted.uuid for wanted in decision.assignments}:
            gone = self._decided.pop(uuid)
            self._places.pop(uuid, None)
            self._told = {key: said for key, said in self._told.items() if key[0] != uuid}
            self._journal.write(Entry("gone", Result.NOTED, uuid, what={"nodes": gone.nodes}))

    def _tell_sight(self, guest: Guest) -> None:
        """Say what could not be read of a server that runs: what cannot be seen is not controlled."""
        if guest.problem and guest.workload.activity is Activity.RUNNING:
            self._fail(guest, "observe", guest.problem)
        else:
            self._told.pop((guest.uuid, "observe"), None)

    # -- pins ----------------------------------------------------------------------------------------------------------

    def _pin(
        self, wanted: Assignment, guest: Guest, observation: Observation
    ) -> tuple[Outcome, Difference | None]:
        """Pin threads; return also what else differs, None when the assignment is refused."""
        try:
            check(wanted, guest, observation.topology)
        except NumaExtError as error:
            self._fail(guest, "refuse", str(error))
            return Outcome(problems=(str(error),)), None
        todo = difference(wanted, guest, self._settings.memory.dead_band)
        if not todo.pins or not self._settings.pinning:
            return Outcome(), todo
        before = {t.tid: t.cpus for t in guest.process.threads} if guest.process else {}
        what = {pin.tid: pin.cpus for pin in todo.pins}
        measured = {"before": {pin.tid: before.get(pin.tid) for pin in todo.pins}}
        try:
            failures = self._privileged.pin(wanted.uuid, todo.pins)
            problems = [f"thread {failure.tid}: {failure.problem}" for failure in failures]
            problems += self._unpinned(wanted, guest)
        except (NumaExtError, OSError) as error:
            problems = [str(error)]
        text = "; ".join(problems)
        if text:
            self._fail(guest, "pin", text, what=what, measured=measured)
            return Outcome(problems=(text,)), todo
        self._done(guest, "pin", what=what, measured=measured)
        return Outcome(pinned=len(todo.pins)), todo

    def _unpinned(self, wanted: Assignment, guest: Guest) -> list[str]:
        """Read the threads again and name those that are not where they were put."""
        if self._dry_run:
            return []
        now = replace(guest, process=self._privileged.process(wanted.uuid))
        left = difference(wanted, now, 1.0).pins
        return [
            f"thread {pin.tid} is not on CPUs {pin.cpus}: its cpuset does not allow them"
            for pin in left
        ]

    # -- resource control ----------------------------------------------------------------------------------------------

    def _partition(
        self, decision: Decision, observation: Observation
    ) -> Mapping[str, PartitionPlace]:
        """Ask for the partitions when anything changed, and now and then to find tampering."""
        rdt = self._settings.rdt
        if not rdt.enabled:
            return {}
        wishes = tuple(wanted.partition for wanted in decision.assignments if wanted.partition)
        if observation.topology.rdt is None:  # no failure of an action: discovery has said it
            if wishes:
                self._note(None, "partition", "no resctrl file system is mounted: no partitions")
            return {}
        key = (wishes, _threads(wishes, observation))
        last = self._partitioned
        now = self._clock()
        doubted = self._doubted()
        if last and last.key == key and now - last.at < rdt.verify_s and not doubted:
            return last.places
        overtaken = self._overtaken()
        report = self._partitions.partition(wishes, write=not self._dry_run)
        if report.problem:
            self._fail(None, "partition", report.problem)
        elif (
            last
            and last.good
            and last.key == key
            and (foreign := self._foreign(report.writes, overtaken | self._overtaken()))
        ):
            LOG.warning(
                "others have changed RDT groups; put right: %s", "; ".join(map(str, foreign))
            )
            self._done(None, "repair", what={"writes": _texts(report.writes)})
        elif report.writes:
            self._done(None, "partition", what={"writes": _texts(report.writes)})
        else:
            self._told.pop(("", "partition"), None)
        for place in report.places:
            self._tell_place(observation.get(place.uuid), place, report.problem)
        places = {place.uuid: place for place in report.places}
        shared = shared_classes(wishes, report.places)
        for news in class_changes(last.shared if last else shared, shared):
            self._done(None, news.change, what={"group": news.group, "servers": news.servers})
        self._partitioned = _Partitioned(key, now, places, shared, not report.problem)
        self._placed(places)
        return places

    def _foreign(self, writes: tuple[Write, ...], overtaken: frozenset[str]) -> tuple[Write, ...]:
        """Return what undoes others' work, not only levels that the bandwidth controller has written itself."""
        return () if self._dry_run else beyond_levels(writes, overtaken)

    def _tell_place(self, guest: Guest | None, place: PartitionPlace, told: str) -> None:
        what = {
            "group": place.group,
            "monitor": place.monitor,
            "threads": place.moved,
            "exclusive": place.exclusive,
        }
        # What a fresh agent finds is no news, but for a server that is not as protected as it was promised.
        before = self._places.get(place.uuid) or replace(place, exclusive=_critical(guest))
        self._places[place.uuid] = place
        if place.problem and place.problem != told:
            self._fail(guest, "join", place.problem, what=what)
        elif place.moved:
            self._done(guest, "join", what=what, reasons=tuple(map(str, place.reasons)))
        elif not place.problem and _standing(place) != _standing(before):
            self._tell(
                guest, "place", Result.NOTED, what=what, reasons=tuple(map(str, place.reasons))
            )
        if _critical(guest) and before.exclusive and not place.exclusive and not place.problem:
            LOG.warning(
                "server %s is not exclusive: %s",
                place.uuid,
                "; ".join(map(sentence, place.reasons)),
            )

    def _limit_cpu_time(self, decision: Decision, observation: Observation) -> None:
        """Throttle best-effort servers by CPU time where their memory traffic cannot be.

        Where that is not wanted what an earlier agent has left is released, once.
        """
        rdt, capability = self._settings.rdt, observation.topology.rdt
        used = rdt.enabled and rdt.cpu_time_fallback and not (capability and capability.mba)
        levels = tuple(
            (wish.uuid, min(wish.mba_percent.values()))
            for wanted in decision.assignments
            if used and (wish := wanted.partition) and wish.running and wish.mba_percent
        )
        now, last = self._clock(), self._limited
        if last and last[0] == levels and (not used or now - last[1] < rdt.verify_s):
            return
        try:
            report = self._privileged.limit_cpu_time(levels, not self._dry_run)
        except (NumaExtError, OSError) as error:
            self._fail(None, "throttle", str(error))
            return
        self._limited = levels, now
        if report.writes:
            self._done(None, "throttle", what={"writes": report.writes})
        for uuid, problem in report.problems:
            self._fail(observation.get(uuid), "throttle", problem)

    # -- pages ---------------------------------------------------------------------------------------------------------

    def _move_pages(
        self,
        work: list[tuple[Assignment, Guest, Difference]],
        outcomes: dict[str, Outcome],
        slice_s: float,
    ) -> None:
        memory = self._settings.memory
        if not memory.enabled:
            return
        end = self._clock() + slice_s
        queue = [item for item in work if item[2].targets]
        queue.sort(key=lambda item: -item[2].misplaced)
        for position, (wanted, guest, todo) in enumerate(queue):
            self._progress()
            seconds = (end - self._clock()) / (len(queue) - position)
            if seconds <= 0:
                break  # the rest follows in the next round
            outcome = outcomes[wanted.uuid]
            try:
                stays = guest.pages_stay or (
                    "a job such as a live migration runs on it"
                    if self._migrating(wanted.uuid)
                    else ""
                )
                if stays:
                    self._note(guest, "move", stays)
                    continue
                limits = MoveLimits(1 << 40, memory.rate_mbps, seconds, memory.pause_ms)
                report = self._privileged.move_memory(wanted.uuid, todo.targets, limits)
            except (NumaExtError, OSError) as error:
                self._fail(guest, "move", str(error))
                outcomes[wanted.uuid] = replace(outcome, problems=(*outcome.problems, str(error)))
                continue
            if report.over:
                self._moved(wanted.uuid)
            outcomes[wanted.uuid] = self._tell_move(wanted, guest, todo, report, outcome)

    def _tell_move(
        self,
        wanted: Assignment,
        guest: Guest,
        todo: Difference,
        report: MoveReport,
        outcome: Outcome,
    ) -> Outcome:
        problem = report.problem
        if not problem and report.failed:
            problem = f"the kernel did not move {report.failed} pages"
        what = {"shares": dict(wanted.memory_shares or {}), **report._asdict()}
        measured = {"shares": guest.memory_shares, "misplaced": round(todo.misplaced, 4)}
        if problem:
            self._fail(guest, "move", problem, what=what, measured=measured)
        else:
            self._done(guest, "move", what=what, measured=measured)
        return replace(
            outcome,
            moved_kb=report.moved_kb,
            remaining_kb=report.remaining_kb,
            problems=(*outcome.problems, *filter(None, (problem,))),
        )

    # -- telling -------------------------------------------------------------------------------------------------------

    def _done(self, guest: Guest | None, action: str, **more: Any) -> None:
        result = Result.DONE
        if self._dry_run:  # nothing is done, so the same is wanted in every round
            result = Result.WOULD
            if not self._news(guest, action, f"would {more.get('what')}"):
                return
        else:
            self._told.pop((guest.uuid if guest else "", action), None)
        self._tell(guest, action, result, **more)
        self._count(action, result)

    def _fail(self, guest: Guest | None, action: str, problem: str, **more: Any) -> None:
        self._count(action, Result.FAILED)
        if self._news(guest, action, problem):
            LOG.warning("%s of %s: %s", action, guest.uuid if guest else "this host", problem)
            self._tell(guest, action, Result.FAILED, problem=problem, **more)

    def _note(self, guest: Guest | None, action: str, problem: str) -> None:
        if self._news(guest, action, problem):
            self._tell(guest, action, Result.NOTED, problem=problem)

    def _news(self, guest: Guest | None, action: str, problem: str) -> bool:
        key = (guest.uuid if guest else "", action)
        if self._told.get(key) == problem:
            return False
        self._told[key] = problem
        return True

    def _tell(self, guest: Guest | None, action: str, result: Result, **more: Any) -> None:
        server = guest.uuid if guest else ""
        title = guest.workload.title if guest else ""
        self._journal.write(Entry(action, result, server, title, **more))


def _texts(writes: Sequence[Write]) -> tuple[str, ...]:
    return tuple(map(str, writes))


def _critical(guest: Guest | None) -> bool:
    return guest is not None and guest.workload.tier is Tier.LC


def _standing(place: PartitionPlace) -> tuple[str, bool, tuple[Reason, ...]]:
    return place.group, place.exclusive, place.reasons


def _threads(wishes: tuple[PartitionRequest, ...], observation: Observation) -> frozenset[int]:
    """All threads that belong into a group: a new one makes the partitions be looked at again."""
    found: set[int] = set()
    for wish in wishes:
        guest = observation.get(wish.uuid)
        if guest and guest.process:
            found.update(thread.tid for thread in guest.process.threads)
    return frozenset(found)


def gpu_reasons(wanted: Assignment, guest: Guest) -> tuple[Reason, ...]:
    """Say where the PCI devices of a server are, against its own nodes."""
    homes = ",".join(map(str, wanted.nodes))
    return tuple(
        Reason(
            Term.GPU, f"{address} on node {'unknown' if node is None else node}", f"node {homes}"
        )
        for address, node in guest.gpus.items()
    )


def describe(wanted: Assignment, guest: Guest | None) -> dict[str, Any]:
    """Return an assignment in plain words for the journal."""
    described: dict[str, Any] = {
        "nodes": list(wanted.nodes),
        "vcpus": {vcpu: cpus.text(chosen) for vcpu, chosen in sorted(wanted.vcpu_cpus.items())},
    }
    if wanted.emulator_cpus is not None:
        described["emulator"] = cpus.text(wanted.emulator_cpus)
    if wanted.memory_shares is not None:
        described["memory"] = {node: round(s, 4) for node, s in wanted.memory_shares.items()}
    if guest is not None and guest.gpus:
        described["gpus"] = guest.gpu_rows
    if wanted.partition is not None:
        described["tier"] = wanted.partition.tier
        described["ways"] = dict(wanted.partition.ways)
        described["mba_percent"] = dict(wanted.partition.mba_percent)
    return described
