# SPDX-License-Identifier: Apache-2.0
"""Lanes with finite buffers (F-003-35, 36): signs of the thesis' experiments, as far as they come out of the model.

What applications send was chosen before the first run and never changed; that four hosts send into a channel at once,
the thesis' 4:1, was not there in the first run, in which no buffer was ever full.
"""

import pytest

from nova_numa_ext.simulator.network.buffers import (
    BUFFER,
    BurstyApplication,
    LaneLayout,
    contention,
    round_slots,
)
from placement_traits.errors import InvalidValueError

FT = BurstyApplication(64, 64, outlet=2)
CG = BurstyApplication(16, 32)
BT = BurstyApplication(16, 96)
MG = BurstyApplication(4, 60)
SLOTS = 6_000

MIXES = {
    "FT+BT": (FT, BT),
    "FT+CG": (FT, CG),
    "FT+FT": (FT, FT),
    "FT+CG+BT": (FT, CG, BT),
    "FT+CG+BT+MG": (FT, CG, BT, MG),
}


def lost(mix: tuple[BurstyApplication, ...], *lanes: int, **more: object) -> float:
    return contention(mix, LaneLayout(lanes, **more), SLOTS)  # type: ignore[arg-type]


def own(mix: tuple[BurstyApplication, ...], **more: object) -> float:
    return lost(mix, *range(len(mix)), **more)


@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)
def test_lanes_of_their_own_lower_what_is_lost_with_the_same_buffer_in_all(
    mix: tuple[BurstyApplication, ...],
) -> None:
    assert own(mix) < lost(mix, *[0] * len(mix))


def test_a_smaller_buffer_can_cost_more_than_a_lane_gains() -> None:
    """CG and BT have free outlets, so nobody waits for the other one, and only the buffers get smaller."""
    mix = (CG, BT)
    assert own(mix) > lost(mix, 0, 0)
    whole = LaneLayout((0, 1), buffer=2 * BUFFER)
    halves, one = LaneLayout((0, 1)), LaneLayout((0, 0))
    of_whole, of_halves, of_one = (round_slots(mix, each, SLOTS) for each in (whole, halves, one))
    assert of_whole[0] == pytest.approx(of_one[0], rel=0.01), "it is not the lane"
    assert of_halves[0] > 1.1 * of_one[0], "it is its buffer"


def test_of_three_in_two_lanes_the_most_demanding_is_best_alone() -> None:
    alone = {
        which: lost((FT, CG, BT), *lanes)
        for which, lanes in (("FT", (0, 1, 1)), ("CG", (0, 1, 0)), ("BT", (0, 0, 1)))
    }
    assert min(alone, key=alone.__getitem__) == "FT"
    assert max(alone, key=alone.__getitem__) == "BT"


def test_of_three_with_small_buffers_weights_inverse_to_demand_gain_nothing() -> None:
    """F-003-33 says otherwise of the thesis' traces: here 1:2:4 loses more than equal weights and the reverse."""
    mix = (FT, CG, BT)
    equal, inverse, reverse = (own(mix, weights=each) for each in ((), (1, 2, 4), (4, 2, 1)))
    assert equal <= reverse < inverse


def test_an_application_alone_takes_what_can_be_reckoned() -> None:
    assert round_slots([BurstyApplication(4, 5)], LaneLayout((0,)), SLOTS) == [
        pytest.approx(6.0, abs=0.01)
    ], "a slot of sending, then computing while packets arrive"
    assert round_slots([BurstyApplication(64, 0, outlet=3)], LaneLayout((0,)), SLOTS) == [
        pytest.approx(3 * 64 - 2, rel=0.02)
    ], (
        "its outlet is what it waits for, and the next burst begins in the slot in which the last packet arrives"
    )


def test_nobody_loses_beside_one_that_only_computes() -> None:
    assert lost((CG, BurstyApplication(1, SLOTS)), 0, 1) == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize(
    ("lanes", "more"), [((1,), {}), ((0, 1), {"weights": (1,)}), ((0, 1), {"buffer": 1})]
)
def test_layouts_without_a_meaning_are_refused(
    lanes: tuple[int, ...], more: dict[str, object]
) -> None:
    with pytest.raises(InvalidValueError):
        LaneLayout(lanes, **more)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="applications"):
        round_slots([CG], LaneLayout((0, 1)))
