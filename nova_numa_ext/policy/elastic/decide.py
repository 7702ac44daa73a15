# SPDX-License-Identifier: Apache-2.0
"""How many members more or fewer: the published rule between limits of safety.

The rule (Gureya 2021, section 3.4.2), with w/c the load of a member over its capacity:

* more than α members have w > c: ``ceil(Σ (w - c) / c)`` more, when that is above 0
* every member has w < c: ``floor(Σ (c - w) / c - β)`` fewer. The source prints the sum of (w - c) / c for both; with
  that sign a group would never shrink

The limits, in the order in which they are asked:

1. members that are being built, are leaving, or exchange data: nothing
2. data that is older than two periods: nothing
3. fewer members than the least, or more than the most: towards the limit, whatever the load is
4. a member whose model cannot say what it can carry: nothing
5. the rule; then never beyond the least and the most, never more than a step, and only members that were created here
   leave
6. cool-downs and the budget of actions of the last hour: nothing
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nova_numa_ext.policy.elastic import members
from nova_numa_ext.policy.elastic.period import Period
from nova_numa_ext.policy.elastic.settings import ScalingSettings
from nova_numa_ext.policy.elastic.terms import ScalingTerm
from placement_traits.reason import Reason

STALE_PERIODS = 2
_HOUR_S = 3600.0
_ROUNDING = 1e-9  # of sums such as 0.4 + 0.3 - 0.1, before ceil and floor


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """What is to be done with a group now.

    :param change: members more, or fewer when negative
    :param leaving: names of the members that leave, first the first one
    :param reason: why so many
    :param ratios: predicted load over capacity of each member, where it is known
    """

    change: int
    reason: Reason
    leaving: tuple[str, ...] = ()
    ratios: Mapping[str, float] = field(default_factory=dict)


def rule(ratios: Sequence[float], tolerated: int, spare: float) -> int:
    """Return members more or fewer by the published rule alone.

    :param ratios: load over capacity of each member
    :param tolerated: α, members beyond their capacity that cause nothing
    :param spare: β, members' worth of capacity that is kept
    """
    beyond = sum(ratio - 1.0 for ratio in ratios)
    if sum(ratio > 1.0 for ratio in ratios) > tolerated:
        return max(math.ceil(beyond - _ROUNDING), 0)
    if all(ratio < 1.0 for ratio in ratios):
        return -max(math.floor(-beyond - spare + _ROUNDING), 0)
    return 0


def decide(
    period: Period,
    ratios: Mapping[str, float | None],
    actions_s: Sequence[float],
    settings: ScalingSettings,
) -> ScalingDecision:
    """Decide what is to be done now.

    :param ratios: predicted load over capacity of each member of the period; None where the model cannot say
    :param actions_s: times of the group's last actions, same clock as the period's
    """
    known = {name: ratio for name, ratio in ratios.items() if ratio is not None}
    busy = _busy(period, settings)
    if busy is not None:
        return ScalingDecision(0, busy, ratios=known)
    count = len(period.members)
    change, reason = _outside(count, settings)
    if change == 0:
        change, reason = _by_rule(count, ratios, known, settings)
    limited, reason = _limited(count, change, reason, settings)
    gone: tuple[str, ...] = ()
    if limited < 0:
        gone = members.leaving(period.members, -limited)
        limited = -len(gone)
        reason = reason if gone else Reason(ScalingTerm.NOT_OURS, count)
    if limited:
        hindrance = waits(period.at_s, limited, actions_s, settings)
        if hindrance is not None:
            return ScalingDecision(0, hindrance, ratios=known)
    return ScalingDecision(limited, reason, gone, known)


def _busy(period: Period, settings: ScalingSettings) -> Reason | None:
    """Return why nothing may be decided now; None when it may."""
    age_s, oldest_s = period.at_s - period.data_at_s, STALE_PERIODS * settings.period_s
    if period.building:
        return Reason(ScalingTerm.BUILDING, period.building)
    if period.leaving:
        return Reason(ScalingTerm.LEAVING, period.leaving)
    if period.rebalancing:
        return Reason(ScalingTerm.REBALANCING, "yes")
    if age_s > oldest_s:
        return Reason(ScalingTerm.STALE, age_s, oldest_s)
    return None


def _outside(count: int, settings: ScalingSettings) -> tuple[int, Reason]:
    """Return what leads back between the least and the most, and 0 when the group is there."""
    if count < settings.least:
        return settings.least - count, Reason(ScalingTerm.BELOW_LEAST, count, settings.least)
    if count > settings.most:
        return settings.most - count, Reason(ScalingTerm.ABOVE_MOST, count, settings.most)
    return 0, Reason(ScalingTerm.NO_MEMBERS, 0)


def _by_rule(
    count: int,
    ratios: Mapping[str, float | None],
    known: Mapping[str, float],
    settings: ScalingSettings,
) -> tuple[int, Reason]:
    if len(known) < count:
        unknown = next((name for name, ratio in ratios.items() if ratio is None), "a member")
        return 0, Reason(ScalingTerm.NO_MODEL, len(known), count, unknown)
    values = list(known.values())
    beyond = sum(ratio - 1.0 for ratio in values)
    change = rule(values, settings.tolerated, settings.spare)
    if change < 0:
        return change, Reason(ScalingTerm.SPARE, -beyond, settings.spare)
    over = sum(ratio > 1.0 for ratio in values)
    return change, Reason(ScalingTerm.BEYOND if change else ScalingTerm.ENOUGH, beyond, over)


def _limited(
    count: int, change: int, reason: Reason, settings: ScalingSettings
) -> tuple[int, Reason]:
    """Return a change that keeps the least, the most and the largest step."""
    step = max(-settings.largest_in, min(change, settings.largest_out))
    if step > 0 and count + step > settings.most:
        step = max(settings.most - count, 0)
        reason = reason if step else Reason(ScalingTerm.MOST, count + change, settings.most)
    if step < 0 and count + step < settings.least:
        step = min(settings.least - count, 0)
        reason = reason if step else Reason(ScalingTerm.LEAST, count + change, settings.least)
    return step, reason


def waits(
    now_s: float, change: int, actions_s: Sequence[float], settings: ScalingSettings
) -> Reason | None:
    """Return why a change has to wait, for a cool-down or the budget of actions; None when it has not to.

    :param actions_s: times of the group's last actions, same clock as ``now_s``
    """
    recent = [at for at in actions_s if now_s - at < _HOUR_S]
    if len(recent) >= settings.actions_per_hour:
        return Reason(ScalingTerm.BUDGET, len(recent), settings.actions_per_hour)
    cool_down_s = settings.cool_down_out_s if change > 0 else settings.cool_down_in_s
    if actions_s and now_s - max(actions_s) < cool_down_s:
        return Reason(ScalingTerm.COOL_DOWN, now_s - max(actions_s), cool_down_s)
    return None
