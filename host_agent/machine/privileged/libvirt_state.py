# SPDX-License-Identifier: Apache-2.0
"""libvirt's own files of running domains: which process is which domain's, and what it was given.

libvirt keeps two files of each domain that runs in a folder that only root writes: ``NAME.pid``, and ``NAME.xml`` with
its status and its live definition. Nothing that QEMU says of itself (its command line, names of its threads) decides
which domain it is: a guest that has broken out of its virtual machine can write that, but not these files.

Source: libvirt's ``src/qemu/qemu_domain.c`` (``qemuDomainObjPrivateXMLFormat``) and ``src/conf/domain_conf.c``
(``virDomainObjFormat``); the same from libvirt 9 to 11.
"""

import os
import re
import stat
import time
import xml.etree.ElementTree as ET
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from placement_traits.errors import CapabilityMissingError, InvalidValueError

UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")

_DEFAULT_PERIOD_US: Final = 100_000
_UNLIMITED: Final = -1
_MOST_BYTES: Final = 4 << 20
_PID_MAX: Final = 1 << 22  # of the kernel on 64 bits
_SETTLED_NS: Final = 10**9  # within one tick of the clock a file may be written twice with one time
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH

_Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class RunningDomain:
    """What libvirt's files tell of a running domain.

    :param uuid: in lower case
    :param pid: of its QEMU process
    :param period_us: of each vCPU's quota of CPU time
    :param quota_us: of CPU time in each period; -1 is no limit
    :param started: start time of its process in clock ticks since boot, -1 where it is not held
    """

    uuid: str
    pid: int
    period_us: int = _DEFAULT_PERIOD_US
    quota_us: int = _UNLIMITED
    started: int = -1


def parse(status: bytes, where: str = "libvirt's status file") -> RunningDomain:
    """Parse a ``NAME.xml``.

    :param where: its name, for the error
    :raises InvalidValueError: it is not the status of a domain with a process
    """
    try:
        root = ET.fromstring(status)
    except (ET.ParseError, ValueError, LookupError) as error:  # the last two: its encoding
        raise InvalidValueError(where, str(error), "an XML text") from error
    domain = root.find("domain")
    if root.tag != "domstatus" or domain is None:
        raise InvalidValueError(where, root.tag, "domstatus with a domain")
    uuid = (domain.findtext("uuid") or "").strip().lower()
    if not UUID.match(uuid):
        raise InvalidValueError(f"{where}, uuid", uuid, "a UUID")
    tune = domain.find("cputune")
    values = {} if tune is None else {entry.tag: entry.text or "" for entry in tune}
    return RunningDomain(
        uuid,
        _number(f"{where}, pid", root.get("pid", ""), 1, _PID_MAX),
        _number(f"{where}, period", values.get("period", str(_DEFAULT_PERIOD_US)), 1, 10**6),
        _number(f"{where}, quota", values.get("quota", str(_UNLIMITED)), _UNLIMITED, 1 << 63),
    )


def _number(where: str, text: str, low: int, high: int) -> int:
    stripped = text.strip()
    if re.fullmatch(r"-?[0-9]{1,19}", stripped) and low <= int(stripped) <= high:
        return int(stripped)
    raise InvalidValueError(where, text, f"a number from {low} to {high}")


