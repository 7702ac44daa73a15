# SPDX-License-Identifier: Apache-2.0
"""How fast this machine's time stamp counter runs, for guests that cannot find out.

Under emulation a guest reads this machine's counter. Its kernel calibrates that against emulated timers when it boots,
and where this machine is busy the result may be wrong by a factor of five: the guest's clock then runs five times too
fast for as long as it lives, and everything in it that waits gives up five times too early.
"""

import ctypes
import mmap
import platform
import time
from functools import cache

_READ_COUNTER = bytes.fromhex("0f31 48c1e220 4809d0 c3")  # rdtsc; shl rdx,32; or rax,rdx; ret
_INTERVAL_S = 0.2
_READINGS = 50


@cache
def frequency_khz() -> int | None:
    """Measure the counter against the clock; takes 0.2 s. None where it cannot be read: not x86, or no such memory."""
    if platform.machine() != "x86_64":
        return None
    try:
        code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:
        return None  # a hardened kernel allows no such pages
    code.write(_READ_COUNTER)
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    counter = ctypes.CFUNCTYPE(ctypes.c_uint64)(address)
    first_ns, first = _reading(counter)
    time.sleep(_INTERVAL_S)
    last_ns, last = _reading(counter)
    return round((last - first) * 1e6 / (last_ns - first_ns))


def _reading(counter: "ctypes._FuncPointer") -> tuple[float, int]:
    """Return time (ns) and count at one moment: the closest of some pairs, since each may be interrupted."""
    pairs = []
    for _ in range(_READINGS):
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        count = counter()
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        pairs.append((after - before, (before + after) / 2, count))
    _, moment, count = min(pairs)
    return moment, count
