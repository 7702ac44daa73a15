# SPDX-License-Identifier: Apache-2.0
"""Which hardware events count cycles, instructions, cache misses and memory stalls, by CPU model.

Only stalls differ: the kernel has no generic event for cycles in which the core waits for memory, so each family has a
raw one, with the kernel's ``stalled-cycles-backend`` for all others (it is not on every CPU).

Sources: Intel SDM volume 3B and perfmon event files (CYCLE_ACTIVITY.STALLS_MEM_ANY, on Ivy Bridge and Haswell
STALLS_LDM_PENDING; EXE_ACTIVITY.BOUND_ON_LOADS on Sapphire Rapids), AMD PPR of families 19h and 1Ah
(ex_no_retire.load_not_complete) and BKDG of families 10h and 15h (dispatch stalls, 0D1h).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_HARDWARE: Final = 0  # PERF_TYPE_HARDWARE
_RAW: Final = 4  # PERF_TYPE_RAW
_INTEL: Final = "GenuineIntel"
_AMD: Final = "AuthenticAMD"


@dataclass(frozen=True, slots=True)
class PerfEvent:
    """One event as ``perf_event_attr`` has it."""

    type: int
    config: int


_GENERIC: Final = {
    "cycles": PerfEvent(_HARDWARE, 0),
    "instructions": PerfEvent(_HARDWARE, 1),
    "misses": PerfEvent(_HARDWARE, 3),
}
_BACKEND: Final = PerfEvent(_HARDWARE, 8)


@dataclass(frozen=True, slots=True)
class _PmuRow:
    """Stall event of some models; ``models`` None: the whole family."""

    vendor: str
    families: tuple[int, ...]
    models: tuple[int, ...] | None
    stalls: PerfEvent


_IVY_TO_BROADWELL: Final = (0x3A, 0x3E, 0x3C, 0x3F, 0x45, 0x46, 0x3D, 0x47, 0x4F, 0x56)
_SKYLAKE_TO_ICE_LAKE: Final = (0x4E, 0x5E, 0x55, 0x8E, 0x9E, 0xA5, 0xA6, 0x6A, 0x6C, 0x7D, 0x7E)
_SAPPHIRE_RAPIDS_ON: Final = (0x8F, 0xCF, 0xAD, 0xAE)

TABLE: Final = (
    _PmuRow(_INTEL, (6,), _IVY_TO_BROADWELL, PerfEvent(_RAW, 0x060006A3)),
    _PmuRow(_INTEL, (6,), _SKYLAKE_TO_ICE_LAKE, PerfEvent(_RAW, 0x140014A3)),
    _PmuRow(_INTEL, (6,), _SAPPHIRE_RAPIDS_ON, PerfEvent(_RAW, 0x050021A6)),
    _PmuRow(_AMD, (0x10, 0x15), None, PerfEvent(_RAW, 0x00D1)),
    _PmuRow(_AMD, (0x19, 0x1A), None, PerfEvent(_RAW, 0xA2D6)),
)


def events(cpuinfo: str) -> Mapping[str, PerfEvent]:
    """Return name -> event for a CPU; the first one leads the group.

    :param cpuinfo: text of ``/proc/cpuinfo``
    """
    vendor = _field(cpuinfo, "vendor_id")
    family, model = _number(cpuinfo, "cpu family"), _number(cpuinfo, "model")
    row = next(
        (
            row
            for row in TABLE
            if row.vendor == vendor
            and family in row.families
            and (row.models is None or model in row.models)
        ),
        None,
    )
    return {**_GENERIC, "stalls": row.stalls if row else _BACKEND}


def _field(cpuinfo: str, name: str) -> str:
    found = re.search(rf"^{name}\s*:\s*(\S+)", cpuinfo, re.MULTILINE)
    return found[1] if found else ""


def _number(cpuinfo: str, name: str) -> int:
    text = _field(cpuinfo, name)
    return int(text) if text.isdecimal() else -1
