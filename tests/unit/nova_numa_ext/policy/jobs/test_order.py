# SPDX-License-Identifier: Apache-2.0
"""5,000 jobs start when those of a reference queue do, which shares no line with ours: it counts units only."""

import random
from dataclasses import dataclass

import pytest

from nova_numa_ext.policy.jobs.job import Job
from nova_numa_ext.policy.jobs.queue import Discipline, QueueSettings
from tests.support.unit_pool import a_job, simulate

UNITS = 32
AGEING_PER_HOUR = 2.0


def workload(jobs: int, seed: int) -> list[tuple[Job, float]]:
    """Jobs that ask for 90 % of the units on average, with walltimes that half of them do not use up."""
    draw = random.Random(seed)
    found, now = [], 0.0
    for number in range(jobs):
        servers = min(UNITS, 1 + int(draw.expovariate(1 / 5)))
        walltime_s = draw.uniform(60, 3600)
        run_s = walltime_s * draw.choice((1.0, draw.random()))
        now += draw.expovariate(0.9 * UNITS / (5.5 * 1830 * 0.75))
        job = a_job(
            f"{number}", servers, now, priority=draw.choice((0, 0, 0, 5)), walltime_s=walltime_s
        )
        found.append((job, run_s))
    return found


@dataclass
class Entry:
    """A job of the reference queue."""

    name: str
    units: int
    came: float
    priority: int
    limit: float
    runs: float


def reference(jobs: list[tuple[Job, float]], discipline: str) -> dict[str, float]:
    """Start of each job under FCFS, greedy or EASY on alike units, by the textbook."""
    coming = [
        Entry(j.uuid, j.servers, j.submitted_at, j.priority, j.walltime_s or 0.0, run_s)
        for j, run_s in jobs
    ]
    queue: list[Entry] = []
    running: list[tuple[float, float, int]] = []  # (really ends, ends by its limit, units)
    starts: dict[str, float] = {}
    while coming or running:
        clock = min([one[0] for one in running] + [one.came for one in coming[:1]])
        running = [one for one in running if one[0] > clock]
        while coming and coming[0].came <= clock:
            queue.append(coming.pop(0))
        queue.sort(key=lambda one: one.came)
        queue.sort(
            key=lambda one: one.priority + AGEING_PER_HOUR * (clock - one.came) / 3600, reverse=True
        )
        free = UNITS - sum(one[2] for one in running)
        shadow = extra = None
        for one in list(queue):
            fits = one.units <= free
            if shadow is not None and extra is not None and fits:
                ends_early = clock + one.limit <= shadow
                fits = ends_early or one.units <= extra
                if fits and not ends_early:
                    extra -= one.units
            if fits:
                free -= one.units
                running.append((clock + one.runs, clock + one.limit, one.units))
                starts[one.name] = clock
                queue.remove(one)
            elif discipline == "fcfs":
                break
            elif discipline == "easy" and shadow is None:
                there, ends = free, sorted(each[1:] for each in running)
                for end, units in ends:
                    there += units
                    if there >= one.units:
                        shadow = end
                        extra = free + sum(u for e, u in ends if e <= end) - one.units
                        break
    return starts


def order_violations(jobs: int, discipline: Discipline, seed: int) -> int:
    """Jobs that start at another time than in the reference queue."""
    drawn = workload(jobs, seed)
    settings = QueueSettings(discipline, ageing_per_hour=AGEING_PER_HOUR)
    ours, theirs = simulate(drawn, UNITS, settings).starts, reference(drawn, discipline.value)
    assert len(theirs) == jobs
    return sum(ours.get(name) != start for name, start in theirs.items())


@pytest.mark.parametrize("discipline", Discipline)
def test_no_order_of_5000_jobs_is_violated(discipline: Discipline) -> None:
    assert order_violations(5_000, discipline, seed=2) == 0


def test_the_disciplines_differ() -> None:
    """Negative control: the workload tells them apart."""
    drawn = workload(500, seed=1)
    easy, fcfs = reference(drawn, "easy"), reference(drawn, "fcfs")
    greedy = reference(drawn, "greedy")
    assert sum(easy[name] != fcfs[name] for name in easy) > 100
    assert sum(easy[name] != greedy[name] for name in easy) > 100
