# SPDX-License-Identifier: Apache-2.0
"""The event loop, told by small stories and by the experiments of the source."""

import itertools
from collections.abc import Sequence

import pytest

from nova_numa_ext.policy.gpu.job import GpuJob, JobGraph, Profile, ProfileStore
from nova_numa_ext.simulator.gpu import table7
from nova_numa_ext.simulator.gpu.cluster import STRATEGIES
from nova_numa_ext.simulator.gpu.machines import fleet, graph
from nova_numa_ext.simulator.gpu.simulation import (
    NeverPlacedError,
    Record,
    Simulation,
    SimulationRun,
    StrategyView,
)
from nova_numa_ext.simulator.gpu.workload import Submission, load_model, poisson
from nova_numa_ext.simulator.metrics import summary

MODEL = load_model()
STORE = MODEL.store()
PAIR = ProfileStore({"job": Profile("job", spread=1.5, beside={"*": 1.25})})


def one(gpus: int = 1, minimum: float = 0.0) -> GpuJob:
    return GpuJob((JobGraph.complete(gpus, 4),), "job", minimum)


def story(strategy: str, *jobs: tuple[float, GpuJob, float]) -> tuple[Record, ...]:
    """Run (arrival, wish, solo time) on one Minsky."""
    submissions = [Submission(n, *job) for n, job in enumerate(jobs)]
    return Simulation([graph("minsky")], submissions, strategy, PAIR).run().records


def test_a_job_alone_runs_as_fast_as_it_can() -> None:
    (job,) = story("topo", (2.0, one(2), 100.0))
    assert (job.start_s, job.end_s, job.slowdown) == (2.0, 102.0, 1.0)


def test_far_gpus_stretch_a_run() -> None:
    (job,) = story("spread", (0.0, one(2), 100.0))
    assert job.end_s == pytest.approx(150.0)


def test_speed_follows_the_neighbours() -> None:
    """Two jobs share a socket from 0 s; the first ends at 50 s, the second then runs at full speed."""
    short, long = story("fcfs", (0.0, one(), 40.0), (0.0, one(), 100.0))
    assert short.end_s == pytest.approx(50.0)  # 40 s at rate 1 / 1.25
    assert long.end_s == pytest.approx(50.0 + (100.0 - 40.0))
    assert long.slowdown == pytest.approx(1.1)


def test_f_000_16_the_oldest_goes_first_and_is_retried_when_a_job_ends() -> None:
    records = story(
        "topo",
        (0.0, one(4), 50.0),
        (1.0, one(3), 10.0),
        (2.0, one(3), 10.0),
        (3.0, one(3), 10.0),
    )
    starts = [record.start_s for record in records]
    assert starts == sorted(starts)
    assert starts[1] == records[0].end_s
    assert starts[2] == records[1].end_s
    first_end_s = 50.0 * (1 + 0.5 * 2 / 3)  # four of its six pairs are across sockets
    assert records[1].waiting_s == pytest.approx(first_end_s - 1.0)
    assert records[1].slowdown_with_waiting == pytest.approx((records[1].end_s - 1.0) / 10.0)


def test_f_000_16_only_postponing_lets_the_young_pass() -> None:
    """Three GPUs are busy; a job of two waits; a job of one comes."""
    jobs = ((0.0, one(3), 100.0), (1.0, one(2), 10.0), (2.0, one(1), 10.0))
    for strategy in ("fcfs", "bf", "topo"):
        records = story(strategy, *jobs)
        assert records[2].start_s >= records[1].start_s == records[0].end_s
    records = story("topo_p", *jobs)
    assert records[2].start_s == 2.0


