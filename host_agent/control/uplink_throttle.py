# SPDX-License-Identifier: Apache-2.0
"""Holds best-effort servers of an uplink: the impure part around :mod:`host_agent.decide.slo.uplink`.

It belongs to the SLO controller and has its thread: latencies are read once, for both. What is decided goes as an order
to the unit of lanes, which alone may write to the host's network; an order is repeated while it is to hold, and lapses
there by itself. Where no unit answers nothing is decided, for nothing could be done.

Hosts of a leaf share uplinks that none of them sees: with a way to the leaf (:mod:`host_agent.report.leaf`) this host
asks there for what it cannot mend, and holds its own best-effort servers to what others have asked for, by the same
order: of two limits the lower one.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final, Protocol

from host_agent.conf.slo import BalmOptions
from host_agent.control.slo_report import SloReport
from host_agent.decide.slo import account, leaf, uplink
from host_agent.decide.slo.leaf import LeafHold, RoomRequest
from host_agent.decide.slo.shapes import BalmPhase, BalmState, SloView, Taken
from host_agent.decide.slo.uplink import UplinkKnob, UplinkUse
from host_agent.decide.slo.violation import states
from host_agent.model.lanes import LaneOrder, UplinkReport
from host_agent.model.levels import FULL
from host_agent.model.network import TrafficBytes
from host_agent.report.metrics import Sample
from placement_traits.leaf_limits import LeafLimit, NetworkDemand
from placement_traits.names import Tier

_ASK_S: Final = 1.0
_ANSWER_S: Final = 5.0  # a unit that is silent for so long is gone
_WINDOW_S: Final = 1.0
_MBIT: Final = 1e6 / 8


class LaneUnit(Protocol):
    """The unit of lanes: :class:`~host_agent.machine.lane_door.LaneDoorCaller`."""

    def order(self, order: LaneOrder) -> None:
        """Say how best-effort servers are to be held."""

    def answer(self) -> UplinkReport | None:
        """Return the newest answer, None where none has come."""

    def close(self) -> None:
        """Let go of it."""


class LeafLink(Protocol):
    """The way to this host's leaf: :class:`~host_agent.report.leaf.LeafExchange`."""

    @property
    def limit(self) -> LeafLimit | None:
        """What is reported of it."""

    def show(self, demand: NetworkDemand, *, listens: bool) -> None:
        """Have reported there what servers of this host send."""

    def rest(self) -> None:
        """Have nothing reported, and hear nothing."""


