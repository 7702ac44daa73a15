# SPDX-License-Identifier: Apache-2.0
"""What every conformance case works with: a clean tree, commands with their outcome, and words for what is expected."""

import errno
import time
from collections.abc import Callable
from typing import Final

from host_agent.machine.rdt.resctrl import Resctrl
from host_agent.machine.rdt.writer import GroupWriter
from host_agent.model.rdt import Capabilities, Monitoring, parse_schemata
from tests.conformance.world import Process, World

OK: Final = "ok"
_LIMBO_PATIENCE_S: Final = 10.0

Case = Callable[["Bench"], None]


class NotApplicableError(Exception):
    """The case does not apply to this tree; says why."""


class Bench:
    """One case's view of a world.

    :param world: where it runs; only one bench at a time may use it
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.files = world.files
        self.profile = world.profile
        self.resctrl = Resctrl(world.files, full_mbps=32_000)
        self.capabilities: Capabilities = self.resctrl.capabilities()

    @property
    def domains(self) -> tuple[int, ...]:
        return self.capabilities.l3[0].domains

    @property
    def executor(self) -> GroupWriter:
        return GroupWriter(self.resctrl, proc=self.world.proc, limbo_wait_s=_LIMBO_PATIENCE_S)

    def clean(self) -> None:
        """Bring the tree back to what it was after mounting: no group, root with everything."""
        for name in self.groups():
            self.files.rmdir(name)
        for name in self.monitors(""):
            self.files.rmdir(f"mon_groups/{name}")
        self.executor.reset()
        self.clear_status()

    def groups(self) -> list[str]:
        """Return the names of all control groups but root."""
        fixed = ("info", "mon_data", "mon_groups")
        return [name for name in self.files.directories("") if name not in fixed]

    def monitors(self, group: str) -> list[str]:
        """Return the names of the monitoring groups in a control group."""
        if self.capabilities.monitoring is None:
            return []
        return self.files.directories(f"{group}/mon_groups" if group else "mon_groups")

    def needs_monitoring(self) -> Monitoring:
        """Skip the case where nothing can be monitored."""
        if self.capabilities.monitoring is None:
            raise NotApplicableError("no monitoring")
        return self.capabilities.monitoring

    def process(self) -> Process:
        return self.world.process()

    # -- commands --

    def write(self, path: str, data: str) -> str:
        """Write; return ``ok`` or the name of the error."""
        return outcome(lambda: self.files.write(path, data))

    def mkdir(self, path: str) -> str:
        """Create, waiting for RMIDs in limbo; return ``ok`` or the name of the error.

        Each try leaves a sentence in ``last_cmd_status``, where not many have room: where the limbo lasts, the one that
        a case is about would find none.
        """
        deadline = time.monotonic() + _LIMBO_PATIENCE_S
        while (result := outcome(lambda: self.files.mkdir(path))) == "EBUSY":
            if time.monotonic() > deadline:
                break
            self.clear_status()
            time.sleep(0.2)
        return result

    def clear_status(self) -> None:
        """Have the kernel forget its sentences, by a write that changes nothing; libpqos writes no modes."""
        if self.world.kernel_speaks:
            self.accepted("mode", "shareable\n")

    def make(self, *paths: str) -> None:
        """Create groups that must succeed."""
        for path in paths:
            expect(self.mkdir(path), OK, f"mkdir {path}")

    def rmdir(self, path: str) -> str:
        """Remove; return ``ok`` or the name of the error."""
        return outcome(lambda: self.files.rmdir(path))

    def read(self, path: str) -> str:
        return self.files.read(path)

    def status(self) -> str:
        """Return the kernel's sentence on the last command."""
        return self.read("info/last_cmd_status").strip()

    def tasks(self, group: str) -> set[int]:
        """Return the threads in a group ("" is root)."""
        return {int(line) for line in self.read(f"{group}/tasks" if group else "tasks").split()}

    def values(self, group: str, resource: str) -> dict[int, int]:
        """Return domain -> value of one line of a group's schemata."""
        return parse_schemata(self.read(f"{group}/schemata" if group else "schemata"))[resource]

    def dump(self) -> dict[str, str]:
        """Return all that can be set, of all groups: file -> text."""
        found = {}
        for group in ("", *self.groups()):
            base = f"{group}/" if group else ""
            for name in ("schemata", "mode", "cpus_list"):
                found[base + name] = self.read(base + name)
            for monitor in self.monitors(group):
                found[f"{base}mon_groups/{monitor}"] = self.read(
                    f"{base}mon_groups/{monitor}/tasks"
                )
            if group:
                found[base + "tasks"] = self.read(base + "tasks")
        return found

    # -- expectations --

    def refused(self, path: str, data: str, error: str, status: str) -> None:
        """A write must fail with this error and leave this status."""
        expect(self.write(path, data), error, f"write {data!r} to {path}")
        expect(self.status(), status, f"status after {data!r} to {path}")

    def accepted(self, path: str, data: str) -> None:
        """A write must succeed and leave the status ok."""
        expect(self.write(path, data), OK, f"write {data!r} to {path}")
        expect(self.status(), OK, f"status after {data!r} to {path}")


def outcome(operation: Callable[[], None]) -> str:
    """Return ``ok`` or the name of the error number."""
    try:
        operation()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return OK


def expect(found: object, wanted: object, what: str) -> None:
    """Compare, and say in words what differs."""
    if found != wanted:
        raise AssertionError(f"{what}: {found!r}, expected {wanted!r}")
