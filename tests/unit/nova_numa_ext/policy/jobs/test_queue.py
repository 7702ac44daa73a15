# SPDX-License-Identifier: Apache-2.0
"""Rounds of the queue, told by small stories, and what holds of all of them."""

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_numa_ext.policy.jobs.job import ActiveJob, Job
from nova_numa_ext.policy.jobs.limits import Limits
from nova_numa_ext.policy.jobs.plan import Outcome, Plan
from nova_numa_ext.policy.jobs.queue_order import in_order
from nova_numa_ext.policy.jobs.queue_round import QueueRound, QueueState
from nova_numa_ext.policy.jobs.queue_settings import Discipline, QueueSettings
from nova_numa_ext.policy.jobs.terms import JobTerm, sentence
from tests.support.fleet import lc
from tests.support.unit_pool import BEST_EFFORT, UnitPlanner, a_job, one_round, simulate

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
    assert [(kept.job, kept.at) for kept in found.reservations] == [("wide", 100.0)]
    four = (a_job("wide", 4, 1.0), *QUEUE[1:])
    found = one_round(four, [FIRST], 4, 10.0, EASY)
    assert started(found) == ["short"]
    assert terms(found, "long") == [JobTerm.NO_ROOM, JobTerm.RESERVED]
    assert sentence(found.waits["long"].reasons[1]) == (
        "places are kept free for job wide, which starts in 90 s at the latest"
    )


def test_a_round_that_ends_early_lets_pass_a_short_job_behind_a_long_one_of_its_kind() -> None:
    """Who knows how many jobs of each kind wait gets the same starts as who asks for all answers."""
    waiting = [
        a_job("wide", 4, 1.0, walltime_s=50.0),
        a_job("long", 1, 2.0, walltime_s=500.0),
        a_job("short", 1, 3.0, walltime_s=50.0),
    ]
    kinds = Counter[Hashable](each.servers for each in waiting)
    assert started(one_round(waiting, [FIRST], 4, 10.0, EASY)) == ["short"]
    assert started(one_round(waiting, [FIRST], 4, 10.0, EASY, kinds=kinds)) == ["short"]


def test_easy_without_walltimes_keeps_the_places_of_the_first() -> None:
    endless = running("first", 0, 1)
    found = one_round((a_job("wide", 4, 1.0), *QUEUE[1:]), [endless], 4, 10.0, EASY)
    assert started(found) == []
    assert [kept.at for kept in found.reservations] == [math.inf]
    found = one_round(QUEUE, [endless], 4, 10.0, EASY)
    assert started(found) == ["short"]


@pytest.mark.parametrize("settings", [FCFS, GREEDY, EASY])
def test_a_job_that_no_fleet_holds_blocks_nothing(settings: QueueSettings) -> None:
    found = one_round((a_job("giant", 9), a_job("next", 1, 1.0)), [], 4, 10.0, settings)
    assert started(found) == ["next"]
    assert terms(found, "giant") == [JobTerm.TOO_LARGE]


def test_a_job_is_given_up_when_all_rounds_of_a_time_found_no_fleet_that_holds_it() -> None:
    """Eight units are there, of which four are not published from 100 s to 200 s; for good from 300 s on."""
    settings = QueueSettings(unsatisfiable_s=60.0, servers_of_projects={"small": 5})
    both = (a_job("wide", 6), a_job("limited", 6, project="small"))
    state, seen = QueueState(), {}
    for now in range(0, 400, 20):
        units = 4 if 100 <= now < 140 or now >= 300 else 8
        busy = [running("all", *range(units))]
        found = one_round(both, busy, units, float(now), settings, state=state)
        state = found.state
        for uuid, reasons in found.ended.items():
            seen.setdefault(uuid, (now, [reason.term for reason in reasons]))
    assert seen == {"wide": (360, [JobTerm.TOO_LARGE]), "limited": (60, [JobTerm.PROJECT_SERVERS])}


# What is not asked ----------------------------------------------------------------------------------------------------