class UplinkThrottle:
    """Keeps objectives by an uplink.

    :param options: the controller's
    :param knob: what is tried
    :param unit: that carries orders out
    :param counted: returns the bytes of a device since it was made; None: there is no such device
    :param report: journal and metrics
    :param leaf: the way to the leaf of this host; None: there is none
    :param protected: share of an uplink that is latency-critical servers', together, for which the leaf is asked
    """

    def __init__(
        self,
        options: BalmOptions,
        knob: UplinkKnob,
        unit: LaneUnit,
        counted: Callable[[str], TrafficBytes | None],
        report: SloReport,
        *,
        leaf: LeafLink | None = None,
        protected: float = 0.0,
    ) -> None:
        self._options, self._knob, self._protected = options, knob, protected
        self._unit, self._bytes_of, self._report = unit, counted, report
        self.state = BalmState()
        self._interfaces: Mapping[str, tuple[str, ...]] = {}
        self._known: UplinkReport | None = None
        self._answered_s = self._asked_s = -_ANSWER_S
        self._asked_for = LaneOrder()
        self._counted: Mapping[str, TrafficBytes] = {}
        self._counted_s: float | None = None
        self._use: UplinkUse | None = None
        self._leaf = leaf
        self._asking, self._held = RoomRequest(), LeafHold()
        self._ordered = LaneOrder()

    @property
    def at_work(self) -> bool:
        """Something is being tried."""
        return self.state.phase is not BalmPhase.WATCH

    def watch(self, interfaces: Mapping[str, tuple[str, ...]]) -> None:
        """Take note of the taps of each server."""
        self._interfaces = interfaces

    def turn(
        self, seen: SloView, taken: Taken, now_s: float, *, may_begin: bool, acts: bool
    ) -> None:
        """Read what servers send, decide, order.

        :param seen: the host; its readings leave out what was received before ``state.judge_from_s``
        :param taken: of memory: accounts are the same
        :param may_begin: nothing else is being tried
        :param acts: else what would be done first is reported
        """
        self._look(now_s)
        use = self._use
        if use is None:
            self._asking = self._asking.unwatched()
            self._forget()
            return
        state = replace(self.state, taken=account.joined(self.state.taken, taken))
        decision = uplink.decide(
            seen,
            use,
            state,
            self._options,
            now_s,
            knob=self._knob,
            may_begin=may_begin,
        )
        if decision is None:
            self.state = state
        elif acts:
            self.state = decision.state
            step = self._knob.step(decision.state, use)
            self._order(step.order, now_s)
            self._report.uplink(seen, decision, use, step.what, self._knob.tries)
        else:
            # Nothing is held, so nothing is charged, and nothing more can be foreseen.
            self.state = decision.state.resting({}) if decision.changes else decision.state
            self.state = replace(self.state, taken=state.taken)
            what = self._knob.step(decision.state, use).what
            self._report.foreseen_uplink(seen, decision, use, what)
        if self._leaf and acts:
            here = [lc for lc in seen.objectives if lc.uuid in use.latency_critical]
            endangered = any(state.bad for state in states(here, self._options).values())
            idle = may_begin and not self.at_work
            self._asking = self._asking.after(now_s, violated=endangered, idle=idle)

    def follow(self, now_s: float) -> None:
        """Say to the leaf what servers send, and hold best-effort ones to what is reported there.

        To be called after :meth:`turn`, and also while no latency of this host is known.
        """
        if self._leaf is None:
            return
        self._look(now_s)
        use = self._use
        if use is None:
            self._leaf.rest()
            self._held = self._held.after(now_s, None, 1.0, self._options.be_floor_percent)
            return
        theirs = sum(use.best_effort_mbps.values())
        sent = use.latency_critical_mbps
        asked = leaf.asked_mbps(sent, use.speed_mbps, self._protected) if self._asking.asks else 0
        self._leaf.show(
            NetworkDemand(round(sent), round(theirs), asked), listens=use.best_effort_send_much
        )
        before = self._held
        floor = self._options.be_floor_percent
        self._held = before.after(now_s, self._leaf.limit, use.speed_mbps, floor)
        if self._held.mbps != before.mbps or self._held.spared is not before.spared:
            self._report.leaf(use, self._held)
        self._order(self._asked_for, now_s)

    def rest(self) -> None:
        """Throttle no server for the sake of this host's: their objectives are not watched."""
        self._asking = self._asking.unwatched()
        if self._asked_for != LaneOrder():
            self._asked_for = LaneOrder()
            self._send()
        self._forget()

    def release(self) -> None:
        """Throttle no server, for whose sake ever, and say nothing to the leaf."""
        self._held = replace(self._held, mbps=None, seen_s=None)
        self.rest()
        if self._ordered != LaneOrder():
            self._send()
        if self._leaf:
            self._leaf.rest()

    def close(self) -> None:
        """Throttle no server, and let go of the unit."""
        self.release()
        self._unit.close()

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics."""
        use = self._use
        if use is None:
            return
        for phase in BalmPhase:
            labels = (use.device, phase.value)
            yield "numa_ext_uplink_throttle_phase", labels, float(phase is self.state.phase)
        yield "numa_ext_uplink_sent_mbps", (use.device, "all"), use.sent_mbps
        theirs = sum(use.best_effort_mbps.values())
        yield "numa_ext_uplink_sent_mbps", (use.device, "best_effort"), theirs
        if use.limit_mbps is not None:
            yield "numa_ext_uplink_limit_mbps", (use.device,), float(use.limit_mbps)
        if use.share_percent < FULL:
            share = float(use.share_percent)
            yield "numa_ext_uplink_best_effort_share_percent", (use.device,), share
        if self._leaf:
            urgent = use.latency_critical_mbps
            yield "numa_ext_uplink_sent_mbps", (use.device, "latency_critical"), urgent
            yield "numa_ext_uplink_asks", (use.device,), float(self._asking.asks)
            if self._held.mbps is not None:
                yield "numa_ext_uplink_leaf_limit_mbps", (use.device,), float(self._held.mbps)

    @property
    def _judged(self) -> str | None:
        """The uplink whose the state is, as long as something of it holds."""
        is_held = any(target.level < FULL for target in self.state.targets.values())
        return self._use.device if self._use and (self.at_work or is_held) else None

    def _forget(self) -> None:
        self._asked_for = LaneOrder()
        if self.state.targets or self.at_work:
            self.state = self.state.resting({})

    def _order(self, order: LaneOrder, now_s: float) -> None:
        self._asked_for = order
        if self._merged() != self._ordered or now_s - self._asked_s >= _ASK_S:
            self._asked_s = now_s
            self._send()

    def _send(self) -> None:
        self._ordered = self._merged()
        self._unit.order(self._ordered)

    def _merged(self) -> LaneOrder:
        """Return the order of this host with the limit of its leaf, of two the lower one."""
        use, held = self._use, self._held.mbps
        if use is None or held is None:
            return self._asked_for
        limits = self._asked_for.limits
        own = limits.get(use.device, held)
        return replace(self._asked_for, limits={**limits, use.device: min(own, held)})

    def _look(self, now_s: float) -> None:
        """Hear the unit, and count bytes when a window has ended."""
        if (answer := self._unit.answer()) is not None:
            self._known, self._answered_s = answer, now_s
            if self._use is not None:
                self._use = _held_as(self._use, answer)
        if now_s - self._asked_s >= _ASK_S:
            self._order(self._asked_for, now_s)
        if self._known is None or now_s - self._answered_s >= _ANSWER_S:
            self._known = self._use = self._counted_s = None
            return
        since_s = self._counted_s
        if since_s is None or now_s - since_s >= _WINDOW_S:
            before, self._counted = self._counted, self._count(self._known)
            self._counted_s = now_s
            if since_s is not None:
                self._use = self._used(self._known, before, now_s - since_s)

    def _count(self, known: UplinkReport) -> dict[str, TrafficBytes]:
        """Return the bytes of uplinks, and of taps of servers with a tier."""
        names = [*known.uplinks, *(tap for tap, tier in known.taps.items() if tier)]
        return {name: found for name in names if (found := self._bytes_of(name))}

    def _used(
        self, known: UplinkReport, before: Mapping[str, TrafficBytes], took_s: float
    ) -> UplinkUse | None:
        """Return how the uplink is used that is used most, or is being judged or limited already.

        :returns: None: there is none, or not any more the one that is judged
        """
        # What goes out of the host leaves an uplink, and comes into a tap, which is "sent" by its server.
        sent = {
            name: (after.received - before[name].received) / _MBIT / took_s
            for name, after in self._counted.items()
            if name in known.uplinks and name in before
        }
        if not sent:
            return None
        device = self._judged or max(
            sent,
            key=lambda name: (
                name in known.held.limits or name in known.held.shares,
                sent[name] / known.uplinks[name],
                name,
            ),
        )
        if device not in sent:
            return None
        rates = {
            name: max(0.0, (after.sent - before[name].sent) / _MBIT / took_s)
            for name, after in self._counted.items()
            if name in known.taps and name in before
        }
        of_tier = {
            tier: {tap: rate for tap, rate in rates.items() if known.taps[tap] is tier}
            for tier in Tier
        }
        urgent_mbps, rates = sum(of_tier[Tier.LC].values()), of_tier[Tier.BE]
        # A guest may send more into its tap than the uplink takes: the rest is dropped there, or stays in this host.
        most = known.held.limits.get(device, known.uplinks[device])
        left = min(most, max(0.0, sent[device]))
        part = min(1.0, left / max(1.0, sum(rates.values())))
        theirs = {
            uuid: part * sum(rates[tap] for tap in taps if tap in rates)
            for uuid, taps in self._interfaces.items()
            if any(tap in rates for tap in taps)
        }
        urgent = frozenset(
            uuid
            for uuid, taps in self._interfaces.items()
            if any(known.taps.get(tap) is Tier.LC for tap in taps)
        )
        use = UplinkUse(
            device,
            float(known.uplinks[device]),
            max(0.0, sent[device]),
            theirs,
            urgent,
            latency_critical_mbps=min(urgent_mbps, left),
        )
        return _held_as(use, known)


def _held_as(use: UplinkUse, known: UplinkReport) -> UplinkUse:
    """Return the use of an uplink with how best-effort servers are held there."""
    hold = known.held.of(use.device)
    return replace(use, limit_mbps=hold.most_mbps, share_percent=hold.share_percent)
