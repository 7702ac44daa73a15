# SPDX-License-Identifier: Apache-2.0
"""Mapping of 20 servers on the 288-core machine against vanilla, least-loaded, numad-like and an oracle (modelled)

The machine is the 6 x 6 x 8 preset, the load 12 small, 4 medium, 2 large and 2 huge servers (256 of 288 cores) with the
programs of Lakew et al. and their classes. Each draw takes other model parameters (Latin hypercube, +-50 %), another
mix and another order of arrival; sensors are noisy. A server's score is its progress over its progress alone on an
empty machine; a host's score is the geometric mean over its servers.

=============  =========================================================================================
vanilla        every vCPU on the idlest core, chance among equals, drawn again and again; memory where it was first
least_loaded   servers on the nodes with most free cores, no core twice, memory there; classes unknown
numad_like     the fewest nodes with the most free cores times memory, near each other; classes unknown
sm_ipc/sm_mpi  the agent's mapping with its run-time loop
blind          the agent's mapping with every server declared a devil: all kept apart, nothing known of classes
shuffled       the agent's mapping with the class labels shuffled: the negative control
oracle         small hosts only: every assignment of servers to nodes, by the same score
=============  =========================================================================================

A load that stays as it was declared leaves the run-time loop nothing to do. :mod:`.mapping_phases` runs it where
programs change and servers end.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import mean, median, pstdev

from benchmarks import mapping_phases, report
from benchmarks.modelled_host import (
    NOISE,
    Load,
    MappedRun,
    ModelledHost,
    draw_load,
    geometric_mean,
    mapped_server,
    overbooked,
)
from emulation.physics import parameters, published
from emulation.physics.machines import grid
from emulation.physics.model import HostModel
from emulation.physics.programs import MAPPING_MIX, WORKLOADS
from host_agent.conf.mapping import MappingOptions, PerformanceMetric
from host_agent.decide.cores.slots import CoreLayout, MappedServer, Occupancy, Slot
from placement_traits.names import InterferenceClass
from placement_traits.presets import load as load_preset

VANILLA_MOMENTS = 4
RUNS = 3
ROUNDS = 24


# -- rivals ------------------------------------------------------------------------------------------------------------


def vanilla(host: ModelledHost, chance: random.Random) -> tuple[dict[str, float], int]:
    """Return mean scores over moments of one run, and the most overbooked cores seen."""
    cpus = list(host.layout.group_of_cpu)
    first: dict[str, Counter[int]] = {}
    totals: Counter[str] = Counter()
    worst = 0
    for _ in range(VANILLA_MOMENTS):
        load: Counter[int] = Counter()
        slots = {}
        for name, server in host.load.servers.items():
            chosen = []
            for _ in range(server.vcpus):
                cpu = min(cpus, key=lambda c: (load[c], chance.random()))
                load[cpu] += 1
                chosen.append(cpu)
            nodes = Counter(host.layout.group_of_cpu[cpu].node for cpu in chosen)
            slots[name] = Slot(tuple(chosen), dict(first.setdefault(name, nodes)))
        worst = max(worst, overbooked(slots))
        totals.update(host.scores(slots))
    return {name: total / VANILLA_MOMENTS for name, total in totals.items()}, worst


def greedy(host: ModelledHost, nearest: bool) -> dict[str, Slot]:
    """Place servers by free capacity alone: least-loaded nodes, or numad's fewest nodes near each other."""
    occupancy = Occupancy(host.layout, host.load.servers, {}, reserve_share=0.0)
    for name, server in host.load.servers.items():
        free = occupancy.free(server)
        order = _by_capacity(occupancy, free, nearest)
        cpus = [cpu for index in order for cpu in free[index]][: server.vcpus]
        memory = occupancy.memory_for(server, cpus)
        if memory is None:
            raise RuntimeError(f"the load does not fit: {name}")
        occupancy.put(name, Slot(tuple(cpus), memory))
    return occupancy.slots


def _by_capacity(occupancy: Occupancy, free: Mapping[int, list[int]], nearest: bool) -> list[int]:
    cells, layout = occupancy.layout.groups, occupancy.layout

    def magnitude(index: int) -> float:
        return len(free[index]) * (occupancy.free_mb(cells[index].node) if nearest else 1)

    order = sorted(free, key=lambda index: (-magnitude(index), index))
    if nearest:
        seed = cells[order[0]]
        order.sort(key=lambda i: (layout.distance(seed, cells[i]), -magnitude(i), i))
    return order


# -- the agent's mapping -----------------------------------------------------------------------------------------------


