# SPDX-License-Identifier: Apache-2.0
"""What can go wrong at the kernel's resctrl interface, each with the kernel's own sentence."""

import errno as errnos
import os
from typing import Final

from placement_traits.errors import CapabilityMissingError, ConflictError, NumaExtError


class ResctrlError(NumaExtError):
    """The kernel refused a command on the resctrl file system.

    :param action: what was tried, in words ("writing 'L3:0=f0f'")
    :param path: file or directory below the mount point, "" for the mount point itself
    :param value: what was to be written, "" for other commands
    :param errno: error number of the system call
    :param status: the kernel's reason (last line of ``info/last_cmd_status``), "" when it gave none
    """

    def __init__(self, action: str, path: str, value: str, errno: int, status: str = "") -> None:
        super().__init__(action, path, value, errno, status)
        self.action = action
        self.path = path
        self.value = value
        self.errno = errno
        self.status = status

    def __str__(self) -> str:
        reason = f"; the kernel says: {self.status}" if self.status else ""
        code = errnos.errorcode.get(self.errno, str(self.errno))
        return f"resctrl: {self.action} at /{self.path} failed: {os.strerror(self.errno)} ({code}){reason}"


class ResctrlUnavailableError(CapabilityMissingError):
    """No resctrl file system is mounted where it is looked for."""


class RdtChangedError(ConflictError):
    """The groups are not those any more that a change was planned for: read them and plan again."""


class ResctrlRefusedError(ResctrlError):
    """The value or the place is not allowed (EINVAL, ERANGE, EPERM, EACCES, EEXIST)."""


class ResctrlExhaustedError(ResctrlError):
    """No CLOSID, RMID or cache way is left (ENOSPC)."""


class ResctrlBusyError(ResctrlError):
    """Freed RMIDs still sit in limbo until their cache lines are gone; try again in a second (EBUSY)."""


class ResctrlGoneError(ResctrlError):
    """The group was removed by other software (ENOENT)."""


class NoSuchTaskError(ResctrlError):
    """The thread has ended (ESRCH)."""


_BY_ERRNO: Final[dict[int, type[ResctrlError]]] = {
    errnos.EINVAL: ResctrlRefusedError,
    errnos.ERANGE: ResctrlRefusedError,
    errnos.EPERM: ResctrlRefusedError,
    errnos.EACCES: ResctrlRefusedError,
    errnos.EEXIST: ResctrlRefusedError,
    errnos.ENOSPC: ResctrlExhaustedError,
    errnos.EBUSY: ResctrlBusyError,
    errnos.ENOENT: ResctrlGoneError,
    errnos.ENODEV: ResctrlGoneError,
    errnos.ESRCH: NoSuchTaskError,
}


def error_class(errno: int) -> type[ResctrlError]:
    """Return the narrowest error for an error number of a resctrl command."""
    return _BY_ERRNO.get(errno, ResctrlError)
