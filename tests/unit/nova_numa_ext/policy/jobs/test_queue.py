# SPDX-License-Identifier: Apache-2.0
"""Rounds of the queue, told by small stories, and what holds of all of them."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_numa_ext.policy.jobs.job import ActiveJob, Job
from nova_numa_ext.policy.jobs.limits import Limits
from nova_numa_ext.policy.jobs.plan import Plan
from nova_numa_ext.policy.jobs.queue import Discipline, QueueRound, QueueSettings, in_order
from nova_numa_ext.policy.jobs.terms import JobTerm, sentence
from tests.support.fleet import lc
from tests.support.unit_pool import a_job, one_round, simulate

FCFS = QueueSettings(Discipline.FCFS)
GREEDY = QueueSettings(Discipline.GREEDY)
EASY = QueueSettings(Discipline.EASY)


def running(uuid: str, *units: int, since: float = 0.0, **fields: object) -> ActiveJob[Plan[int]]:
    return ActiveJob(a_job(uuid, len(units), **fields), Plan(units), since)  # type: ignore[arg-type]


def started(found: QueueRound[int]) -> list[str]:
    return [start.job.uuid for start in found.starts]


def terms(found: QueueRound[int], uuid: str) -> list[str]:
    return [reason.term for reason in found.waits[uuid].reasons]


# Order ----------------------------------------------------------------------------------------------------------------


def test_priority_goes_before_age_and_age_makes_up_for_it() -> None:
    old, new = a_job("old"), a_job("new", submitted_at=3600.0, priority=2)
    settings = QueueSettings(ageing_per_hour=1.0)
    assert in_order([old, new], 3600.0, settings) == [new, old]
    assert in_order([old, replace(new, priority=1)], 3600.0, settings)[0] is old
    without = QueueSettings(ageing_per_hour=0.0)
    assert in_order([old, new], 1e9, without) == [new, old]


# Disciplines ----------------------------------------------------------------------------------------------------------

QUEUE = (
    a_job("wide", 3, 1.0),
    a_job("short", 1, 2.0, walltime_s=50.0),
    a_job("long", 1, 3.0, walltime_s=500.0),
    a_job("open", 1, 4.0),
)
FIRST = running("first", 0, 1, walltime_s=100.0)


def test_fcfs_lets_no_job_pass() -> None:
    found = one_round(QUEUE, [FIRST], 4, 10.0, FCFS)
    assert started(found) == []
    assert terms(found, "wide") == [JobTerm.NO_ROOM]
    assert terms(found, "short") == [JobTerm.BEHIND]
    assert sentence(found.waits["short"].reasons[0]) == "behind job wide, which finds no place"


def test_greedy_starts_what_fits() -> None:
    found = one_round(QUEUE, [FIRST], 4, 10.0, GREEDY)
    assert started(found) == ["short", "long"]


def test_easy_lets_pass_what_does_not_delay_the_first() -> None:
    """At 100 s four units are free, three are reserved: one job may go on beside them."""
    found = one_round(QUEUE, [FIRST], 4, 10.0, EASY)
    assert started(found) == ["short", "long"]
    assert found.reservation is not None
    assert (found.reservation.job, found.reservation.at) == ("wide", 100.0)
    four = (a_job("wide", 4, 1.0), *QUEUE[1:])
    found = one_round(four, [FIRST], 4, 10.0, EASY)
    assert started(found) == ["short"]
    assert terms(found, "long") == [JobTerm.NO_ROOM, JobTerm.RESERVED]
    assert sentence(found.waits["long"].reasons[1]) == (
        "places are kept free for job wide, which starts in 90 s at the latest"
    )


def test_easy_without_walltimes_keeps_the_places_of_the_first() -> None:
    endless = running("first", 0, 1)
    found = one_round((a_job("wide", 4, 1.0), *QUEUE[1:]), [endless], 4, 10.0, EASY)
    assert started(found) == []
    assert found.reservation is not None and found.reservation.at == math.inf
    found = one_round(QUEUE, [endless], 4, 10.0, EASY)
    assert started(found) == ["short"]


def test_a_job_that_no_fleet_holds_is_given_up_and_blocks_nothing() -> None:
    for settings in (FCFS, GREEDY, EASY):
        found = one_round((a_job("giant", 9), a_job("next", 1, 1.0)), [], 4, 10.0, settings)
        assert started(found) == ["next"]
        assert [reason.term for reason in found.ended["giant"]] == [JobTerm.TOO_LARGE]


# What is not asked ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [FCFS, GREEDY, EASY])
def test_held_jobs_and_those_that_back_off_stand_in_no_way(settings: QueueSettings) -> None:
    jobs = (
        a_job("held", 4, held=True),
        a_job("later", 4, not_before=30.0),
        a_job("next", 1, 1.0),
    )
    found = one_round(jobs, [], 4, 10.0, settings)
    assert started(found) == ["next"]
    assert terms(found, "held") == [JobTerm.HELD]
    assert found.waits["later"].until == 30.0
    assert sentence(found.waits["later"].reasons[0]) == "tried again in 20 s"


def test_a_job_is_given_up_after_its_max_wait_and_when_it_would_end_too_late() -> None:
    jobs = (
        a_job("waited", 1, max_wait_s=60.0),
        a_job("late", 1, walltime_s=50.0, deadline_at=120.0),
        a_job("fine", 1, walltime_s=50.0, deadline_at=150.0, max_wait_s=100.0),
    )
    found = one_round(jobs, [], 4, 100.0, EASY)
    assert started(found) == ["fine"]
    told = {uuid: sentence(reasons[0]) for uuid, reasons in found.ended.items()}
    assert told == {
        "waited": "waited 100 s, max_wait is 60 s",
        "late": "would end 30 s after its deadline",
    }


def test_limits_of_projects_count_what_starts_in_the_round() -> None:
    settings = QueueSettings(
        Discipline.FCFS, limits={"small": Limits(servers=3)}, default_limits=Limits(jobs=1)
    )
    jobs = (
        a_job("a", 2, 1.0, project="small"),
        a_job("b", 2, 2.0, project="small"),
        a_job("c", 1, 3.0, project="small"),
        a_job("d", 4, 4.0, project="small"),
        a_job("e", 1, 5.0, project="other"),
        a_job("f", 1, 6.0, project="other"),
    )
    found = one_round(jobs, [], 9, 10.0, settings)
    assert started(found) == ["a", "c", "e"]
    told = sentence(found.waits["b"].reasons[0])
    assert told == "servers of the project's jobs at a time: 4, limit: 3"
    assert terms(found, "f") == [JobTerm.PROJECT_JOBS]
    assert [reason.term for reason in found.ended["d"]] == [JobTerm.PROJECT_SERVERS]


# Preemption -----------------------------------------------------------------------------------------------------------

LATENCY_CRITICAL = lc()
VICTIMS = (
    running("oldest", 0, 1, since=1.0, preemptible=True),
    running("owned", 2, since=2.0),
    running("younger", 3, since=3.0, preemptible=True),
    running("youngest", 4, 5, since=4.0, preemptible=True),
)


def preempting(servers: int, active: Sequence[ActiveJob[Plan[int]]] = VICTIMS) -> QueueRound[int]:
    settings = QueueSettings(Discipline.EASY, preempt=True)
    critical = a_job("critical", servers, 5.0, request=LATENCY_CRITICAL)
    return one_round((critical, a_job("next", 1, 6.0)), active, 6, 10.0, settings)


def test_the_latest_best_effort_jobs_are_stopped_and_no_more_than_needed() -> None:
    stopped = {n: [p.active.job.uuid for p in preempting(n).preempted] for n in (1, 2, 3, 4, 6)}
    assert stopped == {
        1: ["youngest"],
        2: ["youngest"],
        3: ["youngest", "younger"],
        4: ["youngest", "oldest"],
        6: [],
    }
    found = preempting(4)
    assert started(found) == []
    assert sentence(found.preempted[0].reason) == (
        "stopped in favour of the latency-critical job critical"
    )
    assert sentence(found.waits["critical"].reasons[0]) == (
        "starts when best-effort jobs have stopped: youngest, oldest"
    )


def test_nothing_more_is_stopped_while_jobs_are_ending() -> None:
    ending = (*VICTIMS[:3], replace(VICTIMS[3], ending=True))
    assert preempting(2, ending).preempted == ()
    assert [p.active.job.uuid for p in preempting(3, ending).preempted] == ["younger"]


def test_preemption_is_off_unless_the_operator_allows_it() -> None:
    critical = a_job("critical", 2, 5.0, request=LATENCY_CRITICAL)
    assert one_round((critical,), VICTIMS, 6, 10.0, EASY).preempted == ()
    best_effort = a_job("best", 2, 5.0)
    settings = QueueSettings(preempt=True)
    assert one_round((best_effort,), VICTIMS, 6, 10.0, settings).preempted == ()


# Always ---------------------------------------------------------------------------------------------------------------


@st.composite
def workloads(draw: st.DrawFn, priorities: int = 0) -> list[tuple[Job, float]]:
    """Up to 25 jobs with walltimes that hold."""
    jobs, now = [], 0.0
    for number in range(draw(st.integers(1, 25))):
        now += draw(st.integers(0, 30))
        walltime_s = draw(st.integers(1, 100))
        job = a_job(
            f"{number:02}",
            draw(st.integers(1, 6)),
            now,
            project=draw(st.sampled_from("ab")),
            priority=draw(st.integers(0, priorities)),
            walltime_s=float(walltime_s),
        )
        jobs.append((job, float(draw(st.integers(1, walltime_s)))))
    return jobs


@given(workloads())
def test_easy_never_delays_a_reservation(jobs: list[tuple[Job, float]]) -> None:
    """Whoever has a reservation has started by then, whatever comes behind it."""
    run = simulate(jobs, 6, EASY)
    assert len(run.starts) == len(jobs)
    for _, found in run.rounds:
        if found.reservation is not None:
            assert run.starts[found.reservation.job] <= found.reservation.at


@given(workloads(priorities=3), st.sampled_from(Discipline))
def test_limits_hold_at_every_moment(jobs: list[tuple[Job, float]], discipline: Discipline) -> None:
    settings = QueueSettings(discipline, limits={"a": Limits(jobs=2, servers=6)})

    def within(active: Sequence[ActiveJob[Plan[int]]]) -> None:
        of_a = [each.job for each in active if each.job.project == "a"]
        assert len(of_a) <= 2 and sum(job.servers for job in of_a) <= 6

    assert len(simulate(jobs, 6, settings, within).starts) == len(jobs)


@given(workloads(priorities=3))
def test_fcfs_starts_in_order_of_submission_within_a_priority(
    jobs: list[tuple[Job, float]],
) -> None:
    run = simulate(jobs, 6, FCFS)
    for priority in range(4):
        starts = [run.starts[job.uuid] for job, _ in jobs if job.priority == priority]
        assert starts == sorted(starts)


@pytest.mark.parametrize("discipline", [Discipline.FCFS, Discipline.EASY])
def test_no_job_starves_under_ageing(discipline: Discipline) -> None:
    """Urgent jobs that need the whole pool follow each other without end; one that is not urgent waits."""
    stream = [
        (a_job(f"u{hour:03}", 2, hour * 3600.0, priority=10, walltime_s=3600.0), 3600.0)
        for hour in range(60)
    ]
    patient = (a_job("patient", 1, 1.0, walltime_s=3600.0), 3600.0)
    with_ageing = simulate([*stream, patient], 2, QueueSettings(discipline, ageing_per_hour=1.0))
    assert with_ageing.starts["patient"] == pytest.approx(11 * 3600.0, abs=3600.0)
    without = simulate([*stream, patient], 2, QueueSettings(discipline, ageing_per_hour=0.0))
    assert without.starts["patient"] == 60 * 3600.0
