# SPDX-License-Identifier: Apache-2.0
"""The saved state of a booted machine that is no host yet, so that hosts need not boot.

Most of what an emulated host takes to serve is the same for all: the kernel boots and Python imports nova. One machine
does it, without a name, a file tree or GPUs, until ``guest/init`` says so; then QEMU writes its state to a file
("migration"), and each host is a QEMU that begins with that state. What differs between hosts must be what QEMU does
not save: folders behind shares, ports, devices without state in slots that were empty.

A state fits only the machine that it was saved from: the file's name has a hash of its command line, in which kernel,
initramfs, QEMU and disk image are named by their contents. The counter's frequency, which the kernel got when it
booted, is kept beside it.
"""

import hashlib
import json
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from .emulated_machine import Machine
from .errors import LabError
from .process import Process, wait_for
from .settings import Settings
from .terminal import Progress

_READY = "numa-lab: ready to be saved"  # guest/init
_BOOT_TIMEOUT_S = 900.0
_SAVING_TIMEOUT_S = 120.0
_TRIES = 2
# A clock that goes wrong by a second in a quarter of an hour would still do.
_TSC_TOLERANCE = 1e-3
_UNLIMITED_BANDWIDTH = 1 << 40


def process(settings: Settings) -> Process:
    """The QEMU whose state is being saved."""
    return Process(
        "machine to be saved", settings.run / "snapshot.pid", settings.log / "snapshot.log", 5
    )


def find(settings: Settings, machine: Machine) -> Path | None:
    """The saved state from which ``machine`` can start, if there is one."""
    state = _file(settings, machine)
    facts = state.with_suffix(".json")
    if not facts.exists():
        return None
    saved_khz, khz = json.loads(facts.read_text())["tsc_khz"], machine.tsc_khz
    same = saved_khz == khz or (saved_khz and khz and abs(saved_khz / khz - 1) < _TSC_TOLERANCE)
    return state if same else None


def provide(settings: Settings, progress: Progress, machine: Machine) -> None:
    """Make the saved state from which ``machine`` can start, unless it is there; those of other machines are removed.

    Without it hosts boot: that it cannot be made is only a note.
    """
    if find(settings, machine):
        return
    state = _file(settings, machine)
    for older in state.parent.glob("machine-*"):
        older.unlink()
    folder = settings.state / "snapshot"
    folder.mkdir(parents=True, exist_ok=True)
    console = folder / "console.log"
    with progress.step("saving the state of a booted machine", console):
        for _ in range(_TRIES):
            console.unlink(missing_ok=True)
            try:
                _save(settings, machine.nameless(folder), folder, state)
            except LabError as error:
                progress.note(f"the state of a booted machine was not saved: {error}")
                continue
            facts = json.dumps({"tsc_khz": machine.tsc_khz})
            state.with_suffix(".json").write_text(facts + "\n")
            return


def _file(settings: Settings, machine: Machine) -> Path:
    digest = hashlib.sha256(json.dumps(machine.identity()).encode())
    return settings.lab / "images" / f"machine-{digest.hexdigest()[:16]}.state"


def _save(settings: Settings, machine: Machine, folder: Path, state: Path) -> None:
    qemu = process(settings)
    console = folder / "console.log"
    qemu.stop()
    draft = state.with_suffix(".new")

    def ready() -> bool:
        return console.exists() and _READY in console.read_text(errors="replace")

    try:
        qemu.start(machine.command(), folder=folder)
        wait_for("a machine is booted", ready, _BOOT_TIMEOUT_S, qemu, log=console)
        with Monitor.connect(folder / machine.monitor) as monitor:
            monitor.save(draft)
    finally:
        qemu.stop()
    draft.replace(state)


@dataclass(frozen=True, slots=True)
class Monitor:
    """QEMU's control socket (QMP: a line of JSON per command and answer, events in between)."""

    connection: socket.socket

    @classmethod
    def connect(cls, path: Path) -> Self:
        """Open it and leave its negotiation mode.

        :raises LabError: QEMU does not answer.
        """
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(_SAVING_TIMEOUT_S)
        connection.connect(str(path))
        monitor = cls(connection)
        monitor.execute("qmp_capabilities")
        return monitor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def execute(self, command: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """Carry out a command and return what it answers.

        :raises LabError: QEMU refuses it.
        """
        request = {"execute": command, "arguments": dict(arguments or {})}
        self.connection.sendall(json.dumps(request).encode() + b"\n")
        pending = b""
        while True:
            pending += self._received()
            *lines, pending = pending.split(b"\n")
            for answer in map(json.loads, lines):
                if "error" in answer:
                    raise LabError(f"QEMU refuses {command}: {answer['error']['desc']}")
                if "return" in answer:
                    return answer["return"]

    def save(self, path: Path) -> None:
        """Write the machine's state to a file.

        :raises LabError: it cannot be saved, or not in time.
        """
        self.execute("migrate-set-parameters", {"max-bandwidth": _UNLIMITED_BANDWIDTH})
        self.execute("migrate", {"uri": f"exec:cat > '{path}'"})
        deadline = time.monotonic() + _SAVING_TIMEOUT_S
        while True:
            answer = self.execute("query-migrate")
            if answer.get("status") == "completed":
                return
            if answer.get("status") == "failed" or time.monotonic() > deadline:
                raise LabError(f"its state is not saved: {answer}")
            time.sleep(0.05)

    def _received(self) -> bytes:
        received = self.connection.recv(65536)
        if not received:
            raise LabError("QEMU has closed its monitor")
        return received