@pytest.mark.parametrize("strategy", ["fcfs_easy", "topo_easy"])
def test_backfilling_passes_only_what_does_not_delay_the_first(strategy: str) -> None:
    """Two of four GPUs are busy until 100 s; a job of four waits; a short and a long job of one come."""
    jobs = [
        Submission(0, 0.0, one(2), 100.0, walltime_s=100.0),
        Submission(1, 1.0, one(4), 10.0, walltime_s=50.0),
        Submission(2, 2.0, one(1), 10.0, walltime_s=50.0),
        Submission(3, 3.0, one(1), 200.0, walltime_s=500.0),
    ]
    first, wide, short, long = Simulation([graph("minsky")], jobs, strategy, PAIR).run().records
    assert short.start_s == 2.0
    assert wide.start_s == first.end_s == pytest.approx(100.0)
    assert long.start_s == wide.end_s


def test_f_000_15_topo_places_at_once_and_topo_p_waits_for_its_minimum() -> None:
    """J3 of table 7: GPUs 0 and 3 become free first, then a whole socket."""
    jobs = (
        (0.0, one(), 30.0),
        (0.0, one(), 100.0),
        (0.0, one(), 90.0),
        (1.0, one(), 1.0),
        (5.0, one(2, minimum=0.5), 50.0),
    )
    at_once, waited = story("topo", *jobs)[4], story("topo_p", *jobs)[4]
    assert at_once.utility < 0.5 and at_once.below_minimum
    assert waited.utility >= 0.5 and waited.start_s > at_once.start_s
    (place,) = waited.places
    assert place.gpus in ((0, 1), (2, 3))


def test_a_minimum_that_even_an_empty_machine_misses_is_an_error() -> None:
    with pytest.raises(NeverPlacedError, match="no place under topo_p on an empty cluster: 1;"):
        story("topo_p", (0.0, one(4, minimum=0.9), 10.0))
    with pytest.raises(NeverPlacedError):
        story("fcfs", (0.0, one(5), 10.0))


def test_f_000_08_parts_of_a_job_run_on_two_machines_as_one_job() -> None:
    part = JobGraph.complete(2, 4)
    apart = GpuJob((part, part), "job")
    jobs = [Submission(0, 0.0, apart, 100.0), Submission(1, 0.0, one(), 1000.0)]
    run = Simulation(fleet("minsky:2"), jobs, "topo", PAIR).run()
    assert sorted(place.machine for place in run.records[0].places) == [0, 1]
    assert run.records[0].end_s == pytest.approx(100.0)
    wide = GpuJob((JobGraph.complete(6, 4),), "job", single_node=False)
    run = Simulation(fleet("minsky:2"), [Submission(0, 0.0, wide, 100.0)], "topo", PAIR).run()
    assert run.records[0].end_s == pytest.approx(150.0)


def test_f_000_08_the_worst_part_of_a_job_sets_its_pace() -> None:
    """F-000-08: one part is across sockets beside another job, the other alone on a linked pair."""
    part = JobGraph.complete(2, 4)
    jobs = [
        Submission(0, 0.0, one(), 1000.0),
        Submission(1, 0.0, GpuJob((part, part), "job"), 100.0),
    ]
    run = Simulation(fleet("minsky:2"), jobs, "fcfs", PAIR).run()
    assert [place.gpus for place in run.records[1].places] == [(1, 2), (0, 1)]
    assert run.records[1].end_s == pytest.approx(100.0 * 1.5 * 1.25)


def test_f_000_17_the_fitted_replay_of_table_7() -> None:
    """A regression fixture: its run times were fitted, so agreement with the source proves nothing."""
    ends = {name: summary(table7.replay(name))["makespan_s"] for name in table7.SOURCE_MAKESPAN_S}
    assert ends == pytest.approx(
        {"bf": 459.3, "fcfs": 459.3, "topo": 456.3, "topo_p": 355.0}, abs=0.05
    )
    assert ends["topo_p"] <= 0.80 * min(ends["fcfs"], ends["bf"])
    below = {name: summary(table7.replay(name))["below_min_utility"] for name in ends}
    assert below == {"bf": 3, "fcfs": 3, "topo": 3, "topo_p": 0}


