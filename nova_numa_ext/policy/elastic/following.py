# SPDX-License-Identifier: Apache-2.0
"""Decisions on a group whose members others add and delete: the replay of a trace, and the service while it observes.

The members of each period are what is there, whatever was decided before. A decision counts as carried out, for
cool-downs and the budget of actions, when the next period has more members, or fewer, as it said.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nova_numa_ext.policy.elastic.group import ElasticGroup, Evaluation, Learner
from nova_numa_ext.policy.elastic.period import Period
from nova_numa_ext.policy.elastic.settings import ScalingSettings
from nova_numa_ext.policy.elastic.share import suggested
from nova_numa_ext.policy.elastic.terms import sentence


@dataclass(frozen=True, slots=True)
class DecidedPeriod:
    """One period, and what was decided on it."""

    period: Period
    evaluation: Evaluation

    def as_json(self) -> dict[str, Any]:
        """Return a line of the decision log."""
        decision = self.evaluation.decision
        reads, writes = self.evaluation.total
        return {
            "at_s": self.period.at_s,
            "members": len(self.period.members),
            "reads_per_s": reads,
            "writes_per_s": writes,
            "forecasts": [
                {"predictor": one.predictor, "lead": one.lead, "per_s": one.value}
                for one in self.evaluation.forecasts
            ],
            "ratios": dict(decision.ratios),
            "suggested_shares": suggested(decision.ratios, self.evaluation.loads),
            "change": decision.change,
            "leaving": list(decision.leaving),
            "term": decision.reason.term,
            "why": sentence(decision.reason),
        }


class Follower:
    """Decides on the periods of one group, in order; nothing is carried out.

    :param learner: fits the models
    :param settings: what the operator decides
    """

    def __init__(self, learner: Learner, settings: ScalingSettings) -> None:
        self._group = ElasticGroup(learner, settings)
        self._last: DecidedPeriod | None = None

    def decide(self, period: Period) -> DecidedPeriod:
        """Decide on the next period."""
        if self._last is not None and _carried_out(self._last, period):
            self._group.acted(self._last.period.at_s)
        self._last = DecidedPeriod(period, self._group.observe(period))
        return self._last


def follow(
    periods: Sequence[Period], learner: Learner, settings: ScalingSettings
) -> tuple[DecidedPeriod, ...]:
    """Decide on all periods of a trace, in order."""
    follower = Follower(learner, settings)
    return tuple(follower.decide(period) for period in periods)


def _carried_out(before: DecidedPeriod, period: Period) -> bool:
    change = before.evaluation.decision.change
    had, has = (_all_members(one) for one in (before.period, period))
    return (has - had) * change > 0


def _all_members(period: Period) -> int:
    return len(period.members) + period.building
