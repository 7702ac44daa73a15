# SPDX-License-Identifier: Apache-2.0
"""GPU placement: bipartitioning against the optimum, and the cluster experiments of Amaral 2019

Parts: (1) dual recursive bipartitioning against exact search on random graphs and a DGX-1; (2) the fitted replay of
table 7 with perturbed run times; (3) 100 jobs on 5 machines, many seeds, other objectives, wrong profiles, a wrong map,
drawn model parameters; (4) 10,000 jobs on 1,000 machines, and hosts of 16 GPUs with bipartitioning instead of exact
search; (5) cost of a decision from 100 to 10,000 machines. Figures of Amaral 2019 are printed beside ours.
"""

import copy
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scipy.stats import qmc

from benchmarks import gpu_controls, report
from emulation.gpu_machines import random_scene
from nova_numa_ext.policy.gpu.bipartition import bipartition, drb, mean_distance, refine
from nova_numa_ext.policy.gpu.graph import GpuGraph, from_edges
from nova_numa_ext.policy.gpu.job import COMM_PROFILES, JobGraph
from nova_numa_ext.policy.gpu.placement import assignments, nearest
from nova_numa_ext.policy.gpu.utility import THIRDS, HostGpus, Scene, UtilityOptions
from nova_numa_ext.simulator.gpu import table7
from nova_numa_ext.simulator.gpu.machines import fleet, graph
from nova_numa_ext.simulator.gpu.simulation import Simulation, SimulationRun, StrategyView
from nova_numa_ext.simulator.gpu.workload import Model, load_model, poisson
from nova_numa_ext.simulator.metrics import mean, percentile, summary
from nova_numa_ext.simulator.plots import growth as draw_growth
from nova_numa_ext.simulator.plots import sorted_slowdowns

# CPU time: a decision does no I/O, and other work on the machine should not count.
clock = time.process_time
STRATEGIES = ("fcfs", "bf", "topo", "topo_p")
SKIPPING = ("fcfs_skip", "bf_skip")

Figures = dict[str, float]


def bipartitioning(hosts: int) -> Figures:
    """Ratio of utility to the optimum, every fourth host a DGX-1 with random busy GPUs; the time of a first look."""
    report.progress(f"1. Bipartitioning against exact search, {hosts} random hosts of up to 8 GPUs")
    draw = random.Random(0)
    ratios: dict[str, list[float]] = {"random": [], "dgx1": [], "as printed": []}
    for number in range(hosts):
        kind = "random" if number % 4 else "dgx1"
        scene = random_scene(draw, None if number % 4 else graph("dgx1"))
        exact = nearest(scene.graph, scene.host.free, scene.part)
        best = max(scene.terms(gpus).utility for gpus in exact.values())
        start = drb(scene)
        for name, gpus in (("as printed", start), (kind, refine(scene, start))):
            ratios[name].append(scene.terms(gpus).utility / best if best > 1e-9 else 1.0)
    report.table(
        ("hosts", "mean ratio", "worst", "optimal"),
        [
            (name, mean(found), min(found), mean([float(ratio > 1 - 1e-9) for ratio in found]))
            for name, found in ratios.items()
        ],
    )
    report.progress("  (random, dgx1: with refinement; as printed: algorithms 2 and 3 alone)")
    ours = ratios["random"] + ratios["dgx1"]
    return {
        "drb_vs_brute_mean": mean(ours),
        "drb_vs_brute_min": min(ours),
        "drb_vs_brute_dgx1_mean": mean(ratios["dgx1"]),
        "drb_unrefined_vs_brute_mean": mean(ratios["as printed"]),
    }


