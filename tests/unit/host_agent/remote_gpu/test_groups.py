# SPDX-License-Identifier: Apache-2.0
"""Bounds of leases, on a folder that imitates control groups of version 2: what is written, and where it cannot be.

No kernel is asked here: that a lease which takes too much is stopped is not shown by this.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from host_agent.cmd import leases as command
from host_agent.conf.remote_gpus import RemoteGpuOptions
from host_agent.remote_gpu import isolation
from host_agent.remote_gpu.groups import GroupBounds, LeaseGroups, divided
from placement_traits.errors import CapabilityMissingError, InvalidValueError
from placement_traits.oslo_options import ConfigurationError

BOTH = GroupBounds(memory_mb=512, cores=1.5)


@pytest.fixture
def unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The group of a unit that has both controllers; each folder made below it has ``cgroup.kill``."""
    make: Callable[..., None] = Path.mkdir

    def made(folder: Path, *given: int, **more: bool) -> None:
        make(folder, *given, **more)
        if folder.name.startswith("lease-"):
            (folder / "cgroup.kill").touch()

    def removed(folder: Path) -> None:
        for each in folder.iterdir():
            each.unlink()
        os.rmdir(folder)

    unit = tmp_path / "unit"
    unit.mkdir()
    monkeypatch.setattr(Path, "mkdir", made)
    monkeypatch.setattr(Path, "rmdir", removed)
    (unit / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (unit / "cgroup.subtree_control").touch()
    return unit


def test_the_group_around_the_supervisors_own_is_divided(tmp_path: Path) -> None:
    assert divided(tmp_path / "supervisor") == tmp_path
    assert divided(tmp_path / "unit.service") == tmp_path / "unit.service"


def test_each_lease_is_bound(unit: Path, tmp_path: Path) -> None:
    groups = LeaseGroups(tmp_path / "run", unit, BOTH)
    group = groups.make("one")
    found = {name: (group / name).read_text() for files in BOTH.files.values() for name in files}
    assert found == {
        "memory.max": str(512 << 20),
        "memory.oom.group": "1",
        "cpu.max": "150000 100000",
    }
    free = LeaseGroups(tmp_path / "run", unit).make("two")
    assert sorted(each.name for each in free.iterdir()) == ["cgroup.kill"]


def test_a_bound_that_cannot_be_kept_is_refused_in_a_sentence(
    unit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller is not there, or the kernel refuses it to a group that has processes of its own."""
    (unit / "cgroup.controllers").write_text("cpu\n")
    with pytest.raises(CapabilityMissingError, match=r"bound in memory: .*DelegateSubgroup="):
        LeaseGroups(tmp_path / "run", unit, BOTH)
    (unit / "cgroup.subtree_control").unlink()
    (unit / "cgroup.subtree_control").mkdir()
    with pytest.raises(CapabilityMissingError, match="bound in cpu and memory"):
        LeaseGroups(tmp_path / "run", unit, BOTH)
    LeaseGroups(tmp_path / "run", unit)
    monkeypatch.setattr(isolation, "check", lambda: None)
    monkeypatch.setattr(command, "own_group", lambda: unit / "supervisor")
    options = RemoteGpuOptions(
        ("a=500",),
        "fake",
        trying_out=True,
        memory_mb_per_lease=512,
        nics=("e=1",),
        fabrics=("f",),
    )
    with pytest.raises(ConfigurationError, match="cannot be bound in memory"):
        command.apart(options, tmp_path / "run")


def test_what_is_not_isolated_cannot_be_bound() -> None:
    with pytest.raises(InvalidValueError, match="isolated = true"):
        RemoteGpuOptions(trying_out=True, isolated=False, cores_per_lease=1.0).check()
