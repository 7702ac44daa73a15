# SPDX-License-Identifier: Apache-2.0
"""When an SLA is kept: figures are added, limits compare. No sample is no success."""

import statistics
from dataclasses import dataclass, field
from typing import Protocol, Self


class Limit(Protocol):
    """What an SLA compares its samples with."""

    @property
    def broken(self) -> bool:
        """More samples cannot mend it."""

    @property
    def kept(self) -> bool:
        """Enough was looked at, and the limit is kept."""

    def merge(self, other: Self) -> None:
        """Count all samples of another one of the same limit."""


@dataclass(slots=True)
class FaultLimit:
    """Faults over all samples, and how many there may be.

    :param most: faults that are allowed
    :param least: what must at least have been looked at
    """

    most: int
    least: int = 1
    looked_at: int = 0
    faults: int = 0

    def add(self, looked_at: int, faults: int) -> None:
        """Count one sample."""
        self.looked_at += looked_at
        self.faults += faults

    def merge(self, other: Self) -> None:
        """Count all samples of another one of the same limit."""
        self.add(other.looked_at, other.faults)

    @property
    def broken(self) -> bool:
        """More samples cannot mend it."""
        return self.faults > self.most

    @property
    def kept(self) -> bool:
        """Enough was looked at, and the limit is kept."""
        return not self.broken and self.looked_at >= max(self.least, 1)

    def details(self, topic: str) -> str:
        """Return a sentence for people."""
        if self.looked_at < max(self.least, 1):
            return f"{topic}: {self.looked_at} looked at, at least {max(self.least, 1)} expected"
        return f"{topic}: {self.faults} of {self.looked_at} looked at, at most {self.most} allowed"


@dataclass(slots=True)
class ShareLimit:
    """Share of samples without a fault, and how large it must be.

    :param least_share: in [0, 1]
    """

    least_share: float
    looked_at: int = 0
    faults: int = 0
    broken: bool = field(default=False, init=False)  # later samples may mend the share

    def add(self, looked_at: int, faults: int) -> None:
        """Count one sample."""
        self.looked_at += looked_at
        self.faults += faults

    def merge(self, other: Self) -> None:
        """Count all samples of another one of the same limit."""
        self.add(other.looked_at, other.faults)

    @property
    def kept(self) -> bool:
        """Something was looked at, and enough of it was right."""
        return self.looked_at > 0 and self._share >= self.least_share

    def details(self, topic: str) -> str:
        """Return a sentence for people."""
        if not self.looked_at:
            return f"{topic}: none looked at"
        return (
            f"{topic}: {self.faults} of {self.looked_at}; {100 * self._share:.1f} % are right, "
            f"at least {100 * self.least_share:g} % expected"
        )

    @property
    def _share(self) -> float:
        return 1.0 - self.faults / self.looked_at


@dataclass(slots=True)
class RatioLimit:
    """Median duration of one action over that of another in the same run, and how large it may be.

    :param most: the largest ratio of the medians
    :param measured_s: durations of the action in question, seconds
    :param reference_s: durations of the action it is compared with, seconds
    """

    most: float
    measured_s: list[float] = field(default_factory=list)
    reference_s: list[float] = field(default_factory=list)
    broken: bool = field(default=False, init=False)  # later durations may mend the medians

    def merge(self, other: Self) -> None:
        """Add all durations of another one of the same limit."""
        self.measured_s += other.measured_s
        self.reference_s += other.reference_s

    @property
    def ratio(self) -> float | None:
        """Ratio of the medians; None without both."""
        return ratio(self.measured_s, self.reference_s)

    @property
    def kept(self) -> bool:
        """Both actions were seen, and the ratio is small enough."""
        return self.ratio is not None and self.ratio <= self.most

    def details(self, measured: str, reference: str) -> str:
        """Return a sentence for people.

        :param measured: name of the action in question
        :param reference: name of the other
        """
        counts = f"{len(self.measured_s)} {measured}, {len(self.reference_s)} {reference}"
        if self.ratio is None:
            return f"{counts}: at least one of each expected"
        return f"{counts}: ratio of the medians {self.ratio:.3f}, at most {self.most:g} allowed"


def ratio(measured_s: list[float], reference_s: list[float]) -> float | None:
    """Return the ratio of two medians; None without both, or where the reference took no time."""
    if not measured_s or not reference_s:
        return None
    reference = statistics.median(reference_s)
    return statistics.median(measured_s) / reference if reference > 0 else None