def crossing() -> None:
    """Time of exact search and bipartitioning on a free set that was never seen: the reason of ``exact_limit``."""
    report.progress("   First look at a free set, ms (then exact search is a dictionary look-up)")
    rows = []
    for free, tasks, ring in (
        (4, 2, False),
        (8, 4, False),
        (8, 4, True),
        (8, 6, True),
        (8, 8, True),
        (12, 6, False),
        (16, 4, True),
        (16, 8, False),
        (20, 8, False),
    ):
        part = JobGraph.complete(tasks, 4)
        if ring:
            part = JobGraph(tasks, tuple((t, (t + 1) % tasks, 1.0) for t in range(tasks)))
        host = HostGpus(_wide(free), (1 << free) - 1)
        scene = Scene(part, "comm-4", host, COMM_PROFILES, THIRDS)
        exact_ms = _milliseconds(lambda s=scene: nearest(s.graph, s.host.free, s.part))
        drb_ms = _milliseconds(lambda s=scene: refine(s, drb(s)))
        chosen = "exact" if assignments(part, free) <= THIRDS.exact_limit else "drb"
        shape = f"{tasks} {'ring' if ring else 'all'}"
        rows.append((free, shape, assignments(part, free), exact_ms, drb_ms, chosen))
    report.table(("free", "tasks", "assignments", "exact ms", "drb ms", "chosen"), rows)


