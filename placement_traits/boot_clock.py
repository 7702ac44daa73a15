# SPDX-License-Identifier: Apache-2.0
"""Seconds since the host booted: a clock that all its processes share and that cannot be set."""

import time
from pathlib import Path
from typing import Final

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_time_s() -> float:
    """Seconds since the boot, those of a suspended host included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Return the id of this boot; a time of another one says nothing now."""
    return BOOT_ID.read_text().strip()
