# SPDX-License-Identifier: Apache-2.0
"""Error sentences stay short, whatever was given."""

from typing import Any

import pytest

from placement_traits.errors import InvalidValueError


def deep() -> list[Any]:
    found: list[Any] = []
    for _ in range(100_000):
        found = [found]
    return found


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("x" * 10_000_000, "'xxx"),
        (b"x" * 10_000_000, "b'xxx"),
        (10**5000, "a value of type int"),
        (deep(), "[[[[...]]]] "),
        (["x" * 1000] * 10, "['xxx"),
    ],
    ids=["text", "bytes", "number", "nesting", "list"],
)
def test_a_long_value_is_shown_by_its_beginning(value: object, said: str) -> None:
    sentence = str(InvalidValueError("file.key", value, "something short"))
    assert sentence.startswith(f"file.key: {said}")
    assert sentence.endswith(" is not allowed; allowed: something short")
    assert len(sentence) < 300


def test_a_long_place_and_a_long_answer_are_cut() -> None:
    assert len(str(InvalidValueError("k" * 10**6, 1, "or ".join(map(str, range(10**6)))))) < 2500


def test_nothing_in_a_sentence_ends_its_line_or_moves_the_cursor() -> None:
    odd = "a\r\n\x1b[2J\u2028\u202e\ud800\x85é"
    sentence = str(InvalidValueError(odd, odd, odd))
    assert sentence.isprintable()
    assert r"a\r\n\x1b[2J\u2028\u202e\ud800\x85é" in sentence


def test_a_short_value_is_shown_as_it_is() -> None:
    sentence = str(InvalidValueError("CPU", 7, "an online CPU of [0, 1]"))
    assert sentence == "CPU: 7 is not allowed; allowed: an online CPU of [0, 1]"
