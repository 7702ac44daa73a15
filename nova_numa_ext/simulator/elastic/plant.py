# SPDX-License-Identifier: Apache-2.0
"""A modelled service of equal members behind a load balancer that is not quite fair.

A member's latency grows with its utilisation ρ as in a queue, ``service_ms / (1 - ρ)``, where ρ is its reads plus
``write_cost`` times its writes over its capacity. Members of one flavor differ, and what the monitoring reads of a
latency is noisy. A member that is asked for carries load ``boot_periods`` later; in the period in which it joins, or
another one leaves, data moves and latencies are ``rebalance`` times as long.

All random numbers follow from the plant's seed, the period and the member, not from what a policy did before: two
policies that have the same members at a time see the same.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nova_numa_ext.policy.elastic.load import MemberLoad
from nova_numa_ext.simulator.elastic import shapes

OBJECTIVE_MS: Final = 35.0
LEAST: Final = 3
READINGS: Final = 20
_NEARLY_FULL: Final = 0.97
_FULLEST: Final = 1.6
_SIZE_KB: Final = 10.0


@dataclass(frozen=True)
class Plant:
    """Constants of one modelled service.

    :param seed: of all its noise
    :param shape: of its load, one of :data:`.shapes.SHAPES`
    :param peak_members: highest load, in members of mean capacity at the objective
    :param capacity_per_s: reads per second at which a mean member's latency has no bound
    :param spread: members have from (1 - spread) to (1 + spread) of it
    :param write_cost: reads that one write weighs
    :param read_share: of reads among all operations
    :param service_ms: latency of an idle member
    :param fairness: concentration of the balancer's shares (Dirichlet): with 600 a member's deviates by 4 % of it
    :param load_noise: relative deviation of the total load from its shape
    :param reading_noise: deviation of the logarithm of what is read of a latency
    :param boot_periods: from the request for a member until it carries load
    :param rebalance: factor on latencies while data moves
    """

    seed: int
    shape: str
    peak_members: float
    capacity_per_s: float
    spread: float
    write_cost: float
    read_share: float
    service_ms: float
    fairness: float
    load_noise: float
    reading_noise: float
    boot_periods: int
    rebalance: float

    @property
    def member_operations_per_s(self) -> float:
        """Reads and writes of a mean member whose latency is the objective."""
        return self._operations(self.capacity_per_s)

    def totals(self) -> NDArray[np.float64]:
        """Return reads and writes of the whole service, one row a period: reads per second, writes per second."""
        draw = self._draw(0)
        first = self.member_operations_per_s * LEAST
        training = np.interp(
            np.arange(shapes.WARM_UP), (0, 4, 8), (0.4 * first, 1.15 * first, 0.5 * first)
        )
        shape = shapes.shape(self.shape, draw)
        line = np.concatenate([training, shape * self.peak_members * self.member_operations_per_s])
        total = line * np.clip(1.0 + draw.normal(0.0, self.load_noise, len(line)), 0.5, 1.5)
        share = self.read_share * np.clip(1.0 + draw.normal(0.0, 0.02, len(line)), 0.9, 1.1)
        share = np.minimum(share, 1.0)
        return np.column_stack([total * share, total * (1.0 - share)])

    def loads(
        self, total: Sequence[float], period: int, members: Sequence[int]
    ) -> dict[int, MemberLoad]:
        """Return what each member gets of a period's reads and writes.

        :param members: numbers of the members that carry load
        """
        parts = {one: float(self._draw(1, period, one).gamma(self.fairness)) for one in members}
        whole = sum(parts.values())
        return {
            one: MemberLoad(total[0] * part / whole, total[1] * part / whole, _SIZE_KB)
            for one, part in parts.items()
        }

    def operations_of(self, member: int) -> float:
        """Return reads and writes of a member whose latency is the objective."""
        return self._operations(self.capacity_of(member))

    def _operations(self, capacity_per_s: float) -> float:
        weight = self.read_share + self.write_cost * (1.0 - self.read_share)
        return capacity_per_s * (1.0 - self.service_ms / OBJECTIVE_MS) / weight

    def latency_ms(self, member: int, load: MemberLoad, factor: float = 1.0) -> float:
        """Return the 99th percentile of a member's reads.

        :param factor: on the latency, of moving data and noisy neighbours
        """
        work = load.reads_per_s + self.write_cost * load.writes_per_s
        rho = min(work / self.capacity_of(member), _FULLEST)
        if rho < _NEARLY_FULL:
            return factor * self.service_ms / (1.0 - rho)
        return factor * self.service_ms / (1.0 - _NEARLY_FULL) * (1.0 + 10.0 * (rho - _NEARLY_FULL))

    def readings_ms(self, period: int, member: int, latency_ms: float) -> tuple[float, ...]:
        """Return what the monitoring reads of a latency in a period."""
        noise = self._draw(2, period, member).normal(0.0, self.reading_noise, READINGS)
        return tuple(float(one) for one in latency_ms * np.exp(noise))

    def capacity_of(self, member: int) -> float:
        """Return reads per second at which a member's latency has no bound."""
        return _capacity(self.seed, self.capacity_per_s, self.spread, member)

    def worst_ms(self, loads: Mapping[int, MemberLoad], factor: float = 1.0) -> float:
        """Return the latency of the member that is worst off."""
        return max(
            (self.latency_ms(one, load, factor) for one, load in loads.items()), default=math.inf
        )

    def _draw(self, *what: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *what])


@cache
def _capacity(seed: int, mean: float, spread: float, member: int) -> float:
    draw = np.random.default_rng([seed, 3, member])
    return mean * float(draw.uniform(1.0 - spread, 1.0 + spread))


def draws(count: int, seed: int) -> list[Plant]:
    """Return plants, each shape of load as often; they follow from the seed alone."""
    draw = np.random.default_rng(seed)
    return [
        Plant(
            seed=int(draw.integers(2**31)),
            shape=shapes.SHAPES[number % len(shapes.SHAPES)],
            peak_members=round(float(draw.uniform(4.0, 8.0)), 3),
            capacity_per_s=round(float(draw.uniform(2000.0, 20000.0)), 1),
            spread=round(float(draw.uniform(0.0, 0.1)), 3),
            write_cost=round(float(draw.uniform(0.5, 3.0)), 3),
            read_share=round(float(draw.uniform(0.5, 0.95)), 3),
            service_ms=round(float(draw.uniform(5.0, 12.0)), 2),
            fairness=round(float(draw.uniform(400.0, 5000.0)), 0),
            load_noise=round(float(draw.uniform(0.01, 0.04)), 4),
            reading_noise=round(float(draw.uniform(0.05, 0.2)), 3),
            boot_periods=int(draw.integers(1, 3)),
            rebalance=round(float(draw.uniform(1.0, 1.15)), 3),
        )
        for number in range(count)
    ]
