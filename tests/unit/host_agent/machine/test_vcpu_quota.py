# SPDX-License-Identifier: Apache-2.0
"""Throttling by CPU time, on small trees of /proc, control groups and libvirt's status files."""

import errno
import os
from pathlib import Path

import pytest

from emulation import libvirt_state
from host_agent.conf.paths import HostPaths
from host_agent.machine.privileged import partitions, vcpu_quota
from host_agent.machine.privileged.operations import HostOperations
from host_agent.machine.privileged.vcpu_quota import Quota
from placement_traits.errors import NumaExtError
from placement_traits.json_store import JsonStore
from tests.support.booted import boot

SLICE = "/machine.slice/machine-qemu/libvirt"


class Host:
    """One or more servers with two vCPUs each, on control groups of either version."""

    def __init__(self, root: Path, version: int) -> None:
        self.version = version
        self.paths = HostPaths(
            proc=root / "proc",
            sys=root / "sys",
            pid_dir=root / "pids",
            helper_state=root / "state",
        )
        boot(self.paths.proc)

    def add(self, uuid: str, pid: int, tune: str = "", group: str = "vcpu{}") -> None:
        name = f"instance-{pid}"
        libvirt_state.write(self.paths.pid_dir, name, uuid, pid, tune)
        process = self.paths.proc / str(pid)
        for number, comm in enumerate(("qemu", "CPU 0/KVM", "CPU 1/KVM")):
            task = process / "task" / str(pid + number)
            task.mkdir(parents=True)
            (task / "status").write_text(f"Name:\t{comm}\nCpus_allowed_list:\t0\n")
            path = f"{SLICE}-{pid}/" + (group.format(number - 1) if number else "emulator")
            # The kernel names the controllers in its own order, the mount point has another.
            both = f"1:cpuacct,cpu:{path}\n0::/\n" if self.version == 1 else f"0::{path}\n"
            (task / "cgroup").write_text(both)
            folder = self._folder(path)
            folder.mkdir(parents=True, exist_ok=True)
            if self.version == 1:
                (folder / "cpu.cfs_quota_us").write_text("-1\n")
                (folder / "cpu.cfs_period_us").write_text("100000\n")
            else:
                (folder / "cpu.max").write_text("max 100000\n")
        (process / "status").write_text("Mems_allowed_list:\t0\n")
        (process / "stat").write_text(f"{pid} (qemu) S " + " ".join(["7"] * 40))
        (process / "cmdline").write_bytes(f"qemu\0-uuid\0{uuid}\0".encode())

    def _folder(self, path: str) -> Path:
        mount = self.paths.sys / "fs/cgroup"
        return (mount / "cpu,cpuacct" if self.version == 1 else mount) / path.lstrip("/")

    def folder(self, pid: int, thread: str) -> Path:
        return self._folder(f"{SLICE}-{pid}/{thread}")

    def limits(self, pid: int, thread: str = "vcpu0") -> str:
        folder = self.folder(pid, thread)
        if self.version == 1:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
            return f"{quota.replace('-1', 'max')} {period}"
        return (folder / "cpu.max").read_text().strip()


A = "aaaaaaaa-0000-4000-8000-000000000000"
B = "bbbbbbbb-0000-4000-8000-000000000000"


