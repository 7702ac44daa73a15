# SPDX-License-Identifier: Apache-2.0
"""Find a domain's QEMU process and its threads, and make sure that it is the right one.

The caller names a UUID only. Which process runs it is libvirt's to tell (:mod:`.libvirt_state`). Its files may outlive
a process, and process ids come again: so the command line must carry ``-uuid UUID``, too, when the process is seen
first; a pidfd is held over the work, and before and after it the process is alive with one and the same start time.
"""

import errno
import os
import re
import select
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from host_agent.conf.paths import HostPaths
from host_agent.machine.privileged import command_line
from host_agent.machine.privileged.libvirt_state import UUID, LibvirtState, RunningDomain
from host_agent.machine.privileged.proc_files import read_small
from host_agent.model.process import Process, Role, Thread
from placement_traits.errors import InvalidValueError, NumaExtError

_VCPU = re.compile(r"CPU (\d+)/(KVM|TCG)")
_STAT_STARTED: Final = 19  # field of proc_pid_stat(5), counted from the one after the name


class ProcessGoneError(NumaExtError):
    """The domain has no process (any more)."""


@contextmanager
def opened(
    paths: HostPaths, uuid: str, libvirt: LibvirtState | None = None
) -> Iterator[RunningDomain]:
    """Find the process of a domain, hold it by pidfd and yield what libvirt tells of it.

    :param libvirt: remembers libvirt's files between calls, so that not all are read each time
    :raises InvalidValueError: ``uuid`` is none
    :raises ProcessGoneError: no process runs it, or that ended meanwhile
    :raises CapabilityMissingError: libvirt's files cannot be used, so that it is not known whether one runs it
    :raises OSError: a file of the process cannot be read although there is one
    """
    if not UUID.match(uuid):
        raise InvalidValueError("domain UUID", uuid, "a UUID in lower case")
    libvirt = libvirt or LibvirtState(paths.pid_dir)
    domain = libvirt.find(uuid)
    if domain is None:
        raise ProcessGoneError(f"no process under {paths.pid_dir} runs domain {uuid}")
    base = paths.proc / str(domain.pid)
    gone = ProcessGoneError(f"the process of domain {uuid} has ended")
    try:
        descriptor = os.pidfd_open(domain.pid)
    except OSError as error:
        # EINVAL, from Linux 6.15 on ENOENT: the id is that of a thread of another process by now.
        if error.errno in (errno.ESRCH, errno.EINVAL, errno.ENOENT):
            raise gone from error
        raise
    try:
        # The process id may have been used again before it was held: all that is read of it is read after that.
        started = _started(base)
        known = libvirt.carriers.get(uuid) == (domain.pid, started)
        if started < 0 or not (known or _carries(base, uuid)) or _ended(descriptor):
            raise gone
        libvirt.carriers[uuid] = domain.pid, started
        yield replace(domain, started=started)
        if _ended(descriptor) or _started(base) != started:
            raise gone
    finally:
        os.close(descriptor)


def _ended(pidfd: int) -> bool:
    asked = select.poll()  # select() refuses descriptors from 1024 on: counters hold more than that
    asked.register(pidfd, select.POLLIN)
    return bool(asked.poll(0))


def _started(process: Path) -> int:
    """Return the start time of a process in clock ticks since boot, -1 when there is none."""
    try:
        return _stat(process, _STAT_STARTED)
    except (FileNotFoundError, ProcessLookupError):
        return -1


def _carries(process: Path, uuid: str) -> bool:
    try:
        arguments = command_line.read(process)
    except (FileNotFoundError, ProcessLookupError):
        return False
    expected = uuid.encode()
    return any(flag == b"-uuid" and value == expected for flag, value in pairwise(arguments))


def read_process(paths: HostPaths, domain: RunningDomain, outside: Iterable[int] = ()) -> Process:
    """Read the threads of a process that is held by :func:`opened`.

    :param domain: as that yields it
    :param outside: threads outside the process that work for it (:mod:`.kernel_threads`)
    """
    pid = domain.pid
    base = f"{paths.proc}/{pid}"
    first = _status(base)  # of the process, which is that of its first thread
    inside = sorted(map(int, os.listdir(f"{base}/task")))
    folders = {tid: f"{base}/task/{tid}" for tid in inside if tid != pid}
    folders |= {tid: f"{paths.proc}/{tid}" for tid in outside}
    others = (thread for tid, task in folders.items() if (thread := _read_thread(task, tid)))
    threads = (_thread(first, pid), *others)
    return Process(pid, domain.started, _field(first, "Mems_allowed_list"), threads)


def _read_thread(task: str, tid: int) -> Thread | None:
    try:
        return _thread(_status(task), tid)
    except OSError:
        return None  # ended between listing and reading


def _thread(status: str, tid: int) -> Thread:
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


def _status(task: str) -> str:
    """Read proc_pid_status(5), for :func:`_field`: as bytes, because as text a carriage return is a line end, too."""
    return "\n" + read_small(f"{task}/status").decode(errors="replace")


def _field(status: str, name: str) -> str:
    """Return one of its fields, "" when it has none. A thread's name is no way in: the kernel escapes line feeds in it.

    The loop reads hundreds of these files each round and wants two lines of sixty: splitting all of them takes longer
    than reading.
    """
    return status.partition(f"\n{name}:")[2].partition("\n")[0].strip()


def _stat(task: Path | str, field: int) -> int:
    """Return a number of proc_pid_stat(5); the name before it may hold blanks and brackets."""
    return int(read_small(f"{task}/stat").rpartition(b")")[2].split()[field])


class ThreadPinner:
    """Sets affinities of threads of a process that :func:`opened` holds, and of none that has got the id of one.

    :param process: as read now
    :param outside: those of its threads that are outside it
    """

    def __init__(self, paths: HostPaths, process: Process, outside: Iterable[int]) -> None:
        self._pid = process.pid
        inside = paths.proc / str(process.pid) / "task"
        self._folders = {thread.tid: inside / str(thread.tid) for thread in process.threads}
        self._folders |= {
            tid: paths.proc / str(tid) for tid in set(outside).intersection(self._folders)
        }
        self._began = {tid: _started(folder) for tid, folder in self._folders.items()}

    def set(self, tid: int, cpus: frozenset[int]) -> str:
        """Set one thread's; return the problem, "" when it is done.

        The kernel cuts it to the thread's cpuset itself, so this never widens what nova and libvirt allow.
        """
        folder = self._folders.get(tid)
        if folder is None:
            return f"thread {tid} does not belong to process {self._pid}"
        began = self._began[tid]
        if began < 0 or _started(folder) != began:
            return os.strerror(errno.ESRCH)
        try:
            os.sched_setaffinity(tid, cpus)
        except OSError as error:
            return os.strerror(error.errno or 0)
        return "" if _started(folder) == began else os.strerror(errno.ESRCH)