def test_a_job_without_a_valid_host_keeps_its_turn_while_it_backs_off() -> None:
    """It found room in one round, and nova did not; what ends before its next try may pass."""
    wide = a_job("wide", 4, not_before=60.0, excluded=frozenset({"host"}), refusals=1)
    short, open_end = a_job("short", 1, 1.0, walltime_s=40.0), a_job("open", 1, 2.0)
    found = one_round((wide, short, open_end), [], 4, 10.0, EASY)
    assert started(found) == ["short"]
    assert terms(found, "wide") == [JobTerm.BACK_OFF]
    assert terms(found, "open") == [JobTerm.NO_ROOM, JobTerm.RESERVED]
    assert [(kept.job, kept.at) for kept in found.reservations] == [("wide", 60.0)]
    for without in (
        replace(wide, excluded=frozenset()),  # its project's quota was used up
        replace(wide, refusals=10),
    ):
        found = one_round((without, short, open_end), [], 4, 10.0, EASY)
        assert started(found) == ["short", "open"]


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


def test_time_with_places_is_no_waiting() -> None:
    """Submitted at 0, one ran until it was stopped at 7,000: it has waited 120 s, the other one 7,100 s."""
    stopped = a_job("stopped", 1, queued_at=7000.0, waited_s=20.0, max_wait_s=200.0)
    other = a_job("other", 1, 1.0, max_wait_s=8000.0)
    assert started(one_round((stopped, other), [], 4, 7100.0, EASY)) == ["other", "stopped"]
    found = one_round((stopped,), [], 4, 7200.0, EASY)
    assert [sentence(each) for each in found.ended["stopped"]] == [
        "waited 220 s, max_wait is 200 s"
    ]


def test_limits_of_projects_count_what_starts_in_the_round() -> None:
    settings = QueueSettings(
        Discipline.FCFS,
        default_limits=Limits(jobs=1),
        jobs_of_projects={"small": 9},
        servers_of_projects={"small": 3},
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
    assert terms(found, "d") == [JobTerm.PROJECT_SERVERS]


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
        "starts when other jobs have ended: youngest, oldest"
    )


def test_nothing_more_is_stopped_while_jobs_are_ending() -> None:
    ending = (*VICTIMS[:3], replace(VICTIMS[3], ending_at=9.0))
    assert preempting(2, ending).preempted == ()
    assert [p.active.job.uuid for p in preempting(3, ending).preempted] == ["younger"]


def test_a_job_that_does_not_end_in_time_is_not_waited_for() -> None:
    """Nova deletes no server that is locked."""
    locked = (*VICTIMS[:3], replace(VICTIMS[3], ending_at=-1000.0))
    assert [p.active.job.uuid for p in preempting(3, locked).preempted] == ["younger", "oldest"]
    assert preempting(4, locked).preempted == ()


def test_what_is_freed_is_kept_for_the_job_in_whose_favour() -> None:
    """Older jobs of one unit wait, and the stopped ones come back as the oldest of all."""
    settings = QueueSettings(Discipline.GREEDY, preempt=True)
    older = tuple(a_job(f"older {number}", 1, number / 100) for number in range(100))
    critical = a_job("critical", 2, 5.0, request=LATENCY_CRITICAL)
    first = one_round((*older, critical), VICTIMS, 6, 10.0, settings)
    assert started(first) == []
    assert [p.active.job.uuid for p in first.preempted] == ["youngest"]
    assert [(kept.job, kept.plan.places) for kept in first.reservations] == [("critical", (4, 5))]
    back = a_job("youngest", 2, -1.0, preemptible=True, queued_at=12.0)
    again = one_round((*older, critical, back), VICTIMS[:3], 6, 12.0, settings, state=first.state)
    assert started(again) == ["critical"]
    assert again.preempted == () and again.state == QueueState()


def test_what_is_freed_one_after_the_other_is_kept_until_all_is_there() -> None:
    settings = QueueSettings(Discipline.GREEDY, preempt=True)
    older, critical = a_job("older", 1), a_job("critical", 3, 5.0, request=LATENCY_CRITICAL)
    first = one_round((older, critical), VICTIMS, 6, 10.0, settings)
    assert [p.active.job.uuid for p in first.preempted] == ["youngest", "younger"]
    half = (*VICTIMS[:2], replace(VICTIMS[2], ending_at=10.0))
    second = one_round((older, critical), half, 6, 12.0, settings, state=first.state)
    assert (started(second), second.preempted) == ([], ())
    assert terms(second, "critical")[0] == JobTerm.PREEMPTS
    third = one_round((older, critical), VICTIMS[:2], 6, 14.0, settings, state=second.state)
    assert started(third) == ["critical"]


