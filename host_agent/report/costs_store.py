# SPDX-License-Identifier: Apache-2.0
"""What best-effort servers have paid since the agent's start, in a file for the console."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from host_agent.model.levels import FULL
from placement_traits.json_store import JsonStore
from placement_traits.plain import Value

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Cost:
    """What one server has paid.

    :param name: of the server
    :param seconds: time that it ran
    :param throttled_s: part of it with a level below all
    :param withheld_s: seconds of its whole bandwidth that were withheld
    """

    name: str
    seconds: float = 0.0
    throttled_s: float = 0.0
    withheld_s: float = 0.0

    def after(self, passed_s: float, level: int) -> "Cost":
        """Return the cost after some more time at a level, per cent."""
        return Cost(
            self.name,
            self.seconds + passed_s,
            self.throttled_s + (passed_s if level < FULL else 0.0),
            self.withheld_s + passed_s * (FULL - level) / FULL,
        )

    @property
    def withheld_percent(self) -> float:
        """Part of its bandwidth that was withheld, per cent."""
        return 100 * self.withheld_s / self.seconds if self.seconds else 0.0


def store(path: Path) -> JsonStore[Mapping[str, Cost]]:
    """Return the file: server -> cost."""
    return JsonStore(path, _VERSION, _decode, _encode)


def _decode(found: Value) -> Mapping[str, Cost]:
    return {uuid: _cost(entry) for uuid, entry in found.member("servers").members().items()}


def _cost(entry: Value) -> Cost:
    numbers = (entry.member(key).number(0.0) for key in ("seconds", "throttled_s", "withheld_s"))
    return Cost(entry.member("name").text(), *numbers)


def _encode(costs: Mapping[str, Cost]) -> Mapping[str, Any]:
    return {
        "servers": {
            uuid: {
                "name": cost.name,
                "seconds": round(cost.seconds, 1),
                "throttled_s": round(cost.throttled_s, 1),
                "withheld_s": round(cost.withheld_s, 1),
            }
            for uuid, cost in costs.items()
        }
    }