def test_f_000_15_the_timeline_of_topo_p_on_table_7() -> None:
    found = [
        (record.places[0].gpus, round(record.start_s, 1), round(record.end_s, 1))
        for record in table7.replay("topo_p").records
    ]
    assert found == [
        ((0,), 0.5, 84.4),
        ((2,), 15.0, 115.0),  # J1 on the other socket than J0
        ((1,), 24.4, 128.2),
        ((2, 3), 115.0, 235.0),  # J3 not at 84.4 s on GPUs 0 and 3, but on a whole socket
        ((0, 1), 128.2, 248.2),
        ((2, 3), 235.0, 355.0),
    ]


def test_f_000_17_the_gain_of_the_replay_hangs_on_one_near_tie() -> None:
    """With J1 a little less sensitive J2 joins it, a socket empties, and nobody has to wait."""
    profiles = table7.store(googlenet_slowdown=1.225)
    for name in ("topo", "topo_p"):
        found = summary(table7.replay(name, profiles=profiles))
        assert found["makespan_s"] == pytest.approx(310.5, abs=0.05)


def test_f_000_17_perturbed_times_keep_the_gain_on_average() -> None:
    gains = table7.perturbed_gains(draws=40, seed=0)
    assert 1.15 < sum(gains) / len(gains) < 1.45


@pytest.fixture(scope="module")
def hundred_jobs() -> dict[str, SimulationRun]:
    """100 jobs on 5 machines, one run per strategy."""
    jobs = poisson(MODEL, 100, 10, seed=0)
    return {name: Simulation(fleet("minsky:5"), jobs, name, STORE).run() for name in STRATEGIES}


# Mean slowdown, mean waiting time and makespan in seconds, violations, jobs below their minimum utility.
HUNDRED_JOBS = {
    "fcfs": (1.0896, 240.5243, 1432.168, 8, 21),
    "bf": (1.0612, 233.2691, 1394.6711, 2, 8),
    "fcfs_skip": (1.0756, 197.5722, 1432.7519, 5, 12),
    "bf_skip": (1.0708, 195.7166, 1427.8992, 5, 6),
    "fcfs_easy": (1.0455, 206.4433, 1369.188, 0, 2),
    "topo_easy": (1.064, 215.7962, 1380.5702, 3, 14),
    "pack": (1.057, 229.1042, 1388.656, 2, 9),
    "spread": (1.1426, 277.7978, 1520.2571, 16, 48),
    "topo": (1.057, 229.1042, 1388.656, 2, 9),
    "topo_p": (1.0434, 190.6945, 1396.7192, 0, 0),
}


def test_the_figures_of_a_hundred_jobs_stay_as_they_are(
    hundred_jobs: dict[str, SimulationRun],
) -> None:
    """A regression fixture: who changes the queue or a strategy sees which figures change."""
    columns = (
        "slowdown_mean",
        "waiting_mean_s",
        "makespan_s",
        "slo_violations",
        "below_min_utility",
    )
    found = {name: summary(run) for name, run in hundred_jobs.items()}
    assert found.keys() == HUNDRED_JOBS.keys()
    for name, expected in HUNDRED_JOBS.items():
        figures = [found[name][column] for column in columns]
        assert figures == pytest.approx(expected, abs=1e-4), name


def test_f_000_19_topo_p_violates_no_objective_and_waits_no_longer(
    hundred_jobs: dict[str, SimulationRun],
) -> None:
    found = {name: summary(run) for name, run in hundred_jobs.items()}
    assert found["topo_p"]["slo_violations"] == found["topo_p"]["below_min_utility"] == 0
    greedy = min(found["fcfs"]["waiting_mean_s"], found["bf"]["waiting_mean_s"])
    assert 0 < found["topo_p"]["waiting_mean_s"] <= greedy
    assert found["topo"]["waiting_mean_s"] <= greedy


