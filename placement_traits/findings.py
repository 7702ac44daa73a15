# SPDX-License-Identifier: Apache-2.0
"""Findings of a doctor: one line per check, and what to do about it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    """How bad a finding is."""

    GOOD = "good"
    DEGRADED = "degraded"  # something works less well; the rest does
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """One checked thing.

    :param check: what was looked at
    :param level: how bad it is
    :param detail: what is there, and what to do when it is not good
    """

    check: str
    level: Level
    detail: str

    @property
    def row(self) -> dict[str, Any]:
        """For a table."""
        return {"check": self.check, "level": self.level.value, "detail": self.detail}


def verdict(check: str, good: bool, fine: str, advice: str, bad: Level = Level.DEGRADED) -> Finding:
    """Return a finding that is good, with ``fine``, or ``bad``, with ``advice``."""
    return Finding(check, Level.GOOD, fine) if good else Finding(check, bad, advice)
