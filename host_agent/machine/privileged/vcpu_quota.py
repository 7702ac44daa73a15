# SPDX-License-Identifier: Apache-2.0
"""Throttle best-effort servers by CPU time, where the hardware cannot throttle their memory traffic.

libvirt gives each vCPU a control group of its own; its quota is written there. What the server's owner and nova have
chosen (``quota:cpu_quota`` of the flavor, ``virsh schedinfo``) stands in libvirt's live XML, which writing the group
does not change: a level is a part of that, and releasing gives exactly that back. So nothing has to be remembered but
which servers are throttled, for the case that the agent does not come back.

Source: Linux Documentation/admin-guide/cgroup-v2.rst (``cpu.max``) and Documentation/scheduler/sched-bwc.rst.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from host_agent.conf.paths import HostPaths
from host_agent.machine.privileged import processes
from host_agent.machine.privileged.libvirt_state import LibvirtState, RunningDomain
from host_agent.model.levels import FULL, vcpu_quota_us
from host_agent.model.process import QuotaReport, Role
from placement_traits.errors import CapabilityMissingError, NumaExtError
from placement_traits.json_store import JsonStore

_VCPU_GROUP = re.compile(r"vcpu\d+\Z")
_DEFAULT_PERIOD_US: Final = 100_000
_UNLIMITED: Final = -1
_VERSION: Final = 1
_NO_GROUP: Final = (
    "libvirt has given the vCPUs no control group of the cpu controller (see cgroup_controllers in qemu.conf), "
    "so their CPU time cannot be limited"
)


class _UnlimitedError(CapabilityMissingError):
    """No vCPU has a group in which its CPU time could be limited, so nothing limits it either."""


@dataclass(frozen=True, slots=True)
class Quota:
    """CPU time of one vCPU: ``quota_us`` in each ``period_us``; -1 is no limit."""

    period_us: int = _DEFAULT_PERIOD_US
    quota_us: int = _UNLIMITED

    def at(self, percent: int) -> "Quota":
        """Return the part of it that a throttle level leaves; 100 leaves all."""
        if percent >= FULL:
            return self
        if self.quota_us < 0:
            return Quota(*vcpu_quota_us(percent))
        return Quota(self.period_us, max(1000, self.quota_us * percent // FULL))


class _Version1:
    """Files of the ``cpu`` controller of control groups, version 1."""

    def __init__(self, folder: Path) -> None:
        self._quota = folder / "cpu.cfs_quota_us"
        self._period = folder / "cpu.cfs_period_us"

    def read(self) -> Quota:
        return Quota(int(self._period.read_text()), int(self._quota.read_text()))

    def write(self, quota: Quota) -> None:
        # Each of both alone has to be legal, too: without a limit any period is.
        _write(self._quota, str(_UNLIMITED))
        _write(self._period, str(quota.period_us))
        _write(self._quota, str(quota.quota_us))


class _Version2:
    """The same of version 2."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "cpu.max"

    def read(self) -> Quota:
        quota, period = self._file.read_text().split()
        return Quota(int(period), _UNLIMITED if quota == "max" else int(quota))

    def write(self, quota: Quota) -> None:
        limit = "max" if quota.quota_us < 0 else str(quota.quota_us)
        _write(self._file, f"{limit} {quota.period_us}")


def _write(file: Path, value: str) -> None:
    """Write a file that is there and no link."""
    flags = os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(file, flags)
    try:
        os.write(descriptor, f"{value}\n".encode())
    finally:
        os.close(descriptor)


