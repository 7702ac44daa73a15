# SPDX-License-Identifier: Apache-2.0
"""For which jobs Keystone is asked in a round: few of each round, and all of a user of whom it has refused one."""

from collections import Counter

import pytest

from nova_numa_ext.orchestrator.conf import EngineOptions
from nova_numa_ext.orchestrator.trust_checks import TrustChecks
from nova_numa_ext.policy.jobs.states import JobState
from tests.support.jobs_database import stored_job


class Clock:
    """Seconds that a test lets pass."""

    def __init__(self):
        self.now_s = 1000.0

    def __call__(self):
        return self.now_s


def jobs(*users, **fields):
    """One job of each user, numbered and named in order."""
    return [
        stored_job(number=number, uuid=f"{user}-{number}", user=user, **fields)
        for number, user in enumerate(users)
    ]


def checks(clock, **options):
    return TrustChecks(EngineOptions(**options), clock)


def asked(found):
    return [job.uuid for job in found]


def test_each_user_is_asked_for_in_each_round_where_they_are_few():
    clock = Clock()
    mine = checks(clock, user_checks_per_round=2)
    waiting = jobs("ann", "ann", "bob")
    for _ in range(3):
        assert asked(mine.due(waiting, [])) == ["ann-0", "bob-2"]
        clock.now_s += 2.0


def test_many_users_take_turns_whose_length_does_not_grow_with_jobs():
    clock = Clock()
    mine = checks(clock, user_checks_per_round=4, trust_check_s=1e6)
    users = [f"u{number}" for number in range(20)]
    waiting = jobs(*(users * 50))
    seen = Counter()
    for _ in range(5):
        found = mine.due(waiting, [])
        assert len(found) == 4
        seen.update(job.user for job in found)
        clock.now_s += 2.0
    assert seen == dict.fromkeys(users, 1)


def test_rounds_that_come_early_ask_no_more_often():
    clock = Clock()
    mine = checks(clock, user_checks_per_round=1, round_interval_s=2.0)
    waiting = jobs("ann")
    found = []
    for _ in range(20):
        found += mine.due(waiting, [])
        clock.now_s += 0.25
    assert len(found) == 3


def test_a_user_of_another_project_is_another_one():
    mine = checks(Clock(), user_checks_per_round=4)
    waiting = [
        stored_job(number=number, uuid=project, project=project)
        for number, project in enumerate(("p", "q"))
    ]
    assert asked(mine.due(waiting, [])) == ["p", "q"]


@pytest.mark.parametrize("rounds", [1, 3])
def test_where_keystone_refuses_one_all_of_its_user_are_asked_for_once(rounds):
    clock = Clock()
    mine = checks(clock, user_checks_per_round=0)
    lost = stored_job(number=9, uuid="lost", user="ann", trust_lost_at=1.0)
    running = jobs("ann", "bob", state=JobState.RUNNING)
    waiting = [*jobs("cyd", "cyd", "ann"), lost]
    assert asked(mine.due(waiting, running)) == ["ann-2", "ann-0"]
    for _ in range(rounds):
        clock.now_s += 2.0
        assert asked(mine.due(waiting, running)) == []
    new = stored_job(number=10, uuid="new", user="ann")
    assert asked(mine.due([*waiting, new], running)) == ["new"], "it was not there then"
    assert asked(mine.due(waiting[:-1], running)) == [], "Keystone takes the user again"
    assert asked(mine.due(waiting, running)) == ["ann-2", "ann-0"], "and does not once more"


def test_of_jobs_with_places_those_are_asked_for_that_run():
    mine = checks(Clock(), user_checks_per_round=8)
    active = [
        stored_job(number=number, uuid=state, user=state, state=state)
        for number, state in enumerate(JobState)
        if state.active
    ]
    assert asked(mine.due([], active)) == [JobState.RUNNING]


def test_jobs_that_wait_are_asked_for_at_their_interval_the_first_time_spread_over_it():
    clock = Clock()
    mine = checks(clock, user_checks_per_round=0, trust_check_s=300.0)
    waiting = [stored_job(number=number, uuid=str(number)) for number in range(64)]
    when = {}
    for _ in range(1000):
        for job in mine.due(waiting, []):
            when.setdefault(job.uuid, []).append(clock.now_s)
        clock.now_s += 1.0
    first = sorted(times[0] for times in when.values())
    assert len(when) == 64
    assert (first[0], first[-1]) == (pytest.approx(1005, abs=2), pytest.approx(1300, abs=2))
    assert {times[1] - times[0] for times in when.values()} == {300.0}


def test_a_job_without_its_user_is_asked_for_more_often():
    clock = Clock()
    mine = checks(clock, user_checks_per_round=0, trust_check_s=300.0, watch_interval_s=60.0)
    lost = stored_job(trust_lost_at=1.0)
    mine.due([lost], [])
    times = 0
    for _ in range(600):
        clock.now_s += 1.0
        times += len(mine.due([lost], []))
    assert times == pytest.approx(10, abs=1)
