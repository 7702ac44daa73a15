# SPDX-License-Identifier: Apache-2.0
"""The loop of an elastic group: learn what members can carry, predict what they will get, decide; one call a period.

The model starts empty and learns online, one plane for each member: servers of one flavor are not equally fast, and do
not stay so. A member that is new, or has seen only good or only bad periods, takes the plane of all members together.

Readings that were taken while something else than the load made a member slow do not train: when a noisy neighbour is
throttled or moved, the capacity is back, and a group that had grown for it would have paid for its neighbour's noise.

Totals of reads and writes are predicted for the next period and for the end of the lead, each by a pool of its own,
and both together by growth; what is decided on is that of the three with the most operations, so a group never gives
back what it will need until a new member is there. Growth is that of all operations, divided as of late: where few of
them are writes, these alone are mostly noise.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from nova_numa_ext.policy.elastic import share
from nova_numa_ext.policy.elastic.boundary import Labels, Plane, Points, moved
from nova_numa_ext.policy.elastic.cells import Cells
from nova_numa_ext.policy.elastic.decide import ScalingDecision, decide
from nova_numa_ext.policy.elastic.forecast import growth, sane
from nova_numa_ext.policy.elastic.load import MemberLoad
from nova_numa_ext.policy.elastic.period import Member, Period
from nova_numa_ext.policy.elastic.pool import Majority, majority
from nova_numa_ext.policy.elastic.settings import ScalingSettings

_KEPT_PERIODS: Final = 2016  # a week of five minutes
_KEPT_ACTIONS: Final = 100
_OWN_CELLS: Final = (
    4  # below, what all members have seen says more than one plane through three points
)
GROWTH: Final = "growth"
_MIX_PERIODS: Final = 4
_TOTALS: Final = ("reads", "writes")


class Learner(Protocol):
    """Fits models; it may do so in another process, and need not be quick."""

    @property
    def predictors(self) -> tuple[str, ...]:
        """Names of the predictors, in the order of the pool."""

    def planes(self, samples: Sequence[tuple[Points, Labels]]) -> list[Plane | None]:
        """Fit a plane to each of several sets of points with labels."""

    def predictions(self, history: Sequence[float], leads: Sequence[int]) -> list[list[float]]:
        """Return what each predictor says of the values at some leads: a row for each predictor."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What was predicted of one total.

    :param predictor: name of the predictor that was followed, or has most to say
    :param value: what was said, per second
    :param lead: periods ahead
    """

    predictor: str
    value: float
    lead: int


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One period: the decision and what it came from.

    :param total: reads and writes per second of all members now
    :param forecasts: of reads, then of writes; empty until there is a history
    :param loads: predicted load of each member, with head room
    :param planes: model of each member that has one
    """

    decision: ScalingDecision
    total: tuple[float, float]
    forecasts: tuple[Forecast, ...]
    loads: Mapping[str, MemberLoad]
    planes: Mapping[str, Plane]


@dataclass
class _Pool:
    """Predictors of one total at one lead, and what they said of periods that have not come yet."""

    lead: int
    weights: Majority
    pending: deque[tuple[float, ...]] = field(default_factory=deque)

    def arrived(self, value: float) -> None:
        """Learn from the value of the period that has come."""
        if len(self.pending) == self.lead:
            self.weights = self.weights.learned(self.pending.popleft(), value)


