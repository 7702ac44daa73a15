# SPDX-License-Identifier: Apache-2.0
"""What the operator decides about BWAP's search, apart from the search: reading a configuration loads no more."""

from dataclasses import dataclass

from placement_traits.errors import InvalidValueError


@dataclass(frozen=True, slots=True)
class Settings:
    """Options of the search.

    :param samples: n, samples of the stall rate per measurement
    :param drop: c, lowest and highest samples that are dropped
    :param interval_s: t, seconds
    :param interval_is_period: the source can be read both ways: False, t is the distance of two samples; True, all n
        samples lie within t
    :param step: x, fraction of all pages that moves to the workers per step
    :param undo: go back to the best step when the search ends; False leaves the pages of the worsening step
    :param noise_sigmas: differences below this many standard errors are a plateau
    :param plateau_steps: steps in a row within noise that are walked over; 0 is the rule of the source
    :param memory_intensive_mapi: guests below get their pages onto their workers, memory accesses per instruction
    :param stable_samples: samples of MAPI that are looked at for stability and phases
    :param stable_variation: largest coefficient of variation of MAPI in a stable phase
    :param phase_change: relative change of MAPI or stall rate that starts a new search
    :param blind_samples: missing samples in a row after which a search is given up, or never begun
    :param stuck_s: a search whose pages have come no nearer to where they should be for so long is given up
    """

    samples: int = 20
    drop: int = 5
    interval_s: float = 0.2
    interval_is_period: bool = False
    step: float = 0.10
    undo: bool = True
    noise_sigmas: float = 1.0
    plateau_steps: int = 2
    memory_intensive_mapi: float = 0.002
    stable_samples: int = 10
    stable_variation: float = 0.25
    phase_change: float = 0.30
    blind_samples: int = 50
    stuck_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0 <= 2 * self.drop < self.samples:
            raise InvalidValueError("drop", self.drop, f"0 to {(self.samples - 1) // 2}")
        if not 0.0 < self.step <= 1.0:
            raise InvalidValueError("step", self.step, "above 0.0, up to 1.0")

    @property
    def sample_interval_s(self) -> float:
        """Seconds between two samples."""
        return self.interval_s / self.samples if self.interval_is_period else self.interval_s
