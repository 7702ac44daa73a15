# SPDX-License-Identifier: Apache-2.0
"""What the engine does for elastic groups: it decides on each period, and acts on the newest where it is to enforce.

A group's source is a Prometheus (:mod:`.scaling_prometheus`), which is asked when a period has ended, or a CSV file
that its monitoring appends to or replaces (:mod:`nova_numa_ext.policy.elastic.trace`).
A file is read when it is the same in two rounds, so half of what is being written is not taken for a whole period. What
the models have learnt is in this process only: an engine that begins to lead learns it again from the file, and
decides the same, for a decision follows from periods and settings alone. Decisions that are stored already are not
stored again.

Of a group that is enforced what may be carried out is limited by what nova and the database have of it
(:mod:`nova_numa_ext.policy.elastic.fleet`). It is stored together with the decision, and done by :mod:`.scaling_saga`
or :mod:`.scaling_stacks`.

A group that gives trouble holds up no other one. Why is stored beside it, and it is tried again when its file or what
operators have set changes, and once a minute.
"""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from nova_numa_ext.orchestrator.scaling_actuator import Actuator
from nova_numa_ext.orchestrator.scaling_prometheus import PrometheusError, PrometheusSource
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.database import LostRaceError
from nova_numa_ext.orchestrator.store.leader import NotLeaderError
from nova_numa_ext.orchestrator.store.scaling import (
    Act,
    Line,
    ScalingGroups,
    StoredScaling,
    shown_trouble,
)
from nova_numa_ext.orchestrator.store.unreadable import Unreadable, UnreadableError
from nova_numa_ext.policy.elastic.decide import ScalingDecision
from nova_numa_ext.policy.elastic.fleet import (
    Acted,
    ElasticFleet,
    granted,
    held,
    known_better,
    stale,
)
from nova_numa_ext.policy.elastic.following import DecidedPeriod, Follower
from nova_numa_ext.policy.elastic.group import Learner
from nova_numa_ext.policy.elastic.monitored import MonitoredQueries
from nova_numa_ext.policy.elastic.period import Period
from nova_numa_ext.policy.elastic.terms import ScalingTerm
from nova_numa_ext.policy.elastic.trace import read_trace
from placement_traits.errors import InvalidValueError, NumaExtError
from placement_traits.reason import Reason

_LOG: Final = logging.getLogger(__name__)

_MOST_BYTES: Final = 64 * 1024 * 1024
_AT_ONCE: Final = 50  # periods of a group in a round: others have their turn

_ASKS_S: Final = 10.0  # after an answer of Prometheus in which there was no new period
_REST_S: Final = 60.0  # after trouble, unless the file or the group has changed

Stamp = tuple[int, int, int]


class ScalingLearner(Learner, Protocol):
    """A learner of one group, which holds a process."""

    def close(self) -> None:
        """End it."""


@dataclass
class _Followed:
    """A group as this process knows it.

    :param group: as it was read
    :param stored_s: time of the newest stored decision
    :param decided: periods that were decided on; where Prometheus is the source the last one
    :param read: of the file as it was read last
    :param waiting: periods of it that were not decided on yet
    :param asked: Prometheus has answered
    :param asks_at_s: monotonic seconds before which it is not asked again
    """

    group: StoredScaling
    learner: ScalingLearner
    follower: Follower
    stored_s: float
    decided: list[Period] = field(default_factory=list)
    read: Stamp | None = None
    waiting: list[Period] = field(default_factory=list)
    asked: bool = False
    asks_at_s: float = 0.0

    @property
    def has_read(self) -> bool:
        """Its source was read."""
        return self.asked or self.read is not None


@dataclass(frozen=True, slots=True)
class _Rest:
    """Trouble with a group, until when it is not tried again."""

    group: StoredScaling
    stamp: Stamp | None
    until_s: float
    error: Exception

    def lasts(self, group: StoredScaling, stamp: Stamp | None) -> bool:
        """Return whether nothing has changed, and the time is not over."""
        same = (self.group.version, self.stamp) == (group.version, stamp)
        return same and time.monotonic() < self.until_s


