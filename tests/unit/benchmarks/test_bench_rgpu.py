# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the link: what counts of several rounds, and that no wrong number is lost."""

import pytest

from benchmarks.bench_rgpu import GOALS, MOVES_GOALS, POCL_GOALS, best, note_end, of_one, share


def test_of_rounds_the_best_counts_and_every_wrong_result():
    rounds = [
        {"latency_us": 9.0, "write_1mib": 1.0, "wrong_results": 0, "failed": 1},
        {"latency_us": 7.0, "write_1mib": 3.0, "wrong_results": 2, "failed": 0},
        {"wrong_results": 0, "failed": 1},
    ]
    assert best(rounds) == {"latency_us": 7.0, "write_1mib": 3.0, "wrong_results": 2, "failed": 2}


@pytest.mark.parametrize(
    ("status", "wrong", "failed"), [(0, 0, 0), (3, 1, 0), (1, 0, 1), (-9, 0, 1)]
)
def test_a_program_that_ends_otherwise_is_counted(status, wrong, failed):
    figures = {"wrong_results": 0, "failed": 0}
    note_end(figures, status)
    assert figures == {"wrong_results": wrong, "failed": failed}


def test_a_share_is_the_mean_of_writing_and_reading():
    found = {
        "plain": {"write_16mib": 100.0, "read_16mib": 50.0},
        "link": {"write_16mib": 80.0, "read_16mib": 20.0},
    }
    assert share(found, "link", "16mib", "plain") == pytest.approx(0.6)


def test_each_goal_of_one_tenant_has_its_figure():
    figures = dict.fromkeys(("write_1mib", "read_1mib", "write_16mib", "read_16mib"), 10.0)
    found = {
        way: {"latency_us": us, **figures}
        for way, us in (("plain", 20.0), ("relay", 50.0), ("link", 70.0))
    }
    one = of_one(found)
    assert one["latency_over_plain_us"] == 50.0
    assert set(GOALS) - set(one) == {"tenants_share_least"}
    others = {"neighbour_worst_ratio", "wrong_results", "failed"}
    assert set(POCL_GOALS) == {f"pocl_{name}" for name in GOALS} | others


def test_a_move_may_last_a_second_and_six_milliseconds_a_mib():
    goals = {name: round(goal, 3) for name, (_, goal) in MOVES_GOALS.items()}
    assert goals == {"pause_s_4_mib": 1.024, "pause_s_64_mib": 1.384, "pause_s_256_mib": 2.536}
