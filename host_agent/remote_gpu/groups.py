# SPDX-License-Identifier: Apache-2.0
"""The control group of each lease: all that its process starts is in it, whatever that does, and is killed by it.

::

    /sys/fs/cgroup/OWN/lease-UUID-TOKEN     OWN: the group of the supervisor, which systemd lets it divide (Delegate=)
    FOLDER/UUID.group ──> that              so a supervisor in another group finds it again

The token is another one each time. A process whose supervisor has died before it entered its group, and which is late,
finds that group gone once another process was started for the lease, or the lease has ended: it never runs beside that.

Needs control groups of version 2 and ``cgroup.kill`` (Linux 5.14). Source: Linux
Documentation/admin-guide/cgroup-v2.rst.

Bounds of memory and processor time need the controllers ``memory`` and ``cpu`` as well, which a group with processes of
its own gives to none below it. So the supervisor has to be in a part of the unit's group, beside the leases'::

    UNIT/supervisor             DelegateSubgroup=supervisor (systemd 254)
    UNIT/lease-UUID-TOKEN       memory.max, memory.oom.group, cpu.max

Without bounds it may be in the unit's group itself, as systemd has it otherwise.
"""

import os
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from placement_traits.errors import CapabilityMissingError, ServiceUnavailableError

SUFFIX: Final = ".group"
SUBGROUP: Final = "supervisor"
_PERIOD_US: Final = 100_000
_MIB: Final = 1 << 20
_LOOK_S: Final = 0.02
_REMEDY: Final = (
    "Leases are kept apart by control groups of version 2 with cgroup.kill (Linux 5.14)"
)


def own_group(proc: Path = Path("/proc/self")) -> Path:
    """Return the folder of the control group that this process is in.

    :param proc: of this process
    :raises CapabilityMissingError: there is none of version 2
    """
    kinds = [line.split() for line in (proc / "mountinfo").read_text().splitlines()]
    mounts = [
        (words[3], Path(words[4])) for words in kinds if words[words.index("-") + 1] == "cgroup2"
    ]
    for line in (proc / "cgroup").read_text().splitlines():
        number, _controllers, path = line.split(":", 2)
        for root, mount in mounts:
            if number == "0" and f"{path}/".startswith(f"{root.rstrip('/')}/"):
                return mount / os.path.relpath(path, root)
    raise CapabilityMissingError(f"{_REMEDY}, and none is mounted here.")


def divided(own: Path) -> Path:
    """Return the group that is divided among leases: that around this process's where it is a part by itself.

    :param own: of :func:`own_group`
    """
    return own.parent if own.name == SUBGROUP else own


@dataclass(frozen=True, slots=True)
class GroupBounds:
    """What the group of one lease may have at most.

    :param memory_mb: of this host's memory, MiB; 0: no bound
    :param cores: of processor time; 0: no bound
    """

    memory_mb: int = 0
    cores: float = 0.0

    @property
    def files(self) -> Mapping[str, Mapping[str, str]]:
        """What is written for them into a group, by controller."""
        found: dict[str, Mapping[str, str]] = {}
        if self.memory_mb:
            most = str(self.memory_mb * _MIB)
            # A server without one of its processes would be of no use.
            found["memory"] = {"memory.max": most, "memory.oom.group": "1"}
        if self.cores:
            found["cpu"] = {"cpu.max": f"{round(self.cores * _PERIOD_US)} {_PERIOD_US}"}
        return found


NO_BOUNDS: Final = GroupBounds()


def enter(group: Path) -> None:
    """Let this process be in a group.

    :raises OSError: the group has gone, or may not be entered
    """
    (group / "cgroup.procs").write_text("0")


class LeaseGroups:
    """The groups of leases; of each lease for one thread.

    :param folder: of what is kept of leases
    :param base: group that is divided
    :param bounds: of each lease
    :raises CapabilityMissingError: it cannot be divided, or a lease not be bound so
    """

    def __init__(self, folder: Path, base: Path, bounds: GroupBounds = NO_BOUNDS) -> None:
        self._folder, self._base, self._bounds = folder, base, bounds
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tried = base / f"lease-{secrets.token_hex(8)}"
        try:
            tried.mkdir()
            can_kill = (tried / "cgroup.kill").exists()
            tried.rmdir()
        except OSError as error:
            raise CapabilityMissingError(
                f"{_REMEDY}, and this process may not divide its own, {base}: {error.strerror}; "
                "its unit needs Delegate=yes."
            ) from error
        if not can_kill:
            raise CapabilityMissingError(f"{_REMEDY}, which this kernel does not have.")
        lacking = sorted(each for each in bounds.files if not _enabled(base, each))
        if lacking:
            raise CapabilityMissingError(
                f"Leases cannot be bound in {' and '.join(lacking)}: {base} gives no such controller to groups below "
                f"it. The unit needs Delegate=yes and DelegateSubgroup={SUBGROUP}, which systemd has since 254, on a "
                "host with control groups of version 2 alone; or set these bounds to 0."
            )

    def make(self, lease: str) -> Path:
        """Make the group of a lease that has none."""
        link, name = self._link(lease), f"lease-{lease}-{secrets.token_hex(8)}"
        link.unlink(missing_ok=True)
        # Before the group is there: one that no link names would stay for ever.
        link.symlink_to(self._base / name)
        group = link.resolve()
        group.mkdir()
        for files in self._bounds.files.values():
            for name, value in files.items():
                (group / name).write_text(value)
        return group

    def has_processes(self, lease: str) -> bool:
        """Whether anything runs in the group of a lease."""
        try:
            return "populated 1" in (self._link(lease) / "cgroup.events").read_text()
        except FileNotFoundError:
            return False

    def kill(self, lease: str, limit_s: float) -> bool:
        """Kill all in the group of a lease, and wait for its end; return whether nothing runs there any more.

        :param limit_s: how long to wait, seconds
        """
        with suppress(FileNotFoundError):
            (self._link(lease) / "cgroup.kill").write_text("1")
        until_s = time.monotonic() + limit_s
        while self.has_processes(lease):
            if time.monotonic() > until_s:
                return False
            time.sleep(_LOOK_S)
        return True

    def remove(self, lease: str) -> None:
        """Remove the group of a lease, in which nothing runs; who is late cannot enter it any more.

        :raises ServiceUnavailableError: something has just entered it
        """
        try:
            self._link(lease).resolve().rmdir()
        except FileNotFoundError:
            pass
        except OSError as error:
            raise ServiceUnavailableError(
                f"A process of lease {lease} is on its way: {error.strerror}."
            ) from error
        self._link(lease).unlink(missing_ok=True)

    def _link(self, lease: str) -> Path:
        return self._folder / f"{lease}{SUFFIX}"


def _enabled(base: Path, controller: str) -> bool:
    """Return whether groups below one have a controller, which they are given where that can be."""
    try:
        if controller not in (base / "cgroup.controllers").read_text().split():
            return False
        (base / "cgroup.subtree_control").write_text(f"+{controller}")
    except OSError:
        return False
    return True
