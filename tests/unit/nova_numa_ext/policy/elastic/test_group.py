# SPDX-License-Identifier: Apache-2.0
"""The loop of an elastic group, with models of numpy alone."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from nova_numa_ext.policy.elastic.boundary import Labels, Plane, Points
from nova_numa_ext.policy.elastic.cells import Grid
from nova_numa_ext.policy.elastic.forecast import growth, noise
from nova_numa_ext.policy.elastic.group import GROWTH, ElasticGroup
from nova_numa_ext.policy.elastic.load import MemberLoad
from nova_numa_ext.policy.elastic.period import Member, Period
from nova_numa_ext.policy.elastic.settings import ScalingSettings
from nova_numa_ext.policy.elastic.terms import ScalingTerm
from tests.support.elastic import SimpleModels

SETTINGS = ScalingSettings(
    35.0, head_room=1.0, lead_periods=1, grid=Grid(100.0, 100.0), cool_down_in_s=0.0
)
CAPACITY = 1000.0


def latency_ms(reads: float) -> float:
    """35 ms at 1,000 reads per second."""
    return 35.0 * reads / CAPACITY


def period(at: int, reads: float, count: int = 3, **of_members) -> Period:
    members = tuple(
        Member(
            f"m{one}",
            MemberLoad(reads),
            (latency_ms(reads),) * 5,
            created_here=True,
            **of_members,
        )
        for one in range(count)
    )
    return Period(300.0 * at, 300.0 * at, members)


def trained(settings: ScalingSettings = SETTINGS, **of_members) -> ElasticGroup:
    """A group that has seen 450 to 1,550 reads per second and member."""
    group = ElasticGroup(SimpleModels(), settings)
    for at in range(12):
        group.observe(period(at, 450.0 + 100.0 * at, **of_members))
    return group


def test_a_model_that_has_seen_only_good_periods_holds() -> None:
    group = ElasticGroup(SimpleModels(), SETTINGS)
    for at in range(5):
        decision = group.observe(period(at, 100.0 * at)).decision
        assert (decision.change, decision.reason.term) == (0, ScalingTerm.NO_MODEL)


def test_capacity_is_learnt_from_an_empty_start() -> None:
    outcome = trained().observe(period(12, 500.0))
    assert outcome.decision.ratios == pytest.approx(dict.fromkeys(("m0", "m1", "m2"), 0.5), 0.05)
    assert outcome.total == (1500.0, 0.0)


@pytest.mark.parametrize(("reads", "change"), [(1200.0, 1), (1800.0, 3), (900.0, 0)])
def test_it_grows_with_what_is_beyond_the_capacity(reads: float, change: int) -> None:
    assert trained().observe(period(12, reads)).decision.change == change


class HalfWay(SimpleModels):
    """A classifier as a support vector machine is on one feature: half-way between labels, of reads alone."""

    def planes(self, samples: Sequence[tuple[Points, Labels]]) -> list[Plane | None]:
        found: list[Plane | None] = []
        for points, labels in samples:
            met, violated = points[labels > 0, 0], points[labels < 0, 0]
            both = len(met) and len(violated)
            found.append(Plane(-1.0, 0.0, 0.0, (met.max() + violated.min()) / 2) if both else None)
        return found


@pytest.mark.parametrize("by_latency", [True, False])
def test_readings_that_are_missing_change_no_capacity(by_latency: bool) -> None:
    """A period near the objective that does not train, after a gap from 950 to 1,150. Control: labels alone jump."""
    settings = replace(SETTINGS, by_latency=by_latency, grid=Grid(50.0, 50.0))
    capacities = []
    for disturbed in (False, True):
        group = ElasticGroup(HalfWay(), settings)
        for at, level in enumerate((400.0, 600.0, 800.0, 950.0, 1150.0)):
            group.observe(period(at, level))
        ratio = group.observe(period(5, 1010.0, disturbed=disturbed)).decision.ratios["m0"]
        assert ratio is not None
        capacities.append(1010.0 / ratio)
    change = abs(capacities[1] / capacities[0] - 1.0)
    if by_latency:
        assert change < 0.01
        assert capacities == pytest.approx([CAPACITY, CAPACITY], rel=0.01)
    else:
        assert change > 0.05


def test_a_new_member_takes_the_model_of_all() -> None:
    group = trained()
    for at in range(12, 16):
        outcome = group.observe(period(at, 800.0, count=4))
    assert outcome.decision.ratios["m3"] == pytest.approx(0.8, rel=0.05)


def test_what_is_learnt_of_a_member_ends_with_it() -> None:
    group = trained()
    group.observe(period(12, 500.0, count=1))
    assert set(group._cells) == {"m0"}


@pytest.mark.parametrize("disturbed", [False, True])
def test_readings_beside_a_noisy_neighbour_do_not_train(disturbed: bool) -> None:
    """They are twice as long as the load alone makes them. Control: when that is not known, half of the capacity
    seems to be gone."""
    group = trained()
    for at in range(12, 40):
        seen = period(at, 700.0 + 100.0 * (at % 3))
        noisy = tuple(
            replace(
                one, readings_ms=(2.0 * latency_ms(one.load.reads_per_s),) * 50, disturbed=disturbed
            )
            for one in seen.members
        )
        outcome = group.observe(replace(seen, members=noisy))
    ratio = outcome.decision.ratios["m0"] * 1000.0 / (700.0 + 100.0 * (39 % 3))
    if disturbed:
        assert ratio == pytest.approx(1.0, rel=0.05)
    else:
        assert ratio > 1.1


def test_actions_count_for_the_cool_down() -> None:
    group = trained(replace(SETTINGS, cool_down_out_s=900.0))
    assert group.observe(period(12, 1200.0)).decision.change == 1
    group.acted(3600.0)
    assert group.observe(period(13, 1200.0)).decision.reason.term == ScalingTerm.COOL_DOWN
    assert group.observe(period(15, 1200.0)).decision.change == 1


@dataclass(frozen=True)
class Ahead:
    """Says how many periods ahead it was asked for."""

    name: str = "ahead"

    def predict(self, history: Sequence[float], leads: Sequence[int]) -> list[float]:
        return [history[-1] * (1.0 + lead / 10.0) for lead in leads]


def test_the_higher_of_both_ends_of_the_lead_counts() -> None:
    group = ElasticGroup(SimpleModels((Ahead(),)), replace(SETTINGS, lead_periods=4))
    outcome = group.observe(period(0, 1000.0))
    reads, writes = outcome.forecasts
    assert (reads.predictor, reads.lead, reads.value) == ("ahead", 4, pytest.approx(4200.0))
    assert writes.value == 0.0
    assert outcome.loads["m0"].reads_per_s == pytest.approx(1400.0)


def test_a_load_that_begins_to_grow_is_expected_to_go_on() -> None:
    group = ElasticGroup(SimpleModels(), replace(SETTINGS, lead_periods=3))
    for at, reads in enumerate((*(500.0,) * 8, 560.0)):
        reads_ahead = group.observe(period(at, reads)).forecasts[0]
    assert (reads_ahead.predictor, reads_ahead.value) == (GROWTH, pytest.approx(3 * 650.0))


def test_growth_needs_two_periods_and_never_shrinks() -> None:
    assert growth([5.0], 3) == 5.0
    assert growth([5.0, 6.0], 3) == 9.0
    assert growth([9.0, 6.0], 3) == 6.0


def test_a_jump_is_no_growth_any_more_two_periods_later() -> None:
    before = [500.0] * 8
    assert growth([*before, 800.0], 2) == 1100.0
    assert growth([*before, 800.0, 800.0, 800.0], 2) == 800.0


def test_noise_is_found_beside_growth_and_jumps() -> None:
    draw = np.random.default_rng(5)
    around = draw.normal(0.0, 10.0, (200, 24))
    line = 1000.0 + 100.0 * np.arange(24.0)
    jump = np.where(np.arange(24) < 12, 1000.0, 3000.0)
    for course, within in ((line, 0.05), (jump, 0.15)):
        found = [noise(tuple(course + one)) for one in around]
        assert np.mean(found) == pytest.approx(10.0, rel=within)
    assert noise(tuple(line)) == pytest.approx(0.0, abs=1e-9)
    assert noise((1.0, 2.0, 9.0)) == 0.0


def test_noise_is_seldom_taken_for_growth() -> None:
    """A mean step of noise exceeds one standard deviation in a sixth of the periods. Control: growth by ten of them a
    period is seen in each."""
    draw = np.random.default_rng(6)
    flat = 1000.0 + draw.normal(0.0, 10.0, (400, 24))
    said = np.array([growth(tuple(one), 3) - one[-1] for one in flat])
    assert np.mean(said > 0.0) < 0.25
    rising = flat + 100.0 * np.arange(24.0)
    assert min(growth(tuple(one), 3) - one[-1] for one in rising) > 150.0


def mixed(at: int, reads: float, writes: float) -> Period:
    """A period in which the members also write."""
    seen = period(at, reads)
    members = tuple(replace(one, load=MemberLoad(reads, writes)) for one in seen.members)
    return replace(seen, members=members)


def test_more_writes_for_fewer_reads_are_no_growth() -> None:
    """Growth is that of all operations, divided as in the last four periods."""
    group = ElasticGroup(SimpleModels(), replace(SETTINGS, lead_periods=3))
    for at in range(8):
        group.observe(mixed(at, 900.0, 100.0))
    reads, writes = group.observe(mixed(8, 880.0, 120.0)).forecasts
    assert (reads.predictor, reads.value) == ("last value", pytest.approx(3 * 880.0))
    assert writes.value == pytest.approx(3 * 120.0)
    reads, writes = group.observe(mixed(9, 980.0, 120.0)).forecasts
    assert (reads.predictor, writes.predictor) == (GROWTH, GROWTH)
    assert reads.value + writes.value == pytest.approx(3 * 1250.0)
    assert writes.value / reads.value == pytest.approx(440.0 / 3660.0)


def test_a_group_that_does_nothing_does_not_grow() -> None:
    group = ElasticGroup(SimpleModels(), replace(SETTINGS, lead_periods=3))
    assert [one.value for one in group.observe(period(0, 0.0)).forecasts] == [0.0, 0.0]


def test_predictions_are_judged_by_the_period_they_were_made_for() -> None:
    """At a lead of 2, "ahead" says 20 % more; the load has grown so, and the last value is wrong."""
    pools = SimpleModels().pool
    settings = replace(SETTINGS, lead_periods=2, graded=False)
    group = ElasticGroup(SimpleModels((*pools, Ahead())), settings)
    for at in range(6):
        outcome = group.observe(period(at, 100.0 * 1.2 ** (at / 2)))
    (_, pool), _ = group._pools
    assert pool.weights.weights == (1 / 16, 1.0)
    assert outcome.forecasts[0].predictor == "ahead"


@dataclass
class Counting(SimpleModels):
    """Counts the planes that were fitted."""

    fitted: list[int] = field(default_factory=list)

    def planes(self, samples: Sequence[tuple[Points, Labels]]) -> list[Plane | None]:
        self.fitted.append(len(samples))
        return super().planes(samples)


def test_what_is_known_is_not_fitted_again() -> None:
    learner = Counting()
    group = ElasticGroup(learner, SETTINGS)
    for at in range(12):
        group.observe(period(at, 450.0 + 100.0 * at))
    group.observe(period(12, 550.0))
    assert learner.fitted[-2] == 4
    assert learner.fitted[-1] == 0


def test_a_group_without_members_is_brought_to_its_least() -> None:
    decision = ElasticGroup(SimpleModels(), SETTINGS).observe(Period(0.0, 0.0, ())).decision
    assert (decision.change, decision.reason.term) == (3, ScalingTerm.BELOW_LEAST)