def test_no_gpu_ever_serves_two_jobs(hundred_jobs: dict[str, SimulationRun]) -> None:
    for run in hundred_jobs.values():
        spans: dict[tuple[int, int], list[tuple[float, float]]] = {}
        for record in run.records:
            for place in record.places:
                for gpu in place.gpus:
                    spans.setdefault((place.machine, gpu), []).append(
                        (record.start_s, record.end_s)
                    )
        for of_gpu in spans.values():
            of_gpu.sort()
            assert all(one[1] <= two[0] + 1e-9 for one, two in itertools.pairwise(of_gpu))


def test_no_job_runs_faster_than_alone_or_slower_than_the_worst(
    hundred_jobs: dict[str, SimulationRun],
) -> None:
    for run in hundred_jobs.values():
        assert [record.submission.number for record in run.records] == list(range(100))
        for record in run.records:
            assert 1 - 1e-9 <= record.slowdown <= 1.27 * 1.30 + 1e-9
            assert record.waiting_s >= 0


def test_usage_adds_up(hundred_jobs: dict[str, SimulationRun]) -> None:
    for run in hundred_jobs.values():
        used = sum(
            (record.end_s - record.start_s) * record.submission.job.gpus for record in run.records
        )
        assert run.busy_gpu_s == pytest.approx(used)
        assert run.busy_gpu_s + run.free_gpu_s == pytest.approx(20 * summary(run)["makespan_s"])
        assert 0 <= run.broken_gpu_s <= run.free_gpu_s


def test_equal_seeds_give_equal_runs(hundred_jobs: dict[str, SimulationRun]) -> None:
    again = Simulation(fleet("minsky:5"), poisson(MODEL, 100, 10, seed=0), "topo_p", STORE).run()
    assert again.records == hundred_jobs["topo_p"].records


def test_f_000_20_a_thousand_jobs_on_a_hundred_machines_end_in_order_of_policy() -> None:
    """The small sister of the 10,000 x 1,000 benchmark."""
    jobs = poisson(MODEL, 1_000, 200, seed=1)
    assert_in_order(jobs, machines=100)


@pytest.mark.long
def test_f_000_20_ten_thousand_jobs_on_a_thousand_machines_end_in_order_of_policy() -> None:
    """F-000-20, scenario 2 of the source; how long a decision takes is told by the benchmark."""
    assert_in_order(poisson(MODEL, 10_000, 2_000, seed=0), machines=1_000)


def assert_in_order(jobs: Sequence[Submission], machines: int) -> None:
    """FCFS is slower than best fit, best fit than both topology-aware policies, and only the greedy are unfair."""
    names = ("fcfs", "bf", "topo", "topo_p")
    graphs = fleet(f"minsky:{machines}")
    found = {name: summary(Simulation(graphs, jobs, name, STORE).run()) for name in names}
    slowdown = {name: found[name]["slowdown_mean"] for name in names}
    assert slowdown["fcfs"] > slowdown["bf"] > max(slowdown["topo"], slowdown["topo_p"])
    assert found["topo_p"]["slo_violations"] == 0 < found["fcfs"]["slo_violations"]
    assert all(found[name]["jobs"] == len(jobs) for name in names)


def test_a_wrong_map_of_the_machines_costs_the_gain() -> None:
    """Negative control: the policy sees GPUs 1 and 2 exchanged."""
    jobs = poisson(MODEL, 100, 10, seed=0)
    right = Simulation(fleet("minsky:5"), jobs, "topo_p", STORE).run()
    wrong = Simulation(
        fleet("minsky:5"),
        jobs,
        "topo_p",
        STORE,
        StrategyView(graphs=[table7.exchanged_minsky()] * 5),
    ).run()
    assert summary(wrong)["slowdown_mean"] > summary(right)["slowdown_mean"] + 0.05
    assert summary(wrong)["slo_violations"] > 0
