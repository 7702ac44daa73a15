# SPDX-License-Identifier: Apache-2.0
"""Levels at which a best-effort server's demand can be throttled, and how a level is put into force.

BALM speaks in per cent, 100 is unthrottled. Where the hardware has memory bandwidth allocation (MBA) a level is
written for the L3 domains of the server's *CPUs*, because MBA throttles the path out of cores, not the memory.
Elsewhere the same levels are quotas of CPU time: slower to take effect on latency, and they cost arithmetic, too, but
they have the same interface (Gureya 2021, section 5.4, names thread packing and clock modulation).
"""

from typing import Final

from host_agent.model.rdt import BandwidthControl, BandwidthUnit

FULL: Final = 100
_TENTHS: Final = tuple(range(10, FULL + 1, 10))
_QUOTA_PERIOD_US: Final = 100_000


def mba_levels(control: BandwidthControl | None) -> tuple[int, ...]:
    """Return the legal levels, per cent, ascending; empty when BALM cannot throttle by MBA here.

    :param control: what resctrl says; a tree mounted with ``mba_MBps`` has a control loop of its own and is not driven,
        nor are absolute levels that are not calibrated
    """
    if control is None or not control.levels_known:
        return ()
    if control.unit is not BandwidthUnit.PERCENT:
        # Absolute units: each per cent has a legal value, the planner converts.
        return _TENTHS
    # Those that the kernel takes as they are: it rounds all others.
    return tuple(p for p in range(1, FULL + 1) if control.from_percent(p) == p)


def quota_levels() -> tuple[int, ...]:
    """Return the levels of the fallback by CPU time."""
    return _TENTHS


def uplink_levels() -> tuple[int, ...]:
    """Return the levels of an uplink: shares of it that best-effort servers may use together."""
    return _TENTHS


def step_up(levels: tuple[int, ...], level: int, step: int) -> int:
    """Return the next level that is at least ``step`` per cent higher; the highest one at the end.

    :param levels: legal levels, ascending
    """
    return next((legal for legal in levels if legal >= level + step), levels[-1])


def legal(levels: tuple[int, ...], level: int) -> int:
    """Return the smallest legal level that allows at least ``level``."""
    return next((found for found in levels if found >= level), levels[-1] if levels else FULL)


def vcpu_quota_us(level: int) -> tuple[int, int]:
    """Return a level as CFS period and quota of each vCPU, microseconds; quota -1 is none."""
    if level >= FULL:
        return _QUOTA_PERIOD_US, -1
    return _QUOTA_PERIOD_US, max(1000, round(_QUOTA_PERIOD_US * level / FULL))
