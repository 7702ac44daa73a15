# SPDX-License-Identifier: Apache-2.0
"""The run-time controllers, each made in a file of its own: this is the one place that lists them."""

from collections.abc import Callable
from typing import Final

from host_agent.control.assembly import balancing, slo
from host_agent.control.pipeline import Refiner, RefinerHost

REFINERS: Final[tuple[Callable[[RefinerHost], Refiner | None], ...]] = (
    balancing.build,
    slo.build,
)
"""Makers, in order: the first refines the coarse decision, the last decides in the end. None: it may not act here.

A refiner that is a :class:`~host_agent.control.agent.Listener` is called after each round, and the metrics of one that
is a :class:`~host_agent.report.metrics.Measured` are shown.
"""


def build(host: RefinerHost) -> tuple[Refiner, ...]:
    """Return the refiners of this host, in order."""
    return tuple(refiner for make in REFINERS if (refiner := make(host)) is not None)
