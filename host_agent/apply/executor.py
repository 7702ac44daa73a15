# SPDX-License-Identifier: Apache-2.0
"""The one writer: makes desired assignments true, and writes only what differs.

Order within a round: pins (a best-effort server leaves the caches of a latency-critical one), then resource control,
then pages, within a time slice that all servers share. Everything is read again after it was written. What fails for
one server is reported and does not keep the others from being served; the same failure is reported once, not
every round.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from host_agent.apply.page_backoff import PageBackoff
from host_agent.apply.report import ActionReport
from host_agent.apply.resource_control import ResourceControl
from host_agent.conf.options import Options
from host_agent.machine.libvirt import AgentEndsError
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
from host_agent.model.journal import Result
from host_agent.model.modes import Feature, Modes
from host_agent.model.process import MoveLimits, MoveReport, RamRange
from host_agent.model.terms import Term
from host_agent.model.workload import Activity
from placement_traits.errors import NumaExtError
from placement_traits.reason import Reason

_STUCK: Final = (
    "the kernel did not move all pages: it leaves those that another process maps, too (merged by KSM, shared with "
    "virtiofsd or vhost-user); it is tried again ever more rarely"
)


@dataclass(frozen=True, slots=True)
class RoundHooks:
    """What a round asks of and reports to other parts.

    :param migrating: whether a live migration of a server is running; asked only before its pages are moved
    :param moved: called when the pages of a server were walked to the end, with where they are now; nothing of that
        where it must be read again
    :param progress: called before each server
    :param clock: seconds, monotonic
    """

    migrating: Callable[[str], bool]
    moved: Callable[[str, tuple[RamRange, ...]], None]
    progress: Callable[[], None] = lambda: None
    clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True)
class _Pinned:
    """A server whose threads were where they should be, and what else was to do; pure in the first two.

    :param guest: as it was seen then, which stays true until it is looked at again
    """

    desired: Assignment
    guest: Guest
    todo: Difference


class Executor:
    """Makes decisions true.

    :param privileged: the seam
    :param resource_control: partitions and CPU time
    :param report: where actions are reported
    :param options: limits and switches
    :param hooks: what a round asks of and reports to other parts
    """

    def __init__(
        self,
        privileged: Privileged,
        resource_control: ResourceControl,
        report: ActionReport,
        options: Options,
        hooks: RoundHooks,
    ) -> None:
        self._privileged = privileged
        self._resource_control = resource_control
        self._report = report
        self._options = options
        self._hooks = hooks
        self._backoff = PageBackoff(hooks.clock)
        self._decided: dict[str, Assignment] = {}
        self._pinned: dict[str, _Pinned] = {}

    def apply(
        self, decision: Decision, observation: Observation, slice_s: float, modes: Modes
    ) -> dict[str, Outcome]:
        """Make a decision true as far as this round's limits allow.

        :param slice_s: time that page moves of all servers together may take, seconds
        :param modes: what a feature that observes would do is only reported
        :returns: by server, what was done; a server that the agent may not touch now has no entry
        """
        self._report_decision(decision, observation)
        outcomes: dict[str, Outcome] = {}
        work: list[tuple[Assignment, Guest, Difference]] = []
        for desired in decision.assignments:
            self._hooks.progress()
            guest = observation.get(desired.uuid)
            if guest is None:
                continue
            self._report_sight(guest)
            if guest.blocked_by:
                continue
            outcomes[desired.uuid], todo = self._pin(desired, guest, observation, modes)
            if todo is not None:
                work.append((desired, guest, todo))
        act = modes.act(Feature.RDT)
        places = self._resource_control.partition(decision, observation, act=act)
        self._hooks.progress()
        self._resource_control.limit_cpu_time(decision, observation, act=act)
        for uuid, place in places.items():
            if uuid in outcomes:
                outcomes[uuid] = replace(outcomes[uuid], place=place)
        self._move_pages(work, outcomes, slice_s, act=modes.act(Feature.MEMORY))
        return outcomes

    # -- decisions -----------------------------------------------------------------------------------------------------

    def _report_decision(self, decision: Decision, observation: Observation) -> None:
        for desired in decision.assignments:
            if self._decided.get(desired.uuid) != desired:
                self._decided[desired.uuid] = desired
                guest = observation.get(desired.uuid)
                reasons = (*desired.reasons, *(gpu_reasons(desired, guest) if guest else ()))
                self._report.entry(
                    guest,
                    "decide",
                    Result.NOTED,
                    what=describe(desired, guest),
                    reasons=tuple(map(str, reasons)),
                )
        for uuid, reasons in decision.unplaced.items():
            text = "; ".join(map(str, reasons))
            self._report.failed(observation.get(uuid), "decide", text)
        for uuid in set(self._decided) - {desired.uuid for desired in decision.assignments}:
            gone = self._decided.pop(uuid)
            self._pinned.pop(uuid, None)
            self._resource_control.gone(uuid)
            self._backoff.gone(uuid)
            if observation.get(uuid) is None:
                self._report.gone(uuid, gone.nodes)

    def _report_sight(self, guest: Guest) -> None:
        """Say what could not be read of a server that runs: what cannot be seen is not controlled."""
        if guest.problem and guest.workload.activity is Activity.RUNNING:
            self._report.failed(guest, "observe", guest.problem)
        else:
            self._report.settled(guest.uuid, "observe")

    # -- pins ----------------------------------------------------------------------------------------------------------

    def _pin(
        self, desired: Assignment, guest: Guest, observation: Observation, modes: Modes
    ) -> tuple[Outcome, Difference | None]:
        """Pin threads; return also what else differs, None when the assignment is refused."""
        last = self._pinned.get(desired.uuid)
        if last and last.desired is desired and last.guest is guest:
            return Outcome(), last.todo  # only servers that were touched are looked at again
        try:
            check(desired, guest, observation.topology)
        except NumaExtError as error:
            self._report.failed(guest, "refuse", str(error))
            return Outcome(problems=(str(error),)), None
        todo = difference(desired, guest, self._options.memory.dead_band)
        if not todo.pins or not self._options.pinning.enabled:
            self._pinned[desired.uuid] = _Pinned(desired, guest, todo)
            return Outcome(), todo
        before = {t.tid: t.cpus for t in guest.process.threads} if guest.process else {}
        what = {pin.tid: pin.cpus for pin in todo.pins}
        measured = {"before": {pin.tid: before.get(pin.tid) for pin in todo.pins}}
        if not modes.act(Feature.PINNING):
            self._report.would(guest, "pin", what=what, measured=measured)
            return Outcome(), todo
        try:
            failures = self._privileged.pin(desired.uuid, todo.pins)
            problems = [f"thread {failure.tid}: {failure.problem}" for failure in failures]
            problems += self._unpinned(desired, guest)
        except (NumaExtError, OSError) as error:
            problems = [str(error)]
        text = "; ".join(problems)
        if text:
            self._report.failed(guest, "pin", text, what=what, measured=measured)
            return Outcome(problems=(text,)), todo
        self._report.done(guest, "pin", what=what, measured=measured)
        return Outcome(pinned=len(todo.pins)), todo

    def _unpinned(self, desired: Assignment, guest: Guest) -> list[str]:
        """Read the threads again and name those that are not where they were put."""
        now = replace(guest, process=self._privileged.process(desired.uuid))
        left = difference(desired, now, 1.0).pins
        return [
            f"thread {pin.tid} is not on CPUs {pin.cpus}: its cpuset does not allow them"
            for pin in left
        ]

    # -- pages ---------------------------------------------------------------------------------------------------------

    def _move_pages(
        self,
        work: list[tuple[Assignment, Guest, Difference]],
        outcomes: dict[str, Outcome],
        slice_s: float,
        *,
        act: bool,
    ) -> None:
        memory = self._options.memory
        if not memory.enabled:
            return
        end = self._hooks.clock() + slice_s
        queue = []
        for item in work:
            uuid, targets = item[0].uuid, item[2].targets
            stuck_kb = self._backoff.stuck_kb(uuid, targets, memory.dead_band)
            if stuck_kb:
                outcomes[uuid] = replace(outcomes[uuid], stuck_kb=stuck_kb)
            elif targets:
                queue.append(item)
        queue.sort(key=lambda item: -item[2].misplaced)
        for position, (desired, guest, todo) in enumerate(queue):
            self._hooks.progress()
            seconds = (end - self._hooks.clock()) / (len(queue) - position)
            if seconds <= 0:
                break  # the rest follows in the next round
            outcome = outcomes[desired.uuid]
            try:
                if stays := guest.pages_stay or self._migrates(desired.uuid):
                    self._report.noted(guest, "move", stays)
                    continue
                if not act:
                    self._report.would(guest, "move", **_move(desired, guest, todo))
                    continue
                limits = MoveLimits(1 << 40, memory.rate_mbps, seconds, memory.pause_ms)
                report = self._privileged.move_memory(desired.uuid, todo.targets, limits)
            except AgentEndsError:
                break  # the next agent moves the rest
            except (NumaExtError, OSError) as error:
                self._report.failed(guest, "move", str(error))
                outcomes[desired.uuid] = replace(outcome, problems=(*outcome.problems, str(error)))
                continue
            self._backoff.walked(desired.uuid, todo.targets, report, memory.dead_band)
            if report.over:
                self._hooks.moved(desired.uuid, report.ram)
            outcomes[desired.uuid] = self._report_move(desired, guest, todo, report, outcome)

    def _migrates(self, uuid: str) -> str:
        """Return why pages stay while a server migrates, "" while it does not."""
        return "a job such as a live migration runs on it" if self._hooks.migrating(uuid) else ""

    def _report_move(
        self,
        desired: Assignment,
        guest: Guest,
        todo: Difference,
        report: MoveReport,
        outcome: Outcome,
    ) -> Outcome:
        problem = report.problem
        if not problem and report.failed:
            problem = _STUCK
        figures = {name: value for name, value in report._asdict().items() if name != "ram"}
        entry = _move(desired, guest, todo, **figures)
        if problem:
            self._report.failed(guest, "move", problem, **entry)
        else:
            self._report.done(guest, "move", **entry)
        return replace(
            outcome,
            moved_kb=report.moved_kb,
            remaining_kb=report.remaining_kb,
            problems=(*outcome.problems, *filter(None, (problem,))),
        )


def _move(desired: Assignment, guest: Guest, todo: Difference, **moved: Any) -> dict[str, Any]:
    """Return what the journal says of a move of pages, and of what it was decided on."""
    return {
        "what": {"shares": dict(desired.memory_shares or {}), **moved},
        "measured": {"shares": guest.memory_shares, "misplaced": round(todo.misplaced, 4)},
    }


def gpu_reasons(desired: Assignment, guest: Guest) -> tuple[Reason, ...]:
    """Say where the PCI devices of a server are, against its own nodes."""
    nodes = ",".join(map(str, desired.nodes))
    return tuple(
        Reason(
            Term.GPU, f"{address} on node {'unknown' if node is None else node}", f"node {nodes}"
        )
        for address, node in guest.gpus.items()
    )


def describe(desired: Assignment, guest: Guest | None) -> dict[str, Any]:
    """Return an assignment in plain words for the journal."""
    described: dict[str, Any] = {
        "nodes": list(desired.nodes),
        "vcpus": {vcpu: cpus.text(chosen) for vcpu, chosen in sorted(desired.vcpu_cpus.items())},
    }
    if desired.emulator_cpus is not None:
        described["emulator"] = cpus.text(desired.emulator_cpus)
    if desired.memory_shares is not None:
        described["memory"] = {node: round(s, 4) for node, s in desired.memory_shares.items()}
    if guest is not None and guest.gpus:
        described["gpus"] = guest.gpu_rows
    if desired.partition is not None:
        described["tier"] = desired.partition.tier
        described["ways"] = dict(desired.partition.ways)
        described["mba_percent"] = dict(desired.partition.mba_percent)
    return described
