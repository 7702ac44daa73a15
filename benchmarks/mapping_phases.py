# SPDX-License-Identifier: Apache-2.0
"""What the run-time loop of the mapping gains where programs change and servers end (modelled)

The 20 servers of :mod:`.bench_mapping` arrive and run as declared; then, at each of two changes, a part of the small
and medium servers runs another program of the mix and some small servers end. What flavors declare stays. The same
hosts run with the loop, with the mapping of the arrival kept, and, for what knowing the classes would be worth, with a
new mapping after each change that knows what runs and moves for nothing. With the loop pages follow a moved server at
the agent's own rate; until they are there its memory is remote.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median

from benchmarks.modelled_host import Load, MappedRun, ModelledHost, draw_load, geometric_mean
from emulation.physics import parameters
from emulation.physics.model import HostModel
from emulation.physics.programs import MAPPING_MIX, WORKLOADS
from host_agent.conf.mapping import MappingOptions, PerformanceMetric
from host_agent.conf.memory import MemoryOptions
from host_agent.decide.cores.slots import CoreLayout, Slot
from placement_traits.presets import load as load_preset

ROUNDS = 360
"""Rounds of a phase, ``[mapping]interval_s`` each."""

CHANGING = 0.5
"""Part of the small and medium servers whose program changes."""

ORDERS = 5
"""Orders of arrival of which a mapping that knows the classes takes the best."""

ENDING = 2
"""Small servers that end at each change."""


@dataclass(frozen=True)
class Outcome:
    """One draw: what the loop gained and moved, by what it goes by.

    :param gain: score with the loop over that of the same host without it, less one; means over all rounds
    :param moves: servers that were moved at run time
    :param informed: the same gain of new mappings that know the classes and cost nothing
    """

    gain: Mapping[PerformanceMetric, float]
    informed: float
    moves: Mapping[PerformanceMetric, int]


def one_draw(number: int, seed: int, constants: parameters.Parameters) -> Outcome:
    """Run one draw with the loop on IPC, with it on MPI, and with the arrival's mapping kept."""
    layout = CoreLayout(load_preset("numaconnect-6x6x8").topology)
    phases = [
        ModelledHost(layout, load, HostModel(layout.topology, constants))
        for load in draw_phases(random.Random(f"{seed}/{number}/phases"))
    ]
    kept, _ = _run(phases, None, random.Random(f"{seed}/{number}/kept"))
    scores, moves = {}, {}
    for metric in PerformanceMetric:
        chance = random.Random(f"{seed}/{number}/{metric}")
        scores[metric], moves[metric] = _run(phases, metric, chance)
    gain = {metric: score / kept - 1.0 for metric, score in scores.items()}
    chance = random.Random(f"{seed}/{number}/informed")
    informed = mean(_informed(host, chance) for host in phases)
    return Outcome(gain, informed / kept - 1.0, moves)


def _informed(host: ModelledHost, chance: random.Random) -> float:
    """Return the best score of new mappings of all servers, in some orders, by the classes of what runs in them."""
    truth = {name: program.interference_class for name, program in host.load.programs.items()}
    scores = []
    for _ in range(ORDERS):
        run = MappedRun(host.layout, MappingOptions())
        run.arrive(host.load.labelled(truth).shuffled(chance).servers)
        scores.append(geometric_mean(list(host.scores(run.slots).values())))
    return max(scores)


def draw_phases(chance: random.Random) -> list[Load]:
    """Draw the load as declared, and what it is after each of two changes."""
    loads = [draw_load(chance)]
    for _ in range(2):
        before = loads[-1]
        small = [name for name in before.servers if name.startswith("small")]
        ended = set(chance.sample(small, ENDING))
        servers = {name: server for name, server in before.servers.items() if name not in ended}
        programs = {name: before.programs[name] for name in servers}
        others = [name for name in servers if name.startswith(("small", "medium"))]
        for name in chance.sample(others, round(CHANGING * len(others))):
            programs[name] = WORKLOADS[chance.choice(MAPPING_MIX)]
        loads.append(Load(servers, programs))
    return loads


def _run(
    phases: Sequence[ModelledHost], metric: PerformanceMetric | None, chance: random.Random
) -> tuple[float, int]:
    """Return the mean score over all rounds, and the moves at run time.

    :param metric: what the loop goes by; None, no loop
    """
    options = MappingOptions() if metric is None else MappingOptions(metric=metric)
    run = MappedRun(phases[0].layout, options)
    run.arrive(phases[0].load.servers)
    pages = FollowingPages(run.slots, MemoryOptions().rate_mbps * options.interval_s)
    scores = []
    for host in phases:
        run.end(run.slots.keys() - host.load.servers.keys())
        for _ in range(ROUNDS if metric is not None else 1):  # nothing moves without a measurement
            there = pages.follow({n: s for n, s in run.slots.items() if n in host.load.servers})
            scores.append(geometric_mean(list(host.scores(there).values())))
            run.round({} if metric is None else host.sensed(there, metric, chance))
    return mean(scores), run.moves


class FollowingPages:
    """Memory that follows its servers as fast as the agent moves pages.

    :param slots: where servers and their memory are
    :param budget_mb: what all moves of one round may copy, MB
    """

    def __init__(self, slots: Mapping[str, Slot], budget_mb: float) -> None:
        self._memory = {name: dict(slot.memory_mb) for name, slot in slots.items()}
        self._budget_mb = budget_mb

    def follow(self, slots: Mapping[str, Slot]) -> dict[str, Slot]:
        """Let a round pass; return the slots with the memory where it is."""
        left = int(self._budget_mb)
        for name, slot in slots.items():
            here = self._memory[name]
            if here == slot.memory_mb:
                continue
            for node, target in slot.memory_mb.items():
                for other in sorted(here):
                    spare = here[other] - slot.memory_mb.get(other, 0)
                    moved = max(0, min(left, spare, target - here.get(node, 0)))
                    here[other] -= moved
                    here[node] = here.get(node, 0) + moved
                    left -= moved
        return {
            name: slot
            if self._memory[name] == slot.memory_mb
            else replace(slot, memory_mb=dict(self._memory[name]))
            for name, slot in slots.items()
        }


def summary(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return the figures: by the metric of the default first, with the suffix of the other one after it."""
    figures = {"informed_gain_median": median(outcome.informed for outcome in outcomes)}
    for metric in PerformanceMetric:
        suffix = "" if metric is MappingOptions().metric else f"_{metric}"
        gains = [outcome.gain[metric] for outcome in outcomes]
        figures |= {
            f"run_time_moves_median{suffix}": median(o.moves[metric] for o in outcomes),
            f"run_time_gain_median{suffix}": median(gains),
            f"run_time_gain_worst{suffix}": min(gains),
            f"run_time_gain_best{suffix}": max(gains),
            f"run_time_lost_share{suffix}": mean(gain < -0.001 for gain in gains),
        }
    return figures
