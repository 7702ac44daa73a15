# SPDX-License-Identifier: Apache-2.0
"""Traces of groups from CSV files: what monitoring has seen of each member, period by period."""

import math
from collections.abc import Iterable
from typing import Final

from nova_numa_ext.policy.elastic.load import MemberLoad
from nova_numa_ext.policy.elastic.period import Member, Period
from nova_numa_ext.policy.trace_line import TraceLine
from placement_traits.errors import InvalidValueError

REQUIRED_COLUMNS: Final = ("time_s", "member", "reads_per_s", "latencies_ms")
TRACE_COLUMNS: Final = (
    *REQUIRED_COLUMNS,
    "writes_per_s",
    "size_kb",
    "state",
    "created_here",
    "disturbed",
    "cannot_fix",
    "placement",
    "age_s",
)
_STATES: Final = ("active", "building", "leaving", "rebalancing")
_YES_NO: Final = {"yes": True, "no": False}


def read_trace(lines: Iterable[str], where: str = "trace") -> tuple[Period, ...]:
    """Read a trace with the columns of :data:`TRACE_COLUMNS`; only :data:`REQUIRED_COLUMNS` must be there.

    Lines of one ``time_s`` are one period, in ascending order; a member has one line in it. ``latencies_ms`` are its
    readings, separated by spaces, and may be empty. A member whose ``state`` is ``building`` or ``leaving`` carries no
    load; with ``rebalancing`` it does while data moves. What is empty or left out is 0, active, created_here yes,
    disturbed and cannot_fix no, and placement 1.

    :raises InvalidValueError: naming the line and column that is wrong
    """
    periods: dict[float, list[_Line]] = {}
    for line in _Line.of(lines, where, TRACE_COLUMNS, REQUIRED_COLUMNS):
        at_s = line.number("time_s", -math.inf)
        if periods and at_s < next(reversed(periods)):
            line.refuse("time_s", "times in ascending order")
        present = periods.setdefault(at_s, [])
        if any(one.name == line.name for one in present):
            line.refuse("member", "one line for each member at a time")
        present.append(line)
    if not periods:
        raise InvalidValueError(where, "no line", "at least one period")
    return tuple(_period(at_s, present) for at_s, present in periods.items())


class _Line(TraceLine):
    """One member at one time."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """The member it is about."""
        return self.cells["member"]

    @property
    def state(self) -> str:
        """What the member does."""
        state = self.cells.get("state") or "active"
        return state if state in _STATES else self.refuse("state", ", ".join(_STATES))

    def member(self) -> Member:
        """Return what monitoring knows of it."""
        return Member(
            self.name or self.refuse("member", "a name"),
            MemberLoad(
                self.number("reads_per_s"),
                self.number("writes_per_s", default=0.0),
                self.number("size_kb", default=0.0),
            ),
            self._readings(),
            created_here=self._flag("created_here", default=True),
            disturbed=self._flag("disturbed", default=False),
            cannot_fix=self._flag("cannot_fix", default=False),
            placement=self.number("placement", default=1.0),
            age_s=self.number("age_s", default=0.0),
        )

    def _readings(self) -> tuple[float, ...]:
        texts = self.cells["latencies_ms"].split()
        return tuple(self.finite("latencies_ms", text, 0.0) for text in texts)

    def _flag(self, column: str, *, default: bool) -> bool:
        text = self.cells.get(column, "")
        if not text:
            return default
        return _YES_NO[text] if text in _YES_NO else self.refuse(column, "yes, no")


def _period(at_s: float, lines: Iterable[_Line]) -> Period:
    states = {line.name: line.state for line in lines}
    active = [line for line in lines if states[line.name] in ("active", "rebalancing")]
    return Period(
        at_s,
        at_s,
        tuple(line.member() for line in active),
        building=sum(state == "building" for state in states.values()),
        leaving=sum(state == "leaving" for state in states.values()),
        rebalancing="rebalancing" in states.values(),
    )
