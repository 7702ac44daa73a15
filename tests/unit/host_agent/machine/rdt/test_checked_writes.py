# SPDX-License-Identifier: Apache-2.0
"""What the privileged side refuses, whoever asks: each refusal names what it is about, and nothing is written."""

import pytest

from emulation.kernel.resctrl import ResctrlModel
from host_agent.machine.rdt.errors import RdtChangedError
from host_agent.machine.rdt.resctrl import Resctrl
from host_agent.machine.rdt.writer import GroupWriter
from host_agent.model.partition import Membership, RdtChange, Write, WriteKind
from placement_traits.errors import ConflictError, InvalidValueError, NumaExtError

OURS = "numa_ext-be-0"


@pytest.fixture
def model() -> ResctrlModel:
    """A group of ours with a monitoring group, and one of other software."""
    model = ResctrlModel()
    for name in (OURS, f"{OURS}/mon_groups/numa_ext-vm-a", "other"):
        model.mkdir(name)
    return model


def masks(group: str, mask: int, before: int = 0xFFF) -> Write:
    return Write(WriteKind.SCHEMATA, group, schemata={"L3": {0: mask}}, before={"L3": {0: before}})


def refused(model: ResctrlModel, *writes: Write, members: tuple[Membership, ...] = ()) -> str:
    """Ask for it; return the sentence of the refusal."""
    resctrl = Resctrl(model)
    before = resctrl.actual()
    with pytest.raises(NumaExtError) as caught:
        GroupWriter(resctrl).carry_out(RdtChange(before, writes, members))
    assert resctrl.actual() == before, "nothing was written"
    return str(caught.value)


@pytest.mark.parametrize(
    "write",
    [
        masks("other", 0xF),
        Write(WriteKind.REMOVE_GROUP, "other"),
        Write(WriteKind.CREATE_GROUP, "theirs"),
        Write(WriteKind.CREATE_GROUP, "numa_ext-a/mon_groups/b"),
        Write(WriteKind.CREATE_MONITOR, OURS, "theirs"),
        Write(WriteKind.MOVE_THREADS, OURS, "numa_ext-vm-a", target="other"),
    ],
)
def test_only_groups_of_ours_are_touched(model: ResctrlModel, write: Write) -> None:
    assert "a group whose name starts with 'numa_ext-'" in refused(model, masks(OURS, 0xF), write)


def test_no_threads_are_moved_to_groups_of_others(model: ResctrlModel) -> None:
    there = (Membership("11111111-aaaa-4000-8000-000000000001", "other"),)
    assert "RDT group to change: 'other'" in refused(model, members=there)


def test_of_root_only_masks_are_written(model: ResctrlModel) -> None:
    level = Write(WriteKind.SCHEMATA, "", schemata={"MB": {0: 50}})
    assert "root's masks only" in refused(model, level)
    assert "a group of ours" in refused(model, Write(WriteKind.REMOVE_GROUP, ""))


@pytest.mark.parametrize(
    ("schemata", "words"),
    [
        ({"L3": {0: 0x5}}, ("L3 domain 0", "0x5", "without holes")),
        ({"L3": {0: 0x1FFF}}, ("L3 domain 0", "0x1fff", "within 0xfff")),
        ({"L3": {0: 0}}, ("L3 domain 0", "'0x0'", "non-empty")),
        ({"L3": {7: 0xF}}, ("L3 domain", "7", "[0]")),
        ({"MB": {0: 5}}, ("MB domain 0", "5", "10 to 100")),
        ({"L4": {0: 1}}, ("L4", "on this host")),
    ],
)
def test_a_value_that_the_kernel_would_refuse_is_named(
    model: ResctrlModel, schemata: dict[str, dict[int, int]], words: tuple[str, ...]
) -> None:
    sentence = refused(model, masks("", 0xF), Write(WriteKind.SCHEMATA, OURS, schemata=schemata))
    assert f"RDT group {OURS}" in sentence
    for word in words:
        assert word in sentence


