# SPDX-License-Identifier: Apache-2.0
"""The dead-man switch: when it releases throttles, and when it must not."""

import errno
import threading
from pathlib import Path

import pytest

from emulation.kernel.resctrl import ResctrlModel
from emulation.kernel.shape import AMD, Shape
from host_agent.machine.privileged.dead_man_switch import DeadManSwitch
from host_agent.machine.rdt.errors import ResctrlError, ResctrlUnavailableError
from host_agent.machine.rdt.resctrl import Resctrl
from host_agent.machine.rdt.writer import GroupWriter

AFTER_S = 60.0


class Helper:
    """A switch over a clock that stands still, and what it released."""

    def __init__(self, folder: Path, now_s: float = 0.0) -> None:
        self.now_s = now_s
        self.released: list[float] = []
        self.broken = False
        self.mark = folder / "in-control"
        self.switch = DeadManSwitch(self.mark, AFTER_S, self._release, clock=lambda: self.now_s)

    def _release(self) -> tuple[str, ...]:
        if self.broken:
            raise ResctrlUnavailableError("no tree")
        self.released.append(self.now_s)
        return ("schemata",)

    def turn(self, now_s: float) -> float:
        self.now_s = now_s
        return self.switch.turn()


@pytest.fixture
def helper(tmp_path: Path) -> Helper:
    return Helper(tmp_path)


def test_an_agent_that_shuts_down_gracefully_leaves_everything(helper: Helper) -> None:
    helper.switch.in_control()
    assert helper.mark.exists()
    helper.switch.leave()
    helper.turn(10 * AFTER_S)
    assert helper.released == []
    assert not helper.mark.exists()


def test_an_agent_that_is_gone_is_given_some_time_first_and_silence_counts_once(
    helper: Helper,
) -> None:
    helper.switch.in_control()
    assert helper.turn(AFTER_S - 1) == 1.0
    assert helper.released == []
    helper.turn(AFTER_S)
    helper.turn(5 * AFTER_S)
    assert helper.released == [AFTER_S]
    assert not helper.switch.held


def test_an_agent_that_goes_on_is_in_control_again(helper: Helper) -> None:
    helper.switch.in_control()
    helper.turn(AFTER_S)
    helper.switch.in_control()
    assert helper.turn(2 * AFTER_S - 1) == 1.0
    helper.turn(2 * AFTER_S)
    assert helper.released == [AFTER_S, 2 * AFTER_S]


def test_a_throttle_that_comes_while_throttles_are_released_is_released_later(
    tmp_path: Path,
) -> None:
    """An agent that has hung had sent it; nobody waits for that agent any more."""
    now_s, released = 0.0, []

    def release() -> tuple[str, ...]:
        if not released:
            late.start()
            late.join(0.05)
        released.append(now_s)
        return ()

    switch = DeadManSwitch(tmp_path / "in-control", AFTER_S, release, clock=lambda: now_s)
    late = threading.Thread(target=switch.throttled)
    switch.in_control()
    now_s = AFTER_S
    switch.turn()
    late.join()
    assert switch.held
    now_s = 2 * AFTER_S
    switch.turn()
    assert released == [AFTER_S, 2 * AFTER_S]
    assert not switch.held


def test_throttles_put_no_release_off(helper: Helper) -> None:
    """Only an agent that reports is in control: one whose loop hangs may still throttle."""
    helper.switch.in_control()
    helper.turn(AFTER_S - 1)
    helper.switch.throttled()
    helper.turn(AFTER_S)
    assert helper.released == [AFTER_S]


def test_without_an_agent_nothing_is_released(helper: Helper) -> None:
    assert helper.turn(100 * AFTER_S) == AFTER_S
    helper.switch.leave()
    assert helper.released == []


def test_what_cannot_be_released_is_tried_again(helper: Helper) -> None:
    helper.switch.in_control()
    helper.broken = True
    pause_s = helper.turn(AFTER_S)
    assert 0 < pause_s < AFTER_S
    assert helper.switch.held
    helper.turn(AFTER_S + pause_s)
    helper.broken = False
    helper.turn(AFTER_S + 2 * pause_s)
    assert helper.released == [AFTER_S + 2 * pause_s]


