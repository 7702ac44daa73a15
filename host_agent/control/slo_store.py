# SPDX-License-Identifier: Apache-2.0
"""What the SLO controller keeps in a file: its targets (for a restart), and how things stand (for the console).

What is lost costs nothing but a new search: levels then start from the simple rule's.
"""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from host_agent.decide.slo.floor import LevelHour
from host_agent.decide.slo.shapes import BeTarget, Taken
from host_agent.model.levels import FULL
from placement_traits.best_effort import BestEffortWriter, ignore_loss
from placement_traits.json_store import JsonStore
from placement_traits.plain import Value

_VERSION: Final = 2
_RENAMED: Final = {"wanted": "targets", "fed": "reporting", "told": "report"}
_FULL_S: Final = 120
PAUSED: Final = "paused"
UNWATCHED: Final = "unwatched"
"""Phase of an agent that has noticed that it is paused: it writes nothing any more."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Content of the file.

    :param targets: by best-effort server
    :param reporting: latency-critical servers whose latency was known
    :param taken: what latency-critical servers have taken of best-effort ones
    :param report: for the console: ``phase``, ``lcs``, ``bes``, ``actions``; ``time`` of the last change of these
    """

    targets: Mapping[str, BeTarget] = field(default_factory=dict)
    reporting: frozenset[str] = frozenset()
    report: Mapping[str, Any] = field(default_factory=dict)
    taken: Taken = field(default_factory=Taken)


def load(path: Path) -> Kept:
    """Return what was kept; nothing when there is no usable file."""
    return _file(path).load() or Kept()


def _file(path: Path) -> JsonStore[Kept]:
    return JsonStore(path, _VERSION, _decode, _encode, renamed=_RENAMED)


def _decode(found: Value) -> Kept:
    targets = {uuid: _target(entry) for uuid, entry in found.member("targets").members().items()}
    taken = found.members().get("taken")  # agents before it kept none, and would not miss it
    return Kept(
        targets,
        _uuids(found.member("reporting")),
        _report(found.member("report")),
        Taken() if taken is None else _taken(taken),
    )


def _uuids(found: Value) -> frozenset[str]:
    return frozenset(uuid.text() for uuid in found.items())


def _taken(found: Value) -> Taken:
    return Taken(
        {uuid: at.number(0.0) for uuid, at in found.member("full_s").members().items()},
        _uuids(found.member("overdrawn")),
        {uuid: _uuids(entry) for uuid, entry in found.member("causes").members().items()},
        {uuid: _hour(entry) for uuid, entry in found.member("hours").members().items()},
        _uuids(found.member("spared")),
    )


def _hour(found: Value) -> LevelHour:
    minutes = tuple((n, entry.number(0.0)) for n, entry in sorted(found.numbered().items()))
    return LevelHour(minutes, sum(deficit for _, deficit in minutes))


def _target(entry: Value) -> BeTarget:
    shares = entry.member("shares").optional()
    level = entry.member("level").integer(0, FULL)
    return BeTarget(level, shares.shares() if shares is not None else None)


def _report(found: Value) -> Mapping[str, Any]:
    """Check what is read of it; the rest is shown as it is."""
    parts = found.members()
    for kind in ("lcs", "bes"):
        for server in parts[kind].members().values() if kind in parts else ():
            server.members()
    for action in parts["actions"].items() if "actions" in parts else ():
        for word in ("time", "action", "server"):
            action.member(word).text()
    content: Mapping[str, Any] = found.raw
    return content


def _encode(kept: Kept) -> dict[str, Any]:
    return {
        "targets": {
            uuid: {"level": target.level, "shares": dict(target.shares) if target.shares else None}
            for uuid, target in sorted(kept.targets.items())
        },
        "reporting": sorted(kept.reporting),
        "report": kept.report,
        "taken": {
            "full_s": {u: _FULL_S * round(at / _FULL_S) for u, at in kept.taken.full_s.items()},
            "overdrawn": sorted(kept.taken.overdrawn),
            "causes": {be: sorted(lcs) for be, lcs in sorted(kept.taken.causes.items())},
            "hours": {uuid: _whole_minutes(hour) for uuid, hour in kept.taken.hours.items()},
            "spared": sorted(kept.taken.spared),
        },
    }


def _whole_minutes(hour: LevelHour) -> dict[str, int]:
    """Leave the minute that goes on out: a file that changes by the second would be written by the second."""
    return {str(minute): round(deficit) for minute, deficit in hour.minutes[:-1]}


def of_server(report: Mapping[str, Any], uuid: str) -> dict[str, Any]:
    """Return what the console shows of a server: state of its objective or level, phase, last actions.

    :returns: nothing where it has no objective, no level of its own, and nothing was done for it
    """
    for kind in ("lcs", "bes"):
        entry = report.get(kind, {}).get(uuid)
        if entry is not None:
            mine = [
                f"{action['time']} {action['action']}"
                for action in report.get("actions", ())
                if action.get("server") == uuid
            ]
            if not (entry.get("slo_p99_us") or entry.get("level") or mine):
                return {}
            shown = {key: value for key, value in entry.items() if key != "name"}
            return {
                **shown,
                "phase": report.get("phase"),
                "actions": mine,
                "changed": report.get("time"),
            }
    return {}


class SloStore:
    """The file; any thread may write.

    :param path: of it; None keeps nothing (dry run)
    :param lost: called with "state" for each write that failed
    """

    def __init__(self, path: Path | None, lost: Callable[[str], None] = ignore_loss) -> None:
        self._file = None if path is None else _file(path)
        self._writer = BestEffortWriter("state", lost)
        self._lock = threading.Lock()
        self._known = ""

    def load(self) -> Kept:
        """Return what was kept."""
        return (self._file.load() if self._file else None) or Kept()

    def save(self, make: Callable[[], Kept]) -> None:
        """Keep; nothing is written when nothing but the time has changed.

        :param make: called under the lock, so that what is newer is never replaced by what is older
        """
        file = self._file
        if file is None:
            return
        with self._lock:
            kept = make()
            kept = replace(kept, report=_plain(kept.report))
            timeless = {key: value for key, value in kept.report.items() if key != "time"}
            known = json.dumps(_encode(replace(kept, report=timeless)))
            if known != self._known and self._writer.attempt(lambda: file.save(kept)):
                self._known = known


def _plain(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the console shows as JSON types: what JSON does not know is text."""
    plain: dict[str, Any] = json.loads(json.dumps(report, default=str), parse_constant=str)
    return plain
