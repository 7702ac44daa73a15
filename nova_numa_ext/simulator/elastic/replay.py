# SPDX-License-Identifier: Apache-2.0
"""What the loop of an elastic group would have decided on a trace; nothing is carried out.

The members of each period are those of the trace, whatever was decided before. A decision counts as carried out, for
cool-downs and the budget of actions, when the next period has more members, or fewer, as it said.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from nova_numa_ext.policy.elastic.group import ElasticGroup, Evaluation, Learner
from nova_numa_ext.policy.elastic.period import Period
from nova_numa_ext.policy.elastic.settings import ScalingSettings
from nova_numa_ext.policy.elastic.share import suggested
from nova_numa_ext.policy.elastic.terms import sentence


@dataclass(frozen=True, slots=True)
class Replayed:
    """One period of a trace, and what was decided on it."""

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


def replay(
    periods: Sequence[Period], learner: Learner, settings: ScalingSettings
) -> tuple[Replayed, ...]:
    """Decide on all periods of a trace, in order."""
    group = ElasticGroup(learner, settings)
    done: list[Replayed] = []
    for period in periods:
        if done and _carried_out(done[-1], period):
            group.acted(done[-1].period.at_s)
        done.append(Replayed(period, group.observe(period)))
    return tuple(done)


def _carried_out(before: Replayed, period: Period) -> bool:
    change = before.evaluation.decision.change
    had, has = (_all_members(one) for one in (before.period, period))
    return (has - had) * change > 0


def _all_members(period: Period) -> int:
    return len(period.members) + period.building


def write_log(done: Sequence[Replayed], file: TextIO) -> None:
    """Write the decision log: one JSON object a line."""
    for one in done:
        file.write(json.dumps(one.as_json()) + "\n")