class LibvirtState:
    """The folder of these files. A file is read again only when it has changed.

    :param folder: such as ``/run/libvirt/qemu``

    :ivar carriers: UUID -> (pid, start time) of the process whose command line was found to carry it
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._parsed: dict[str, tuple[_Stamp, RunningDomain | InvalidValueError]] = {}
        self._pids: dict[str, tuple[_Stamp, int]] = {}
        self._name_of: dict[str, str] = {}
        self.carriers: dict[str, tuple[int, int]] = {}

    def find(self, uuid: str) -> RunningDomain | None:
        """Return what the files tell now of a domain, None when it does not run.

        :raises CapabilityMissingError: the folder cannot be used, or a file that may be the domain's: whether it runs
            is not known
        """
        descriptor = self._open_folder()
        try:
            usual = self._name_of.get(uuid)
            found = None
            if usual:
                with suppress(CapabilityMissingError):  # the file may be another domain's now
                    found = self._domain(descriptor, usual, uuid)
            if found is None:
                found = self._search(descriptor, uuid)
            return found
        finally:
            os.close(descriptor)

    def _open_folder(self) -> int:
        try:
            descriptor = os.open(
                self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            )
        except OSError as error:
            text = f"{self.folder} cannot be read ({error.strerror}): see [libvirt_host]pid_dir"
            raise CapabilityMissingError(text) from error
        if not _trusted(os.fstat(descriptor)):
            os.close(descriptor)
            raise CapabilityMissingError(
                f"{self.folder} can be written by others than root, so it does not tell which processes are domains"
            )
        return descriptor

    def _search(self, folder: int, uuid: str) -> RunningDomain | None:
        names = sorted(n.removesuffix(".xml") for n in os.listdir(folder) if n.endswith(".xml"))
        for gone in set(self._parsed) - set(names):
            self._parsed.pop(gone, None)
            self._pids.pop(gone, None)
        found: list[RunningDomain] = []
        problem: CapabilityMissingError | None = None
        for name in names:
            try:
                domain = self._domain(folder, name, uuid)
            except CapabilityMissingError as error:
                problem = error
            else:
                found += [domain] if domain else []
        self._name_of = {
            known.uuid: name
            for name, (_stamp, known) in self._parsed.items()
            if isinstance(known, RunningDomain)
        }
        for ended in set(self.carriers) - set(self._name_of):
            self.carriers.pop(ended, None)
        if not found and problem is not None:
            raise problem
        return found[0] if found else None

    def _domain(self, folder: int, name: str, uuid: str) -> RunningDomain | None:
        """Return what both files of a name agree on; None where they do not – it is just starting or ending – or tell
        of another domain.

        :raises CapabilityMissingError: one of them cannot be used
        """
        try:
            domain = self._status(folder, f"{name}.xml")
            if domain.uuid != uuid:
                return None
            pid = self._pid(folder, name)
        except FileNotFoundError:
            return None
        except (OSError, InvalidValueError) as error:
            raise CapabilityMissingError(
                f"libvirt's files of {name} in {self.folder} cannot be used: {error}"
            ) from error
        return domain if domain.pid == pid else None

    def _pid(self, folder: int, name: str) -> int:
        stamp = _stamp(folder, f"{name}.pid")
        known = self._pids.get(name)
        if known is None or known[0] != stamp:
            text = _content(folder, f"{name}.pid", 32).decode(errors="replace")
            known = stamp, _number(f"{name}.pid", text, 1, _PID_MAX)
            if time.time_ns() - stamp[1] > _SETTLED_NS:
                self._pids[name] = known
        return known[1]

    def _status(self, folder: int, name: str) -> RunningDomain:
        stamp = _stamp(folder, name)
        known = self._parsed.get(name.removesuffix(".xml"))
        if known is None or known[0] != stamp:
            content = _content(folder, name, _MOST_BYTES)
            try:
                known = stamp, parse(content, name)
            except InvalidValueError as error:
                known = stamp, error
            self._parsed[name.removesuffix(".xml")] = known
        if isinstance(known[1], InvalidValueError):
            raise known[1]
        return known[1]


def _stamp(folder: int, name: str) -> _Stamp:
    """Return what differs once a file has been written."""
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    return found.st_ino, found.st_mtime_ns, found.st_size


def _trusted(found: os.stat_result) -> bool:
    """Tell whether only root can write it; who is not root himself trusts himself, too."""
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & _WRITABLE_BY_OTHERS


def _content(folder: int, name: str, most: int) -> bytes:
    """Read a whole file of root's.

    :raises OSError: it is a link, or cannot be read
    :raises InvalidValueError: it is not a file that only root writes, or too large
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=folder)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or not _trusted(found):
            raise InvalidValueError(name, oct(found.st_mode), "a file that only root can write")
        data = os.read(descriptor, most + 1)
        if len(data) > most:
            raise InvalidValueError(name, "its size", f"at most {most} bytes")
        return data
    finally:
        os.close(descriptor)
