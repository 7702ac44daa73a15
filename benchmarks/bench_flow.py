# SPDX-License-Identifier: Apache-2.0
"""Rounds of DRMaestro: how long one takes on a large fleet, and whether the solvers find the optimum

A round is all of it: the books over the hosts, both flow networks, the solver, the counting of each resource. What is
given are the shapes of the hosts and of the jobs; reading Placement and claiming is not in it. Beside it stands what
a claim of a lease takes, over MariaDB.
Every round starts from nothing. OR-tools is the solver where it is installed (extra ``flow``), HiGHS of SciPy stands
beside it.
"""

import random
import time
from collections.abc import Callable

from benchmarks import report
from benchmarks.flow_networks import least_cost, random_network
from benchmarks.lease_claims import claims_s
from nova_numa_ext.flow.solvers import installed_solver, with_highs, with_ortools
from nova_numa_ext.policy.remote_gpu.completion import Goal
from nova_numa_ext.policy.remote_gpu.fleet import FleetHost, GpuWork
from nova_numa_ext.policy.remote_gpu.network import FlowNetwork, Integers, Solver
from nova_numa_ext.policy.remote_gpu.rounds import RoundSettings, plan_round
from nova_numa_ext.policy.remote_gpu.slices import GpuRoom, GpuSlice
from placement_traits.names import GPU_SHARES, ServiceLevel

# CPU time: a round does no I/O, and other work on the machine should not count.
clock = time.process_time
HOSTS = 10_000
GPU_MB = 81_920
# Cores, memory (MiB) and bandwidth of a server, slice of each of its two GPUs.
FLAVORS = (
    (2, 8_192, 0, GpuSlice(16_384, ServiceLevel.SILVER)),
    (4, 16_384, 0, GpuSlice(40_960, ServiceLevel.GOLD)),
    (4, 16_384, 1_000, GpuSlice(20_480, ServiceLevel.BRONZE)),
    (8, 65_536, 0, GpuSlice(8_192, ServiceLevel.SCAVENGER)),
)


def fleet(draw: random.Random, hosts: int) -> list[FleetHost]:
    """Return hosts of two fabrics, half of them with eight GPUs, all partly in use."""
    found = []
    for number in range(hosts):
        rooms = tuple(
            GpuRoom(f"h{number}g{gpu}", draw.randrange(GPU_MB), draw.randrange(GPU_SHARES + 1))
            for gpu in range(8 * (number % 2))
        )
        found.append(
            FleetHost(
                f"h{number}",
                cores=draw.randrange(32),
                memory_mb=draw.randrange(262_144),
                network_mbps=draw.randrange(10_000),
                lease_cores=draw.randrange(16),
                gpus=rooms,
                fabrics=frozenset({f"fabric-{number // (hosts // 2 or 1) % 2}"}),
                load=draw.random(),
            )
        )
    return found


def queue(draw: random.Random, jobs: int) -> list[GpuWork]:
    """Return jobs of one server with two GPUs each."""
    found = []
    for number in range(jobs):
        cores, memory_mb, network_mbps, part = draw.choice(FLAVORS)
        found.append(
            GpuWork(
                f"j{number}",
                cores,
                memory_mb,
                gpus=2,
                part=part,
                network_mbps=network_mbps,
                goal=Goal(100, draw.choice((1, 5))),
                alone_s=draw.uniform(50, 100),
                remote_slowdown=1.05,
                network_factor=draw.choice((0.01, 0.1, 0.6)),
                rounds=draw.randrange(5),
            )
        )
    return found


class Timed:
    """A solver that adds up what it takes, and how large its networks are."""

    def __init__(self, solve: Solver) -> None:
        self.solve, self.took_s, self.arcs = solve, 0.0, 0

    def __call__(self, network: FlowNetwork) -> Integers:
        before = clock()
        flows = self.solve(network)
        self.took_s += clock() - before
        self.arcs = max(self.arcs, len(network.tails))
        return flows


def a_round(jobs: int, hosts: int, solve: Solver) -> tuple[float, Timed, int]:
    """Return the seconds of a round, its solver, and how many jobs were placed."""
    draw = random.Random(jobs)
    machines, work, timed = fleet(draw, hosts), queue(draw, jobs), Timed(solve)
    before = clock()
    found = plan_round(work, machines, timed, RoundSettings(network_aware=True, most_jobs=jobs))
    return clock() - before, timed, len(found.placed)


def gap(solve: Callable[[FlowNetwork], Integers], networks: int) -> float:
    """Return the worst distance to the least cost by networkx, as a share, over random networks."""
    worst = 0.0
    for seed in range(networks):
        network = random_network(random.Random(seed), tasks=20, machines=8)
        least = least_cost(network)
        worst = max(worst, abs(network.cost(solve(network)) - least) / max(1, least))
    return worst


def main() -> None:
    """Time the rounds and compare the optima."""
    parser = report.parser(__doc__)
    parser.add_argument("--hosts", type=int, default=HOSTS)
    parser.add_argument("--networks", type=int, default=200, help="small networks for networkx")
    parser.add_argument("--runs", type=int, default=3, help="rounds of which the median counts")
    parser.add_argument("--leases", type=int, default=200, help="claims, where there is a MariaDB")
    args = parser.parse_args()
    solvers: dict[str, Solver] = {"highs": with_highs}
    if installed_solver() is with_ortools:
        solvers = {"ortools": with_ortools, **solvers}
    first = next(iter(solvers))
    figures: dict[str, float] = {}
    rows = []
    for name, solve in solvers.items():
        for jobs in (64, 512, 4096):
            if name != first and jobs > 512:
                continue
            runs = sorted(
                (a_round(jobs, args.hosts, solve) for _ in range(args.runs)), key=lambda r: r[0]
            )
            round_s, timed, placed = runs[len(runs) // 2]
            rows.append((name, jobs, round_s, timed.took_s, timed.arcs, placed))
            suffix = "" if name == first else f"_{name}"
            figures[f"round_s_{jobs}{suffix}"] = round_s
            figures[f"solver_s_{jobs}{suffix}"] = timed.took_s
    report.table(("solver", "jobs", "round s", "of it solver s", "most arcs", "placed"), rows)
    gaps = {name: gap(solve, args.networks) for name, solve in solvers.items()}
    figures |= {f"optimum_gap_{name}": found for name, found in gaps.items()}
    figures["optimum_gap_max"] = max(gaps.values())
    took_s = sorted(claims_s(args.leases))
    if took_s:
        share = {"p50": 0.5, "p95": 0.95}
        at = {name: min(int(part * len(took_s)), len(took_s) - 1) for name, part in share.items()}
        figures |= {f"claim_ms_{name}": 1000 * took_s[each] for name, each in at.items()}
    source = {
        "leases": len(took_s),
        "hosts": args.hosts,
        "networks": args.networks,
        "solver": first,
        "clock": "CPU time of one process, median; claims: time, from the choice to the row that says it is held",
        "anchor": "Firmament (OSDI 2016) places on 12,500 machines in less than a second",
    }
    report.finish("flow", "measured", figures, source, args.json)


if __name__ == "__main__":
    main()
