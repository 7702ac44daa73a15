# SPDX-License-Identifier: Apache-2.0
"""Read, plan, write: what happens when the groups change in between, and what a report says."""

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest

from emulation.kernel.resctrl import ResctrlModel
from emulation.kernel.shape import Shape
from host_agent.apply.partitions import Partitions
from host_agent.conf.paths import HostPaths
from host_agent.conf.rdt import RdtOptions
from host_agent.machine.privileged import partitions as privileged
from host_agent.machine.privileged.operations import HostOperations
from host_agent.machine.privileged.seam import read_only
from host_agent.machine.rdt.resctrl import Resctrl
from host_agent.model.partition import Joined, PartitionRequest, RdtChange, RdtState
from host_agent.model.terms import Term
from placement_traits.names import Tier
from tests.support.booted import boot

LC = PartitionRequest("11111111-aaaa-4000-8000-000000000001", Tier.LC, (0,), {0: 4})
BE = PartitionRequest("33333333-bbbb-4000-8000-000000000003", Tier.BE, (0,), {}, {0: 30})


class Meddled(HostOperations):
    """Other software makes a group right after the state was read, so many times."""

    def __init__(self, paths: HostPaths, model: ResctrlModel, times: int) -> None:
        super().__init__(paths)
        self._model, self._times = model, times

    def rdt_state(self) -> RdtState:
        state = super().rdt_state()
        if self._times:
            self._times -= 1
            self._model.mkdir(f"other{self._times}")
        return state


class Refusing(ResctrlModel):
    """A kernel that refuses all commands on some path below the mount point."""

    refused = "nothing"

    def write(self, path: str, data: str, writer: int = 0) -> None:
        self._refuse(path, errno.EINVAL)
        super().write(path, data, writer)

    def mkdir(self, path: str) -> None:
        self._refuse(path, errno.ENOSPC)
        super().mkdir(path)

    def _refuse(self, path: str, number: int) -> None:
        if path.startswith(self.refused):
            raise OSError(number, "refused")


class Joining(HostOperations):
    """Every server has a process, whose threads always come to their group."""

    def __init__(self, paths: HostPaths) -> None:
        super().__init__(paths)
        self.joined: dict[str, tuple[str, str]] = {}

    def apply_partitions(self, change: RdtChange, write: bool) -> Sequence[Joined]:
        super().apply_partitions(change, write)
        for member in change.members:
            self.joined[member.uuid] = member.group, member.monitor
        return [Joined(member.uuid, 1) for member in change.members]


@pytest.fixture
def shape() -> Shape:
    return Shape()


@pytest.fixture
def model(shape: Shape) -> Refusing:
    return Refusing(shape)


