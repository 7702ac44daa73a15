# SPDX-License-Identifier: Apache-2.0
"""The cloud that ``make bench-jobs`` draws is one in which some jobs start and others wait."""

import pytest

from benchmarks.jobs_round import drawn, one_round
from nova_numa_ext.policy.jobs.queue_settings import Discipline, QueueSettings


@pytest.mark.parametrize("discipline", Discipline)
def test_a_round_on_a_small_cloud(discipline: Discipline) -> None:
    given = drawn(hosts=200, waiting=60, seed=3, free=0.1)
    found = one_round(given, QueueSettings(discipline))
    answered = {start.job.uuid for start in found.starts} | found.waits.keys() | found.ended.keys()
    assert answered == {job.uuid for job in given.jobs}
    assert found.waits
    assert found.starts or discipline is Discipline.FCFS
    assert len(found.reservations) == (discipline is Discipline.EASY)
    assert one_round(given, QueueSettings(discipline)) == found, "equal input, equal round"


def test_a_round_that_stops_jobs_on_a_small_cloud() -> None:
    given = drawn(hosts=200, waiting=60, seed=3, free=0.1)
    found = one_round(given, QueueSettings(preempt=True))
    assert found.preempted and found.state.preempting
    assert all(each.active.job.preemptible for each in found.preempted)
