# SPDX-License-Identifier: Apache-2.0
"""Start, know and stop long-running processes by pid file, never by name.

A pid file holds the pid, the process' start time in clock ticks since boot and the boot's id. A pid that was given to
another process since, or a file that survived a reboot, is therefore recognised and never signalled. Signals go
through a pidfd that is opened before the identity is checked, so nothing can be recycled in between.

Each process leads a session of its own, so what it forked can be ended with it.
"""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import LabError, LateError

_STATE_FIELD = 0
_SESSION_FIELD = 3
_START_TIME_FIELD = 19


@dataclass(frozen=True, slots=True)
class Identity:
    """One process for ever: pids are used again, but not with the same start time in the same boot."""

    pid: int
    start_ticks: int
    boot: str

    def __str__(self) -> str:
        return f"{self.pid} {self.start_ticks} {self.boot}\n"


def identify(pid: int) -> Identity | None:
    """The identity of the running process ``pid``; None if there is none or it is a zombie."""
    fields = _stat_fields(pid)
    if fields is None or fields[_STATE_FIELD] in "ZX":
        return None
    return Identity(pid, int(fields[_START_TIME_FIELD]), _boot_id())


@dataclass(frozen=True, slots=True)
class Process:
    """A long-running process with a pid file and one log file for its standard output and error.

    :param name: what people call it ("nova-compute").
    :param pid_file: where its identity is kept.
    :param log: where its output goes, appended.
    :param grace_s: how long it may take to end after SIGTERM before it is killed.
    """

    name: str
    pid_file: Path
    log: Path
    grace_s: float = 20.0

    def identity(self) -> Identity | None:
        """Who runs now under this pid file; None if none does."""
        recorded = self._recorded()
        return recorded if recorded and identify(recorded.pid) == recorded else None

    def alive(self) -> bool:
        """Whether the process that the pid file names still runs."""
        return self.identity() is not None

    def start(
        self,
        argv: Sequence[str | Path],
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> Identity:
        """Start it in a session of its own, unless it runs; write the pid file; return who runs.

        :param environment: its whole environment; None inherits ours.
        :raises LabError: it could not be executed or ended at once.
        """
        running = self.identity()
        if running:
            return running
        self.pid_file.parent.mkdir(parents=True, exist_ok=True)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            try:
                child = subprocess.Popen(
                    [str(word) for word in argv],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env=None if environment is None else dict(environment),
                    cwd=folder,
                )
            except OSError as error:
                raise LabError(f"{self.name} cannot be started: {error}", self.log) from error
        _children[child.pid] = child
        identity = identify(child.pid)
        if identity is None:
            raise LabError(f"{self.name} ended at once with status {child.wait()}", self.log)
        draft = self.pid_file.with_suffix(".new")
        draft.write_text(str(identity))
        draft.replace(self.pid_file)
        return identity

    def require_alive(self) -> None:
        """Raise LabError with the log if the process has ended: for loops that wait for its service."""
        if not self.alive():
            raise LabError(f"{self.name} has ended unexpectedly", self.log)

    def stop(self) -> bool:
        """End it and its session: SIGTERM, then SIGKILL after ``grace_s``; True if it had run."""
        return stop_all([self]) == [self.name]

    def _recorded(self) -> Identity | None:
        try:
            pid, start_ticks, boot = self.pid_file.read_text().split()
            return Identity(int(pid), int(start_ticks), boot)
        except (FileNotFoundError, ValueError):
            # A torn or foreign file names no process: nothing is signalled on a guess.
            return None


def stop_all(processes: Iterable[Process]) -> list[str]:
    """End several processes side by side, each within its own grace; return the names of those that ran."""
    stopping: list[tuple[Process, Identity, int]] = []
    for process in processes:
        recorded = process._recorded()
        descriptor = _open_verified(recorded) if recorded else None
        if recorded is None or descriptor is None:
            process.pid_file.unlink(missing_ok=True)
            continue
        _send(descriptor, signal.SIGTERM)
        stopping.append((process, recorded, descriptor))
    begun = time.monotonic()
    for process, recorded, descriptor in stopping:
        with contextlib.closing(os.fdopen(descriptor, "rb", buffering=0)):
            remaining_s = max(0.0, begun + process.grace_s - time.monotonic())
            if not _ended(descriptor, remaining_s):
                _send(descriptor, signal.SIGKILL)
                _ended(descriptor, 10.0)
        _reap(recorded.pid)
        _kill_session(recorded.pid)
        process.pid_file.unlink(missing_ok=True)
    return [process.name for process, _, _ in stopping]


def wait_for(
    condition: str,
    check: Callable[[], bool],
    timeout_s: float,
    *watched: Process,
    log: Path | None = None,
) -> None:
    """Call ``check()`` until it is true.

    :param condition: what is waited for, for the error's sentence ("Keystone answers").
    :param watched: processes whose end makes further waiting useless.
    :raises LateError: ``timeout_s`` is over.
    :raises LabError: a watched process ended.
    """
    deadline = time.monotonic() + timeout_s
    pause_s = 0.05
    while not check():
        for process in watched:
            process.require_alive()
        if time.monotonic() > deadline:
            fallback = watched[0].log if watched else None
            raise LateError(f"not so after {timeout_s:.0f} s: {condition}", log or fallback)
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.3, 0.5)


def run_logged(
    what: str,
    argv: Sequence[str | Path],
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    standard_input: str | None = None,
) -> None:
    """Run a command to its end with its output appended to ``log``.

    :param what: what it does, for the error's sentence.
    :raises LabError: it cannot be executed or ends with another status than 0.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as stream:
        try:
            done = subprocess.run(
                [str(word) for word in argv],
                input=standard_input if standard_input is not None else "",
                text=True,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=None if environment is None else dict(environment),
                cwd=folder,
                check=False,
            )
        except OSError as error:
            raise LabError(f"{what}: {error}", log) from error
    if done.returncode != 0:
        raise LabError(f"{what} failed with status {done.returncode}", log)


def session_members(session: int) -> list[int]:
    """Pids of the running processes of a session."""
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdecimal()
        and (fields := _stat_fields(int(entry.name))) is not None
        and int(fields[_SESSION_FIELD]) == session
        and fields[_STATE_FIELD] not in "ZX"
    ]


_children: dict[int, subprocess.Popen[bytes]] = {}


def _stat_fields(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the third (state) on: the second may hold blanks and brackets."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _open_verified(recorded: Identity) -> int | None:
    try:
        descriptor = os.pidfd_open(recorded.pid)
    except ProcessLookupError:
        return None
    if identify(recorded.pid) == recorded:
        return descriptor
    os.close(descriptor)
    return None


def _send(descriptor: int, number: signal.Signals) -> None:
    # It may have ended by itself between the check and the signal: that is what was asked for.
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(descriptor, number)


def _ended(descriptor: int, timeout_s: float) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))


def _reap(pid: int) -> None:
    child = _children.pop(pid, None)
    if child is not None:
        child.wait()


def _kill_session(session: int) -> None:
    """End what the leader left behind: its pid is not used again while a member of its session lives."""
    for pid in session_members(session):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
