# SPDX-License-Identifier: Apache-2.0
"""Readings of latencies, kept by the load they were taken at.

The space of loads is cut into cells of equal sides (the *granularity*). Each cell keeps its latest readings only, so
what a member could do long ago is forgotten where it is loaded that way again. A cell is labelled +1, the objective is
met, when the share of its readings that meet it reaches the *confidence*, else -1 (Gureya 2021, section 3.4.1).

How far a cell is from the objective, which a label does not say, is its latency at that confidence: at or below the
objective just where the label is +1. It belongs to the mean of the loads that its readings were taken at.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nova_numa_ext.policy.elastic.load import MemberLoad
from placement_traits.errors import InvalidValueError

MET: Final = 1
VIOLATED: Final = -1

Cell = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Grid:
    """Sides of a cell, in the units of :class:`.load.MemberLoad`.

    :raises InvalidValueError: a side that is no number above 0
    """

    reads_per_s: float = 500.0
    writes_per_s: float = 500.0
    size_kb: float = 5.0

    def __post_init__(self) -> None:
        for side in self.sides:
            if not 0.0 < side < math.inf:
                raise InvalidValueError("granularity", side, "a number > 0")

    @property
    def sides(self) -> tuple[float, float, float]:
        """All three."""
        return (self.reads_per_s, self.writes_per_s, self.size_kb)

    def cell(self, load: MemberLoad) -> Cell:
        """Return the cell that a load lies in."""
        reads, writes, size = (
            int(value // side)
            for value, side in zip(
                (load.reads_per_s, load.writes_per_s, load.size_kb), self.sides, strict=True
            )
        )
        return reads, writes, size

    def centre(self, cell: Cell) -> tuple[float, float, float]:
        """Return the load in the middle of a cell: reads per second, writes per second, KiB."""
        reads, writes, size = ((at + 0.5) * side for at, side in zip(cell, self.sides, strict=True))
        return reads, writes, size


@dataclass(frozen=True, slots=True)
class MeasuredCell:
    """What the readings of a cell come to.

    :param load: mean of the loads that they were taken at
    :param latency_ms: share *confidence* of them is at most this
    :param readings: how many they are
    """

    load: MemberLoad
    latency_ms: float
    readings: int


class Cells:
    """Readings of one member, or of all members of a flavor.

    :param grid: how loads are cut into cells
    :param kept: readings that each cell keeps
    :param most: cells that are kept; the one that was not read for the longest time is dropped
    """

    def __init__(self, grid: Grid, kept: int = 50, most: int = 1000) -> None:
        self._grid, self._kept, self._most = grid, kept, most
        self._readings: OrderedDict[Cell, deque[tuple[MemberLoad, float]]] = OrderedDict()
        # With the confidence, of cells that were not read since.
        self._known: dict[Cell, tuple[float, MeasuredCell]] = {}

    def __len__(self) -> int:
        return len(self._readings)

    def add(self, load: MemberLoad, readings_ms: Iterable[float]) -> None:
        """Keep readings that were taken at a load."""
        cell = self._grid.cell(load)
        found = self._readings.setdefault(cell, deque(maxlen=self._kept))
        self._readings.move_to_end(cell)
        self._known.pop(cell, None)
        found.extend((load, reading) for reading in readings_ms)
        if len(self._readings) > self._most:
            dropped, _ = self._readings.popitem(last=False)
            self._known.pop(dropped, None)

    def labelled(
        self, objective_ms: float, confidence: float
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return what a model learns from: the centre of each cell, one row a cell, and its label.

        :param confidence: share of a cell's readings that must meet the objective
        """
        read = sorted(self._readings.items())
        points = [self._grid.centre(cell) for cell, _ in read]
        labels = [
            label([one for _, one in readings], objective_ms, confidence) for _, readings in read
        ]
        return np.array(points, dtype=float).reshape(-1, 3), np.array(labels, dtype=np.int64)

    def measured(self, confidence: float) -> list[MeasuredCell]:
        """Return what the readings of each cell come to; the order says nothing.

        :param confidence: share of them whose highest latency is a cell's
        """
        found = []
        for cell, readings in self._readings.items():
            if not readings:
                continue
            known = self._known.get(cell)
            if known is None or known[0] != confidence:
                known = self._known[cell] = (confidence, _measured(readings, confidence))
            found.append(known[1])
        return found


def label(readings_ms: Sequence[float], objective_ms: float, confidence: float) -> int:
    """Return :data:`MET` when enough readings meet the objective, else :data:`VIOLATED`."""
    met = sum(reading <= objective_ms for reading in readings_ms)
    return MET if met >= confidence * len(readings_ms) else VIOLATED


def _measured(kept: Sequence[tuple[MemberLoad, float]], confidence: float) -> MeasuredCell:
    count = len(kept)
    load = MemberLoad(
        sum(each.reads_per_s for each, _ in kept) / count,
        sum(each.writes_per_s for each, _ in kept) / count,
        sum(each.size_kb for each, _ in kept) / count,
    )
    readings = sorted(reading for _, reading in kept)
    needed = max(math.ceil(confidence * count), 1)  # so many meet it where it is met
    return MeasuredCell(load, readings[needed - 1], count)
