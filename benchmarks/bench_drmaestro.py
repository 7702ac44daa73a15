# SPDX-License-Identifier: Apache-2.0
"""DRMaestro: what remote GPUs give a queue of jobs, and when they give nothing

The experiments of Amaral 2019, section 5.6, over the rounds that the service runs. GPUs are stranded by what CPU-only
jobs hold, not by a number that is fitted. The opponent without remote GPUs gets the same flow, in one phase over hosts
with cores and GPUs, no order of arrival stops it from using a GPU. Run times of the jobs are not published: all is
reported for three spreads of them, and for one to four cores a job. The seeds were not looked at before.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks import report
from nova_numa_ext.flow.solvers import installed_solver, with_ortools
from nova_numa_ext.policy.remote_gpu.rounds import RoundSettings
from nova_numa_ext.simulator.metrics import mean
from nova_numa_ext.simulator.remote_gpu import drmaestro
from nova_numa_ext.simulator.remote_gpu.cluster import RemoteCluster, RemoteRun

clock = time.process_time
SEEDS = tuple(range(20_181, 20_186))
OFF, ON = RoundSettings(disaggregated=False), RoundSettings()
OFF_AWARE = RoundSettings(disaggregated=False, network_aware=True)
ON_AWARE = RoundSettings(network_aware=True)
# Groups of four machines with CPU-only jobs, of 32: they strand 72 GPUs, and the publication lost 74.
GROUPS_4096 = 12


@dataclass(frozen=True, slots=True)
class Experiment:
    """A cell of the tables.

    :param jobs: how many
    :param cores: of each
    :param shape: spread of the run times
    :param machines: how many
    :param groups: groups of four with CPU-only jobs; all when None
    :param loaded: others send on the networks
    :param always: jobs use networks as much with GPUs of their own host
    """

    jobs: int
    cores: int = 2
    shape: str = "narrow"
    machines: int = 4
    groups: int | None = None
    loaded: bool = False
    always: bool = False

    def run(self, seed: int, how: RoundSettings) -> RemoteRun:
        """Simulate it once."""
        draw = random.Random(seed)
        work = drmaestro.jobs(
            self.jobs,
            self.cores,
            drmaestro.MEAN_RUN_S[self.jobs],
            drmaestro.SPREADS[self.shape],
            draw,
            network_always=self.always,
        )
        held = drmaestro.cpu_work(self.machines, self.cores, draw, self.groups)
        loads = [draw.random() for _ in range(self.machines)] if self.loaded else []
        hosts = drmaestro.machines(self.machines, loads)
        return RemoteCluster(hosts, work, held, installed_solver(), how, clock=clock).run()


def speedups(experiment: Experiment, seeds: Sequence[int]) -> list[float]:
    """Makespan without remote GPUs over that with them, for each seed."""
    return [
        experiment.run(seed, OFF).makespan_s / experiment.run(seed, ON).makespan_s for seed in seeds
    ]


def curve(jobs: int, source: float, seeds: Sequence[int]) -> dict[str, float]:
    """Speed-ups for all spreads and cores a job on four machines."""
    report.progress(f"{jobs} jobs on 4 machines, speed-up of remote GPUs (Amaral 2019: {source})")
    figures, rows = {}, []
    for shape in drmaestro.SPREADS:
        row: list[object] = [shape]
        for cores in (1, 2, 3, 4):
            found = speedups(Experiment(jobs, cores, shape), seeds)
            figures[f"speedup_{jobs}_{shape}_{cores}cores"] = mean(found)
            row.append(f"{mean(found):.3f} ({min(found):.3f}-{max(found):.3f})")
        rows.append(row)
    report.table(("run times", *(f"{n} cores a job" for n in (1, 2, 3, 4))), rows)
    few = [
        figures[f"speedup_{jobs}_{shape}_{cores}cores"]
        for shape in drmaestro.SPREADS
        for cores in (1, 2)
    ]
    figures[f"speedup_{jobs}_le2cores"] = mean(few)
    figures[f"speedup_{jobs}_le2cores_min"] = min(few)
    figures[f"speedup_{jobs}_le2cores_max"] = max(few)
    return figures


def large(seeds: Sequence[int]) -> dict[str, float]:
    """Speed-ups of 4096 jobs on 128 machines: makespan, and start of the last job, which long runs do not delay."""
    figures = {}
    for shape in ("narrow", "equal"):
        experiment = Experiment(4096, shape=shape, machines=128, groups=GROUPS_4096)
        ends, starts = list[float](), list[float]()
        for seed in seeds:
            off, on = (experiment.run(seed, how) for how in (OFF, ON))
            ends.append(off.makespan_s / on.makespan_s)
            last_off, last_on = (max(each.start_s for each in run.records) for run in (off, on))
            starts.append(last_off / last_on)
        end = "" if shape == "narrow" else f"_{shape}"
        figures |= {f"speedup_4096{end}": mean(ends), f"started_4096{end}": mean(starts)}
        report.progress(
            f"4096 jobs on 128 machines, {shape} run times: {mean(ends):.3f}, until all have started "
            f"{mean(starts):.3f} (Amaral: 1.12)"
        )
    return figures


def decisions(seeds: Sequence[int]) -> dict[str, float]:
    """CPU time of a round in two phases over that in one, on the same workload."""
    found: dict[str, list[float]] = {"one": [], "two": []}
    for seed in seeds:
        for name, how in (("one", OFF), ("two", ON)):
            found[name].append(mean(Experiment(512).run(seed, how).decision_s))
    figures = {f"decision_ms_{name}_phase": 1e3 * mean(each) for name, each in found.items()}
    ratio = mean(found["two"]) / mean(found["one"])
    report.progress(f"A round in two phases takes {ratio:.2f} times one in one (Amaral: about 2)")
    return {**figures, "decision_two_over_one_phase": ratio}


def aware(experiment: Experiment, source: str, seeds: Sequence[int]) -> dict[str, float]:
    """Network-aware against not, where others send on the networks, and both together against neither."""
    runs = {
        name: [experiment.run(seed, how) for seed in seeds]
        for name, how in (
            ("off", OFF),
            ("off, aware", OFF_AWARE),
            ("on", ON),
            ("on, aware", ON_AWARE),
        )
    }
    makespan = {name: mean([run.makespan_s for run in found]) for name, found in runs.items()}
    slowdown = {name: mean([run.mean_slowdown for run in found]) for name, found in runs.items()}
    who = "jobs that use networks always" if experiment.always else "jobs"
    title = (
        f"{experiment.jobs} {who} on {experiment.machines} machines with loaded networks ({source})"
    )
    report.progress(title)
    rows = [(name, makespan[name], slowdown[name]) for name in runs]
    report.table(("", "makespan s", "mean slowdown"), rows)
    end = f"{experiment.jobs}_loaded{'_always' * experiment.always}"
    return {
        f"speedup_{end}": makespan["off"] / makespan["on"],
        f"aware_over_not_{end}": makespan["on"] / makespan["on, aware"],
        f"aware_on_over_neither_{end}": makespan["off"] / makespan["on, aware"],
        f"slowdown_on_{end}": slowdown["on"],
        f"slowdown_on_aware_{end}": slowdown["on, aware"],
    }


def main() -> None:
    """Run all experiments."""
    parser = report.parser(__doc__)
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="of five")
    parser.add_argument("--without-large", action="store_true", help="no run of 4096 jobs")
    args = parser.parse_args()
    seeds = SEEDS[: args.seeds]
    figures = curve(64, 1.58, seeds)
    figures |= curve(512, 1.13, seeds)
    figures |= decisions(seeds)
    figures |= aware(Experiment(64, loaded=True), "Amaral: on 1.58, on and aware 1.40", seeds)
    figures |= aware(Experiment(512, loaded=True), "not in Amaral", seeds)
    if not args.without_large:
        figures |= large(seeds)
        loaded = Experiment(4096, machines=128, groups=GROUPS_4096, loaded=True)
        theirs = "Amaral: 1.12, aware 1.13, both 1.26"
        figures |= aware(loaded, theirs, seeds)
        figures |= aware(replace(loaded, always=True), theirs, seeds)
    measured = [name for name in figures if name.startswith("decision_")]
    source = {
        "seeds": list(seeds),
        "solver": "ortools" if installed_solver() is with_ortools else "highs",
        "publication": {
            "speedup_512_le2cores": 1.13,
            "speedup_64": 1.58,
            "decision_two_over_one_phase": 2.0,
            "aware_on_over_neither_4096": 1.26,
        },
        "labels": dict.fromkeys(measured, "measured"),
        "clock": "CPU time of one process",
    }
    report.finish("drmaestro", "modelled", figures, source, args.json)


if __name__ == "__main__":
    main()