@pytest.fixture
def paths(model: ResctrlModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostPaths:
    """A host with that resctrl tree and no process."""
    monkeypatch.setattr(privileged, "tree", lambda _paths: Resctrl(model))
    boot(tmp_path / "proc", "first")
    return HostPaths(proc=tmp_path / "proc", helper_state=tmp_path / "state", pid_dir=tmp_path)


def test_a_foreign_group_that_appears_in_between_is_planned_for(
    model: ResctrlModel, paths: HostPaths
) -> None:
    partitions = Partitions(Meddled(paths, model, 2), RdtOptions())
    report = partitions.partition([LC, BE], write=True)
    assert report.problem == ""
    lc, _be = report.places
    assert not lc.exclusive, "two foreign groups have all ways"
    shared = {r.against for r in lc.reasons if r.term is Term.WAYS_SHARED_WITH}
    assert shared == {"other0", "other1"}


def test_groups_that_never_rest_are_a_problem_and_nothing_is_written(
    model: ResctrlModel, paths: HostPaths
) -> None:
    partitions = Partitions(Meddled(paths, model, 3), RdtOptions())
    report = partitions.partition([LC, BE], write=True)
    assert report.problem == (
        "RDT groups have changed since they were read: group other0 has appeared"
    )
    assert {place.problem for place in report.places} == {report.problem}
    assert Resctrl(model).actual().ours == ()


def test_a_server_without_a_process_is_named_and_the_groups_are_made(
    model: ResctrlModel, paths: HostPaths
) -> None:
    report = Partitions(HostOperations(paths), RdtOptions()).partition([LC], write=True)
    (place,) = report.places
    assert "runs domain" in place.problem
    assert place.exclusive
    assert {write.group for write in report.writes} == {"", place.group}


def test_a_dry_run_says_the_same_and_writes_nothing(model: ResctrlModel, paths: HostPaths) -> None:
    before = Resctrl(model).actual()
    dry = Partitions(read_only(HostOperations(paths)), RdtOptions())
    foretold = dry.partition([LC, BE], write=True)
    assert Resctrl(model).actual() == before
    assert not paths.helper_state.exists()

    done = Partitions(HostOperations(paths), RdtOptions()).partition([LC, BE], write=True)
    assert done.writes == foretold.writes


def test_a_write_says_what_was_there_before(model: ResctrlModel, paths: HostPaths) -> None:
    report = Partitions(HostOperations(paths), RdtOptions()).partition([LC], write=True)
    (root,) = [write for write in report.writes if write.group == ""]
    assert (root.before, root.schemata) == ({"L3": {0: 0xFFF}}, {"L3": {0: 0xFF0}})


OTHER = PartitionRequest("22222222-aaaa-4000-8000-000000000002", Tier.LC, (0,), {0: 3})
LC_GROUP, OTHER_GROUP = "numa_ext-lc-11111111-aaaa", "numa_ext-lc-22222222-aaaa"


def test_a_group_that_the_kernel_refuses_stops_no_other_server(
    model: Refusing, paths: HostPaths
) -> None:
    model.refused = LC_GROUP
    privileged = Joining(paths)
    report = Partitions(privileged, RdtOptions()).partition([LC, OTHER, BE], write=True)
    lc, other, be = report.places

    assert lc.group == ""
    assert lc.problem.startswith(f"server {LC.uuid} gets no RDT partition: resctrl: creating")
    assert report.problem in lc.problem
    assert (other.group, other.exclusive, other.problem) == (OTHER_GROUP, True, "")
    assert be.problem == ""
    assert privileged.joined.keys() == {OTHER.uuid, BE.uuid}
    assert LC_GROUP not in {group.name for group in Resctrl(model).actual().groups}


def test_masks_that_the_kernel_refuses_leave_no_half_made_group(
    model: Refusing, paths: HostPaths
) -> None:
    model.refused = f"{LC_GROUP}/schemata"
    privileged = Joining(paths)
    report = Partitions(privileged, RdtOptions()).partition([LC, OTHER, BE], write=True)

    assert [bool(place.problem) for place in report.places] == [True, False, False]
    assert privileged.joined.keys() == {OTHER.uuid, BE.uuid}
    assert LC_GROUP not in {group.name for group in Resctrl(model).actual().groups}
    model.refused = "nothing"
    again = Partitions(privileged, RdtOptions()).partition([LC, OTHER, BE], write=True)
    assert again.problem == ""
    assert all(place.problem == "" for place in again.places)


def test_a_monitoring_group_that_cannot_be_made_is_only_missed(
    model: Refusing, paths: HostPaths
) -> None:
    model.refused = "numa_ext-be-0/mon_groups"
    privileged = Joining(paths)
    report = Partitions(privileged, RdtOptions()).partition([LC, BE], write=True)
    lc, be = report.places

    assert "mon_groups" in report.problem
    assert (lc.group, lc.exclusive, lc.problem) == (LC_GROUP, True, "")
    assert (be.group, be.monitor, be.problem) == ("numa_ext-be-0", "", "")
    assert privileged.joined == {LC.uuid: (LC_GROUP, ""), BE.uuid: ("numa_ext-be-0", "")}


def test_no_thread_comes_to_a_group_whose_masks_are_not_as_planned(
    model: Refusing, paths: HostPaths
) -> None:
    """Root keeps its ways, so nothing was taken for a newcomer; who is at home already stays in its group."""
    privileged = Joining(paths)
    partitions = Partitions(privileged, RdtOptions())
    assert partitions.partition([LC, BE], write=True).problem == ""
    privileged.joined.clear()
    model.refused = "schemata"
    report = partitions.partition([LC, OTHER, BE], write=True)
    lc, other, _be = report.places

    assert "/schemata" in report.problem
    assert lc.problem == ""
    assert other.problem == report.problem
    assert other.group == ""
    assert OTHER.uuid not in privileged.joined
    assert privileged.joined[LC.uuid] == (LC_GROUP, "")


@pytest.mark.parametrize("shape", [Shape(monitoring=()), Shape(rmids=10)], ids=["none", "few"])
def test_servers_stay_in_their_class_when_levels_change_without_monitoring(
    paths: HostPaths,
) -> None:
    privileged = Joining(paths)
    partitions = Partitions(privileged, RdtOptions())
    uuids = [f"{n:08x}-0000-4000-8000-000000000000" for n in range(12)]

    def classes(**levels: int) -> dict[str, str]:
        requests = [
            PartitionRequest(uuid, Tier.BE, (0,), {}, {0: levels.get(f"n{n}", 100)})
            for n, uuid in enumerate(uuids)
        ]
        report = partitions.partition(requests, write=True)
        assert report.problem == ""
        return {place.uuid: place.group for place in report.places}

    first = classes()
    assert len(set(first.values())) == 7
    assert classes(n3=10) == first
    assert classes(n3=30, n5=10) == first
    assert classes(n3=40, n5=20, n9=10) == first