def test_a_stop_that_was_not_carried_out_is_asked_for_again() -> None:
    """One of two was in another's hand; what the other one frees is not given to older jobs meanwhile."""
    settings = QueueSettings(Discipline.GREEDY, preempt=True)
    older, critical = a_job("older", 1), a_job("critical", 3, 5.0, request=LATENCY_CRITICAL)
    first = one_round((older, critical), VICTIMS, 6, 10.0, settings)
    assert [p.active.job.uuid for p in first.preempted] == ["youngest", "younger"]
    half = (*VICTIMS[:3], replace(VICTIMS[3], ending_at=10.0))
    second = one_round((older, critical), half, 6, 12.0, settings, state=first.state)
    assert started(second) == []
    assert [p.active.job.uuid for p in second.preempted] == ["younger"]
    assert terms(second, "critical")[0] == JobTerm.PREEMPTS
    third = one_round((older, critical), VICTIMS[:3], 6, 14.0, settings, state=second.state)
    assert started(third) == []
    assert [p.active.job.uuid for p in third.preempted] == ["younger"]
    fourth = one_round((older, critical), VICTIMS[:2], 6, 16.0, settings, state=third.state)
    assert started(fourth) == ["critical"]
    assert fourth.state == QueueState()


def test_what_was_chosen_runs_on_when_it_is_needed_no_more() -> None:
    settings = QueueSettings(Discipline.GREEDY, preempt=True)
    critical = a_job("critical", 3, 5.0, request=LATENCY_CRITICAL)
    first = one_round((critical,), VICTIMS, 6, 10.0, settings)
    freed = (
        replace(VICTIMS[0], ending_at=11.0),
        *VICTIMS[1:3],
        replace(VICTIMS[3], ending_at=10.0),
    )
    second = one_round((critical,), freed, 6, 12.0, settings, state=first.state)
    assert (second.preempted, second.state.chosen) == ((), {})
    assert terms(second, "critical")[0] == JobTerm.PREEMPTS


def test_no_more_is_stopped_before_the_fleet_shows_what_was_freed() -> None:
    """The youngest has ended; what is known of the fleet is older and shows its units as another one's."""
    settings = QueueSettings(Discipline.GREEDY, preempt=True)
    older, critical = a_job("older", 1), a_job("critical", 2, 5.0, request=LATENCY_CRITICAL)
    first = one_round((older, critical), VICTIMS, 6, 10.0, settings)
    old_view = (*VICTIMS[:3], running("not shown yet", 4, 5))
    second = one_round((older, critical), old_view, 6, 30.0, settings, state=first.state)
    assert (started(second), second.preempted) == ([], ())
    third = one_round((older, critical), VICTIMS[:3], 6, 40.0, settings, state=second.state)
    assert started(third) == ["critical"]
    late = one_round((older, critical), old_view, 6, 70.0, settings, state=second.state)
    assert [p.active.job.uuid for p in late.preempted] == ["oldest"]


def test_a_second_job_waits_for_what_was_freed_though_stopping_helps_the_first_no_more() -> None:
    """Both had others stopped, the first one longer ago; nothing is left that may be stopped."""
    settings = QueueSettings(Discipline.GREEDY, preempt=True)
    jobs = [
        a_job(name, 2, number, request=LATENCY_CRITICAL)
        for number, name in enumerate(("first", "second"))
    ]
    before = QueueState({"first": 0.0, "second": 50.0})
    found = one_round(jobs, [running("owned", *range(6))], 6, 100.0, settings, state=before)
    assert found.state.preempting == {"second": 50.0}


def test_a_job_that_nova_refuses_each_time_has_others_stopped_no_more() -> None:
    settings = QueueSettings(preempt=True)
    critical = a_job("critical", 2, 5.0, request=LATENCY_CRITICAL, refusals=9)
    assert len(one_round((critical,), VICTIMS, 6, 10.0, settings).preempted) == 1
    again = replace(critical, refusals=10)
    assert one_round((again,), VICTIMS, 6, 10.0, settings).preempted == ()


class CountingPlanner(UnitPlanner):
    """Counts how often it is asked."""

    asked = 0

    def plan(self, *given: object) -> Outcome[int]:  # type: ignore[override]
        self.asked += 1
        return super().plan(*given)  # type: ignore[arg-type]


