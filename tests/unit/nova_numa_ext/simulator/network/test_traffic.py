# SPDX-License-Identifier: Apache-2.0
"""Jobs that slow each other on uplinks: by hand, and what is counted again is what all of them together have."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_numa_ext.policy.network.groups import PolicyName
from nova_numa_ext.simulator.network.barrio import Slowing, replay
from nova_numa_ext.simulator.network.fluid import Pattern, capacities, demands, max_min
from nova_numa_ext.simulator.network.mixes import LoggedJob
from nova_numa_ext.simulator.network.traffic import JobTraffic, SharedLinks, drawn
from tests.support.fabrics import fabric

RING = JobTraffic(Pattern.RING, 0.4)
THREE = fabric([6] * 3, leafs_per_pod=3)


def test_a_job_that_communicates_less_is_slowed_less() -> None:
    assert JobTraffic(Pattern.RING, 0.0).speed(0.1) == 1.0
    assert JobTraffic(Pattern.RING, 1.0).speed(0.1) == pytest.approx(0.1)
    assert RING.speed(0.5) == pytest.approx(1 / 1.4)


def test_two_jobs_share_a_leaf_and_a_third_hears_nothing_of_it() -> None:
    links = SharedLinks(THREE, 6.0)
    assert links.start(1, {"l000": 6, "l001": 2}, RING) == 1.0
    assert links.start(2, {"l002": 4}, RING) == 1.0
    assert links.speeds() == {1: 1.0}
    assert links.start(3, {"l001": 4, "l002": 2}, RING) == 1.0
    assert links.speeds() == {1: pytest.approx(1 / 1.4), 3: pytest.approx(1 / 1.4)}
    assert links.speeds() == {}
    links.end(2)
    assert links.speeds() == {}
    links.end(1)
    assert links.speeds() == {3: 1.0}


@given(st.integers(0, 2**16))
def test_what_is_counted_again_is_what_all_jobs_together_have(seed: int) -> None:
    chance = random.Random(seed)
    plan = fabric([6] * 6, leafs_per_pod=3)
    links = SharedLinks(plan, 4.0)
    jobs: dict[int, tuple[JobTraffic, dict[str, int]]] = {}
    known: dict[int, float] = {}
    for number in range(10):
        if jobs and chance.random() < 0.4:
            gone = chance.choice(sorted(jobs))
            del jobs[gone]
            known.pop(gone, None)
            links.end(gone)
        else:
            leafs = sorted(chance.sample(plan.leafs, chance.randint(1, 3)))
            traffic = JobTraffic(chance.choice([*Pattern]), chance.random())
            jobs[number] = traffic, {leaf: chance.randint(1, 3) for leaf in leafs}
            known[number] = 1.0
            links.start(number, jobs[number][1], traffic)
        known |= links.speeds()
        sent = {each: demands(plan, places, one.pattern) for each, (one, places) in jobs.items()}
        rates = max_min([*sent.values()], capacities(plan, 4.0))
        for each, rate in zip(sent, rates, strict=True):
            assert known[each] == pytest.approx(jobs[each][0].speed(float(rate)))


def test_a_replay_goes_on_slower_while_two_jobs_share_and_faster_then() -> None:
    jobs = [LoggedJob(1, 0.0, 14.0, 8), LoggedJob(2, 7.0, 14.0, 8)]
    slowing = Slowing(6.0, lambda number: RING)
    found = replay(jobs, THREE, PolicyName.FIRST_AVAILABLE, slowing=slowing)
    assert [each.ended_at for each in found.jobs] == pytest.approx([16.8, 23.8])
    assert [each.slowdown for each in found.jobs] == pytest.approx([1.2, 1.2])
    assert [each.slowdown_by_others for each in found.jobs] == pytest.approx([1.2, 1.2])
    assert found.metrics.utilisation == pytest.approx(2 * 8 * 16.8 / (18 * 23.8))


def test_leafs_alone_slow_a_job_and_that_is_not_by_others() -> None:
    slowing = Slowing(12.0, lambda number: RING)
    (only,) = replay(
        [LoggedJob(1, 0.0, 14.0, 8)], THREE, PolicyName.FIRST_AVAILABLE, slowing=slowing
    ).jobs
    assert only.slowdown == pytest.approx(1.4)
    assert only.slowdown_by_others == pytest.approx(1.0)


def test_traffic_is_the_jobs_own_whatever_the_policy() -> None:
    first = [drawn(1, number) for number in range(200)]
    assert first == [drawn(1, number) for number in range(200)]
    assert first != [drawn(2, number) for number in range(200)]
    assert {each.pattern for each in first} == set(Pattern)
    assert {each.communication for each in first} == {0.1, 0.2, 0.4}
