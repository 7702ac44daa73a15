# SPDX-License-Identifier: Apache-2.0
"""In which order jobs that wait are asked."""

from collections.abc import Iterable
from typing import Final, Protocol, TypeVar

from nova_numa_ext.policy.jobs.queue_settings import QueueSettings

_HOUR_S: Final = 3600.0

QueuedT = TypeVar("QueuedT", bound="Queued")


class Queued(Protocol):
    """On what of a job its place in the queue depends."""

    @property
    def priority(self) -> int:
        """As of :class:`.job.Job`."""

    @property
    def submitted_at(self) -> float:
        """As of :class:`.job.Job`."""

    def waiting_s(self, now: float) -> float:
        """Return for how long it has waited, seconds, all stays in the queue together."""


def rank(job: Queued, now: float, settings: QueueSettings) -> tuple[float, float]:
    """Return the sort key of a job in the queue, smallest first."""
    age_h = job.waiting_s(now) / _HOUR_S
    return -(job.priority + settings.ageing_per_hour * age_h), job.submitted_at


def in_order(waiting: Iterable[QueuedT], now: float, settings: QueueSettings) -> list[QueuedT]:
    """Return jobs in the order in which they are asked; equal ones stay as they are."""
    return sorted(waiting, key=lambda job: rank(job, now, settings))