def agent(
    host: ModelledHost, load: Load, options: MappingOptions, chance: random.Random
) -> dict[str, Slot]:
    """Let the servers arrive one by one, then run the loop; return the final slots.

    :param load: what the agent is given, labels included; the host keeps the truth
    """
    run = MappedRun(host.layout, options)
    run.arrive(load.servers)
    for _ in range(ROUNDS):
        run.round(host.sensed(run.slots, options.metric, chance))
    return dict(run.slots)


# -- gap to the oracle on small hosts ----------------------------------------------------------------------------------


def gap_to_oracle(constants: parameters.Parameters, chance: random.Random) -> float:
    """Return how much the agent's score falls short of the best of all assignments of 5 servers to 4 nodes."""
    layout = CoreLayout(grid(2, 2, 4, memory_mb_per_node=16384))
    programs = {f"v{number}": WORKLOADS[chance.choice(MAPPING_MIX)] for number in range(5)}
    servers = {
        name: mapped_server(name, 1 if name == "v0" else chance.randint(1, 3), 2048, program)
        for name, program in programs.items()
    }
    host = ModelledHost(layout, Load(servers, programs), HostModel(layout.topology, constants))
    ours = agent(host, host.load, MappingOptions(), chance)
    if len(ours) < len(servers):
        raise RuntimeError("five servers of at most three vCPUs fit sixteen cores")
    best = 0.0
    seen: set[frozenset[tuple[str, ...]]] = set()
    for nodes in product(range(4), repeat=len(servers)):
        groups = frozenset(
            tuple(n for n, at in zip(servers, nodes, strict=True) if at == node)
            for node in range(4)
        )
        if groups in seen:  # the nodes are alike: only who sits together counts
            continue
        seen.add(groups)
        slots = _one_node_each(layout, servers, nodes)
        if slots is not None:
            best = max(best, geometric_mean(list(host.scores(slots).values())))
    return max(0.0, 1.0 - geometric_mean(list(host.scores(ours).values())) / best)


def _one_node_each(
    layout: CoreLayout, servers: Mapping[str, MappedServer], nodes: Sequence[int]
) -> dict[str, Slot] | None:
    free = {cell.node: [core[0] for core in cell.cores] for cell in layout.groups}
    slots = {}
    for (name, server), node in zip(servers.items(), nodes, strict=True):
        if len(free[node]) < server.vcpus:
            return None
        slots[name] = Slot(tuple(free[node][: server.vcpus]), {node: server.memory_mb})
        del free[node][: server.vcpus]
    return slots


# -- the whole ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Draw:
    """Outcome of one draw: geometric means, coefficients of variation between runs, ratios per program."""

    scores: Mapping[str, float]
    cv: Mapping[str, float]
    ratios: Mapping[str, Mapping[str, float]]
    overbooked: int
    overbooked_vanilla: int


def one_draw(number: int, seed: int, constants: parameters.Parameters) -> Draw:
    """Run every rival and every variant of the agent on one draw."""
    chance = random.Random(f"{seed}/{number}")
    layout = CoreLayout(load_preset("numaconnect-6x6x8").topology)
    load = draw_load(chance)
    host = ModelledHost(layout, load, HostModel(layout.topology, constants))
    vanilla_runs, overbooked_vanilla = [], 0
    for _ in range(RUNS):
        run, worst = vanilla(host, chance)
        vanilla_runs.append(run)
        overbooked_vanilla = max(overbooked_vanilla, worst)
    ipc = MappingOptions(metric=PerformanceMetric.IPC)
    our_slots = [agent(host, load.shuffled(chance), ipc, chance) for _ in range(RUNS)]
    our_runs = [host.scores(slots) for slots in our_slots]
    mpi_slots = agent(host, load, MappingOptions(metric=PerformanceMetric.MPI), chance)
    blind = load.labelled(dict.fromkeys(load.servers, InterferenceClass.DEVIL))
    labels = [server.interference_class for server in load.servers.values()]
    chance.shuffle(labels)
    wrong = load.labelled(dict(zip(load.servers, labels, strict=True)))
    by_rival = {
        "vanilla": _mean_scores(vanilla_runs),
        "least_loaded": host.scores(greedy(host, nearest=False)),
        "numad_like": host.scores(greedy(host, nearest=True)),
        "sm_ipc": _mean_scores(our_runs),
        "sm_mpi": host.scores(mpi_slots),
        "blind": host.scores(agent(host, blind, ipc, chance)),
        "shuffled": host.scores(agent(host, wrong, ipc, chance)),
    }
    return Draw(
        scores={name: geometric_mean(list(values.values())) for name, values in by_rival.items()},
        cv={"vanilla": _cv(vanilla_runs), "sm_ipc": _cv(our_runs)},
        ratios={
            name: _by_program(load, by_rival[name], by_rival["vanilla"])
            for name in ("sm_ipc", "sm_mpi")
        },
        overbooked=max(overbooked(slots) for slots in (*our_slots, mpi_slots)),
        overbooked_vanilla=overbooked_vanilla,
    )


