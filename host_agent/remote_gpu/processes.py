# SPDX-License-Identifier: Apache-2.0
"""The server processes of leases, one each: they outlive the supervisor, which finds them again by their sockets.

::

    FOLDER/LEASE.sock       a process that serves the lease listens here
    FOLDER/LEASE.sock.new   one that is starting
    FOLDER/LEASE.files      what its server writes; gone with the lease

A socket on which nothing answers is of a process that is gone. One that listens and does not answer is given a while,
then it is killed. LEASE.files is locked by the process and by all that it started: a lease has ended, and can be served
again, when the lock is free, be it that a server hangs in its driver and cannot be killed.
"""

import fcntl
import json
import logging
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from host_agent.remote_gpu.answer import ServedLease
from host_agent.remote_gpu.hung import kill_listener
from host_agent.remote_gpu.lease_process import STARTS_S
from placement_traits.command_line import SAFE_FOLDER, module
from placement_traits.errors import ServiceUnavailableError

_LOG: Final = logging.getLogger(__name__)
_ANSWERS_S: Final = 5.0
_HANGS_S: Final = 15.0  # without an answer
_STARTS_S: Final = STARTS_S + 5.0  # its server, and itself
_LOOK_S: Final = 0.02
_SUFFIX: Final = ".sock"

CommandOf = Callable[[ServedLease, Path], list[str]]
"""Lease, control socket -> command line of its process."""


@dataclass(frozen=True, slots=True)
class LeaseCommand:
    """The command line of leases' processes.

    :param transport: its name
    :param transports: folder of those that files declare
    :param address: of this host, on which clients are served
    :param gpus: provider of each lent GPU -> its name
    """

    transport: str
    transports: Path
    address: str
    gpus: Mapping[str, str]

    def __call__(self, lease: ServedLease, control: Path) -> list[str]:
        """Return it for one lease.

        :raises ServiceUnavailableError: its GPU is not lent any more
        """
        if lease.gpu not in self.gpus:
            raise ServiceUnavailableError(f"This host does not lend GPU {lease.gpu}.")
        return [
            *module("host_agent.remote_gpu.lease_process", str(control)),
            *("--host", self.address, "--transport", self.transport),
            *("--transports", str(self.transports.absolute()), "--gpu", self.gpus[lease.gpu]),
            *("--memory-mb", str(lease.memory_mb)),
        ]


class LeaseProcessGoneError(ServiceUnavailableError):
    """The process of a lease is gone.

    :param lease: its uuid
    :param epoch: that it may have served
    """

    def __init__(self, lease: str, epoch: int) -> None:
        super().__init__(lease, epoch)
        self.lease, self.epoch = lease, epoch

    def __str__(self) -> str:
        return f"The process of lease {self.lease} is gone; no other one serves epoch {self.epoch}."