class ElasticGroup:
    """What is known of one group from all its periods; it sees each period once, in order.

    :param learner: fits the models
    :param settings: what the operator decides
    """

    def __init__(self, learner: Learner, settings: ScalingSettings) -> None:
        self._learner, self._settings = learner, settings
        self._cells: dict[str, Cells] = {}
        self._all_cells = self._new_cells()
        self._history: tuple[deque[float], deque[float]] = (
            deque(maxlen=_KEPT_PERIODS),
            deque(maxlen=_KEPT_PERIODS),
        )
        self._leads = sorted({1, settings.lead_periods})
        self._pools = tuple([self._new_pool(lead) for lead in self._leads] for _ in _TOTALS)
        self._actions_s: deque[float] = deque(maxlen=_KEPT_ACTIONS)
        self._known: dict[bytes, Plane | None] = {}

    def _new_cells(self) -> Cells:
        return Cells(self._settings.grid, self._settings.kept_readings)

    def _new_pool(self, lead: int) -> _Pool:
        return _Pool(lead, majority(len(self._learner.predictors), self._settings))

    def observe(self, period: Period) -> Evaluation:
        """Learn from a period and decide what is to be done."""
        for member in period.members:
            self._train(member)
        self._forget({member.name for member in period.members})
        now = {member.name: member.load for member in period.members}
        total = (
            sum(load.reads_per_s for load in now.values()),
            sum(load.writes_per_s for load in now.values()),
        )
        forecasts = self._forecast(total)
        loads = {}
        if now:
            reads, writes = (forecast.value for forecast in forecasts)
            room = self._settings.head_room
            loads = {
                name: load.times(room) for name, load in share.predicted(now, reads, writes).items()
            }
        planes = self._planes(period.members)
        ratios = {
            name: planes[name].ratio(load) if name in planes else None
            for name, load in loads.items()
        }
        decision = decide(period, ratios, self._actions_s, self._settings)
        return Evaluation(decision, total, forecasts, loads, planes)

    def acted(self, at_s: float) -> None:
        """Note that a decision was carried out: cool-downs begin, and it counts for the budget."""
        self._actions_s.append(at_s)

    def _train(self, member: Member) -> None:
        if not member.readings_ms or (member.disturbed and not self._settings.use_disturbed):
            return
        own = self._cells.setdefault(member.name, self._new_cells())
        own.add(member.load, member.readings_ms)
        self._all_cells.add(member.load, member.readings_ms)

    def _forget(self, present: set[str]) -> None:
        self._cells = {name: cells for name, cells in self._cells.items() if name in present}

    def _forecast(self, total: tuple[float, float]) -> tuple[Forecast, ...]:
        of_totals = []
        for history, pools, value in zip(self._history, self._pools, total, strict=True):
            history.append(value)
            past = tuple(history)
            said = self._learner.predictions(past, self._leads)
            of_totals.append(
                [
                    self._follow(pool, tuple(row[at] for row in said), past)
                    for at, pool in enumerate(pools)
                ]
            )
        forecasts = [*zip(*of_totals, strict=True), *self._grown()]
        return max(forecasts, key=lambda each: sum(one.value for one in each))

    def _grown(self) -> list[tuple[Forecast, ...]]:
        """Return reads and writes by growth; nothing where one period ahead is enough, or nothing was done of late."""
        lead = self._leads[-1]
        operations = [sum(one) for one in zip(*self._history, strict=True)]
        recent = sum(operations[-_MIX_PERIODS:])
        if lead == 1 or recent <= 0.0:
            return []
        value = growth(operations, lead)
        parts = [sum(tuple(one)[-_MIX_PERIODS:]) / recent for one in self._history]
        return [tuple(Forecast(GROWTH, value * part, lead) for part in parts)]

    def _follow(self, pool: _Pool, said: Sequence[float], history: Sequence[float]) -> Forecast:
        pool.arrived(history[-1])
        said = tuple(sane(one, history) for one in said)
        pool.pending.append(said)
        chosen = pool.weights.chosen
        return Forecast(self._learner.predictors[chosen], pool.weights.combined(said), pool.lead)

    def _planes(self, members: Sequence[Member]) -> dict[str, Plane]:
        """Return the plane of each member that has one, its own or that of all."""
        names = [member.name for member in members]
        own = [name for name in names if len(self._cells.get(name, ())) >= _OWN_CELLS]
        settings = self._settings
        samples = [
            cells.labelled(settings.objective_ms, settings.confidence)
            for cells in (self._all_cells, *(self._cells[name] for name in own))
        ]
        shared, *found = self._fitted(samples)
        planes = dict(zip(own, found, strict=True))
        if settings.by_latency:
            shared = self._moved(shared, self._all_cells)
            planes = {name: self._moved(each, self._cells[name]) for name, each in planes.items()}
        chosen = {name: planes.get(name) or shared for name in names}
        return {name: plane for name, plane in chosen.items() if plane is not None}

    def _moved(self, plane: Plane | None, cells: Cells) -> Plane | None:
        """Return a plane where latencies say that the boundary is."""
        if plane is None:
            return None
        settings = self._settings
        return moved(plane, cells.measured(settings.confidence), settings.objective_ms)

    def _fitted(self, samples: Sequence[tuple[Points, Labels]]) -> list[Plane | None]:
        """Return the plane of each set; what is the same as in the last period is not fitted again."""
        keys = [points.tobytes() + labels.tobytes() for points, labels in samples]
        unknown = [at for at, key in enumerate(keys) if key not in self._known]
        planes = self._learner.planes([samples[at] for at in unknown])
        fresh = {keys[at]: plane for at, plane in zip(unknown, planes, strict=True)}
        self._known = {key: fresh[key] if key in fresh else self._known[key] for key in keys}
        return [self._known[key] for key in keys]
