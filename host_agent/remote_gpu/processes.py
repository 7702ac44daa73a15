# SPDX-License-Identifier: Apache-2.0
"""The server processes of leases, one each: they outlive the supervisor, which finds them again by their sockets.

::

    FOLDER/LEASE.sock       a process that serves the lease listens here
    FOLDER/LEASE.sock.new   one that is starting
    FOLDER/LEASE.files      what its server writes; gone with the lease

A socket on which nothing answers is of a process that is gone.
"""

import json
import logging
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from host_agent.remote_gpu.answer import ServedLease
from host_agent.remote_gpu.lease_process import STARTS_S
from placement_traits.errors import ServiceUnavailableError

_LOG: Final = logging.getLogger(__name__)
_ANSWERS_S: Final = 5.0
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
            *(sys.executable, "-m", "host_agent.remote_gpu.lease_process", str(control)),
            *("--host", self.address, "--transport", self.transport),
            *("--transports", str(self.transports), "--gpu", self.gpus[lease.gpu]),
            *("--memory-mb", str(lease.memory_mb)),
        ]


class LeaseProcesses:
    """The processes of one host; for one thread, and one supervisor, at a time.

    :param folder: of their sockets, for their owner alone
    :param command: how one is started
    """

    def __init__(self, folder: Path, command: CommandOf) -> None:
        self._folder = folder
        self._command = command
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def running(self) -> frozenset[str]:
        """Return the leases of which a process may run."""
        names = (each.name for each in self._folder.glob(f"*{_SUFFIX}*"))
        return frozenset(name.partition(_SUFFIX)[0] for name in names)

    def serve(self, asked: ServedLease, epoch: int) -> tuple[int, str]:
        """Have a lease served at an epoch, by the process that there is or a new one; return epoch and address.

        :raises ServiceUnavailableError: it does not start, or does not answer
        """
        lease = asked.id
        found = self._ask(lease, {"epoch": epoch})
        if found is None:
            self._start(asked)
            found = self._ask(lease, {"epoch": epoch})
        if found is None:
            raise ServiceUnavailableError(f"The process of lease {lease} has ended.")
        return int(found["epoch"]), str(found["address"])

    def end(self, lease: str) -> None:
        """End the process of a lease; afterwards none serves it.

        :raises ServiceUnavailableError: it does not answer
        """
        self._ask(lease, {"end": True})
        self._wait(lease)
        for each in self._folder.glob(f"{lease}{_SUFFIX}*"):
            each.unlink(missing_ok=True)
        shutil.rmtree(self._control(lease).with_suffix(".files"), ignore_errors=True)

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
        """Return what a process answers, None where there is none.

        :raises ServiceUnavailableError: there is one, and it does not answer
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as control:
            control.settimeout(_ANSWERS_S)
            try:
                control.connect(str(self._control(lease)))
            except (FileNotFoundError, ConnectionRefusedError):
                return None
            with suppress(ConnectionError):  # it ends between two requests
                control.sendall(json.dumps(question).encode() + b"\n")
                line = _line(control, lease)
                if line:
                    found: Mapping[str, Any] = json.loads(line)
                    return found
        return None

    def _control(self, lease: str) -> Path:
        return self._folder / f"{lease}{_SUFFIX}"


def _line(control: socket.socket, lease: str) -> bytes:
    try:
        with control.makefile("rb") as answers:
            return answers.readline()
    except TimeoutError as error:
        raise ServiceUnavailableError(f"The process of lease {lease} does not answer.") from error
