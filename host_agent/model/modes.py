# SPDX-License-Identifier: Apache-2.0
"""What the agent may change on its host now, feature by feature."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from nova_numa_ext.policy.modes import Mode


class Feature(StrEnum):
    """Parts of the agent that are switched on one after the other, each by ``mode`` of the section of its name."""

    PINNING = "pinning"
    MEMORY = "memory"
    RDT = "rdt"
    SLO = "slo"


@dataclass(frozen=True, slots=True)
class Modes:
    """Modes in effect.

    :param of: the mode of every feature: ``observe`` or ``enforce``
    """

    of: Mapping[Feature, Mode]

    @classmethod
    def all(cls, mode: Mode) -> "Modes":
        """Return the same mode for every feature."""
        return cls(dict.fromkeys(Feature, mode))

    def act(self, feature: Feature) -> bool:
        """Tell whether what a feature decides is carried out; else it is only journalled and counted."""
        return self.of[feature] is Mode.ENFORCE

    @property
    def any_acts(self) -> bool:
        """Something may be changed."""
        return any(map(self.act, Feature))

    @property
    def observed(self) -> tuple[Feature, ...]:
        """The features that only observe."""
        return tuple(feature for feature in Feature if not self.act(feature))
