# SPDX-License-Identifier: Apache-2.0
"""What an operator decides about an elastic group.

The defaults are what groups begin with. :func:`literal` has the parameters of OnlineElastMan's evaluation (Gureya 2021,
section 3.5) and none of our limits; it is for replays and comparisons.
"""

import math
from dataclasses import dataclass, field, fields
from typing import Final

from nova_numa_ext.policy.elastic.cells import Grid
from placement_traits.errors import InvalidValueError

_BOUNDS: Final = {
    "objective_ms": (0.001, math.inf),
    "confidence": (0.0, 1.0),
    "kept_readings": (1, 100_000),
    "tolerated": (0, 100_000),
    "spare": (0.0, math.inf),
    "head_room": (1.0, 100.0),
    "lead_periods": (1, 100),
    "season_periods": (1, 100_000),
    "least": (1, 100_000),
    "most": (1, 100_000),
    "largest_out": (1, 100_000),
    "largest_in": (1, 100_000),
    "cool_down_out_s": (0.0, math.inf),
    "cool_down_in_s": (0.0, math.inf),
    "actions_per_hour": (1, 100_000),
    "period_s": (0.001, math.inf),
    "wrong_factor": (0.0, 0.999),
    "wrong_tolerance": (0.0, 1.0),
    "wrong_memory": (0.0, 1.0),
    "recall": (0.0, 1.0),
}


@dataclass(frozen=True, slots=True)
class ScalingSettings:
    """Parameters of one group.

    :param objective_ms: latency of reads that is still good, milliseconds
    :param confidence: share of a cell's readings that must meet it for the load to count as good
    :param grid: how fine loads are distinguished
    :param kept_readings: readings that a cell keeps
    :param tolerated: members beyond their capacity that cause nothing (α)
    :param spare: members' worth of capacity that is kept when the group shrinks (β)
    :param head_room: factor on predicted loads
    :param lead_periods: how far ahead it is looked; best twice as long as a new member takes until it carries load:
        nothing is decided meanwhile, and what is decided then takes as long again
    :param season_periods: periods after which loads repeat; 288 of five minutes are a day
    :param least: fewest members; of a store, its replication factor
    :param most: most members
    :param largest_out: members that are added at once; ``largest_in``: that leave at once
    :param cool_down_out_s: seconds after an action before one more member is asked for
    :param cool_down_in_s: seconds after an action before a member leaves
    :param actions_per_hour: actions of either kind
    :param period_s: length of a control period
    :param wrong_factor: on the weight of a predictor that was wrong
    :param wrong_tolerance: deviation of a prediction that is not wrong, in shares of the real value
    :param wrong_memory: lowest weight of a predictor in shares of the highest
    :param graded: predictors lose weight by how wrong they were, and all speak by weight; else as published
    :param recall: of how wrong a predictor was, what counts a period later; only where graded
    :param by_latency: capacities are where latencies reach the objective; else half-way between labels, as published
    :param use_disturbed: readings of disturbed members train the model, too; only for comparisons
    :raises InvalidValueError: a number outside what is allowed
    """

    objective_ms: float
    confidence: float = 0.5
    grid: Grid = field(default_factory=Grid)
    kept_readings: int = 50
    tolerated: int = 0
    spare: float = 0.5
    head_room: float = 1.07
    lead_periods: int = 3
    season_periods: int = 288
    least: int = 3
    most: int = 100
    largest_out: int = 3
    largest_in: int = 1
    cool_down_out_s: float = 0.0
    cool_down_in_s: float = 300.0
    actions_per_hour: int = 12
    period_s: float = 300.0
    wrong_factor: float = 0.5
    wrong_tolerance: float = 0.05
    wrong_memory: float = 0.0
    graded: bool = True
    recall: float = 0.9
    by_latency: bool = True
    use_disturbed: bool = False

    def __post_init__(self) -> None:
        for one in fields(self):
            if one.name not in _BOUNDS:
                continue
            low, high = _BOUNDS[one.name]
            value = getattr(self, one.name)
            if not low <= value <= high or value == math.inf:
                above = "" if high == math.inf else f" and <= {high:g}"
                raise InvalidValueError(one.name, value, f"a number >= {low:g}{above}")
        if self.most < self.least:
            raise InvalidValueError("most", self.most, f"a number >= least, {self.least}")

    @staticmethod
    def bounds(name: str) -> tuple[float, float]:
        """Return the lowest and the highest value of a parameter; the highest is infinite where there is none."""
        return _BOUNDS[name]


def literal(objective_ms: float, *, least: int = 3, most: int = 100_000) -> ScalingSettings:
    """Return the published parameters: α = 1, β = 0.5, the next period, no limit but the fewest members."""
    return ScalingSettings(
        objective_ms,
        tolerated=1,
        head_room=1.0,
        lead_periods=1,
        least=least,
        most=most,
        largest_out=100_000,
        largest_in=100_000,
        cool_down_in_s=0.0,
        actions_per_hour=100_000,
        graded=False,
        by_latency=False,
        use_disturbed=True,
    )
