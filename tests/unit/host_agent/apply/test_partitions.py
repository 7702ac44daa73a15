# SPDX-License-Identifier: Apache-2.0
"""Read, plan, write: what happens when the groups change in between, and what a report says."""

from pathlib import Path

import pytest

from emulation.kernel.resctrl import ResctrlModel
from host_agent.apply.partitions import Partitions
from host_agent.conf.paths import HostPaths
from host_agent.conf.rdt import RdtOptions
from host_agent.machine.privileged import partitions as privileged
from host_agent.machine.privileged.operations import HostOperations
from host_agent.machine.privileged.seam import read_only
from host_agent.machine.rdt.resctrl import Resctrl
from host_agent.model.partition import PartitionRequest, RdtState
from host_agent.model.terms import Term
from placement_traits.names import Tier

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


@pytest.fixture
def model() -> ResctrlModel:
    return ResctrlModel()


@pytest.fixture
def paths(model: ResctrlModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostPaths:
    """A host with that resctrl tree and no process."""
    monkeypatch.setattr(privileged, "tree", lambda _paths: Resctrl(model))
    boot_id = tmp_path / "proc/sys/kernel/random/boot_id"
    boot_id.parent.mkdir(parents=True)
    boot_id.write_text("first\n")
    return HostPaths(proc=tmp_path / "proc", state=tmp_path / "state", libvirt_pids=tmp_path)


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
    assert not paths.state.exists()

    done = Partitions(HostOperations(paths), RdtOptions()).partition([LC, BE], write=True)
    assert done.writes == foretold.writes


def test_a_write_says_what_was_there_before(model: ResctrlModel, paths: HostPaths) -> None:
    report = Partitions(HostOperations(paths), RdtOptions()).partition([LC], write=True)
    (root,) = [write for write in report.writes if write.group == ""]
    assert (root.before, root.schemata) == ({"L3": {0: 0xFFF}}, {"L3": {0: 0xFF0}})
