# SPDX-License-Identifier: Apache-2.0
"""Policies for elastic groups in a closed loop with the modelled service; models of numpy alone."""

from dataclasses import replace

import pytest

from nova_numa_ext.policy.elastic.load import MemberLoad
from nova_numa_ext.policy.elastic.period import Period
from nova_numa_ext.policy.elastic.settings import ScalingSettings
from nova_numa_ext.simulator.elastic.loop import (
    ElasticRun,
    NoisyNeighbour,
    Scaled,
    oracle,
    reactive,
    run,
)
from nova_numa_ext.simulator.elastic.plant import LEAST, OBJECTIVE_MS, draws
from nova_numa_ext.simulator.elastic.shapes import PERIOD_S, WARM_UP
from tests.support.elastic import SimpleModels

SCHEDULE = replace(draws(1, 3)[0], peak_members=6.0, boot_periods=1, fairness=5000.0, spread=0.0)
SETTINGS = ScalingSettings(OBJECTIVE_MS)


def scaled(settings: ScalingSettings = SETTINGS) -> tuple[Scaled, ElasticRun]:
    policy = Scaled(SCHEDULE, SimpleModels(), settings)
    return policy, run(SCHEDULE, policy)


def test_f_004_59_the_schedule_of_the_evaluation() -> None:
    """F-004-59: nothing is done in 40 minutes of warm-up; at least 5 members in the first round, 3 at its end; the
    objective is met in at least 90 % of the periods after it."""
    _, found = scaled()
    assert WARM_UP * PERIOD_S == 40 * 60
    assert set(found.members[:WARM_UP]) == {LEAST}
    assert max(found.members[8:18]) >= 5
    assert min(found.members[24:30]) == LEAST
    assert max(found.members[45:]) >= 6
    assert found.met_share >= 0.9


def test_a_policy_that_does_nothing_violates() -> None:
    """The service does need more members: 0.9 is not met by itself."""
    assert run(SCHEDULE, lambda period: 0).met_share < 0.7


def test_a_member_carries_load_when_it_has_booted() -> None:
    slow = replace(SCHEDULE, boot_periods=2)
    seen: list[tuple[int, int]] = []

    def policy(period: Period) -> int:
        seen.append((len(period.members), period.building))
        return 2 if len(seen) == WARM_UP + 1 else 0

    run(slow, policy)
    assert seen[WARM_UP : WARM_UP + 4] == [(3, 0), (3, 2), (5, 0), (5, 0)]


def test_the_oracle_has_the_fewest_members_that_meet_the_objective() -> None:
    best, (_, ours) = oracle(SCHEDULE), scaled()
    assert best.met_share == 1.0
    assert best.member_hours < ours.member_hours
    assert min(best.members) == LEAST


def test_two_alarms_are_late() -> None:
    late, (_, ours) = run(SCHEDULE, reactive()), scaled()
    assert late.met_share < ours.met_share


@pytest.mark.parametrize("reported", [True, False])
def test_a_noisy_neighbour_buys_no_members(reported: bool) -> None:
    """Issue 21: the learnt capacity changes by at most 5 %. Control: unreported it does, and more is bought."""
    quiet, still = scaled()
    last = len(still.members)
    noise = NoisyNeighbour(frozenset(range(LEAST)), 25, last, 2.5, reported)
    beside = Scaled(SCHEDULE, SimpleModels(), SETTINGS)
    noisy = run(SCHEDULE, beside, noise)
    kind = MemberLoad(SCHEDULE.read_share, 1.0 - SCHEDULE.read_share, 10.0)
    changes = [
        beside.capacity_per_s(str(one), kind) / quiet.capacity_per_s(str(one), kind) - 1.0
        for one in range(LEAST)
    ]
    if reported:
        assert max(map(abs, changes)) <= 0.05
        assert noisy.member_hours == pytest.approx(still.member_hours, rel=0.02)
    else:
        assert min(changes) < -0.1
        assert noisy.member_hours > 1.05 * still.member_hours
