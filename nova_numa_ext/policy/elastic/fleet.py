# SPDX-License-Identifier: Apache-2.0
"""What may be carried out of a decision, by what nova and the database have of a group, whatever its source says.

A source may lag, lie or be of another group. So before a member is asked for or leaves:

1. members that were asked for, do not carry load yet, or leave: nothing
2. the period is older, or later, than two periods by the database's clock: nothing
3. the source names other members than nova has in the server group: nothing
4. cool-downs, the budget of actions, and a refusal of nova not long ago: nothing
5. never beyond the least and the most of nova's servers, nor more than a step, and only servers that were created here,
   carry their tag and are in the database leave
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nova_numa_ext.policy.elastic.decide import STALE_PERIODS, ScalingDecision, waits
from nova_numa_ext.policy.elastic.period import Period
from nova_numa_ext.policy.elastic.settings import ScalingSettings
from nova_numa_ext.policy.elastic.terms import ScalingTerm
from placement_traits.reason import Reason


@dataclass(frozen=True, slots=True)
class ElasticFleet:
    """Servers of a group, as nova and the database have them; servers by uuid.

    :param servers: all that nova has in the server group
    :param joined: of these, what was created here, carries its tag and carries load
    :param coming: what was created here and does not carry load yet
    :param going: what leaves
    :param asked: members that were asked for and have no server yet
    :param lost: members that were asked for in vain, whose server may come late all the same
    """

    servers: frozenset[str]
    joined: frozenset[str] = frozenset()
    coming: frozenset[str] = frozenset()
    going: frozenset[str] = frozenset()
    asked: int = 0
    lost: int = 0

    @property
    def serving(self) -> frozenset[str]:
        """Servers that carry load."""
        return self.servers - self.coming - self.going

    @property
    def at_most(self) -> int:
        """Servers that the group may have soon, with those that may come late."""
        return len(self.servers | self.coming) + self.asked + self.lost


@dataclass(frozen=True, slots=True)
class Acted:
    """What was done to a group lately, times by the database's clock, seconds since 1970.

    :param now_s: now
    :param actions_s: times of the last actions
    :param not_before_s: until when no member is asked for, because nova has refused one
    """

    now_s: float
    actions_s: Sequence[float] = ()
    not_before_s: float = 0.0


def known_better(period: Period, fleet: ElasticFleet) -> Period:
    """Return a period in which nova and the database say whose the members are, and what comes and leaves."""
    members = tuple(
        replace(each, created_here=each.name in fleet.joined) for each in period.members
    )
    return replace(
        period,
        members=members,
        building=max(period.building, len(fleet.coming) + fleet.asked),
        leaving=max(period.leaving, len(fleet.going)),
    )


def granted(
    decision: ScalingDecision,
    period: Period,
    fleet: ElasticFleet,
    acted: Acted,
    settings: ScalingSettings,
) -> ScalingDecision:
    """Return what may be carried out of a decision on a period."""
    if not decision.change:
        return decision
    hindrance = _hindrance(decision.change, period, fleet, acted, settings)
    if hindrance is not None:
        return held(decision, hindrance)
    limited = _grown if decision.change > 0 else _shrunk
    return limited(decision, fleet, settings)


def _grown(
    decision: ScalingDecision, fleet: ElasticFleet, settings: ScalingSettings
) -> ScalingDecision:
    change = min(decision.change, settings.largest_out, settings.most - fleet.at_most)
    if change > 0:
        return replace(decision, change=change)
    needed = fleet.at_most + decision.change
    return held(decision, Reason(ScalingTerm.MOST, needed, settings.most))


def _shrunk(
    decision: ScalingDecision, fleet: ElasticFleet, settings: ScalingSettings
) -> ScalingDecision:
    ours = [name for name in decision.leaving if name in fleet.joined]
    if not ours:
        return held(decision, Reason(ScalingTerm.NOT_OURS, len(fleet.serving)))
    room = min(settings.largest_in, len(fleet.serving) - settings.least)
    if room <= 0:
        left = len(fleet.serving) + decision.change
        return held(decision, Reason(ScalingTerm.LEAST, left, settings.least))
    leaving = tuple(ours[:room])
    return replace(decision, change=-len(leaving), leaving=leaving)


def held(decision: ScalingDecision, why: Reason) -> ScalingDecision:
    """Return a decision of which nothing is carried out."""
    return replace(decision, change=0, leaving=(), reason=why)


def stale(period: Period, settings: ScalingSettings, now_s: float) -> Reason | None:
    """Return why nothing may be carried out that a period's age, or a source's wrong clock, forbids."""
    age_s, limit_s = now_s - period.data_at_s, STALE_PERIODS * settings.period_s
    if -limit_s <= age_s <= limit_s:
        return None
    return Reason(ScalingTerm.STALE, round(age_s, 1), limit_s)


def _hindrance(
    change: int,
    period: Period,
    fleet: ElasticFleet,
    acted: Acted,
    settings: ScalingSettings,
) -> Reason | None:
    if fleet.coming or fleet.asked:
        return Reason(ScalingTerm.BUILDING, len(fleet.coming) + fleet.asked)
    if fleet.going:
        return Reason(ScalingTerm.LEAVING, len(fleet.going))
    now_s = acted.now_s
    age = stale(period, settings, now_s)
    if age is not None:
        return age
    others = {each.name for each in period.members} ^ fleet.serving
    if others:
        return Reason(ScalingTerm.MEMBERS_DIFFER, len(others), where=min(others))
    if change > 0 and now_s < acted.not_before_s:
        return Reason(ScalingTerm.BACK_OFF, round(acted.not_before_s - now_s, 1))
    return waits(now_s, change, acted.actions_s, settings)