def _mean_scores(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: mean(run[name] for run in runs) for name in runs[0]}


def _cv(runs: Sequence[Mapping[str, float]]) -> float:
    """Return the median over servers of standard deviation over mean between runs."""
    return median(pstdev([r[n] for r in runs]) / mean(r[n] for r in runs) for n in runs[0])


def _by_program(
    load: Load, ours: Mapping[str, float], theirs: Mapping[str, float]
) -> dict[str, float]:
    result = {}
    for program in MAPPING_MIX:
        ratios = [ours[n] / theirs[n] for n in ours if load.programs[n].name == program]
        result[program] = geometric_mean(ratios)
    return result


def summary(draws: Sequence[Draw], gaps: Sequence[float]) -> dict[str, float]:
    """Return the figures."""

    def won(rival: str, variant: str = "sm_ipc") -> float:
        return mean(draw.scores[variant] > draw.scores[rival] for draw in draws)

    def gain(variant: str) -> float:
        return median(draw.scores[variant] / draw.scores["blind"] - 1.0 for draw in draws)

    return {
        "overbooked_cores": max(draw.overbooked for draw in draws),
        "overbooked_cores_vanilla_median": median(draw.overbooked_vanilla for draw in draws),
        "draws_won_vs_vanilla": won("vanilla"),
        "draws_won_vs_least_loaded": won("least_loaded"),
        "draws_won_vs_numad_like": won("numad_like"),
        "draws_won_vs_vanilla_mpi": won("vanilla", "sm_mpi"),
        "draws_won_vs_least_loaded_mpi": won("least_loaded", "sm_mpi"),
        "ratio_vs_least_loaded_median": median(
            d.scores["sm_ipc"] / d.scores["least_loaded"] for d in draws
        ),
        "ratio_vs_least_loaded_worst": min(
            d.scores["sm_ipc"] / d.scores["least_loaded"] for d in draws
        ),
        "gap_to_oracle_median": median(gaps),
        "gap_to_oracle_worst": max(gaps),
        "cv_median_ours": median(draw.cv["sm_ipc"] for draw in draws),
        "cv_median_vanilla": median(draw.cv["vanilla"] for draw in draws),
        "class_gain": gain("sm_ipc"),
        "negative_control_gain": gain("shuffled"),
    }


def main() -> None:
    """Run all draws and print the result."""
    options = report.parser(__doc__)
    options.add_argument("--draws", type=int, default=200, help="draws of the model parameters")
    options.add_argument("--seed", type=int, default=1, help="seed of the draws")
    args = options.parse_args()
    draws, gaps, phases = [], [], []
    for number, constants in enumerate(parameters.draws(args.draws, args.seed)):
        draws.append(one_draw(number, args.seed, constants))
        phases.append(mapping_phases.one_draw(number, args.seed, constants))
        gaps.append(gap_to_oracle(constants, random.Random(f"{args.seed}/{number}/small")))
        if (number + 1) % 20 == 0:
            report.progress(f"{number + 1} of {args.draws} draws")
    ratios = {
        program: [median(d.ratios[v][program] for d in draws) for v in ("sm_ipc", "sm_mpi")]
        for program in MAPPING_MIX
    }
    report.progress(
        "Performance over vanilla, ours (modelled) beside that of Lakew et al. (hardware)"
    )
    report.table(
        ("program", "SM-IPC", "SM-MPI", "source SM-IPC", "source SM-MPI"),
        [(program, *pair, *published.MAPPING_RATIOS[program]) for program, pair in ratios.items()],
    )
    figures = summary(draws, gaps) | mapping_phases.summary(phases)
    figures |= {f"ratio_vs_vanilla_{program}": pair[0] for program, pair in ratios.items()}
    report.table(("figure", "value"), figures.items())
    source = {
        "model": parameters.HASH,
        "seed": args.seed,
        "draws": args.draws,
        "spread": 0.5,
        "sensor_noise": NOISE,
        "source_ratios": {name: list(pair) for name, pair in published.MAPPING_RATIOS.items()},
    }
    report.finish("mapping", "modelled", figures, source, args.json)


if __name__ == "__main__":
    main()
