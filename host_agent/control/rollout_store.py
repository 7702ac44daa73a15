# SPDX-License-Identifier: Apache-2.0
"""How far the agent is switched on, in a file: for the next start while Placement is down, and for the console."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from host_agent.model.modes import Feature, Modes
from nova_numa_ext.policy.modes import Mode
from placement_traits.json_store import JsonStore
from placement_traits.plain import Value

_VERSION: Final = 2
_RENAMED: Final = {"switch": "placement_mode"}


@dataclass(frozen=True, slots=True)
class RolloutState:
    """Content of the file.

    :param placement_mode: of this host, as last read; None before the first time
    :param modes: the mode of each feature
    :param waiting: servers that the agent has not taken over yet, the next one first
    """

    placement_mode: Mode | None
    modes: Mapping[Feature, Mode]
    waiting: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The modes in a word or two: ``enforce``, ``observe``, or ``observe`` with the features that do."""
        observed = Modes(self.modes).observed
        if not observed:
            return Mode.ENFORCE.value
        features = () if len(observed) == len(Feature) else observed
        return " ".join((Mode.OBSERVE, *features))


def store(path: Path) -> JsonStore[RolloutState]:
    """Return the file."""
    return JsonStore(path, _VERSION, _decode, _encode, renamed=_RENAMED)


def _decode(found: Value) -> RolloutState:
    modes = found.member("modes")
    placement_mode = found.member("placement_mode").optional()
    return RolloutState(
        _mode(placement_mode) if placement_mode is not None else None,
        {feature: _mode(modes.member(feature.value)) for feature in Feature},
        tuple(uuid.text() for uuid in found.member("waiting").items()),
    )


def _mode(value: Value) -> Mode:
    if value.text() not in set(Mode):
        raise value.refused(" or ".join(Mode))
    return Mode(value.text())


def _encode(kept: RolloutState) -> dict[str, Any]:
    return {
        "placement_mode": kept.placement_mode,
        "modes": {feature.value: mode.value for feature, mode in kept.modes.items()},
        "waiting": list(kept.waiting),
    }
