# SPDX-License-Identifier: Apache-2.0
"""Loads over time, in shares of their peak: the schedule of OnlineElastMan's evaluation, and drawn ones.

Each begins with :data:`WARM_UP` periods of training, in which the load rises above what the first members carry and
falls again, as in the evaluation of Gureya 2021, section 3.5, where no action is taken in that time.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

PERIOD_S: Final = 300.0
WARM_UP: Final = 8
SHAPES: Final = ("schedule", "diurnal", "ramp", "regime")
# Minutes and load of the evaluation's three rounds; the figure is lost, these follow its text.
_MINUTES: Final = (40, 85, 90, 150, 190, 215, 225, 300, 330, 360)
_LOADS: Final = (12, 40, 14, 14, 32, 32, 14, 48, 20, 14)
_PERIODS: Final = {"schedule": 64, "diurnal": 136, "ramp": 92, "regime": 112}
_SEASON: Final = 68


def shape(name: str, draw: np.random.Generator) -> NDArray[np.float64]:
    """Return a load after its training, one value a period, in shares of its peak, without noise.

    :param name: one of :data:`SHAPES`
    """
    count = _PERIODS[name]
    at = np.arange(count, dtype=float)
    if name == "schedule":
        return np.interp(_MINUTES[0] + 5.0 * at, _MINUTES, np.array(_LOADS) / max(_LOADS))
    if name == "diurnal":
        low = draw.uniform(0.3, 0.5)
        phase = draw.uniform(0.0, 2.0 * np.pi)
        return low + (1.0 - low) * (1.0 + np.sin(2.0 * np.pi * at / _SEASON + phase)) / 2.0
    if name == "ramp":
        return _ramps(at, draw)
    return _regimes(at, draw)


def _ramps(at: NDArray[np.float64], draw: np.random.Generator) -> NDArray[np.float64]:
    """Straight lines between a low and a high level, each of 6 to 24 periods."""
    times, levels = [0.0], [float(draw.uniform(0.3, 0.6))]
    while times[-1] < at[-1]:
        times.append(times[-1] + float(draw.uniform(6.0, 24.0)))
        levels.append(float(draw.uniform(0.7, 1.0) if len(levels) % 2 else draw.uniform(0.3, 0.6)))
    return np.interp(at, times, levels)


def _regimes(at: NDArray[np.float64], draw: np.random.Generator) -> NDArray[np.float64]:
    """Four regimes of equal length, flat, rising, falling or swinging; up to a quarter of the peak between two."""
    made = np.empty_like(at)
    level = float(draw.uniform(0.4, 0.7))
    for part in np.array_split(np.arange(len(at)), 4):
        step = np.arange(len(part), dtype=float)
        kind = int(draw.integers(3))
        if kind == 0:
            line = np.full(len(part), level)
        elif kind == 1:
            goal = float(draw.uniform(0.3, 1.0))
            line = level + (goal - level) * step / len(part)
        else:
            line = level + 0.15 * np.sin(2.0 * np.pi * step / 14.0)
        made[part] = line
        level = float(np.clip(line[-1] + draw.uniform(-0.25, 0.25), 0.3, 1.0))
    return np.clip(made, 0.2, 1.0)
