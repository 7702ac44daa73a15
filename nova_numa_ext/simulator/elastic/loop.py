# SPDX-License-Identifier: Apache-2.0
"""A group and a modelled service in a closed loop, under different policies.

``group``
    the product's own loop, with any :class:`~nova_numa_ext.policy.elastic.settings.ScalingSettings`
``reactive``
    two alarms, as in Heat and Aodh: one member more when some member exceeds the objective, one less when none has
    exceeded 60 % of it for three periods
``oracle``
    the fewest members that meet the objective, known in advance and there at once
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from nova_numa_ext.policy.elastic.cells import Grid
from nova_numa_ext.policy.elastic.group import ElasticGroup, Evaluation, Learner
from nova_numa_ext.policy.elastic.load import MemberLoad
from nova_numa_ext.policy.elastic.period import Member, Period
from nova_numa_ext.policy.elastic.settings import ScalingSettings
from nova_numa_ext.simulator.elastic.plant import LEAST, OBJECTIVE_MS, Plant
from nova_numa_ext.simulator.elastic.shapes import PERIOD_S, WARM_UP

_HOUR_S: Final = 3600.0
_LOW: Final = 0.6
_LOW_PERIODS: Final = 3
_CELLS: Final = 20  # a cell is a twentieth of a member's capacity

Policy = Callable[[Period], int]
"""Decides members more or fewer of a period; the newest leave first."""


@dataclass(frozen=True, slots=True)
class NoisyNeighbour:
    """A noisy neighbour of some members, in some periods.

    :param members: numbers of the members beside it
    :param first: first period with noise
    :param last: last one
    :param factor: on latencies
    :param reported: the hosts' agents report it
    """

    members: frozenset[int]
    first: int
    last: int
    factor: float
    reported: bool = True

    def disturbs(self, period: int, member: int) -> bool:
        """Return whether a member has noise beside it."""
        return self.first <= period <= self.last and member in self.members


@dataclass
class ElasticRun:
    """What a policy came to.

    :param met: of each period after the warm-up, whether every member met the objective
    :param members: members of each period, those that are being built, too
    :param operations_per_s: load of each period
    """

    met: list[bool] = field(default_factory=list)
    members: list[int] = field(default_factory=list)
    operations_per_s: list[float] = field(default_factory=list)

    @property
    def met_share(self) -> float:
        """Share of periods in which the objective was met."""
        return sum(self.met) / len(self.met)

    @property
    def member_hours(self) -> float:
        """Hours of members after the warm-up."""
        return sum(self.members[WARM_UP:]) * PERIOD_S / _HOUR_S


def run(plant: Plant, policy: Policy, neighbour: NoisyNeighbour | None = None) -> ElasticRun:
    """Run a policy; in the warm-up it is asked, and what it says is not done."""
    result = ElasticRun()
    present, next_one = list(range(LEAST)), LEAST
    building: list[tuple[int, int]] = []
    moved = False
    for number, total in enumerate(plant.totals().tolist()):
        joined = [one for one, ready in building if ready <= number]
        building = [(one, ready) for one, ready in building if ready > number]
        present += joined
        moved = moved or bool(joined)
        loads = plant.loads(total, number, present)
        latencies = _latencies(plant, loads, number, plant.rebalance if moved else 1.0, neighbour)
        result.operations_per_s.append(sum(total))
        result.members.append(len(present) + len(building))
        if number >= WARM_UP:
            result.met.append(max(latencies.values()) <= OBJECTIVE_MS)
        members = tuple(
            Member(
                str(one),
                load,
                plant.readings_ms(number, one, latencies[one]),
                created_here=True,
                disturbed=neighbour is not None
                and neighbour.reported
                and neighbour.disturbs(number, one),
            )
            for one, load in loads.items()
        )
        at_s = number * PERIOD_S
        change = policy(Period(at_s, at_s, members, building=len(building)))
        moved = False
        if number < WARM_UP:
            continue
        if change > 0:
            building += [(next_one + more, number + plant.boot_periods) for more in range(change)]
            next_one += change
        elif change < 0:
            present = present[:change]
            moved = True
    return result


def _latencies(
    plant: Plant,
    loads: Mapping[int, MemberLoad],
    period: int,
    factor: float,
    neighbour: NoisyNeighbour | None,
) -> dict[int, float]:
    found = {}
    for one, load in loads.items():
        noisy = neighbour is not None and neighbour.disturbs(period, one)
        found[one] = plant.latency_ms(
            one, load, factor * (neighbour.factor if noisy and neighbour else 1.0)
        )
    return found


class Scaled:
    """The policy that carries out what the product's loop decides.

    :param plant: its cells are a twentieth of a member's capacity, as an operator would choose them
    :param evaluations: what it has decided, and from what; one for each period
    """

    def __init__(self, plant: Plant, learner: Learner, settings: ScalingSettings) -> None:
        side = plant.capacity_per_s / _CELLS
        self._group = ElasticGroup(learner, replace(settings, grid=Grid(side, side)))
        self.evaluations: list[Evaluation] = []

    def __call__(self, period: Period) -> int:
        """Return members more or fewer."""
        found = self._group.observe(period)
        self.evaluations.append(found)
        if found.decision.change and period.at_s >= WARM_UP * PERIOD_S:
            self._group.acted(period.at_s)
        return found.decision.change

    def capacity_per_s(self, member: str, load: MemberLoad) -> float:
        """Return operations per second that the last model gives a member for work of a kind.

        :raises KeyError: there is no model of the member
        """
        ratio = self.evaluations[-1].planes[member].ratio(load)
        return (load.reads_per_s + load.writes_per_s) / ratio if ratio else 0.0


def reactive() -> Policy:
    """Return the policy of two alarms."""
    low = 0

    def policy(period: Period) -> int:
        nonlocal low
        worst_ms = max(sorted(one.readings_ms)[len(one.readings_ms) // 2] for one in period.members)
        low = low + 1 if worst_ms < _LOW * OBJECTIVE_MS else 0
        if period.building:
            return 0
        if worst_ms > OBJECTIVE_MS:
            return 1
        if low >= _LOW_PERIODS and len(period.members) > LEAST:
            low = 0
            return -1
        return 0

    return policy


def oracle(plant: Plant) -> ElasticRun:
    """Return the run of the fewest members that meet the objective in each period; no data ever moves."""
    result = ElasticRun()
    for number, total in enumerate(plant.totals().tolist()):
        count = LEAST
        while (
            plant.worst_ms(plant.loads(total, number, range(count))) > OBJECTIVE_MS and count < 100
        ):
            count += 1
        result.operations_per_s.append(sum(total))
        result.members.append(count)
        if number >= WARM_UP:
            result.met.append(
                plant.worst_ms(plant.loads(total, number, range(count))) <= OBJECTIVE_MS
            )
    return result
