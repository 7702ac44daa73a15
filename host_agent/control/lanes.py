# SPDX-License-Identifier: Apache-2.0
"""Keeps lanes of uplinks and marks of taps as they are planned; what others make of them is left to others.

Each turn reads what the kernel has, plans, and writes what differs. What was written is read back: lanes that are not
there then are taken off again, and so are lanes that others have overwritten twice in ten minutes. Marks are written as
a whole whenever servers come, go or get another tap; without lanes there are none.

The agent may order how the lane of best-effort servers is held, for the sake of objectives that only it knows: what
they send together at most, or what part of their share they keep. No other order is taken, and each lapses: an agent
that is gone, paused or hung holds no server.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from host_agent.decide.lanes import queues, ruleset, terms
from host_agent.decide.lanes.guard import LaneGuard
from host_agent.decide.lanes.planning import (
    LanePlan,
    LaneSettings,
    is_ours,
    planned,
    unmarked,
)
from host_agent.model.lanes import (
    NOT_HELD,
    OFFLOAD,
    BestEffortHold,
    LaneOrder,
    LanePort,
    LaneQueue,
    ShownMarks,
    ShownQueue,
    UplinkFacts,
    UplinkReport,
)
from host_agent.model.levels import FULL
from placement_traits.errors import CapabilityMissingError
from placement_traits.names import Tier
from placement_traits.reason import Reason

_LOG: Final = logging.getLogger(__name__)

LEASE_S: Final = 10.0
"""After so long without another order of the agent its last one lapses."""


class UplinkDevices(Protocol):
    """What lanes need of the machine; see :class:`~host_agent.machine.uplinks.Uplinks`."""

    def names(self) -> tuple[str, ...]:
        """All network devices."""

    def index(self, device: str) -> int | None:
        """The kernel's number of a device."""

    def facts(self, device: str) -> UplinkFacts:
        """What is known of an uplink."""

    def queue(self, device: str) -> ShownQueue:
        """Its root qdisc."""

    def userland_ports(self) -> frozenset[str]:
        """Devices whose packets a program switches, past the kernel's marks.

        :raises CapabilityMissingError: that cannot be known
        """

    def marks(self) -> ShownMarks | None:
        """Our tables in nft."""

    def write_queues(self, batch: str) -> None:
        """Carry out a batch of tc."""

    def write_marks(self, text: str) -> None:
        """Carry out a ruleset of nft."""


@dataclass(frozen=True, slots=True)
class LaneTurn:
    """What a turn has found.

    :param lanes: uplinks that have lanes, with what these are made of
    :param reasons: why an uplink has none, or a port no mark
    :param marked: taps that have a mark
    :param troubles: what a program has refused
    """

    lanes: Mapping[str, str] = field(default_factory=dict)
    reasons: tuple[Reason, ...] = ()
    marked: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()

    def sentences(self) -> tuple[str, ...]:
        """Return all that keeps lanes or marks away, for people."""
        return (*map(terms.sentence, self.reasons), *self.troubles)


@dataclass(slots=True)
class _Uplink:
    """An uplink of the configuration.

    :param guard: how often others have overwritten its lanes
    :param index: the kernel's number of the device whose lanes they are
    :param made: the lanes that stand there by what we know
    :param last: what the last turn has found, also where the lanes are an adapter's own; it stands while nothing can
        be read
    :param ordered: how best-effort servers are to be held
    :param refused: an order that the kernel did not take; it is not tried again until another one was given
    :param withdrawn: why there are to be none until the next start
    """

    guard: LaneGuard
    index: int | None = None
    made: LanePlan | None = None
    last: LanePlan | None = None
    ordered: BestEffortHold = NOT_HELD
    refused: BestEffortHold | None = None
    withdrawn: Reason | None = None


