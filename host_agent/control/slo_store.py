# SPDX-License-Identifier: Apache-2.0
"""What the bandwidth controller keeps in a file: what it wants (for a restart), and how things stand (for the console).

Written by replacing the file, so that a killed agent leaves the old or the new one. What is lost costs nothing but a
new search: levels then start from the simple rule's.
"""

import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from host_agent.decide.slo.shapes import BeTarget
from placement_traits.best_effort import BestEffortWriter, ignore_loss

_VERSION: Final = 1
PAUSED: Final = "paused"
"""Phase of an agent that has noticed that it is paused: it writes nothing any more."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Content of the file.

    :param wanted: best-effort server -> what the controller wants of it
    :param fed: latency-critical servers whose latency was known
    :param told: for the console: ``phase``, ``lcs``, ``bes``, ``actions``; ``time`` of the last change of these
    """

    wanted: Mapping[str, BeTarget] = field(default_factory=dict)
    fed: frozenset[str] = frozenset()
    told: Mapping[str, Any] = field(default_factory=dict)


def load(path: Path) -> Kept:
    """Return what was kept; nothing when there is no usable file."""
    try:
        content: Any = json.loads(path.read_text())
        if content["version"] != _VERSION:
            return Kept()
        wanted = {uuid: _wanted(entry) for uuid, entry in content["wanted"].items()}
        return Kept(wanted, frozenset(map(str, content["fed"])), content["told"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Kept()


def _wanted(entry: Any) -> BeTarget:
    shares = entry["shares"]
    found = None if shares is None else {int(node): float(s) for node, s in shares.items()}
    return BeTarget(int(entry["level"]), found)


def of_server(told: Mapping[str, Any], uuid: str) -> dict[str, Any]:
    """Return what the console shows of a server: state of its objective or level, phase, last actions.

    :returns: nothing where it has no objective, no level of its own, and nothing was done for it
    """
    for kind in ("lcs", "bes"):
        entry = told.get(kind, {}).get(uuid)
        if entry is not None:
            mine = [
                f"{action['time']} {action['action']}"
                for action in told.get("actions", ())
                if action.get("server") == uuid
            ]
            if not (entry.get("slo_p99_us") or entry.get("level") or mine):
                return {}
            shown = {key: value for key, value in entry.items() if key != "name"}
            return {**shown, "phase": told.get("phase"), "actions": mine, "told": told.get("time")}
    return {}


class QosStore:
    """The file; any thread may write.

    :param path: of it; None keeps nothing (dry run)
    :param lost: told "state" for each write that failed
    """

    def __init__(self, path: Path | None, lost: Callable[[str], None] = ignore_loss) -> None:
        self._path = path
        self._writer = BestEffortWriter("state", lost)
        self._lock = threading.Lock()
        self._known = ""

    def load(self) -> Kept:
        """Return what was kept."""
        return Kept() if self._path is None else load(self._path)

    def save(self, make: Callable[[], Kept]) -> None:
        """Keep; nothing is written when nothing but the time has changed.

        :param make: called under the lock, so that what is newer is never replaced by what is older
        """
        path = self._path
        if path is None:
            return
        with self._lock:
            content = _content(make())
            told = {key: value for key, value in content["told"].items() if key != "time"}
            known = json.dumps({**content, "told": told}, default=str)
            text = json.dumps(content, default=str)
            if known != self._known and self._writer.attempt(lambda: _replace(path, text)):
                self._known = known


def _content(kept: Kept) -> dict[str, Any]:
    return {
        "version": _VERSION,
        "wanted": {
            uuid: {
                "level": wish.level,
                "shares": None if wish.shares is None else dict(wish.shares),
            }
            for uuid, wish in sorted(kept.wanted.items())
        },
        "fed": sorted(kept.fed),
        "told": kept.told,
    }


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)
