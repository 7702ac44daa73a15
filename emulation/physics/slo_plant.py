# SPDX-License-Identifier: Apache-2.0
"""A host in time: latencies of latency-critical servers while throttles take effect and pages move.

The contention model computes what a configuration leads to; this adds what happens between two configurations: a
throttle acts after a delay and by its curve, pages move at a rate and cost bandwidth themselves, queues drain with a
lag, best-effort programs have phases, and measured percentiles are noisy. Requests come out as histograms, as a guest
would report them. Modelled; constants and their sources are in ``slo_plants.json``.
"""

import json
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

from emulation.physics import parameters
from emulation.physics.latency import LatencyCurve
from emulation.physics.model import Guest, HostModel, Signals
from emulation.physics.programs import WORKLOADS

DATA: Final[dict[str, Any]] = json.loads(
    (resources.files("emulation.physics") / "slo_plants.json").read_text("utf-8")
)
HASH: Final = parameters.hash_of(DATA, [parameters.HASH])
"""Identifies plants and model; printed in every result."""

_BANDS: Final = (0.30, 0.60, 0.80, 0.90, 0.95, 0.975, 0.985, 0.9885, 0.9915, 0.995, 0.998, 1.0)
"""Upper quantiles of the bands in which requests are counted; fine around the 99th percentile."""

Shares = Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Traits:
    """Constants of one plant; meaning, unit and source are in the data file."""

    max_load_of_knee: float
    memory_gb: float
    mover_mbps: float
    mover_traffic: float
    throttle_delay_s: float
    lag_s: float
    noise: float
    requests_per_s: float
    phase_s: float
    phase_demand: float
    load: float
    curve: str = "linear"
    plateau: int = 40

    def effective(self, level: int) -> int:
        """Return the level that has the effect of ``level`` on a linear throttle, per cent."""
        match self.curve:
            case "none":
                return 100
            case "concave":
                return round(100.0 * math.pow(level / 100.0, 0.6))
            case "plateau":
                return max(level, self.plateau)
            case _:
                return level


def frozen() -> Traits:
    """Return the values used for scenarios A and B."""
    return Traits(**{name: item["value"] for name, item in DATA["traits"].items()})


def draws(count: int, seed: int) -> Iterator[Traits]:
    """Yield random plants; the n-th is the same whatever ``count`` is."""
    curves = DATA["throttle_curves"]
    for number in range(count):
        chance = random.Random(f"{seed}/{number}")
        values = {name: chance.uniform(*item["draw"]) for name, item in DATA["traits"].items()}
        kind = chance.choices(list(curves["chances"]), list(curves["chances"].values()))[0]
        yield Traits(**values, curve=kind, plateau=chance.randint(*curves["plateau"]))


@dataclass(frozen=True, slots=True)
class Program:
    """One server of the plant.

    :param workload: name of its program in the model
    :param cpus: host CPU of each vCPU, all on one node
    :param node: that node
    :param curve: latency curve; None: best-effort
    """

    workload: str
    cpus: tuple[int, ...]
    node: int
    curve: LatencyCurve | None = None


@dataclass(slots=True)
class _Best:
    """What is effective for a best-effort server."""

    shares: dict[int, float]
    level: int = 100
    due: tuple[float, int] | None = None