def test_the_next_helper_waits_for_the_agent_of_one_that_was_killed(
    helper: Helper, tmp_path: Path
) -> None:
    """Helper and agent die together: what the kernel starts again releases."""
    helper.switch.in_control()
    successor = Helper(tmp_path, now_s=1000.0)
    successor.turn(1000.0 + AFTER_S)
    assert successor.released == [1000.0 + AFTER_S]


def test_a_helper_with_a_successor_releases_nothing(helper: Helper, tmp_path: Path) -> None:
    """Its supervisor was killed, a new one has started another helper and another agent."""
    helper.switch.in_control()
    successor = Helper(tmp_path)
    helper.turn(AFTER_S)
    assert helper.released == []
    assert not helper.switch.held
    assert successor.mark.exists()

    helper.switch.in_control()
    successor.turn(AFTER_S)
    assert successor.released == [], "the agent came back to the first"


def test_a_successor_that_has_shut_down_gracefully_has_left_everything(
    helper: Helper, tmp_path: Path
) -> None:
    helper.switch.in_control()
    Helper(tmp_path).switch.leave()
    helper.turn(AFTER_S)
    assert helper.released == []


def test_a_mark_that_cannot_be_written_or_is_a_link_does_not_keep_it_from_releasing(
    helper: Helper, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    helper.mark.symlink_to(target)
    helper.switch.in_control()
    assert not target.exists(), "no link is followed"
    helper.turn(AFTER_S)
    assert helper.released == [AFTER_S]


def test_releases_are_counted_by_this_helper_and_the_next(
    helper: Helper, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An agent that was killed cannot tell, and the helper behind it ends when it is idle."""
    helper.switch.in_control()
    helper.turn(AFTER_S - 1)
    helper.switch.leave()
    assert helper.switch.fired == 0
    for times in (1, 2):
        helper.switch.in_control()
        helper.broken = True
        helper.turn(times * 2 * AFTER_S)
        helper.broken = False
        helper.turn(times * 2 * AFTER_S + 10)
        assert helper.switch.fired == times, "once, whatever it took"
    assert Helper(tmp_path).switch.fired == 2
    (tmp_path / "dead-man-switch.json").write_text("{")
    assert Helper(tmp_path).switch.fired == 0
    assert "dead-man-switch.json is not used" in caplog.text


@pytest.mark.parametrize(
    ("shape", "low", "full"),
    [(Shape(domains=(0, 1)), 10, 100), (AMD, 16, 2048), (Shape(mba=False), 0, 0)],
)
def test_our_groups_get_all_bandwidth_and_nothing_else_changes(
    shape: Shape, low: int, full: int
) -> None:
    model = ResctrlModel(shape)
    resctrl = Resctrl(model)
    for name in ("numa_ext-be-0", "foreign"):
        model.mkdir(name)
        if low:
            model.write(f"{name}/schemata", f"MB:0={low}\n")
        model.write(f"{name}/schemata", "L3:0=f\n")
    foretold = GroupWriter(resctrl).release_bandwidth(write=False)

    assert GroupWriter(resctrl).release_bandwidth() == foretold
    assert len(foretold) == (1 if low else 0)
    foreign, ours = resctrl.actual().groups[1:]
    assert ours.schemata["L3"][0] == foreign.schemata["L3"][0] == 0xF
    if low:
        assert (ours.schemata["MB"][0], foreign.schemata["MB"][0]) == (full, low)
    assert GroupWriter(resctrl).release_bandwidth() == ()


class Refusing(ResctrlModel):
    """A kernel that refuses whatever is written to one group."""

    def write(self, path: str, data: str) -> None:
        if path.startswith("numa_ext-be-0/") and data.startswith("MB:0=100"):
            raise OSError(errno.EIO, "Input/output error")
        super().write(path, data)


def test_a_group_that_the_kernel_refuses_keeps_no_other_throttled() -> None:
    """The switch tries again every five seconds, and stopped at the same group."""
    model = Refusing(Shape(domains=(0,)))
    resctrl = Resctrl(model)
    for number in range(3):
        model.mkdir(f"numa_ext-be-{number}")
        model.write(f"numa_ext-be-{number}/schemata", "MB:0=10\n")
    with pytest.raises(ResctrlError, match="numa_ext-be-0"):
        GroupWriter(resctrl).release_bandwidth()
    levels = {group.name: group.schemata["MB"][0] for group in resctrl.actual().ours}
    assert levels == {"numa_ext-be-0": 10, "numa_ext-be-1": 100, "numa_ext-be-2": 100}