class LaneKeeper:
    """Keeps them.

    :param devices: of this host
    :param uplinks: names of those that may have lanes
    :param queue: what lanes are made of
    :param settings: what operators decide
    :param dry_run: called with each text instead of writing it; None: it is written
    """

    def __init__(
        self,
        devices: UplinkDevices,
        uplinks: Iterable[str],
        queue: LaneQueue,
        settings: LaneSettings,
        dry_run: Callable[[str], object] | None = None,
    ) -> None:
        self._devices = devices
        self._queue = queue
        self._settings = settings
        self._dry_run = dry_run
        self._uplinks = {name: _Uplink(LaneGuard(name)) for name in uplinks}
        self._taps: dict[str, int] = {}
        self._tiers: Mapping[str, Tier | None] = {}
        self._lapses_s = 0.0

    @property
    def indexes(self) -> frozenset[int]:
        """Numbers of the uplinks that were there in the last turn."""
        found = (uplink.index for uplink in self._uplinks.values())
        return frozenset(index for index in found if index is not None)

    def turn(self, ports: Iterable[LanePort], now_s: float) -> LaneTurn:
        """Have the kernel as planned.

        :param ports: of servers that run here
        :param now_s: monotonic clock
        """
        reasons: list[Reason] = []
        troubles: list[str] = []
        self.lapse(now_s)
        plans: dict[str, LanePlan] = {}
        for name, uplink in self._uplinks.items():
            try:
                found = self._keep(name, uplink, now_s)
            except CapabilityMissingError as error:
                troubles.append(str(error))
                if uplink.last:
                    plans[name] = uplink.last
                continue
            if isinstance(found, LanePlan):
                plans[name] = uplink.last = found
            else:
                reasons += found
        marked: tuple[str, ...] = ()
        past = frozenset[str]()
        try:
            past = self._devices.userland_ports() if plans else past
        except CapabilityMissingError as error:
            troubles.append(f"marks of taps may be passed by: {error}")
        ports = tuple(
            replace(port, bypasses=True) if port.device in past else port for port in ports
        )
        try:
            marked = self._mark(next(iter(plans.values()), None), ports)
        except CapabilityMissingError as error:
            troubles.append(str(error))
        self._tiers = {port.device: port.tier for port in ports if port.device in marked}
        if plans:
            reasons += [reason for port in ports if (reason := unmarked(port))]
        lanes = {name: plan.queue or OFFLOAD for name, plan in plans.items()}
        return LaneTurn(lanes, tuple(reasons), marked, tuple(troubles))

    def order(self, order: LaneOrder, now_s: float) -> UplinkReport:
        """Hold best-effort servers so, at once and until it lapses; return what is effective then.

        :param now_s: monotonic clock
        """
        self._lapses_s = now_s + LEASE_S
        for name, uplink in self._uplinks.items():
            ordered = order.of(name)
            if ordered != uplink.refused:
                uplink.refused = None
                uplink.ordered = ordered
            self._hold(name, uplink)
        there = {
            name: uplink.made
            for name, uplink in self._uplinks.items()
            if uplink.made and uplink.made.queue is LaneQueue.HTB
        }
        holds = {name: made.hold for name, made in there.items()}
        return UplinkReport(
            {name: made.speed_mbps for name, made in there.items()},
            self._tiers,
            LaneOrder(
                {
                    name: hold.most_mbps
                    for name, hold in holds.items()
                    if hold.most_mbps is not None
                },
                {
                    name: hold.share_percent
                    for name, hold in holds.items()
                    if hold.share_percent < FULL
                },
            ),
        )

    def lapse(self, now_s: float) -> None:
        """Hold best-effort servers no longer where the agent has not repeated its order.

        :param now_s: monotonic clock
        """
        held = [name for name, uplink in self._uplinks.items() if uplink.ordered != NOT_HELD]
        if held and now_s >= self._lapses_s:
            _LOG.warning(
                "the agent says nothing any more: best-effort servers send as much as goes"
            )
            for name in held:
                self._uplinks[name].ordered = NOT_HELD
                self._hold(name, self._uplinks[name])

    def _hold(self, name: str, uplink: _Uplink) -> None:
        """Have the lane of best-effort servers as it was ordered; where that fails, as it is without an order."""
        made = uplink.made
        if not made or made.queue is not LaneQueue.HTB or made.hold == uplink.ordered:
            return
        plan = replace(made, hold=uplink.ordered)
        try:
            self._write_queues(queues.changed(made, plan))
            if not queues.shows(plan, self._devices.queue(name)):
                raise CapabilityMissingError(f"lanes of {name} are not held as they were written")
            uplink.made = plan
        except CapabilityMissingError as error:
            _LOG.warning("%s", error)
            uplink.refused, uplink.ordered = uplink.ordered, NOT_HELD
            uplink.made = None  # the next turn makes the lanes again

    def reset(self) -> None:
        """Take off all lanes and marks of ours, also those of an earlier start; what others have made stays.

        :raises CapabilityMissingError: a program refuses; the rest has been taken off
        """
        failed = self._take_off(self._devices.names())
        try:
            if self._devices.marks() is not None:
                self._write_marks(ruleset.removed())
        except CapabilityMissingError as error:
            failed.append(str(error))
        if failed:
            raise CapabilityMissingError("; ".join(failed))

    def forget_others(self) -> None:
        """Take lanes of ours off devices that are no uplinks any more.

        :raises CapabilityMissingError: tc refuses; the rest has been taken off
        """
        failed = self._take_off(name for name in self._devices.names() if name not in self._uplinks)
        if failed:
            raise CapabilityMissingError("; ".join(failed))

    def _take_off(self, names: Iterable[str]) -> list[str]:
        """Take lanes of ours off devices; return what was refused."""
        failed = []
        for name in names:
            try:
                if self._is_ours(name):
                    self._write_queues(queues.removed(name))
            except CapabilityMissingError as error:
                failed.append(str(error))
        return failed

    def _keep(self, name: str, uplink: _Uplink, now_s: float) -> LanePlan | tuple[Reason, ...]:
        if uplink.withdrawn:
            return (uplink.withdrawn,)
        index = self._devices.index(name)
        if index != uplink.index:  # another device of that name: nothing was overwritten
            uplink.index, uplink.made, uplink.last = index, None, None
        facts = self._devices.facts(name)
        shown = self._devices.queue(name)
        uplink.last = None
        if uplink.made is not None and not queues.shows(uplink.made, shown):
            _LOG.warning("lanes of %s were overwritten: its root qdisc is %s", name, shown.kind)
            uplink.made = None
            uplink.withdrawn = uplink.guard.overwritten(now_s)
        desired = planned(facts, [self._queue], self._settings)
        ours = is_ours(shown.handle, shown.kind)
        if isinstance(desired, LanePlan) and desired.queue is LaneQueue.HTB:
            desired = replace(desired, hold=uplink.ordered)
        if uplink.withdrawn or not isinstance(desired, LanePlan):
            if ours:
                self._write_queues(queues.removed(name))
            uplink.made = None
            if uplink.withdrawn:
                _LOG.error("%s", terms.sentence(uplink.withdrawn))
                return (uplink.withdrawn,)
            return desired if isinstance(desired, tuple) else ()
        if desired.queue is None:  # the adapter's own: where ours were before, they are in its way
            if ours:
                self._write_queues(queues.removed(name))
            return desired
        if not queues.shows(desired, shown):
            self._make(name, desired, replaces=ours)
        uplink.made = desired
        return desired

    def _make(self, name: str, plan: LanePlan, *, replaces: bool) -> None:
        try:
            self._write_queues(queues.written(plan, replaces=replaces))
            if self._dry_run is None and not queues.shows(plan, self._devices.queue(name)):
                raise CapabilityMissingError(
                    f"lanes of {name} are not there as they were written: they are taken off"
                )
        except CapabilityMissingError:
            if self._is_ours(name):
                self._write_queues(queues.removed(name))
            raise

    def _is_ours(self, name: str) -> bool:
        shown = self._devices.queue(name)
        return is_ours(shown.handle, shown.kind)

    def _mark(self, plan: LanePlan | None, ports: tuple[LanePort, ...]) -> tuple[str, ...]:
        shown = self._devices.marks()
        if plan is None:
            if shown is not None:
                self._write_marks(ruleset.removed())
            self._taps = {}
            return ()
        there = {port.device: self._devices.index(port.device) for port in ports}
        may = [port for port in ports if there[port.device] is not None and not unmarked(port)]
        taps = {port.device: index for port in may if (index := there[port.device]) is not None}
        expected = ruleset.expected(plan, may)
        if shown != expected or taps != self._taps:
            self._write_marks(ruleset.written(plan, may))
            if self._dry_run is None and self._devices.marks() != expected:
                self._write_marks(ruleset.removed())
                self._taps = {}
                raise CapabilityMissingError("marks are not there as they were written")
            self._taps = taps
        return tuple(sorted(taps))

    def _write_queues(self, batch: str) -> None:
        if self._dry_run:
            self._dry_run(batch)
        else:
            self._devices.write_queues(batch)

    def _write_marks(self, text: str) -> None:
        if self._dry_run:
            self._dry_run(text)
        else:
            self._devices.write_marks(text)