@pytest.mark.parametrize("sizes", [(90,) * 300, range(1, 301), (1,) * 300])
def test_what_a_round_costs_does_not_grow_with_each_job_that_would_stop_others(
    sizes: Sequence[int],
) -> None:
    """300 latency-critical jobs wait beside 100 units, each with a best-effort job."""
    settings = QueueSettings(preempt=True)
    jobs = [
        a_job(f"{number}", servers, float(number), request=LATENCY_CRITICAL)
        for number, servers in enumerate(sizes)
    ]
    active = [
        running(f"unit {unit}", unit, since=float(unit), preemptible=True) for unit in range(100)
    ]
    planner = CountingPlanner()
    found = one_round(jobs, active, 100, 1000.0, settings, planner=planner)
    assert found.preempted
    assert planner.asked < 2 * len({*sizes}) + 300


def test_preemption_is_off_unless_the_operator_allows_it() -> None:
    critical = a_job("critical", 2, 5.0, request=LATENCY_CRITICAL)
    assert one_round((critical,), VICTIMS, 6, 10.0, EASY).preempted == ()
    best_effort = a_job("best", 2, 5.0)
    settings = QueueSettings(preempt=True)
    assert one_round((best_effort,), VICTIMS, 6, 10.0, settings).preempted == ()


# Always ---------------------------------------------------------------------------------------------------------------


@st.composite
def workloads(
    draw: st.DrawFn, priorities: int = 0, *, preempting: bool = False
) -> list[tuple[Job, float]]:
    """Up to 25 jobs with walltimes that hold; with preemption, some stop others and some may be stopped."""
    jobs, now = [], 0.0
    for number in range(draw(st.integers(1, 25))):
        now += draw(st.integers(0, 30))
        walltime_s = draw(st.integers(1, 100))
        critical = preempting and draw(st.booleans())
        job = a_job(
            f"{number:02}",
            draw(st.integers(1, 6)),
            now,
            project=draw(st.sampled_from("ab")),
            priority=draw(st.integers(0, priorities)),
            walltime_s=float(walltime_s),
            request=LATENCY_CRITICAL if critical else BEST_EFFORT,
            preemptible=preempting and not critical and draw(st.booleans()),
        )
        jobs.append((job, float(draw(st.integers(1, walltime_s)))))
    return jobs


@given(workloads())
def test_easy_never_delays_a_reservation(jobs: list[tuple[Job, float]]) -> None:
    """Whoever has a reservation has started by then, whatever comes behind it."""
    run = simulate(jobs, 6, EASY)
    assert len(run.starts) == len(jobs)
    for _, found in run.rounds:
        for kept in found.reservations:
            assert run.starts[kept.job] <= kept.at


@given(workloads(priorities=3), st.sampled_from(Discipline))
def test_limits_hold_at_every_moment(jobs: list[tuple[Job, float]], discipline: Discipline) -> None:
    settings = QueueSettings(discipline, jobs_of_projects={"a": 2}, servers_of_projects={"a": 6})

    def within(active: Sequence[ActiveJob[Plan[int]]]) -> None:
        of_a = [each.job for each in active if each.job.project == "a"]
        assert len(of_a) <= 2 and sum(job.servers for job in of_a) <= 6

    assert len(simulate(jobs, 6, settings, within).starts) == len(jobs)


@given(workloads(preempting=True), st.sampled_from(Discipline), st.integers(1, 100))
def test_each_preemption_is_followed_by_the_start_that_it_is_for(
    jobs: list[tuple[Job, float]], discipline: Discipline, ending_s: int
) -> None:
    settings = QueueSettings(discipline, preempt=True)
    run = simulate(jobs, 6, settings, ending_s=ending_s)
    assert len(run.starts) == len(jobs)
    times: dict[str, set[float]] = {}
    for at, _, beneficiary in run.stops:
        times.setdefault(beneficiary, set()).add(at)
        assert at < run.starts[beneficiary] <= at + ending_s
    assert all(len(each) == 1 for each in times.values()), "each job stops others once"
    servers = {job.uuid: job.servers for job, _ in jobs}
    assert len(run.stops) <= sum(servers[uuid] for uuid in times)


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
