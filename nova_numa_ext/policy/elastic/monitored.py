# SPDX-License-Identifier: Apache-2.0
"""Periods of a group from what a monitoring system says of its members.

Periods end at multiples of their length, so they are the same for every engine, and at any time. A member is of a
period when its reads are known at the end of it. Latencies are asked for ten times a period. What is no number, or
below 0, is not known; a period of which no member is known is none. Times are compared by the millisecond, so the
length of a period is a multiple of 0.01 s.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from nova_numa_ext.policy.elastic.load import MemberLoad
from nova_numa_ext.policy.elastic.period import Member, Period
from nova_numa_ext.policy.elastic.settings import ScalingSettings
from placement_traits.errors import InvalidValueError

READINGS: Final = 10
"""Of a latency in a period."""

WINDOWS: Final[Mapping[str, int]] = MappingProxyType(
    {"$window": 1, "$fifth": 5, "$tenth": READINGS}
)
"""What stands for a time in queries: into how many of it a period is divided."""

_ROUNDING: Final = 1e-6  # of a number of hundredths of a second

Values = Mapping[str, Mapping[int, float]]
"""By member and time in milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class MonitoredQueries:
    """What is asked of the monitoring system. '' is not asked.

    ``$window`` in it stands for the length of a period, ``$fifth`` and ``$tenth`` for parts of it.

    :param reads: operations per second that the objective is about
    :param latency_ms: their latency
    :param writes: other operations per second
    :param size_kb: mean size of what both read and write, KiB
    :param placement: how good a member's place is, in [0, 1]; the worst leaves first
    :param disturbed: above 0 where something else than its load made a member slow
    :param cannot_fix: above 0 where the host of a member cannot keep its objective: it leaves first
    :param label: whose value names the member
    """

    reads: str
    latency_ms: str
    writes: str = ""
    size_kb: str = ""
    placement: str = ""
    disturbed: str = ""
    cannot_fix: str = ""
    label: str = "server"


def check_period(settings: ScalingSettings) -> None:
    """Check that periods and tenths of them, at which latencies are asked for, are of whole milliseconds.

    :raises InvalidValueError: they are not: most values would be lost
    """
    hundredths = settings.period_s * 100.0
    if round(hundredths) < 1 or abs(hundredths - round(hundredths)) > _ROUNDING:
        allowed = "a multiple of 0.01 where Prometheus is the source"
        raise InvalidValueError("period_s", settings.period_s, allowed)


def ends_ms(after_s: float, until_s: float, settings: ScalingSettings) -> list[int]:
    """Return when periods end after a time, until another one, in milliseconds."""
    first = math.floor((after_s + 0.001) / settings.period_s) + 1
    last = math.floor(until_s / settings.period_s)
    return [round(at * settings.period_s * 1000.0) for at in range(first, last + 1)]


def periods(
    ends: list[int], found: Mapping[str, Values], settings: ScalingSettings
) -> tuple[Period, ...]:
    """Return the periods that end at some times, of which anything is known.

    :param found: by the names of :class:`MonitoredQueries`; latencies at tenths of periods, others at their ends
    """
    made = (_period(at, found, settings) for at in ends)
    return tuple(each for each in made if each.members)


def _period(at: int, found: Mapping[str, Values], settings: ScalingSettings) -> Period:
    members = []
    for name in sorted(found["reads"]):
        reads = _value(found, "reads", name, at)
        if reads is None:
            continue
        load = MemberLoad(
            reads,
            _value(found, "writes", name, at) or 0.0,
            _value(found, "size_kb", name, at) or 0.0,
        )
        step_ms = settings.period_s * 1000.0 / READINGS
        times = (round(at - step_ms * back) for back in reversed(range(READINGS)))
        latencies = (_value(found, "latency_ms", name, each) for each in times)
        place = _value(found, "placement", name, at)
        members.append(
            Member(
                name,
                load,
                tuple(each for each in latencies if each is not None),
                disturbed=bool(_value(found, "disturbed", name, at)),
                cannot_fix=bool(_value(found, "cannot_fix", name, at)),
                placement=1.0 if place is None else place,
            )
        )
    return Period(at / 1000.0, at / 1000.0, tuple(members))


def _value(found: Mapping[str, Values], what: str, name: str, at: int) -> float | None:
    value = found.get(what, {}).get(name, {}).get(at)
    return value if value is not None and math.isfinite(value) and value >= 0.0 else None
