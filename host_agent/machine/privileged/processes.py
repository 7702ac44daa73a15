# SPDX-License-Identifier: Apache-2.0
"""Find a domain's QEMU process and its threads, and make sure that it is the right one.

The caller names a UUID only. libvirt's pid files (in a folder that only root writes) give candidates, the command line
must carry ``-uuid UUID``, and a pidfd held over the work shows whether the process still lives.
"""

import os
import re
import select
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Final

from host_agent.conf.paths import HostPaths
from host_agent.model.process import Process, Role, Thread
from placement_traits.errors import InvalidValueError, NumaExtError

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_VCPU = re.compile(r"CPU (\d+)/(KVM|TCG)")
_STAT_STARTED: Final = 19  # field of proc_pid_stat(5), counted from the one after the name


class ProcessGoneError(NumaExtError):
    """The domain has no process (any more)."""


PidFiles = MutableMapping[str, Path]


@contextmanager
def opened(paths: HostPaths, uuid: str, known: PidFiles | None = None) -> Iterator[int]:
    """Find the process of a domain, hold it by pidfd and yield its pid.

    :param known: remembers UUID -> pid file between calls, so that not all files are read each time
    :raises InvalidValueError: ``uuid`` is none
    :raises ProcessGoneError: no process carries it, or it ended meanwhile
    """
    if not _UUID.match(uuid):
        raise InvalidValueError("domain UUID", uuid, "a UUID in lower case")
    pid = _find(paths, uuid, {} if known is None else known)
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError as error:
        raise ProcessGoneError(f"the process of domain {uuid} has ended") from error
    try:
        # The pid may have been taken over between reading the file and opening it: look again, now that it is held.
        if not _carries(paths.proc / str(pid), uuid) or select.select([descriptor], [], [], 0)[0]:
            raise ProcessGoneError(f"the process of domain {uuid} has ended")
        yield pid
    finally:
        os.close(descriptor)


def _find(paths: HostPaths, uuid: str, known: PidFiles) -> int:
    usual = known.get(uuid)
    pid = _pid_in(paths, usual, uuid) if usual else None
    if pid is not None:
        return pid
    try:
        files = sorted(paths.libvirt_pids.glob("*.pid"))
    except OSError as error:
        raise ProcessGoneError(f"{paths.libvirt_pids} cannot be read: {error.strerror}") from error
    for file in files:
        pid = _pid_in(paths, file, uuid)
        if pid is not None:
            known[uuid] = file
            return pid
    known.pop(uuid, None)
    raise ProcessGoneError(f"no process under {paths.libvirt_pids} runs domain {uuid}")


def _pid_in(paths: HostPaths, file: Path, uuid: str) -> int | None:
    """Return the pid in a file when its process carries the UUID."""
    try:
        pid = int(file.read_text().strip())
    except (OSError, ValueError):
        return None  # the domain is just ending, or the file is not libvirt's
    return pid if _carries(paths.proc / str(pid), uuid) else None


def _carries(process: Path, uuid: str) -> bool:
    try:
        arguments = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    expected = uuid.encode()
    return any(flag == b"-uuid" and value == expected for flag, value in pairwise(arguments))


def read_process(paths: HostPaths, pid: int, outside: Iterable[int] = ()) -> Process:
    """Read the threads of a process that is held by :func:`opened`.

    :param outside: threads outside the process that work for it (:mod:`.kernel_threads`)
    """
    base = paths.proc / str(pid)
    threads = [
        thread
        for name in sorted(os.listdir(base / "task"), key=int)
        if (thread := _thread(base / "task" / name, int(name))) is not None
    ]
    for tid in outside:
        thread = _thread(paths.proc / str(tid), tid)
        if thread is not None:
            threads.append(thread)
    started = _stat(base, _STAT_STARTED)
    return Process(pid, started, _field(_status(base), "Mems_allowed_list"), tuple(threads))


def _thread(task: Path, tid: int) -> Thread | None:
    try:
        status = _status(task)
    except OSError:
        return None  # ended between listing and reading
    name = _field(status, "Name")
    role, vcpu = _role(name)
    return Thread(tid, role, vcpu, name, _field(status, "Cpus_allowed_list"))


def _role(name: str) -> tuple[Role, int]:
    vcpu = _VCPU.match(name)
    if vcpu:
        return Role.VCPU, int(vcpu[1])
    if name.startswith("vhost-"):
        return Role.VHOST, -1
    if name.startswith("IO "):
        return Role.IO, -1
    return Role.EMULATOR, -1


def _status(task: Path) -> str:
    """Read proc_pid_status(5), for :func:`_field`."""
    return "\n" + (task / "status").read_text()


def _field(status: str, name: str) -> str:
    """Return one of its fields, "" when it has none. A thread's name is no way in: the kernel escapes line ends in it.

    The loop reads hundreds of these files each round and wants two lines of sixty: splitting all of them takes longer
    than reading.
    """
    return status.partition(f"\n{name}:")[2].partition("\n")[0].strip()


def _stat(task: Path, field: int) -> int:
    """Return a number of proc_pid_stat(5); the name before it may hold blanks and brackets."""
    return int((task / "stat").read_text().rpartition(")")[2].split()[field])


def set_affinity(process: Process, tid: int, cpus: frozenset[int]) -> str:
    """Set the affinity of one thread of ``process``; return the problem, "" when it is done.

    The kernel cuts it to the thread's cpuset itself, so this never widens what nova and libvirt allow.
    """
    if all(thread.tid != tid for thread in process.threads):
        return f"thread {tid} does not belong to process {process.pid}"
    try:
        os.sched_setaffinity(tid, cpus)
    except OSError as error:
        return os.strerror(error.errno or 0)
    return ""
