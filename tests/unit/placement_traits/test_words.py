# SPDX-License-Identifier: Apache-2.0
"""Numbers with their nouns."""

from placement_traits.words import counted


def test_one_is_one_and_all_others_are_several() -> None:
    assert [counted(number, "host") for number in (0, 1, 2)] == ["0 hosts", "1 host", "2 hosts"]
    assert counted(2, "switch", "switches") == "2 switches"