def throttle(
    paths: HostPaths,
    levels: Mapping[str, int],
    write: bool,
    *,
    libvirt: LibvirtState | None = None,
) -> QuotaReport:
    """Give the vCPUs of servers so much of their CPU time, and all others of ours all of it.

    :param levels: server UUID -> per cent
    :param write: false: only say what would be written
    :param libvirt: see :func:`host_agent.machine.privileged.processes.opened`
    :returns: the commands; by server, what went wrong
    """
    memory = throttled_servers(paths)
    before = memory.load() or frozenset()
    desired = dict.fromkeys(before, FULL) | dict(levels)
    throttled = {uuid for uuid, level in desired.items() if level < FULL}
    if write and not throttled <= before:
        memory.save(before | throttled)  # first: a crash in the middle must not lose one
    libvirt = libvirt or LibvirtState(paths.pid_dir)
    writes: list[str] = []
    problems: list[tuple[str, str]] = []
    for uuid, level in sorted(desired.items()):
        try:
            writes += _throttle_one(paths, uuid, level, write, libvirt)
        except processes.ProcessGoneError:
            throttled.discard(uuid)
        except _UnlimitedError as error:
            throttled.discard(uuid)
            if level < FULL:
                problems.append((uuid, str(error)))
        except (NumaExtError, OSError, ValueError) as error:
            throttled.add(uuid)
            problems.append((uuid, str(error)))
    if write and throttled != (memory.load() or frozenset()):
        memory.save(frozenset(throttled))
    return QuotaReport(tuple(writes), tuple(problems))


def _throttle_one(
    paths: HostPaths, uuid: str, percent: int, write: bool, libvirt: LibvirtState
) -> Iterator[str]:
    with processes.opened(paths, uuid, libvirt) as domain:
        own = Quota(domain.period_us, domain.quota_us)
        for group in _vcpu_groups(paths, domain):
            target = own.at(percent)
            if group.read() != target:
                if write:
                    group.write(target)
                limit = "no limit" if target.quota_us < 0 else f"{target.quota_us} us"
                yield f"vcpu quota of {uuid}: {limit} in {target.period_us} us"


def _vcpu_groups(paths: HostPaths, domain: RunningDomain) -> Sequence["_Version1 | _Version2"]:
    """Return the control groups of the vCPUs of a domain.

    :raises CapabilityMissingError: a vCPU has none of its own: others would be throttled with it
    """
    folders: dict[Path, _Version1 | _Version2] = {}
    without = False
    for thread in processes.read_process(paths, domain).threads:
        if thread.role == Role.VCPU:
            text = (paths.proc / str(domain.pid) / "task" / str(thread.tid) / "cgroup").read_text()
            found = _cpu_group(paths.sys / "fs/cgroup", text)
            folders |= dict([found] if found else [])
            without |= found is None
    if without:
        raise (CapabilityMissingError if folders else _UnlimitedError)(_NO_GROUP)
    return [folders[folder] for folder in sorted(folders)]


def _cpu_group(mount: Path, text: str) -> tuple[Path, "_Version1 | _Version2"] | None:
    """Return the group of the ``cpu`` controller that a ``/proc/PID/cgroup`` names, None where it names none.

    From within a control group namespace the kernel shows what lies outside by ``..``: that is none of ours.

    :raises CapabilityMissingError: there is one, but not where this process sees it
    """
    hidden = False
    for line in text.splitlines():
        number, controllers, path = line.split(":", 2)
        if not _VCPU_GROUP.search(path):
            continue
        inside = ".." not in path.split("/")
        if number == "0":
            folder = mount / path.lstrip("/")
            if inside and (folder / "cpu.max").exists():
                return folder, _Version2(folder)
            hidden |= not (inside and folder.is_dir())
        elif "cpu" in controllers.split(","):
            for hierarchy in _mounted(mount) if inside else ():
                folder = hierarchy / path.lstrip("/")
                if (folder / "cpu.cfs_quota_us").exists():
                    return folder, _Version1(folder)
            hidden = True
    if hidden:
        raise CapabilityMissingError(_NO_GROUP)
    return None


def _mounted(mount: Path) -> list[Path]:
    """Where version 1's ``cpu`` controller is mounted: the name tells, in another order than the kernel's, or alone."""
    return sorted(folder for folder in mount.iterdir() if "cpu" in folder.name.split(","))


def throttled_servers(paths: HostPaths) -> JsonStore[frozenset[str]]:
    """Return the file of throttled servers, for the process that has to release them; good for one boot of the host."""
    return JsonStore(
        paths.helper_state / "throttled.json",
        _VERSION,
        lambda found: frozenset(uuid.text() for uuid in found.member("servers").items()),
        lambda servers: {"servers": sorted(servers)},
        boot_id=paths.proc / "sys/kernel/random/boot_id",
    )
