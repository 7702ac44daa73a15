# SPDX-License-Identifier: Apache-2.0
"""5,000 jobs start when those of a reference queue do, which shares no line with ours: it counts units only."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from nova_numa_ext.policy.jobs.job import Job
from nova_numa_ext.policy.jobs.queue_settings import Discipline, QueueSettings
from tests.support.fleet import lc
from tests.support.unit_pool import BEST_EFFORT, AmountPlanner, UnitPlanner, a_job, simulate

UNITS = 32
AGEING_PER_HOUR = 2.0
ENDING_S = 30.0
LATENCY_CRITICAL = lc()


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
            f"{number}",
            servers,
            now,
            priority=draw.choice((0, 0, 0, 5)),
            walltime_s=walltime_s,
            request=BEST_EFFORT if number % 10 else LATENCY_CRITICAL,
            preemptible=number % 3 > 0,
        )
        found.append((job, run_s))
    return found


@dataclass
class Entry:
    """A job of the reference queue.

    :param since: when it came into the queue
    :param waited: seconds in it before that
    :param started: when it got its units
    :param until: when they are free
    """

    name: str
    units: int
    came: float
    priority: int
    limit: float
    runs: float
    critical: bool
    stoppable: bool
    since: float
    waited: float = 0.0
    started: float = 0.0
    until: float = 0.0
    stopped: bool = False

    def expected(self, clock: float) -> float:
        """When its units are free at the latest."""
        return clock if self.stopped else self.started + self.limit


@dataclass
class Reference:
    """A queue on alike units, by the textbook: FCFS, greedy or EASY, and latency-critical jobs that stop others."""

    discipline: str
    preempt: bool
    queue: list[Entry] = field(default_factory=list)
    running: list[Entry] = field(default_factory=list)
    first: set[str] = field(default_factory=set)
    starts: dict[str, float] = field(default_factory=dict)
    stops: list[tuple[float, str, str]] = field(default_factory=list)

    def run(self, coming: list[Entry]) -> None:
        """Let all jobs come, start and end."""
        while coming or self.running:
            clock = min([one.until for one in self.running] + [one.came for one in coming[:1]])
            for one in [each for each in self.running if each.until <= clock]:
                self.running.remove(one)
                if one.stopped:
                    one.since, one.stopped = clock, False
                    self.queue.append(one)
            while coming and coming[0].came <= clock:
                self.queue.append(coming.pop(0))
            self.round(clock)

    def round(self, clock: float) -> None:
        """Decide who starts."""
        self.queue.sort(key=lambda one: one.came)
        self.queue.sort(
            key=lambda one: (
                one.priority + AGEING_PER_HOUR * (one.waited + clock - one.since) / 3600
            ),
            reverse=True,
        )
        self.queue.sort(key=lambda one: one.name not in self.first)
        self.first = set()
        kept: list[Entry] = []
        free = UNITS - sum(one.units for one in self.running)
        shadow = extra = None
        for one in list(self.queue):
            early = shadow is not None and clock + one.limit <= shadow
            room = free if early or extra is None else min(free, extra)
            if one.units <= room:
                free -= one.units
                if extra is not None and not early:
                    extra -= one.units
                one.waited += clock - one.since
                one.started, one.until = clock, clock + one.runs
                self.running.append(one)
                self.starts[one.name] = clock
                self.queue.remove(one)
                continue
            if self.preempt and one.critical:
                freed = self.stop_for(one, clock, free, None if early else extra, shadow)
                if freed is not None:
                    self.first.add(one.name)
                    free -= one.units
                    if extra is not None:
                        extra += freed - (0 if early else one.units)
                    one.started = clock
                    kept.append(one)
                    if self.discipline == "fcfs":
                        break
                    continue
            if self.discipline == "fcfs":
                break
            if self.discipline == "easy" and shadow is None:
                there = free
                ends = sorted((each.expected(clock), each.units) for each in self.running + kept)
                for end, units in ends:
                    there += units
                    if there >= one.units:
                        shadow = end
                        extra = free + sum(u for e, u in ends if e <= end) - one.units
                        break

    def stop_for(
        self, one: Entry, clock: float, free: int, extra: int | None, shadow: float | None
    ) -> int | None:
        """Stop the latest others, as few as it needs; return what they add at the shadow time, None where none help."""

        def late(others: Sequence[Entry]) -> int:
            return sum(o.units for o in others if shadow is not None and o.expected(clock) > shadow)

        def fits(others: Sequence[Entry]) -> bool:
            there = free + sum(o.units for o in self.running if o.stopped)
            there += sum(o.units for o in others)
            return one.units <= there and (extra is None or one.units <= extra + late(others))

        victims: list[Entry] = []
        if not (any(o.stopped for o in self.running) and fits(())):
            can = [o for o in self.running if o.stoppable and not o.critical and not o.stopped]
            can.sort(key=lambda o: -o.started)
            can = [o for o in can if o.started < clock]
            number = next((n for n in range(len(can) + 1) if fits(can[:n])), None)
            if number is None:
                return None
            victims = can[:number]
            for o in can[: max(0, number - 1)]:
                rest = [other for other in victims if other is not o]
                if fits(rest):
                    victims = rest
        more = late(victims)
        for o in victims:
            o.stopped, o.until = True, clock + ENDING_S
            self.stops.append((clock, o.name, one.name))
        return more


def reference(
    jobs: list[tuple[Job, float]], discipline: str, *, preempt: bool = False
) -> Reference:
    """Run the reference queue."""
    found = Reference(discipline, preempt)
    found.run(
        [
            Entry(
                job.uuid,
                job.servers,
                job.submitted_at,
                job.priority,
                job.walltime_s or 0.0,
                run_s,
                job.latency_critical,
                job.preemptible,
                job.submitted_at,
            )
            for job, run_s in jobs
        ]
    )
    return found


def order_violations(jobs: int, discipline: Discipline, seed: int, *, preempt: bool = False) -> int:
    """Jobs that start, or are stopped, at another time than in the reference queue."""
    drawn = workload(jobs, seed)
    settings = QueueSettings(discipline, ageing_per_hour=AGEING_PER_HOUR, preempt=preempt)
    planner = AmountPlanner() if preempt else UnitPlanner()
    ours = simulate(drawn, UNITS, settings, ending_s=ENDING_S, planner=planner)
    theirs = reference(drawn, discipline.value, preempt=preempt)
    assert len(theirs.starts) == jobs
    assert (len(theirs.stops) > jobs / 100) == preempt
    differ = sum(ours.starts.get(name) != start for name, start in theirs.starts.items())
    return differ + len({*ours.stops} ^ {*theirs.stops})


@pytest.mark.parametrize("preempt", [False, True])
@pytest.mark.parametrize("discipline", Discipline)
def test_no_order_of_a_thousand_jobs_is_violated(discipline: Discipline, preempt: bool) -> None:
    assert order_violations(1_000, discipline, seed=2, preempt=preempt) == 0


@pytest.mark.long
@pytest.mark.parametrize("preempt", [False, True])
@pytest.mark.parametrize("discipline", Discipline)
def test_no_order_of_5000_jobs_is_violated(
    discipline: Discipline, preempt: bool, record_property: Callable[[str, object], None]
) -> None:
    """``make bench-jobs`` reads the number of each run."""
    found = order_violations(5_000, discipline, seed=2, preempt=preempt)
    record_property("order_violations", found)
    assert found == 0


def test_the_disciplines_differ() -> None:
    """Negative control: the workload tells them apart."""
    drawn = workload(500, seed=1)
    easy, fcfs, greedy = (
        reference(drawn, discipline).starts for discipline in ("easy", "fcfs", "greedy")
    )
    stopping = reference(drawn, "easy", preempt=True).starts
    assert sum(easy[name] != fcfs[name] for name in easy) > 100
    assert sum(easy[name] != greedy[name] for name in easy) > 100
    assert sum(easy[name] != stopping[name] for name in easy) > 100
