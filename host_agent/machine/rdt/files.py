# SPDX-License-Identifier: Apache-2.0
"""The seam to the resctrl tree: the few file operations that the library needs, and their real implementation.

The in-process model (:mod:`emulation.kernel.resctrl`) implements the same protocol, so every test of the
library runs with and without a kernel behind it.
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, Protocol

RESCTRL_ROOT: Final = "/sys/fs/resctrl"
_CHUNK: Final = 1 << 16


class ResctrlFiles(Protocol):
    """File operations below one resctrl mount point; paths are relative to it, errors are ``OSError``."""

    def read(self, path: str) -> str:
        """Return the whole text of a file."""

    def write(self, path: str, data: str) -> None:
        """Hand ``data`` to the kernel in exactly one write(2): one write is one command."""

    def mkdir(self, path: str) -> None:
        """Create a control or monitoring group."""

    def rmdir(self, path: str) -> None:
        """Remove a control or monitoring group."""

    def listdir(self, path: str) -> list[str]:
        """Return all names of a directory, sorted."""

    def directories(self, path: str) -> list[str]:
        """Return the names of the directories in a directory, sorted."""

    def identity(self, path: str) -> int:
        """Return the number of a directory: another one once it was removed and made again (kernfs inode number)."""

    def lock(self, *, exclusive: bool) -> AbstractContextManager[None]:
        """Hold the lock that all users of resctrl agree on (kernel's resctrl.rst, "Locking")."""

    def options(self) -> frozenset[str]:
        """Return the mount options, such as ``cdp`` and ``mba_MBps``."""


class OsFiles:
    """The real tree.

    :param root: mount point; tests relocate it
    :param mounts: table of mounts in the form of proc_mounts(5)
    """

    def __init__(self, root: str = RESCTRL_ROOT, mounts: str = "/proc/self/mounts") -> None:
        self._root = root.rstrip("/")
        self._mounts = mounts

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def read(self, path: str) -> str:
        fd = os.open(self._path(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            chunks = []
            while chunk := os.read(fd, _CHUNK):
                chunks.append(chunk)
        finally:
            os.close(fd)
        return b"".join(chunks).decode()

    def write(self, path: str, data: str) -> None:
        with self._folder(path) as (folder, name):
            flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            # Not open().write(): a buffered file reports the kernel's refusal late and may split the command.
            fd = os.open(name, flags, dir_fd=folder)
            try:
                os.write(fd, data.encode())
            finally:
                os.close(fd)

    def mkdir(self, path: str) -> None:
        with self._folder(path) as (folder, name):
            os.mkdir(name, dir_fd=folder)

    def rmdir(self, path: str) -> None:
        with self._folder(path) as (folder, name):
            os.rmdir(name, dir_fd=folder)

    @contextmanager
    def _folder(self, path: str) -> Iterator[tuple[int, str]]:
        """Hold the folder of what is changed, reached from the mount point step by step: no link leads elsewhere.

        resctrl itself has no links. But what is mounted there, or is not, is not this program's to decide.
        """
        *folders, name = path.split("/")
        if not {"", ".", ".."}.isdisjoint(path.split("/")):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        step = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        folder = os.open(self._root, step)
        try:
            for each in folders:
                inner = os.open(each, step | os.O_NOFOLLOW, dir_fd=folder)
                os.close(folder)
                folder = inner
            yield folder, name
        finally:
            os.close(folder)

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(self._path(path)))

    def directories(self, path: str) -> list[str]:
        with os.scandir(self._path(path)) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())

    def identity(self, path: str) -> int:
        return os.stat(self._path(path)).st_ino

    @contextmanager
    def lock(self, *, exclusive: bool) -> Iterator[None]:
        fd = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
            yield
        finally:
            os.close(fd)  # releases the lock

    def options(self) -> frozenset[str]:
        for line in Path(self._mounts).read_text().splitlines():
            fields = line.split()
            if fields[1] == self._root:
                return frozenset(fields[3].split(","))
        return frozenset()