@pytest.fixture(params=[1, 2])
def host(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(os, "pidfd_open", lambda _pid: os.eventfd(0))
    return Host(tmp_path, request.param)


def test_a_level_is_a_quota_of_each_vcpu_and_of_nothing_else(host: Host) -> None:
    host.add(A, 100)
    report = vcpu_quota.throttle(host.paths, {A: 30}, True)

    assert report.problems == ()
    assert len(report.writes) == 2
    assert host.limits(100) == host.limits(100, "vcpu1") == "30000 100000"
    assert host.limits(100, "emulator") == "max 100000"
    assert vcpu_quota.throttle(host.paths, {A: 30}, True).writes == (), "a second time"


def test_what_nova_limits_itself_is_kept_and_given_back(host: Host) -> None:
    """``quota:cpu_quota`` of a flavor stands in libvirt's XML."""
    host.add(A, 100, "<period>50000</period><quota>20000</quota>")
    vcpu_quota.throttle(host.paths, {A: 50}, True)
    assert host.limits(100) == "10000 50000"
    vcpu_quota.throttle(host.paths, {}, True)
    assert host.limits(100) == "20000 50000"


def test_whoever_releases_needs_to_know_nothing(host: Host) -> None:
    host.add(A, 100)
    host.add(B, 200)
    vcpu_quota.throttle(host.paths, {A: 30, B: 100}, True)
    assert len(vcpu_quota.throttle(host.paths, {}, False).writes) == 2
    assert host.limits(100) == "30000 100000", "a dry run writes nothing"
    vcpu_quota.throttle(host.paths, {}, True)
    assert host.limits(100) == "max 100000"
    assert vcpu_quota.throttle(host.paths, {}, True).writes == ()


def test_another_servers_own_limit_is_never_touched(host: Host) -> None:
    host.add(A, 100, "<quota>40000</quota>")
    before = host.limits(100)
    vcpu_quota.throttle(host.paths, {}, True)
    assert host.limits(100) == before


def test_vcpus_without_a_group_of_their_own_are_told_and_nobody_else_pays(host: Host) -> None:
    host.add(A, 100, group="emulator")
    host.add(B, 200)
    report = vcpu_quota.throttle(host.paths, {A: 50, B: 50}, True)

    assert [uuid for uuid, _ in report.problems] == [A]
    assert "no control group of the cpu controller" in report.problems[0][1]
    assert host.limits(100, "emulator") == "max 100000"
    assert host.limits(200) == "50000 100000"


def test_what_could_not_be_throttled_is_not_taken_for_throttled(host: Host) -> None:
    """The dead-man switch and reset would go on for ever to release what nothing limits."""
    host.add(A, 100, group="emulator")
    assert vcpu_quota.throttle(host.paths, {A: 50}, True).problems
    assert vcpu_quota.throttled_servers(host.paths).load() == frozenset()
    vcpu_quota.throttled_servers(host.paths).save(frozenset({A}))  # as an agent before may have
    assert vcpu_quota.throttle(host.paths, {}, True).problems == ()
    assert vcpu_quota.throttled_servers(host.paths).load() == frozenset()


def test_a_group_that_is_out_of_sight_may_still_limit(host: Host) -> None:
    host.add(A, 100)
    vcpu_quota.throttle(host.paths, {A: 50}, True)
    mount = host.paths.sys / "fs/cgroup"
    mount.rename(mount.with_name("elsewhere"))
    mount.mkdir()
    ((uuid, problem),) = vcpu_quota.throttle(host.paths, {}, True).problems
    assert (uuid, "no control group" in problem) == (A, True)
    assert vcpu_quota.throttled_servers(host.paths).load() == frozenset({A})


def test_a_file_that_is_a_link_is_not_written(host: Host, tmp_path: Path) -> None:
    host.add(A, 100)
    elsewhere = tmp_path / "elsewhere"
    for file in host.folder(100, "vcpu0").iterdir():
        elsewhere.write_text(file.read_text())
        file.unlink()
        file.symlink_to(elsewhere)
    before = elsewhere.read_text()
    report = vcpu_quota.throttle(host.paths, {A: 30}, True)
    assert [uuid for uuid, _ in report.problems] == [A]
    assert elsewhere.read_text() == before


def test_a_server_that_has_ended_is_no_trouble(host: Host) -> None:
    host.paths.pid_dir.mkdir()
    assert vcpu_quota.throttle(host.paths, {A: 50}, True) == ((), ())
    assert vcpu_quota.throttle(host.paths, {}, True) == ((), ())


@pytest.mark.parametrize(
    ("own", "percent", "quota"),
    [
        (Quota(), 100, Quota()),
        (Quota(), 10, Quota(100_000, 10_000)),
        (Quota(50_000, 150_000), 50, Quota(50_000, 75_000)),
        (Quota(100_000, 2_000), 10, Quota(100_000, 1_000)),
    ],
)
def test_levels_as_quotas(own: Quota, percent: int, quota: Quota) -> None:
    """The kernel takes no quota below 1 ms."""
    assert own.at(percent) == quota


def test_a_full_disk_keeps_no_group_from_its_bandwidth(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which servers are throttled by CPU time could not be written, and groups were never reached."""
    host.add(A, 100)
    operations = HostOperations(host.paths, release_after_s=0.0)
    operations.limit_cpu_time([(A, 30)], True)
    released: list[bool] = []

    def release(_paths: HostPaths, write: bool) -> tuple[str, ...]:
        released.append(write)
        return ()

    def full(_store: JsonStore[frozenset[str]], _content: frozenset[str]) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(partitions, "release", release)
    with monkeypatch.context() as disk:
        disk.setattr(JsonStore, "save", full)
        with pytest.raises(OSError, match="No space left"):
            operations.release_throttles(True)
    assert released == [True]
    assert host.limits(100) == "max 100000", "it is released; that is written later"


def test_a_release_that_failed_is_tried_again_until_it_succeeds(host: Host) -> None:
    """The switch holds on: nobody else would ever give the servers their time back."""
    host.add(A, 100)
    operations = HostOperations(host.paths, release_after_s=0.0)
    assert operations.dead_man_switch is not None
    operations.limit_cpu_time([(A, 30)], True)
    host.paths.pid_dir.chmod(0o777)
    operations.dead_man_switch.turn()
    assert host.limits(100) == "30000 100000"
    assert operations.dead_man_switch.held
    with pytest.raises(NumaExtError, match=f"CPU time stays throttled: server {A}: .* written by"):
        operations.release_throttles(True)

    host.paths.pid_dir.chmod(0o755)
    assert len(operations.release_throttles(True)) == 2
    assert host.limits(100) == "max 100000"


@pytest.mark.parametrize("unreadable", ["instance-100.xml", "instance-100.pid", ""])
def test_a_throttled_server_that_cannot_be_looked_at_is_not_forgotten(
    host: Host, unreadable: str
) -> None:
    host.add(A, 100)
    vcpu_quota.throttle(host.paths, {A: 30}, True)
    file = host.paths.pid_dir / unreadable
    file.chmod(0o777)
    assert [uuid for uuid, _ in vcpu_quota.throttle(host.paths, {}, True).problems] == [A]
    file.chmod(0o755)
    assert len(vcpu_quota.throttle(host.paths, {}, True).writes) == 2


def test_a_throttled_server_whose_folder_has_moved_is_not_forgotten(
    host: Host, tmp_path: Path
) -> None:
    host.add(A, 100)
    vcpu_quota.throttle(host.paths, {A: 30}, True)
    host.paths.pid_dir.rename(tmp_path / "elsewhere")
    assert vcpu_quota.throttle(host.paths, {}, True).problems
    (tmp_path / "elsewhere").rename(host.paths.pid_dir)
    assert len(vcpu_quota.throttle(host.paths, {}, True).writes) == 2