def _wide(gpus: int) -> GpuGraph:
    """A host of two sockets whose GPUs are joined in pairs."""
    names = [f"g{number}" for number in range(gpus)]
    sockets = [number * 2 // gpus for number in range(gpus)]
    edges: list[Any] = [("machine", ("socket", socket), 20.0) for socket in (0, 1)]
    edges += [(name, ("socket", socket), 1.0) for name, socket in zip(names, sockets, strict=True)]
    edges += [(names[n], names[n + 1], 1.0) for n in range(0, gpus - 1, 2)]
    return from_edges(edges, names, sockets, "machine")


def _milliseconds(call: Callable[[], object]) -> float:
    """Shortest of five calls that find nothing remembered."""
    times = []
    for _ in range(5):
        for remembering in (nearest, bipartition, mean_distance):
            remembering.cache_clear()
        before = clock()
        call()
        times.append(clock() - before)
    return min(times) * 1e3


def replay(draws: int) -> Figures:
    """Table 7: the fitted times, then perturbed ones."""
    report.progress(
        f"2. Table 7 replayed on fitted run times, then {draws} draws of times * U(0.8, 1.2)"
    )
    rows = []
    for name, source_s in sorted(table7.SOURCE_MAKESPAN_S.items()):
        found = summary(table7.replay(name))
        other = summary(table7.replay(name, profiles=table7.store(googlenet_slowdown=1.225)))
        rows.append(
            (name, found["makespan_s"], source_s, found["below_min_utility"], other["makespan_s"])
        )
    report.table(("strategy", "makespan s", "source", "below min", "J1 less sensitive"), rows)
    gains = table7.perturbed_gains(draws, seed=0)
    return {
        "makespan_p_vs_fcfs_mean": mean(gains),
        "makespan_p_vs_fcfs_p5": percentile(gains, 0.05),
        "makespan_p_vs_fcfs_p95": percentile(gains, 0.95),
    }


def hundred_jobs(model: Model, seeds: int) -> Figures:
    """100 jobs on 5 machines, ten arrivals a minute."""
    report.progress(f"3. 100 jobs on 5 Minskys, {seeds} seeds (means; *_skip let later jobs pass)")
    store, machines = model.store(), fleet("minsky:5")
    found: dict[str, list[dict[str, float]]] = {name: [] for name in (*STRATEGIES, *SKIPPING)}
    found["topo_p, wrong map"] = []
    for seed in range(seeds):
        jobs = poisson(model, 100, 10, seed)
        for name in (*STRATEGIES, *SKIPPING):
            found[name].append(summary(Simulation(machines, jobs, name, store).run()))
        wrong = Simulation(
            machines, jobs, "topo_p", store, StrategyView(graphs=[table7.exchanged_minsky()] * 5)
        )
        found["topo_p, wrong map"].append(summary(wrong.run()))
    columns = ("slowdown_mean", "waiting_mean_s", "makespan_s", "slo_violations", "fragmentation")
    report.table(
        ("strategy", *columns),
        [
            (name, *(mean([run[c] for run in runs]) for c in columns))
            for name, runs in found.items()
        ],
    )

    def won(ours: str, *others: str) -> float:
        """Share of seeds in which mean waiting is no longer than that of all others."""
        pairs = zip(found[ours], *(found[other] for other in others), strict=True)
        return mean(
            [
                float(all(a["waiting_mean_s"] <= b["waiting_mean_s"] for b in rest))
                for a, *rest in pairs
            ]
        )

    return {
        "slo_violations_p_100x5": found["topo_p"][0]["slo_violations"],
        "slo_violations_p_100x5_all_seeds": sum(run["slo_violations"] for run in found["topo_p"]),
        "waiting_p_le_greedy_share": won("topo_p", "fcfs", "bf"),
        "waiting_p_le_skipping_greedy_share": won("topo_p", *SKIPPING),
        "waiting_topo_le_greedy_share": won("topo", "fcfs", "bf"),
    }


def drawn_models(model: Model, draws: int) -> Figures:
    """The same with every parameter of the model within 50 % (Latin hypercube), another workload in each draw."""
    report.progress(
        f"   {draws} Latin hypercube draws of the model's parameters, each times U(0.5, 1.5)"
    )
    batches = list(model.document["batches"])
    cube = qmc.LatinHypercube(d=3 * len(batches) + 2, seed=0).random(draws) + 0.5
    slower, waits, violations = [], [], []
    for seed, factors in enumerate(cube):
        drawn, rate = _drawn(model, factors.tolist())
        options = UtilityOptions(worst_slowdown=max(1.01, drawn.slo_slowdown))
        jobs = poisson(drawn, 100, 10 * rate, seed)
        runs = {
            name: summary(
                Simulation(
                    fleet("minsky:5"), jobs, name, drawn.store(), StrategyView(options=options)
                ).run()
            )
            for name in ("fcfs", "bf", "topo_p")
        }
        ours = runs.pop("topo_p")
        slower.append(ours["slowdown_mean"] / min(run["slowdown_mean"] for run in runs.values()))
        waits.append(ours["waiting_mean_s"] / min(run["waiting_mean_s"] for run in runs.values()))
        violations.append(ours["slo_violations"])
    report.table(
        ("topo_p / best greedy", "mean", "worst", "draws won"),
        [
            ("slowdown", mean(slower), max(slower), mean([float(r <= 1) for r in slower])),
            ("waiting", mean(waits), max(waits), mean([float(r <= 1) for r in waits])),
        ],
    )
    return {
        "drawn_models_slowdown_won_share": mean([float(r <= 1) for r in slower]),
        "drawn_models_slowdown_worst_ratio": max(slower),
        "drawn_models_waiting_won_share": mean([float(r <= 1) for r in waits]),
        "drawn_models_waiting_worst_ratio": max(waits),
        "drawn_models_slo_violations": sum(violations),
    }


def _drawn(model: Model, factors: list[float]) -> tuple[Model, float]:
    """Multiply parameters by factors; the objective follows the worst co-location of the drawn model."""
    document = copy.deepcopy(dict(model.document))
    for batch in document["batches"].values():
        batch["spread"] = 1 + (batch["spread"] - 1) * factors.pop()
        batch["suffers"] *= factors.pop()
        batch["solo_s"] *= factors.pop()
    document["networks"]["googlenet"] *= factors.pop()
    worst = max(batch["suffers"] for batch in document["batches"].values())
    document["jobs"]["slo_slowdown"] = 1 + worst
    return Model(document, model.digest), factors.pop()


def large_cluster(model: Model, machines: int, jobs: int, plots: Path | None) -> Figures:
    """10,000 jobs on 1,000 machines, two arrivals a minute and machine."""
    report.progress(f"4. {jobs} jobs on {machines} Minskys")
    store, graphs = model.store(), fleet(f"minsky:{machines}")
    submissions = poisson(model, jobs, 2.0 * machines, seed=0)
    runs: dict[str, SimulationRun] = {}
    took: dict[str, float] = {}
    for name in (*STRATEGIES, *SKIPPING):
        before = clock()
        simulation = Simulation(graphs, submissions, name, store, clock=clock)
        runs[name] = simulation.run()
        took[name] = clock() - before
    columns = (
        "slowdown_mean",
        "waiting_mean_s",
        "slo_violations",
        "fragmentation",
        "decision_mean_ms",
        "round_mean_ms",
    )
    found = {name: summary(run) for name, run in runs.items()}
    report.table(
        ("strategy", *columns, "run s"),
        [(name, *(found[name][c] for c in columns), took[name]) for name in runs],
    )
    afresh_ms, known_ms = gpu_controls.decision_ms(model, f"minsky:{machines}")
    drb_ms, _ = gpu_controls.decision_ms(
        model, f"minsky:{machines}", gpu_controls.BIPARTITIONING, 5
    )
    report.progress(
        f"  one decision on a loaded cluster: all {machines} machines searched afresh {afresh_ms:.3g} ms, by "
        f"bipartitioning as Amaral 2019 does {drb_ms:.3g} ms, with the ranking {known_ms:.3g} ms"
    )
    report.progress(
        "  Amaral 2019, by bipartitioning: topo and topo_p about 3,000 ms, fcfs 450 ms, bf 440 ms (modelled)"
    )
    if plots is not None:
        title = f"{jobs} jobs, {machines} Minskys (modelled)"
        sorted_slowdowns([runs[n] for n in STRATEGIES], plots / "slowdowns-10k-1k.png", title)
    figures = {f"slowdown_{name}_10k_1k": found[name]["slowdown_mean"] for name in runs}
    return {
        **figures,
        "slo_violations_p_10k_1k": found["topo_p"]["slo_violations"],
        "waiting_p_vs_fcfs_10k_1k": found["topo_p"]["waiting_mean_s"]
        / found["fcfs"]["waiting_mean_s"],
        "decision_ms_mean_1000": max(found[n]["decision_mean_ms"] for n in ("topo", "topo_p")),
        "round_ms_mean_1000": max(found[n]["round_mean_ms"] for n in ("topo", "topo_p")),
        "decision_ms_exact_afresh_1000": afresh_ms,
        "decision_ms_drb_afresh_1000": drb_ms,
        "run_s_10k_1k": sum(took[name] for name in STRATEGIES),
    }


def growth(model: Model, sizes: Sequence[int], plots: Path | None) -> Figures:
    """Decision time from 100 to 10,000 machines, four jobs per machine."""
    report.progress("5. Mean decision while the cluster grows, ms")
    curves: dict[str, list[float]] = {"topo": [], "fcfs": [], "bf": [], "topo afresh": []}
    for size in sizes:
        jobs = poisson(model, 4 * size, 2.0 * size, seed=2)
        for name in ("topo", "fcfs", "bf"):
            run = Simulation(fleet(f"minsky:{size}"), jobs, name, model.store(), clock=clock).run()
            curves[name].append(summary(run)["decision_mean_ms"])
        curves["topo afresh"].append(
            gpu_controls.decision_ms(model, f"minsky:{size}", decisions=5)[0]
        )
    report.table(("machines", *curves), zip(sizes, *curves.values(), strict=True))
    if plots is not None:
        draw_growth(sizes, curves, plots / "decision-growth.png", "Decision time (measured)")
    return {"decision_ms_mean_10000": curves["topo"][-1]}


def main() -> None:
    """Run all parts."""
    parser = report.parser(__doc__)
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw plots into DIR")
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    args = parser.parse_args()
    if args.plots is not None:
        args.plots.mkdir(parents=True, exist_ok=True)
    share = 10 if args.quick else 1
    model = load_model()
    figures = bipartitioning(10_000 // share)
    crossing()
    figures |= replay(1_000 // share)
    figures |= hundred_jobs(model, 200 // share)
    figures |= gpu_controls.objectives(model, 200 // share)
    figures |= drawn_models(model, 200 // share)
    figures |= large_cluster(model, 1_000 // share, 10_000 // share, args.plots)
    figures |= gpu_controls.bipartitioned(model, 100 // share, 1_000 // share)
    figures |= growth(
        model, [size // share for size in (100, 300, 1_000, 3_000, 10_000)], args.plots
    )
    measured = [
        name
        for name in figures
        if "_ms_" in name or name.startswith(("drb_vs", "drb_unrefined", "run_s"))
    ]
    source = {
        "model": model.digest,
        "labels": dict.fromkeys(measured, "measured")
        | {name: "replayed" for name in figures if name.startswith("makespan_")},
        "publication": {
            "makespan_p_vs_fcfs": 1.28,
            "slo_violations_p_100x5": 0,
            "decision_ms_mean_1000": 3000,
        },
        "clock": "CPU time of one process",
        "quick": args.quick,
    }
    report.finish("gpu", "modelled", figures, source, args.json)


if __name__ == "__main__":
    main()
