# SPDX-License-Identifier: Apache-2.0
"""Tail latency of a latency-critical server against its load and its slow-down.

The server is a queue: p99 = idle p99 x slow-down x (1 + g u/(1-u)), where the slow-down is cycles per instruction now
over those in isolation, and the utilisation u = knee utilisation x load x slow-down. g is such that an undisturbed
server at its maximum load has exactly its objective, because BALM *defines* the maximum load as the knee of the
isolated curve and the objective as the p99 there. Beyond ``MAX_UTILISATION`` requests are dropped and the latency stays
at its ceiling.

Source: Gureya 2021, section 5.4 (figure 5.4: the numbers of the curve are lost, its definition is not).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from emulation.physics.parameters import DATA

MAX_UTILISATION: Final = 0.99


@dataclass(frozen=True, slots=True)
class LatencyCurve:
    """The isolated curve of one server.

    :param slo_p99_us: objective: p99 at maximum load in isolation, microseconds
    :param idle_p99_us: p99 at no load, microseconds
    :param knee_utilisation: utilisation at maximum load
    """

    slo_p99_us: float
    idle_p99_us: float
    knee_utilisation: float

    @property
    def gain(self) -> float:
        """g of the formula."""
        knee = self.knee_utilisation
        return (self.slo_p99_us / self.idle_p99_us - 1.0) * (1.0 - knee) / knee

    def p99_us(self, load: float, slow_down: float) -> float:
        """Return the 99th percentile of the latency, microseconds.

        :param load: requests per second over those at maximum load, >= 0.0
        :param slow_down: cycles per instruction now over those in isolation, >= 1.0 when disturbed
        """
        used = min(MAX_UTILISATION, self.knee_utilisation * load * slow_down)
        return self.idle_p99_us * slow_down * (1.0 + self.gain * used / (1.0 - used))


def _curve(slo_p99_us: float) -> LatencyCurve:
    latency = DATA["latency"]
    idle = float(latency["idle_fraction_of_slo"]) * slo_p99_us
    return LatencyCurve(slo_p99_us, idle, float(latency["knee_utilisation"]))


CURVES: Final[Mapping[str, LatencyCurve]] = {
    name: _curve(float(slo)) for name, slo in DATA["latency"]["slo_us"].items()
}
"""Curves of BALM's servers: memcached, xapian."""
