# SPDX-License-Identifier: Apache-2.0
"""BWAP: weights and time model against its published tables (replayed), regret on random machines (modelled)

Replayed: canonical weights of tables 4.2 and 4.3 and the speed-ups that follow from equation 4.4; all policies are
listed. The steps of a search from the canonical weights to the workers, with the pages that BWAP's interleaves
(algorithm 3) and our plans move. Modelled: random asymmetric machines in which memory controllers, links and the ports
of each worker limit the flows. The profile that the weights are made of is taken as BWAP does it, under a uniform
spread and with noise; the best possible weights come from a linear programme. The proximity search runs with noisy
samples, plateaus and a change of phase half-way; its regret is against the best point of the same one-dimensional
family.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import linprog

from benchmarks import report
from benchmarks.interleave import fault_in, interleave_layers, rebind
from emulation.physics import parameters, published
from emulation.physics.time_model import transfer_time
from host_agent.conf.bwap import BwapOptions
from host_agent.decide.pages import bwap
from host_agent.decide.pages.weights import canonical_weights, dwp_step, dwp_weights, uniform
from host_agent.model.pages import Run, Shares, plan_moves, share_error
from host_agent.model.traffic import NodeBandwidth

POLICIES = ("first_touch", "uniform_workers", "uniform_all", "bwap_uniform", "bwap")


# -- replayed ----------------------------------------------------------------------------------------------------------


def replay() -> tuple[float, float]:
    """Print the policies of both machines; return the largest errors of weights (pp) and speed-ups."""
    weights_error = speed_error = 0.0
    report.progress("Replayed: time by equation 4.4, bwap = 1")
    lines = []
    for machine, tables, speed_ups in (
        ("A", published.CANONICAL_A, published.MODEL_SPEEDUPS_A),
        ("B", published.CANONICAL_B, published.MODEL_SPEEDUPS_B),
    ):
        for workers, row in tables.items():
            # bandwidth relative to the best node, with the three digits that BWAP's text leaves
            bandwidth: NodeBandwidth = {
                n: dict.fromkeys(workers, round(v / max(row), 3)) for n, v in enumerate(row)
            }
            weights = canonical_weights(bandwidth, workers)
            weights_error = max(
                weights_error, *(abs(100 * weights[n] - v) for n, v in enumerate(row))
            )
            best = transfer_time(weights, bandwidth, workers)
            shares = {
                "first_touch": {workers[0]: 1.0},
                "uniform_workers": uniform(workers),
                "uniform_all": uniform(bandwidth),
                "bwap_uniform": _best_of_family(uniform(bandwidth), bandwidth, workers),
                "bwap": weights,
            }
            times = {
                name: transfer_time(shares[name], bandwidth, workers) / best for name in POLICIES
            }
            lines.append((machine, len(workers), *(times[name] for name in POLICIES)))
            expected = speed_ups[workers]
            speed_error = max(
                speed_error,
                abs(times["uniform_workers"] - expected[0]),
                abs(times["uniform_all"] - expected[1]),
            )
    report.table(("machine", "workers", *POLICIES), lines)
    report.progress(f"Measured on hardware by BWAP's authors, up to: {published.MEASURED_SPEEDUPS}")
    return weights_error, speed_error


def _best_of_family(
    canonical: dict[int, float], bandwidth: NodeBandwidth, workers: tuple[int, ...]
) -> dict[int, float]:
    family = [dwp_weights(canonical, workers, step / 100) for step in range(101)]
    return min(family, key=lambda shares: transfer_time(shares, bandwidth, workers))


_KB4 = 4096
_UNEVEN = {0: 0.15, 1: 0.15, 2: 0.35, 3: 0.35}
"""Workers 0 and 1 hold less than the others: the first steps widen their share beyond what interleaving can do."""


def steps(pages: int = 20_000) -> dict[str, float]:
    """Walk DWP from 0 to 1 in steps of 10 % of all pages, by BWAP's interleaves and by our plans.

    :return: largest error of a share after a step (pp), and pages moved over the least possible, both ways
    """
    cases = [
        (published.shares(row), frozenset(workers))
        for tables in (published.CANONICAL_A, published.CANONICAL_B)
        for workers, row in tables.items()
        if len(workers) < len(row)
    ]
    lines = []
    for canonical, workers in (*cases, (_UNEVEN, frozenset({0, 1}))):
        source, ours = _Walk(pages), _Walk(pages)
        start = fault_in(interleave_layers(canonical, pages))
        by_source, by_us, dwp = start, start, 0.0
        while dwp < 1.0:
            dwp = min(1.0, dwp + dwp_step(canonical, workers, 0.10))
            target = dwp_weights(canonical, workers, dwp)
            by_source = source.step(
                by_source, rebind(by_source, interleave_layers(target, pages)), target
            )
            by_us = ours.step(by_us, _moved(by_us, target), target)
        lines.append((len(canonical), len(workers), *source.result, *ours.result))
    report.progress(
        "Replayed: ten steps to the workers; error of shares in pp, pages moved over the least possible"
    )
    report.table(("nodes", "workers", "mbind_pp", "mbind_moved", "ours_pp", "ours_moved"), lines)
    worst = [max(line[column] for line in lines) for column in range(2, 6)]
    names = ("mbind_error_pp_max", "mbind_moved_max", "steps_error_pp_max", "steps_moved_max")
    return dict(zip(names, worst, strict=True))


class _Walk:
    """What one way of moving has cost and missed so far."""

    def __init__(self, pages: int) -> None:
        self._pages, self._error, self._moved, self._least = pages, 0.0, 0, 0.0

    def step(self, before: list[int], after: list[int], target: Shares) -> list[int]:
        """Take note of one step; return ``after``."""
        there = {node: before.count(node) / self._pages for node in target}
        reached = {node: after.count(node) / self._pages for node in target}
        self._error = max(self._error, 100 * share_error(reached, target))
        self._moved += sum(a != b for a, b in zip(before, after, strict=True))
        self._least += self._pages * sum(max(0.0, there[n] - target[n]) for n in target)
        return after

    @property
    def result(self) -> tuple[float, float]:
        """Largest error, pp; pages moved over the least possible."""
        return self._error, self._moved / self._least


def _moved(placed: list[int], target: Shares) -> list[int]:
    """Return the node of each page after our plan."""
    runs = [Run(page * _KB4, _KB4, 1, node) for page, node in enumerate(placed)]
    after = list(placed)
    for move in plan_moves(runs, target).moves:
        first = move.start // _KB4
        after[first : first + move.units] = [move.target] * move.units
    return after


# -- modelled ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Machine:
    """A random asymmetric machine and the workers of one guest; bandwidths in GB/s."""

    workers: tuple[int, ...]
    controller: np.ndarray
    link: np.ndarray  # [memory node, worker position]
    port: np.ndarray  # inbound, per worker
    latency: np.ndarray  # relative to local, mean over workers

    @property
    def nodes(self) -> int:
        return len(self.controller)

    def throughput(self, shares: dict[int, float]) -> float:
        """Return the rate at which all workers together read data spread by ``shares``."""
        w = np.array([shares.get(n, 0.0) for n in range(self.nodes)])
        each = w / len(self.workers)
        limits = [
            self.controller / np.maximum(w, 1e-12),
            (self.link / np.maximum(each, 1e-12)[:, None]).ravel(),
        ]
        remote = np.array([each.sum() - each[node] for node in self.workers])
        limits.append(self.port / np.maximum(remote, 1e-12))
        return float(min(part.min() for part in limits))

    def best_throughput(self) -> float:
        """Return the best throughput over all shares: a linear programme in the rate from each node."""
        count = len(self.workers)
        upper = np.minimum(self.controller, count * self.link.min(axis=1))
        rows = np.full((count, self.nodes), 1.0 / count)
        for position, node in enumerate(self.workers):
            rows[position, node] = 0.0
        found = linprog(
            -np.ones(self.nodes), A_ub=rows, b_ub=self.port, bounds=[(0.0, u) for u in upper]
        )
        return float(-found.fun)

    def profile(self, chance: random.Random, noise: float) -> NodeBandwidth:
        """Return what counters show under a uniform spread: max-min fair shares of controllers, links and ports."""
        flow = np.zeros_like(self.link)
        active = np.ones_like(self.link, dtype=bool)
        local = np.zeros_like(active)
        for position, node in enumerate(self.workers):
            local[node, position] = True
        while active.any():
            slack = [np.where(active, self.link - flow, np.inf).min()]
            users = active.sum(axis=1)
            slack += [
                (self.controller[n] - flow[n].sum()) / users[n]
                for n in range(self.nodes)
                if users[n]
            ]
            inbound = (active & ~local).sum(axis=0)
            taken = np.where(local, 0.0, flow).sum(axis=0)
            slack += [
                (self.port[p] - taken[p]) / inbound[p] for p in range(len(self.port)) if inbound[p]
            ]
            flow += np.where(active, max(0.0, min(slack)), 0.0)
            full = (flow >= self.link - 1e-9) | (flow.sum(axis=1) >= self.controller - 1e-9)[
                :, None
            ]
            taken = np.where(local, 0.0, flow).sum(axis=0)
            full |= (taken >= self.port - 1e-9)[None, :] & ~local
            active &= ~full
        return {
            n: {
                worker: float(flow[n, p]) * max(0.1, chance.gauss(1.0, noise))
                for p, worker in enumerate(self.workers)
            }
            for n in range(self.nodes)
        }


def draw_machine(chance: random.Random) -> Machine:
    """Draw 4 or 8 nodes, 1, 2 or half of them workers; remote bandwidth 12-75 % of local, both directions differ."""
    nodes = chance.choice((4, 8))
    count = chance.choice((1, 2, nodes // 2))
    local = chance.uniform(10.0, 40.0)
    controller = np.array([local * chance.uniform(0.9, 1.1) for _ in range(nodes)])
    ratio = np.array([[chance.uniform(0.12, 0.75) for _ in range(count)] for _ in range(nodes)])
    for position in range(count):
        ratio[position, position] = np.inf
    latency = np.where(np.isinf(ratio), 1.0, 1.0 / np.sqrt(np.where(np.isinf(ratio), 1.0, ratio)))
    port = np.array([local * chance.uniform(1.0, 2.5) for _ in range(count)])
    return Machine(
        tuple(range(count)), controller, np.minimum(ratio * local, 1e6), port, latency.mean(axis=1)
    )


def stall_curve(
    machine: Machine, canonical: dict[int, float], chance: random.Random
) -> Callable[[float], float]:
    """Draw how the stall rate of one phase depends on DWP: bandwidth-bound to latency-bound, a third with a plateau."""
    latency_bound = chance.random()
    best = machine.best_throughput()
    plateau = (
        (chance.uniform(0.1, 0.8), chance.uniform(0.05, 0.2)) if chance.random() < 1 / 3 else None
    )

    def stall(dwp: float) -> float:
        if plateau is not None and plateau[0] < dwp < plateau[0] + plateau[1]:
            dwp = plateau[0]
        shares = dwp_weights(canonical, machine.workers, dwp)
        latency = sum(share * machine.latency[node] for node, share in shares.items())
        return float(
            (1 - latency_bound) * best / machine.throughput(shares) + latency_bound * latency
        )

    return stall


def search(
    canonical: dict[int, float],
    machine: Machine,
    phases: tuple[Callable[[float], float], Callable[[float], float]],
    options: BwapOptions,
    chance: random.Random,
) -> float:
    """Run the search through both phases with noisy samples; return the regret at the end."""
    noise = chance.uniform(0.05, 0.10)
    state = bwap.BwapSearch(canonical=canonical, workers=frozenset(machine.workers))
    now = 0.0
    for stall, mapi in zip(phases, (0.02, 0.035), strict=True):
        exact: dict[float, float] = {}
        for _ in range(1200):
            now += options.sample_interval_s
            true = exact.setdefault(state.dwp, stall(state.dwp))
            seen = bwap.SearchSample(
                now,
                placed=True,
                stall_rate=true * max(0.0, chance.gauss(1.0, noise)),
                mapi=mapi * max(0.0, chance.gauss(1.0, noise)),
            )
            state, _ = bwap.decide(seen, state, options)
            settled = state.phase_mapi is not None and abs(state.phase_mapi / mapi - 1) < 0.2
            if state.phase is bwap.BwapPhase.FOUND and settled:
                break
    return _regret(phases[1], state.dwp)


def _most_of_family(canonical: dict[int, float], machine: Machine) -> float:
    """Return the throughput at the best DWP."""
    family = (dwp_weights(canonical, machine.workers, step / 50) for step in range(51))
    return max(map(machine.throughput, family))


def _regret(stall: Callable[[float], float], dwp: float) -> float:
    return stall(dwp) / min(stall(step / 100) for step in range(101)) - 1.0


def main() -> None:
    """Run both parts and print the result."""
    options = report.parser(__doc__)
    options.add_argument("--machines", type=int, default=1000, help="random machines")
    options.add_argument("--seed", type=int, default=4, help="seed of the random machines")
    args = options.parse_args()
    weights_error, speed_error = replay()
    moving = steps()
    weights_regret, dwp_regret, literal_regret, none_regret, uniform_regret = [], [], [], [], []
    exact_regret, family_regret = [], []
    ours = BwapOptions()
    literal = replace(ours, plateau_steps=0, noise_sigmas=0.0)
    for number in range(args.machines):
        chance = random.Random(f"{args.seed}/{number}")
        machine = draw_machine(chance)
        canonical = canonical_weights(machine.profile(chance, 0.05), machine.workers)
        best = machine.best_throughput()
        weights_regret.append(best / machine.throughput(canonical) - 1.0)
        exact = canonical_weights(machine.profile(random.Random(0), 0.0), machine.workers)
        exact_regret.append(best / machine.throughput(exact) - 1.0)
        family_regret.append(best / _most_of_family(exact, machine) - 1.0)
        uniform_regret.append(best / machine.throughput(uniform(range(machine.nodes))) - 1.0)
        phases = stall_curve(machine, canonical, chance), stall_curve(machine, canonical, chance)
        dwp_regret.append(search(canonical, machine, phases, ours, random.Random(number)))
        literal_regret.append(search(canonical, machine, phases, literal, random.Random(number)))
        none_regret.append(_regret(phases[1], 0.0))
    figures = {
        "weights_error_pp_max": weights_error,
        "speedup_error_max": speed_error,
        **moving,
        "weights_regret_p50": float(np.percentile(weights_regret, 50)),
        "weights_regret_p95": float(np.percentile(weights_regret, 95)),
        "weights_regret_p95_exact_profile": float(np.percentile(exact_regret, 95)),
        "weights_regret_p95_exact_profile_best_dwp": float(np.percentile(family_regret, 95)),
        "uniform_all_regret_p50": float(np.percentile(uniform_regret, 50)),
        "uniform_all_regret_p95": float(np.percentile(uniform_regret, 95)),
        "dwp_regret_p50": float(np.percentile(dwp_regret, 50)),
        "dwp_regret_p95": float(np.percentile(dwp_regret, 95)),
        "dwp_regret_p50_source_rule": float(np.percentile(literal_regret, 50)),
        "dwp_regret_p95_source_rule": float(np.percentile(literal_regret, 95)),
        "dwp_regret_p95_no_search": float(np.percentile(none_regret, 95)),
    }
    report.table(("figure", "value"), figures.items())
    source = {
        "model": parameters.HASH,
        "seed": args.seed,
        "machines": args.machines,
        "labels": dict.fromkeys(("weights_error_pp_max", "speedup_error_max", *moving), "replayed"),
    }
    report.finish("bwap", "modelled", figures, source, args.json)


if __name__ == "__main__":
    main()
