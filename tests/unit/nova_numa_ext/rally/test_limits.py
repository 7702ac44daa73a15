# SPDX-License-Identifier: Apache-2.0
"""When an SLA is kept: with samples, without, and counted by several processes."""

import pytest

from nova_numa_ext.rally import samples
from nova_numa_ext.rally.limits import FaultLimit, RatioLimit, ShareLimit, ratio
from nova_numa_ext.rally.samples import Topic


def test_without_a_sample_no_limit_is_kept() -> None:
    assert not FaultLimit(0).kept
    assert not ShareLimit(0.0).kept
    assert not RatioLimit(10.0).kept
    assert "at least 1 expected" in FaultLimit(0).details("x")
    assert "none looked at" in ShareLimit(0.0).details("x")
    assert "at least one of each" in RatioLimit(1.0).details("a", "b")


def test_a_sample_of_nothing_is_none() -> None:
    limit = FaultLimit(0)
    limit.add(0, 0)
    assert not limit.kept


@pytest.mark.parametrize(("faults", "kept"), [(0, True), (1, True), (2, False)])
def test_faults_are_added_over_samples(faults: int, kept: bool) -> None:
    limit, other = FaultLimit(1), FaultLimit(1)
    for _ in range(faults):
        other.add(1, 1)
    limit.add(3, 0)
    limit.merge(other)
    assert (limit.kept, limit.broken) == (kept, not kept)
    assert limit.looked_at == 3 + faults


def test_too_little_looked_at_is_not_broken_but_not_kept() -> None:
    limit = FaultLimit(0, least=4)
    limit.add(3, 0)
    assert not limit.kept
    assert not limit.broken
    limit.add(1, 0)
    assert limit.kept


@pytest.mark.parametrize(("faults", "kept"), [(0, True), (1, True), (2, False)])
def test_a_share_must_be_right(faults: int, kept: bool) -> None:
    limit, other = ShareLimit(0.9), ShareLimit(0.9)
    other.add(5, faults)
    limit.add(5, 0)
    limit.merge(other)
    assert limit.kept is kept
    assert f"{faults} of 10" in limit.details("x")


def test_a_ratio_is_of_medians() -> None:
    limit, other = RatioLimit(0.5), RatioLimit(0.5)
    limit.measured_s += [1.0, 1.0]
    other.measured_s += [90.0]
    other.reference_s += [2.0, 2.0, 50.0]
    limit.merge(other)
    assert limit.ratio == 0.5
    assert limit.kept
    limit.measured_s += [1.1, 1.1, 1.1]
    assert not limit.kept


def test_a_reference_that_took_no_time_gives_no_ratio() -> None:
    assert ratio([1.0], [0.0]) is None


def test_samples_travel_as_charts() -> None:
    charts = [samples.chart(Topic.OVERLAP, 3, 1), samples.chart(Topic.ORPHANS, 2, 0)]
    iteration = {"output": {"additive": charts, "complete": []}}
    assert list(samples.of(iteration, Topic.OVERLAP)) == [(3, 1)]
    assert list(samples.of(iteration, Topic.PLACEMENT)) == []


def test_durations_of_actions_inside_of_others_count_and_failed_ones_do_not() -> None:
    def action(name: str, took_s: float, **more: object) -> dict[str, object]:
        return {"name": name, "started_at": 10.0, "finished_at": 10.0 + took_s, **more}

    actions = [
        action("a", 5.0, children=[action("b", 2.0)]),
        action("b", 1.0, children=[]),
        action("b", 9.0, failed=True),
    ]
    assert list(samples.durations(actions, "b")) == [2.0, 1.0]