class SloPlant:
    """One host in time.

    :param model: contention model of the machine
    :param traits: constants of the plant
    :param programs: name -> server
    :param shares: best-effort server -> node -> share of its pages at the start
    :param seed: of noise
    """

    def __init__(
        self,
        model: HostModel,
        traits: Traits,
        programs: Mapping[str, Program],
        shares: Mapping[str, Shares],
        seed: int = 0,
    ) -> None:
        self.model, self._traits, self._programs = model, traits, programs
        self._best = {name: _Best(dict(found)) for name, found in shares.items()}
        self._chance = random.Random(seed)
        self._measured: dict[Any, dict[str, Signals]] = {}
        self._ratio: dict[str, float] = {}
        self.now_s = 0.0
        self.signals: Mapping[str, Signals] = {}

    def share_measurements(self, other: "SloPlant") -> None:
        """Use the answers of another plant of the same machine, programs and constants, and give it the new ones."""
        self._measured = other._measured

    def shares(self, name: str) -> dict[int, float]:
        """Return where the pages of a best-effort server are."""
        return dict(self._best[name].shares)

    def level(self, name: str) -> int:
        """Return the level last written for a best-effort server."""
        found = self._best[name]
        return found.level if found.due is None else found.due[1]

    def throttle(self, name: str, level: int) -> None:
        """Write a level; it takes effect after the delay."""
        self._best[name].due = (self.now_s + self._traits.throttle_delay_s, level)

    def step(
        self, seconds: float, loads: Mapping[str, float], goals: Mapping[str, Shares]
    ) -> dict[str, float]:
        """Let time pass.

        :param loads: latency-critical server -> requests over those at its maximum load
        :param goals: best-effort server -> shares its pages shall have
        :returns: latency-critical server -> true 99th percentile over its objective
        """
        self.now_s += seconds
        for found in self._best.values():
            if found.due is not None and self.now_s >= found.due[0]:
                found.level, found.due = found.due[1], None
        moving = self._move(seconds, goals)
        traits = self._traits
        odd = int(self.now_s / traits.phase_s) % 2
        demand = traits.phase_demand if odd else 1.0
        levels = {name: traits.effective(found.level) for name, found in self._best.items()}
        places = {name: found.shares for name, found in self._best.items()}
        self.signals = self.measure(loads, levels, places, demand, moving)
        follow = 1.0 - math.exp(-seconds / traits.lag_s)
        for name, program in self._programs.items():
            if program.curve is not None:
                goal = math.log(self.ratio(name, loads[name], self.signals))
                before = self._ratio.get(name, goal)
                self._ratio[name] = before + follow * (goal - before)
        return {name: math.exp(value) for name, value in self._ratio.items()}

    def ratio(self, name: str, load: float, signals: Mapping[str, Signals]) -> float:
        """Return the settled 99th percentile over the objective of a latency-critical server."""
        program = self._programs[name]
        assert program.curve is not None, "only latency-critical servers have a latency"
        alone = self._alone(name, load)
        slow_down = max(1.0, alone / signals[name].ipc)
        relative = load * self._traits.max_load_of_knee
        return float(program.curve.p99_us(relative, slow_down) / program.curve.slo_p99_us)

    def measure(
        self,
        loads: Mapping[str, float],
        levels: Mapping[str, int],
        places: Mapping[str, Shares],
        demand: float = 1.0,
        moving: int = 0,
    ) -> dict[str, Signals]:
        """Return what a configuration leads to; answers are kept.

        :param levels: best-effort server -> effective level, per cent
        :param places: best-effort server -> node -> share of its pages, taken at steps of 2 %
        :param demand: of best-effort servers, part of their time
        :param moving: nodes between which pages move, as a bit mask; 0: none
        """
        places = {name: _coarse(found) for name, found in places.items()}
        key = (
            tuple(sorted(loads.items())),
            tuple(sorted(levels.items())),
            tuple((name, *sorted(found.items())) for name, found in sorted(places.items())),
            demand,
            moving,
        )
        if key not in self._measured:
            guests = [
                self._guest(
                    name, loads.get(name, 0.0), levels.get(name, 100), places.get(name, {}), demand
                )
                for name in self._programs
            ]
            self._measured[key] = self.model.measure(guests + self._mover(moving))
        return self._measured[key]

    def requests(
        self, ratios: Mapping[str, float], seconds: float, loads: Mapping[str, float]
    ) -> dict[str, list[tuple[float, int]]]:
        """Return what the guests report: latency-critical server -> (latency in microseconds, requests).

        :param ratios: true 99th percentiles over objectives
        :param seconds: time since the last report
        """
        reports: dict[str, list[tuple[float, int]]] = {}
        for name, ratio in ratios.items():
            curve = self._programs[name].curve
            assert curve is not None, "only latency-critical servers report"
            noisy = ratio * math.exp(self._chance.gauss(0.0, self._traits.noise))
            p99_us = noisy * curve.slo_p99_us
            total = self._traits.requests_per_s * loads[name] * seconds
            report, below = [], 0.0
            for upper in _BANDS:
                expected = total * (upper - below)
                count = round(self._chance.gauss(expected, math.sqrt(expected)))
                # exponential tail: -ln(1 - q) / ln(100) of the 99th percentile, in the middle of the band
                middle = -math.log(1.0 - (upper + below) / 2.0) / math.log(100.0)
                if count > 0:
                    report.append((p99_us * middle, count))
                below = upper
            reports[name] = report
        return reports

    def _guest(self, name: str, load: float, level: int, place: Shares, demand: float) -> Guest:
        program = self._programs[name]
        workload = WORKLOADS[program.workload]
        if program.curve is not None:
            busy = min(1.0, max(0.05, load * self._traits.max_load_of_knee))
            return Guest(name, workload, program.cpus, {program.node: 1.0}, busy)
        return Guest(name, workload, program.cpus, place, demand, mba={program.node: level})

    def _alone(self, name: str, load: float) -> float:
        """Return instructions per cycle of a server that has the host for itself."""
        key = ("alone", name, load)
        if key not in self._measured:
            guest = self._guest(name, load, 100, {}, 1.0)
            self._measured[key] = self.model.measure([guest])
        return self._measured[key][name].ipc

    def _mover(self, moving: int) -> list[Guest]:
        """The kernel's copying as a program that reads from one node and writes to the other."""
        if not moving:
            return []
        nodes = [node for node in range(moving.bit_length()) if moving >> node & 1]
        traits = self._traits
        # One streaming thread of the model draws about 8 GB/s.
        busy = min(1.0, 2.0 * traits.mover_mbps * traits.mover_traffic / 8000.0)
        spread = {node: 1.0 / len(nodes) for node in nodes}
        idle = 1 + max(cpu for program in self._programs.values() for cpu in program.cpus)
        return [Guest("mover", WORKLOADS["stream"], (idle,), spread, busy)]

    def _move(self, seconds: float, goals: Mapping[str, Shares]) -> int:
        """Move pages towards their goals, one server after the other; return the nodes touched as a bit mask."""
        traits, touched = self._traits, 0
        budget = traits.mover_mbps * seconds / (1024.0 * traits.memory_gb)
        for name, goal in goals.items():
            found = self._best[name]
            gap = {n: goal.get(n, 0.0) - found.shares.get(n, 0.0) for n in {*goal, *found.shares}}
            left = sum(value for value in gap.values() if value > 0)
            if left < 1e-6 or budget <= 0:
                continue
            part = min(1.0, budget / left)
            budget -= part * left
            for node, value in gap.items():
                found.shares[node] = found.shares.get(node, 0.0) + part * value
                touched |= 1 << node if abs(value) > 1e-9 else 0
        return touched


def _coarse(shares: Shares) -> dict[int, float]:
    """Round to 2 %, so that a move on its way makes few new configurations."""
    rounded = {node: round(share * 50) / 50 for node, share in shares.items()}
    total = sum(rounded.values())
    return {node: share / total for node, share in sorted(rounded.items()) if share > 0}
