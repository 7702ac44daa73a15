# SPDX-License-Identifier: Apache-2.0
"""The two memory system calls that Python lacks, by ctypes; numbers are x86-64's and arm64's.

``move_pages(2)`` with ``nodes`` moves pages, without it reports where they are. A positive return value means that so
many pages were not moved, and then their status entries are not written: the caller asks again without ``nodes``.
"""

import ctypes
import os
import platform
from array import array
from collections.abc import Sequence
from typing import Final

from placement_traits.errors import CapabilityMissingError

PAGE: Final = os.sysconf("SC_PAGE_SIZE")
MPOL_MF_MOVE: Final = 2

_NUMBERS: Final = {"x86_64": 279, "aarch64": 239}


class Syscalls:
    """The kernel; tests put a model of it in its place."""

    def __init__(self) -> None:
        self._number = _NUMBERS.get(platform.machine())
        self._libc = ctypes.CDLL(None, use_errno=True)

    def locate(self, pid: int, addresses: "array[int]") -> "array[int]":
        """Return the node of each page, or a negative errno (-ENOENT: not resident, -EFAULT: not mapped).

        :param addresses: ``array('Q')`` of page addresses
        :raises OSError: ESRCH, EPERM
        :raises CapabilityMissingError: the system call's number is not known on this machine
        """
        status = array("i", bytes(4 * len(addresses)))
        self._call(pid, addresses, None, status, 0)
        return status

    def move(self, pid: int, addresses: "array[int]", nodes: Sequence[int]) -> int:
        """Move each page to its node; return how many were not moved.

        :raises OSError: EACCES when a node is outside the process's cpuset, ESRCH, EPERM, ENODEV
        :raises CapabilityMissingError: the system call's number is not known on this machine
        """
        targets = array("i", nodes)
        status = array("i", bytes(4 * len(addresses)))
        return self._call(pid, addresses, targets, status, MPOL_MF_MOVE)

    def _call(
        self,
        pid: int,
        addresses: "array[int]",
        nodes: "array[int] | None",
        status: "array[int]",
        flags: int,
    ) -> int:
        if self._number is None:
            raise CapabilityMissingError(f"move_pages is not known on {platform.machine()}")
        result = self._libc.syscall(
            self._number,
            ctypes.c_int(pid),
            ctypes.c_ulong(len(addresses)),
            ctypes.c_void_p(addresses.buffer_info()[0]),
            ctypes.c_void_p(nodes.buffer_info()[0] if nodes is not None else None),
            ctypes.c_void_p(status.buffer_info()[0]),
            ctypes.c_int(flags),
        )
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"move_pages of process {pid}: {os.strerror(number)}")
        return int(result)