class ScalingRounds:
    """Decides on elastic groups; for one thread at a time.

    :param stored: the groups
    :param traces: folder of their files
    :param learner: makes what fits the models of a group, of the season of its load
    :param actuator: carries out what is decided on groups that are enforced
    :param prometheus: source of groups that have no file
    """

    def __init__(
        self,
        stored: ScalingGroups,
        traces: Path,
        learner: Callable[[int], ScalingLearner],
        actuator: Actuator,
        prometheus: PrometheusSource,
    ) -> None:
        self._stored, self._traces, self._learner = stored, traces, learner
        self._actuator, self._prometheus = actuator, prometheus
        self._followed: dict[str, _Followed] = {}
        self._resting: dict[str, _Rest] = {}
        self._stamps: dict[str, Stamp | None] = {}

    def round(self, actor: Actor, may: Callable[[], None], trouble: Unreadable) -> int:
        """Decide on what is new of each group that is not paused, and act; return how many decisions were stored.

        :param may: called before each group and period; raises where this process does not lead any more
        :param trouble: called with each group that cannot be decided on, and why
        :raises NotLeaderError: the term is over
        :raises ServiceUnavailableError: the database does not answer
        """
        found = self._stored.followed()
        there = {each.uuid: each for each in found if isinstance(each, StoredScaling)}
        for uuid, known in list(self._followed.items()):
            if uuid not in there or there[uuid].version != known.group.version:
                self._forget(uuid)
        stored = 0
        for each in found:
            may()
            if isinstance(each, UnreadableError):
                trouble(each.uuid, each)
                continue
            try:
                stored += self._carried(each, actor, may, trouble)
            except LostRaceError as error:
                _LOG.info("elastic group %s: %s", each.uuid, error)
                self._forget(each.uuid)
        return stored

    def close(self) -> None:
        """Forget all groups, and end the processes that fit their models."""
        for uuid in list(self._followed):
            self._forget(uuid)

    def _forget(self, uuid: str) -> None:
        self._actuator.forget(uuid)
        known = self._followed.pop(uuid, None)
        if known is not None:
            known.learner.close()

    def _carried(
        self, group: StoredScaling, actor: Actor, may: Callable[[], None], trouble: Unreadable
    ) -> int:
        why = ""
        if group.template is not None:
            why = self._acted(group, actor, may, trouble)
        path = self._traces / group.source.csv
        stamp = _stamp(path) if group.source.prometheus is None else None
        before, self._stamps[group.uuid] = self._stamps.get(group.uuid), stamp
        rest = self._resting.get(group.uuid)
        if rest and rest.lasts(group, stamp):
            trouble(group.uuid, rest.error)
            return 0
        last = None if group.uuid in self._followed else self._stored.last_decision(group)
        try:
            known = self._followed.get(group.uuid) or self._begun(group, last)
            if group.source.prometheus is not None:
                self._ask(known, group.source.prometheus)
            elif stamp is None or (stamp == before and stamp != known.read):
                self._read(known, path, stamp)
            lines, act = self._decided(known, group, may)
            why = why or self._old(known, group)
        except NotLeaderError:
            self._forget(group.uuid)
            raise
        except Exception as error:  # noqa: BLE001 - the outermost guard of a group: reported, and others go on
            if not isinstance(error, PrometheusError):
                # What was learnt of half a period is of no use: all is learnt again.
                self._forget(group.uuid)
            self._resting[group.uuid] = _Rest(group, stamp, time.monotonic() + _REST_S, error)
            trouble(group.uuid, error)
            self._stored.trouble(group, str(error), actor)
            return 0
        self._resting.pop(group.uuid, None)
        if lines or (group.trouble != shown_trouble(why) and known.has_read):
            self._stored.record(group, lines, actor, why, act)
        return len(lines)

    def _acted(
        self, group: StoredScaling, actor: Actor, may: Callable[[], None], trouble: Unreadable
    ) -> str:
        """Carry out what was decided before; return what stands in the way, '' for nothing."""
        try:
            why = self._actuator.carry_on(group, actor, may)
        except (NotLeaderError, LostRaceError):
            raise
        except Exception as error:  # noqa: BLE001 - the outermost guard of a group: reported, and others go on
            trouble(group.uuid, error)
            return f"{type(error).__name__}: {error}"
        if why:
            trouble(group.uuid, NumaExtError(why))
        return why

    def _begun(self, group: StoredScaling, last: Line | None) -> _Followed:
        learner = self._learner(group.settings.season_periods)
        try:
            follower = Follower(learner, group.settings)
        except Exception:
            learner.close()
            raise
        stored_s = -math.inf if last is None else float(last["at_s"])
        self._followed[group.uuid] = _Followed(group, learner, follower, stored_s)
        return self._followed[group.uuid]

    def _ask(self, known: _Followed, queries: MonitoredQueries) -> None:
        """Ask Prometheus for periods that have ended since.

        :raises PrometheusError: it does not answer
        """
        if known.waiting or time.monotonic() < known.asks_at_s:
            return
        last_s = known.decided[-1].at_s if known.decided else -math.inf
        settings, now_s = known.group.settings, self._stored.now()
        known.waiting = list(self._prometheus.periods(queries, settings, last_s, now_s))
        wait_s = 0.0 if known.waiting else min(_ASKS_S, settings.period_s / 2.0)
        known.asks_at_s = time.monotonic() + wait_s
        known.asked = True

    def _read(self, known: _Followed, path: Path, stamp: Stamp | None) -> None:
        """Read the file of a group.

        :raises InvalidValueError: it is not there, or is no trace
        """
        name = known.group.source.csv
        try:
            size = path.stat().st_size
            if size > _MOST_BYTES:
                raise InvalidValueError(name, f"{size} bytes", f"at most {_MOST_BYTES}")
            periods = read_trace(path.read_text().splitlines(), name)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error.reason
            allowed = f"a CSV file in the engine's folder of traces ({reason})"
            raise InvalidValueError("source csv", name, allowed) from error
        count = len(known.decided)
        if list(periods[:count]) != known.decided:
            _LOG.warning(
                "elastic group %s: %s does not begin as before, all of it is learnt again",
                known.group.uuid,
                name,
            )
            known.follower, count = Follower(known.learner, known.group.settings), 0
            known.decided = []
        known.waiting, known.read = list(periods[count:]), stamp

    def _decided(
        self, known: _Followed, group: StoredScaling, may: Callable[[], None]
    ) -> tuple[list[Line], Act | None]:
        """Return new lines of the decision log, and what is to be done of the last one."""
        lines, act = list[Line](), None
        now, known.waiting = known.waiting[:_AT_ONCE], known.waiting[_AT_ONCE:]
        for period in now:
            may()
            newest = period is now[-1] and not known.waiting
            new = period.at_s > known.stored_s
            done = self._one(known.follower, period, group, newest=newest and new)
            if group.source.prometheus is not None:
                known.decided.clear()  # it is not read from the beginning again, as a file is
            known.decided.append(period)
            if new:
                lines.append(done.as_json())
                known.stored_s = period.at_s
                act = self._act(group, done) if newest and group.template is not None else None
        return lines, act

    def _one(
        self, follower: Follower, period: Period, group: StoredScaling, *, newest: bool
    ) -> DecidedPeriod:
        """Decide on a period; of a group that is enforced only what may be carried out is left of it."""
        if group.template is None:
            return follower.decide(period)
        now_s, fleet, unseen = self._stored.now(), ElasticFleet(frozenset()), ""
        if newest:
            try:
                fleet = self._actuator.fleet(group)
            except NumaExtError as error:
                unseen = str(error)
        done = follower.decide(known_better(period, fleet) if newest and not unseen else period)
        decision = done.evaluation.decision
        if unseen:
            decision = _held(decision, Reason(ScalingTerm.UNSEEN, unseen))
        elif newest:
            acted = Acted(now_s, group.actions_s, group.not_before)
            decision = granted(decision, period, fleet, acted, group.settings)
            if decision.change > 0 and (lacking := self._actuator.lacking(group)):
                decision = _held(decision, Reason(ScalingTerm.NO_HOST, lacking))
        else:
            age_s = round(now_s - period.data_at_s, 1)
            decision = _held(decision, Reason(ScalingTerm.MISSED, age_s))
        return replace(done, evaluation=replace(done.evaluation, decision=decision))

    def _act(self, group: StoredScaling, done: DecidedPeriod) -> Act | None:
        """Return what is to be done of a decision, None for nothing."""
        decision = done.evaluation.decision
        return self._actuator.act(group, decision) if decision.change else None

    def _old(self, known: _Followed, group: StoredScaling) -> str:
        """Return that a source says nothing new, '' where it does.

        Of a group that is observed times of a file may be of any clock.
        """
        by_clock = group.template is not None or group.source.prometheus is not None
        if not by_clock or known.waiting or not known.has_read:
            return ""
        if not known.decided:
            return "the source knows no member"
        newest = known.decided[-1]
        if stale(newest, group.settings, self._stored.now()) is None:
            return ""
        return f"nothing is carried out: the newest period of the source is of {newest.at_s:.0f} s"


def _held(decision: ScalingDecision, why: Reason) -> ScalingDecision:
    return held(decision, why) if decision.change else decision


def _stamp(path: Path) -> Stamp | None:
    """Return what changes when a file does, None where it is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
