# SPDX-License-Identifier: Apache-2.0
"""Where the ways of one L3 domain go."""

import pytest

from host_agent.decide.partitions.layout import L3Layout, Line, lay_out, steps


def test_of_masks_that_other_software_made_overlap_one_stays() -> None:
    found = lay_out(Line(ways=8, min_bits=1), {"a": 2, "b": 2}, {"a": 0b0011, "b": 0b0110})

    assert found == L3Layout({"a": 0b0011, "b": 0b1100}, 0b11110000)


@pytest.mark.parametrize(
    "line",
    [
        Line(ways=8, min_bits=1, foreign=0b0011),
        Line(ways=8, min_bits=1, foreign=0b0011, locked=0b0011),
        Line(ways=8, min_bits=1, shareable=0b10000011),
    ],
    ids=["foreign", "exclusive", "shareable"],
)
def test_a_mask_that_is_where_it_may_not_be_moves(line: Line) -> None:
    found = lay_out(line, {"a": 2}, {"a": 0b0011})

    assert found is not None
    assert found.masks["a"] == 0b1100


def test_two_that_stand_in_each_others_way_are_not_swapped() -> None:
    """The only layout wants each where the other is, and there is no third place: one would lose ways meanwhile."""
    # 0-2 and 4-5 are left, and 7, which is shared.
    line = Line(ways=8, min_bits=1, locked=0b01001000)
    amounts, current = {"a": 3, "b": 2}, {"a": 0b00110000, "b": 0b00000011}

    assert lay_out(line, amounts, {}) == L3Layout({"a": 0b00000111, "b": 0b00110000}, 0b10000000)
    assert steps(current, {"a": 0b00000111, "b": 0b00110000}) is None
    assert lay_out(line, amounts, current) is None


@pytest.mark.parametrize(
    ("line", "anchor"),
    [
        (Line(ways=8, min_bits=2), 0b11000000),
        (Line(ways=8, min_bits=2, shareable=0b00010000), 0b00011000),
        (Line(ways=8, min_bits=2, locked=0b01110000), 0b00001100),
        (Line(ways=8, min_bits=2, fenced=0b01110000), 0b00001100),
        (Line(ways=8, min_bits=2, shareable=0b10000000, locked=0b01110000), 0b00001100),
        (Line(ways=8, min_bits=1, locked=0b01110000), 0b10000000),
        (Line(ways=4, min_bits=2, locked=0b0110), 0b1000),
    ],
)
def test_what_is_always_shared_is_as_wide_as_the_narrowest_mask(line: Line, anchor: int) -> None:
    assert line.anchor == anchor


def test_no_layout_leaves_less_to_share_than_the_narrowest_mask() -> None:
    """One way is left on either side of a closed foreign group: the kernel takes no mask of one way there."""
    line = Line(ways=4, min_bits=2, locked=0b0110)
    assert lay_out(line, {"a": 1}, {}) is None
    assert lay_out(Line(ways=4, min_bits=1, locked=0b0110), {"a": 1}, {}) is not None
