# SPDX-License-Identifier: Apache-2.0
"""How much bandwidth of an L3 domain is held back from sale, following the measured use calmly. Pure.

Declared use is what running servers were sold; Placement counts it. What is measured *beyond* it has no allocation in
Placement, so it is reserved: capacity = declared + reserved + free. Measurements jump, and each write to Placement
wakes every scheduler's view, hence a dead band (small moves are not written) and a rate limit (up fast, down slowly).
"""

from dataclasses import dataclass

from placement_traits.errors import InvalidValueError


@dataclass(frozen=True, slots=True)
class ReservationSettings:
    """How ``reserved`` follows.

    :param dead_band: share of the capacity by which the desired value must differ before anything is written
    :param rise_per_s: largest rise, share of the capacity per second
    :param fall_per_s: largest fall, share of the capacity per second
    """

    dead_band: float = 0.05
    rise_per_s: float = 0.10
    fall_per_s: float = 0.01

    def __post_init__(self) -> None:
        for name in ("dead_band", "rise_per_s", "fall_per_s"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise InvalidValueError(f"reserved bandwidth, {name}", value, "a share from 0 to 1")


def excess_mbps(measured_mbps: int, declared_mbps: int) -> int:
    """Return the measured use beyond what running servers declared, MB/s, never negative."""
    return max(0, measured_mbps - declared_mbps)


def next_reserved(
    reserved: int,
    excess: int | None,
    capacity: int,
    elapsed_s: float,
    settings: ReservationSettings,
) -> int:
    """Return the value of ``reserved`` to publish now.

    :param reserved: what is published, MB/s
    :param excess: measured use beyond the declared, MB/s; None = unknown, which never frees anything
    :param capacity: total of the inventory, MB/s
    :param elapsed_s: seconds since the last look, so that a quiet moment after a long time frees only a little
    :returns: MB/s, between 0 and ``capacity``
    """
    reserved = min(max(reserved, 0), capacity)
    if excess is None:
        return reserved
    target = min(max(excess, 0), capacity)
    # Leaving or reaching an end of the scale is worth a write however small the step: 0 means "quiet".
    if abs(target - reserved) <= settings.dead_band * capacity and target not in (0, capacity):
        return reserved
    highest = reserved + int(settings.rise_per_s * capacity * elapsed_s)
    lowest = reserved - int(settings.fall_per_s * capacity * elapsed_s)
    return max(lowest, min(highest, target))
