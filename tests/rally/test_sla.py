# SPDX-License-Identifier: Apache-2.0
"""The SLA plug-ins as Rally drives them: iteration by iteration, merged, and with no sample at all."""

from typing import Any

import pytest
from rally.task.sla import SLAChecker

from nova_numa_ext.rally import samples
from nova_numa_ext.rally.samples import Topic

TOPICS = {
    "numa_ext_placement": Topic.PLACEMENT,
    "numa_ext_read_back": Topic.READ_BACK,
    "numa_ext_overlap": Topic.OVERLAP,
    "numa_ext_orphans": Topic.ORPHANS,
    "numa_ext_scaled": Topic.SCALED,
    "numa_ext_scaling_limits": Topic.SCALING_LIMITS,
}
EVERY: dict[str, Any] = {
    **{name: {"max": 0} for name in TOPICS},
    "numa_ext_objective": {"least_share": 0.9},
    "numa_ext_ratio": {"action": "a", "reference": "b", "max": 1.0},
}


def iteration(*charts: dict[str, Any], **took_s: float) -> dict[str, Any]:
    """An iteration as Rally hands it to SLAs."""
    return {
        "output": {"additive": list(charts), "complete": []},
        "atomic_actions": [
            {"name": name, "started_at": 1.0, "finished_at": 1.0 + seconds, "children": []}
            for name, seconds in took_s.items()
        ],
        "error": [],
    }


def all_right() -> dict[str, Any]:
    """An iteration with a good sample for each SLA."""
    charts = [samples.chart(topic, 3, 0) for topic in (*TOPICS.values(), Topic.OBJECTIVE)]
    return iteration(*charts, a=1.0, b=2.0)


def passed(checker: SLAChecker) -> dict[str, bool]:
    """Which criteria are kept."""
    return {result["criterion"]: result["success"] for result in checker.results()}


def test_every_sla_passes_on_good_samples() -> None:
    checker = SLAChecker({"sla": EVERY})
    assert checker.add_iteration(all_right())
    assert passed(checker) == dict.fromkeys(EVERY, True)
    assert all("Passed" in result["detail"] for result in checker.results())


@pytest.mark.parametrize("iterations", [[], [iteration()], [iteration()] * 3])
def test_every_sla_fails_without_samples(iterations: list[dict[str, Any]]) -> None:
    checker = SLAChecker({"sla": EVERY})
    for one in iterations:
        checker.add_iteration(one)
    assert passed(checker) == dict.fromkeys(EVERY, False)
    assert all("Failed" in result["detail"] for result in checker.results())


@pytest.mark.parametrize("name", TOPICS)
def test_a_fault_breaks_its_own_sla_only(name: str) -> None:
    checker = SLAChecker({"sla": EVERY})
    checker.add_iteration(all_right())
    assert not checker.add_iteration(iteration(samples.chart(TOPICS[name], 1, 1)))
    assert passed(checker) == dict.fromkeys(EVERY, True) | {name: False}


@pytest.mark.parametrize("name", TOPICS)
def test_one_sample_is_too_few_where_more_are_expected(name: str) -> None:
    checker = SLAChecker({"sla": {name: {"max": 0, "at_least": 4}}})
    assert checker.add_iteration(all_right())
    assert passed(checker) == {name: False}
    checker.add_iteration(all_right())
    assert passed(checker) == {name: True}


def test_what_several_processes_have_seen_is_merged() -> None:
    one, other = SLAChecker({"sla": EVERY}), SLAChecker({"sla": EVERY})
    one.add_iteration(all_right())
    other.add_iteration(
        iteration(samples.chart(Topic.OVERLAP, 1, 2), samples.chart(Topic.OBJECTIVE, 7, 5), a=9.0)
    )
    other.add_iteration(iteration(a=9.0))
    assert not one.merge(other)
    broken = {"numa_ext_overlap", "numa_ext_objective", "numa_ext_ratio"}
    assert {name for name, kept in passed(one).items() if not kept} == broken


def test_an_empty_sample_is_none() -> None:
    checker = SLAChecker({"sla": {"numa_ext_overlap": {"max": 0}}})
    checker.add_iteration(iteration(samples.chart(Topic.OVERLAP, 0, 0)))
    assert passed(checker) == {"numa_ext_overlap": False}
