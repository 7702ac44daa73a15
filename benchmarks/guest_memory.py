# SPDX-License-Identifier: Apache-2.0
"""A process with guest memory of one kind that looks like a server's QEMU, and touches its pages on request.

``python guest_memory.py -uuid UUID -m MIB KIND STATS``. KIND is ``thp`` (anonymous, transparent huge pages), ``4k``
(anonymous, none) or ``memfd`` (shared). STATS is a file of five native 64-bit numbers: whether to touch (written by
others), the number of the phase (written by others), phase seen, operations, longest operation in nanoseconds of that
phase. An operation writes into each 4 KiB page of one 2 MiB stretch.
"""

import ctypes
import mmap
import os
import sys
import time

HUGE = 2 << 20
_NO_ACCESS, _READ_WRITE = 0, 3
_PRIVATE_ANONYMOUS, _SHARED_FIXED = 0x22, 0x11
_ADVICE = {"thp": 14, "4k": 15}  # MADV_HUGEPAGE, MADV_NOHUGEPAGE
KINDS = (*_ADVICE, "memfd")
STATS = 5


def map_memory(kind: str, size: int) -> int:
    """Map aligned memory with a guard page on both sides, as QEMU does; return its address.

    :raises OSError: the kernel refused
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    place = libc.mmap(None, size + 2 * HUGE, _NO_ACCESS, _PRIVATE_ANONYMOUS, -1, 0)
    start = (place + HUGE) & ~(HUGE - 1)
    if kind == "memfd":
        descriptor = os.memfd_create("guest")
        os.ftruncate(descriptor, size)
        found = libc.mmap(start, size, _READ_WRITE, _SHARED_FIXED, descriptor, 0)
        failed = found != start
    else:
        area = ctypes.c_void_p(start), ctypes.c_size_t(size)
        failed = libc.mprotect(*area, _READ_WRITE) or libc.madvise(*area, _ADVICE[kind])
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(start)


def touch(memory: memoryview, stats: memoryview) -> None:
    """Write into all pages, again and again, while the file asks for it."""
    marks = bytes(HUGE // mmap.PAGESIZE)
    at = 0
    while True:
        if not stats[0]:
            time.sleep(0.02)
            continue
        if stats[2] != stats[1]:
            stats[3] = stats[4] = 0
            stats[2] = stats[1]
        begun = time.monotonic_ns()
        memory[at : at + HUGE : mmap.PAGESIZE] = marks
        stats[4] = max(stats[4], time.monotonic_ns() - begun)
        stats[3] += 1
        at = (at + HUGE) % len(memory)


def main() -> None:
    """Map, fill, report ready, serve."""
    size, kind, file = int(sys.argv[4]) << 20, sys.argv[5], sys.argv[6]
    start = map_memory(kind, size)
    ctypes.memset(start, 1, size)
    memory = memoryview((ctypes.c_char * size).from_address(start)).cast("B")
    with open(file, "r+b") as opened:
        stats = memoryview(mmap.mmap(opened.fileno(), 8 * STATS)).cast("Q")
    print(start, flush=True)
    touch(memory, stats)


if __name__ == "__main__":
    main()