def test_what_root_is_said_to_have_had_must_be_possible(model: ResctrlModel) -> None:
    resctrl = Resctrl(model)
    change = RdtChange(resctrl.actual(), root_found={"L3": {0: 0x1FFF}})
    with pytest.raises(InvalidValueError, match="within 0xfff"):
        GroupWriter(resctrl).check(change)


@pytest.mark.parametrize(
    "write",
    [
        Write(WriteKind.CREATE_GROUP, OURS),
        Write(WriteKind.REMOVE_GROUP, "numa_ext-no"),
        Write(WriteKind.REMOVE_MONITOR, OURS, "numa_ext-vm-no"),
        Write(WriteKind.CREATE_MONITOR, OURS, "numa_ext-vm-a"),
        Write(WriteKind.MOVE_THREADS, OURS, "numa_ext-vm-a", target="numa_ext-no"),
    ],
)
def test_what_does_not_fit_what_is_there_is_refused(model: ResctrlModel, write: Write) -> None:
    assert "there" in refused(model, write)


def test_a_value_that_is_another_one_now_is_not_written_over(model: ResctrlModel) -> None:
    sentence = refused(model, masks(OURS, 0xF, before=0xFF))
    assert f"group {OURS} has L3:0=fff, not ff" in sentence


def test_groups_that_changed_since_they_were_read_are_named(model: ResctrlModel) -> None:
    resctrl = Resctrl(model)
    seen = resctrl.actual()
    model.mkdir("newcomer")
    model.rmdir("other")
    model.write("schemata", "L3:0=ff\n")
    model.mkdir(f"{OURS}/mon_groups/theirs")
    with pytest.raises(RdtChangedError) as caught:
        GroupWriter(resctrl).carry_out(RdtChange(seen, (masks(OURS, 0xF),)))
    for words in (
        "group newcomer has appeared",
        "group other has gone",
        "group (root) has L3:0=ff, not fff",
        f"monitoring group {OURS}/theirs has appeared",
    ):
        assert words in str(caught.value)
    assert resctrl.schemata(OURS)["L3"] == {0: 0xFFF}


def test_a_level_that_the_controller_has_written_meanwhile_is_no_change(
    model: ResctrlModel,
) -> None:
    """Levels are written fifty times a second, and a plan would never be carried out."""
    resctrl = Resctrl(model)
    seen = resctrl.actual()
    model.write(f"{OURS}/schemata", "MB:0=50\n")
    GroupWriter(resctrl).carry_out(RdtChange(seen, (masks(OURS, 0xF),)))
    assert resctrl.schemata(OURS) == {"L3": {0: 0xF}, "MB": {0: 50}}


def test_what_happens_while_ids_are_awaited_ends_the_change() -> None:
    now = [0.0]
    model = ResctrlModel(limbo_s=2.0, clock=lambda: now[0])
    resctrl = Resctrl(model)
    rmids = resctrl.capabilities().monitoring
    assert rmids is not None
    for number in range(rmids.num_rmids - 1):
        model.mkdir(f"mon_groups/m{number}")
    for number in range(rmids.num_rmids - 1):
        model.rmdir(f"mon_groups/m{number}")
    seen = resctrl.actual()

    def sleep(seconds: float) -> None:
        now[0] += seconds
        model.write("schemata", "L3:0=ff\n")

    writer = GroupWriter(resctrl, clock=lambda: now[0], sleep=sleep)
    with pytest.raises(RdtChangedError, match=r"\(root\) has L3:0=ff, not ff0"):
        writer.carry_out(
            RdtChange(seen, (masks("", 0xFF0), Write(WriteKind.CREATE_GROUP, "numa_ext-be-1")))
        )


class Undone(ResctrlModel):
    """A group is gone right after it was made."""

    def mkdir(self, path: str) -> None:
        super().mkdir(path)
        super().rmdir(path)


def test_what_is_not_there_after_writing_is_told() -> None:
    resctrl = Resctrl(Undone())
    change = RdtChange(resctrl.actual(), (Write(WriteKind.CREATE_GROUP, OURS),))
    with pytest.raises(ConflictError, match=f"did not keep .*: group {OURS} has gone"):
        GroupWriter(resctrl).carry_out(change)