class LeaseProcesses:
    """The processes of one host; for one supervisor at a time, and of each lease for one thread.

    :param folder: of their sockets, for their owner alone
    :param command: how one is started
    """

    def __init__(self, folder: Path, command: CommandOf) -> None:
        self._folder = folder = folder.absolute()
        self._command = command
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._silent_since_s: dict[str, float] = {}
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def running(self) -> frozenset[str]:
        """Return the leases of which a process may run."""
        names = (each.name for each in self._folder.glob(f"*{_SUFFIX}*"))
        return frozenset(name.partition(_SUFFIX)[0] for name in names)

    def start(self, asked: ServedLease) -> None:
        """Start a process for a lease where none runs; it serves no epoch yet.

        :raises ServiceUnavailableError: it does not start, or there is one that does not answer
        """
        if self._ask(asked.id, {}) is None:
            self._start(asked)

    def serve(self, lease: str, epoch: int) -> tuple[int, str]:
        """Have a lease served at an epoch by the process that there is; return epoch and address.

        :raises LeaseProcessGoneError: there is none any more, nor anything that it started
        :raises ServiceUnavailableError: it does not answer, or something that it started has not ended
        """
        found = self._ask(lease, {"epoch": epoch})
        if found is None:
            self._wait(lease)
            self._await_rest(lease)
            raise LeaseProcessGoneError(lease, epoch)
        return int(found["epoch"]), str(found["address"])

    def end(self, lease: str) -> None:
        """End the process of a lease; afterwards none serves it.

        :raises ServiceUnavailableError: it does not answer, or something that it started has not ended
        """
        self._ask(lease, {"end": True})
        self._wait(lease)
        self._await_rest(lease)
        for each in self._folder.glob(f"{lease}{_SUFFIX}*"):
            each.unlink(missing_ok=True)
        shutil.rmtree(self._files(lease), ignore_errors=True)

    def _start(self, asked: ServedLease) -> None:
        lease = asked.id
        self._wait(lease)
        control = self._control(lease)
        for each in (control, control.with_name(f"{control.name}.new")):
            each.unlink(missing_ok=True)
        command = self._command(asked, control)
        _LOG.info("lease %s: a process is started", lease)
        self._children[lease] = child = subprocess.Popen(
            command,
            cwd=SAFE_FOLDER,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        until_s = time.monotonic() + _STARTS_S
        while not control.exists():
            if child.poll() is not None or time.monotonic() > until_s:
                child.kill()
                self._wait(lease)
                raise ServiceUnavailableError(f"The process of lease {lease} does not start.")
            time.sleep(_LOOK_S)

    def _wait(self, lease: str) -> None:
        """Take a child's exit status, which it has or is about to have."""
        child = self._children.pop(lease, None)
        if child is None:
            return
        try:
            child.wait(_ANSWERS_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def _ask(self, lease: str, question: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return what a process answers, None where there is none, or none any more: it hung and was killed.

        :raises ServiceUnavailableError: there is one, and it does not answer
        """
        asked_s = time.monotonic()
        try:
            found = _answer(self._control(lease), question)
        except (TimeoutError, BlockingIOError) as error:
            since_s = self._silent_since_s.setdefault(lease, asked_s)
            if time.monotonic() - since_s < _HANGS_S:
                raise ServiceUnavailableError(
                    f"The process of lease {lease} does not answer."
                ) from error
            self._kill(lease)
            found = None
        self._silent_since_s.pop(lease, None)
        return found

    def _kill(self, lease: str) -> None:
        """Kill a process that hangs, and with it its server.

        :raises ServiceUnavailableError: it does not end
        """
        _LOG.error("the process of lease %s hangs, it is killed with its server", lease)
        if not kill_listener(self._control(lease), _ANSWERS_S):
            raise ServiceUnavailableError(
                f"The process of lease {lease} hangs and cannot be killed."
            )
        self._wait(lease)
        self._await_rest(lease)

    def _await_rest(self, lease: str) -> None:
        """Wait until all that the process of a lease has started is gone, too.

        :raises ServiceUnavailableError: something has not ended
        """
        try:
            folder = os.open(self._files(lease), os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return
        until_s = time.monotonic() + _ANSWERS_S
        try:
            while True:
                with suppress(BlockingIOError):
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                if time.monotonic() > until_s:
                    raise ServiceUnavailableError(
                        f"A process that served lease {lease} has not ended: fuser {self._files(lease)} names it."
                    )
                time.sleep(_LOOK_S)
        finally:
            os.close(folder)

    def _files(self, lease: str) -> Path:
        return self._control(lease).with_suffix(".files")

    def _control(self, lease: str) -> Path:
        return self._folder / f"{lease}{_SUFFIX}"


def _answer(control: Path, question: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what the process behind a socket answers, None where there is none.

    :raises TimeoutError: there is one, and it does not answer
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
        asked.settimeout(_ANSWERS_S)
        try:
            asked.connect(str(control))
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        with suppress(ConnectionError):  # it ends between two requests
            asked.sendall(json.dumps(question).encode() + b"\n")
            with asked.makefile("rb") as answers:
                line = answers.readline()
            if line:
                found: Mapping[str, Any] = json.loads(line)
                return found
    return None
