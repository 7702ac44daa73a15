# SPDX-License-Identifier: Apache-2.0
"""The table of the check list 003: complete, and every file that it names is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "doc/source/reference/network-blocks.rst"
ROW = re.compile(r"^   \* - (.+)\n((?:     .*\n|       .*\n)+)", re.MULTILINE)
NAMED = re.compile(r"``([\w./]+\.py)``")
LAST = 24


def rows() -> dict[str, list[str]]:
    """Cells of each row but the first, by the numbers that it is about."""
    table = PAGE.read_text(encoding="utf-8").partition("* - F-003")[2]
    return {numbers: cells.split("     - ")[1:] for numbers, cells in ROW.findall(table)}


def numbers(text: str) -> set[int]:
    """The numbers of a row: ``05 to 11``, or ``02, 03``."""
    first, _, last = text.partition(" to ")
    return set(range(int(first), int(last) + 1)) if last else set(map(int, text.split(", ")))


def found(name: str) -> list[Path]:
    """Files that a cell may mean."""
    if name.rpartition("/")[2].startswith("test_"):
        return [
            path for path in (ROOT / "tests").rglob("*.py") if path.as_posix().endswith("/" + name)
        ]
    return [path for path in (ROOT / name, ROOT / "nova_numa_ext" / name) if path.is_file()]


def test_each_number_has_one_row() -> None:
    listed = [number for each in rows() for number in numbers(each)]
    assert len(listed) == len({*listed})
    assert {*range(1, LAST + 1)} <= {*listed}


@pytest.mark.parametrize("row", rows())
def test_every_file_of_a_row_is_there(row: str) -> None:
    what, code, tests = rows()[row]
    if "**not" in what and (code.strip(), tests.strip()) == ("–", "–"):
        return  # the row says that it is not there, and why
    for cell in (code, tests):
        named = NAMED.findall(cell)
        assert named, f"{row}: {cell}"
        for name in named:
            assert found(name), f"{row}: no file {name}"
