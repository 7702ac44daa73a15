# SPDX-License-Identifier: Apache-2.0
"""The table of features of remote GPUs has each one once, and names modules and tests that are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "doc/source/reference/remote-gpu-decisions.rst"
CODE = ("policy/remote_gpu", "simulator/remote_gpu", "flow")
MOVES = (61, 62, 64, 70, 71, 72)
EXPECTED = [
    *(f"F-000-{number}" for number in range(24, 40)),
    *(f"F-002-{number:02}" for number in (*range(1, 35), *MOVES, *range(80, 90))),
]


def rows() -> dict[str, tuple[str, str]]:
    """Return features as they are written -> code and test."""
    text = PAGE.read_text().split("Where each feature is\n", 1)[1]
    lines = text.split("\n")
    (rule, *_) = (line for line in lines if re.fullmatch(r"=+ =+ =+", line))
    starts = [match.start() for match in re.finditer(r"=+", rule)]
    inside = text.split(rule)[2].strip("\n").split("\n")
    found: dict[str, tuple[str, str]] = {}
    last = ""
    for line in inside:
        feature, code, test = (
            line[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)
        )
        last = feature or last
        before = found.get(last, ("", ""))
        found[last] = (f"{before[0]} {code}".strip(), f"{before[1]} {test}".strip())
    return found


ROWS = rows()


def features(written: str) -> list[str]:
    """Return the features of a row: ``F-000-24``, ``F-002-09, 10`` or ``F-002-01…07``."""
    group, numbers = written[:6], written[6:]
    found = []
    for each in numbers.split(", "):
        first, _, last = each.partition("…")
        found += [f"{group}{number:02}" for number in range(int(first), int(last or first) + 1)]
    return found


def test_each_feature_has_one_row() -> None:
    assert sorted(each for row in ROWS for each in features(row)) == sorted(EXPECTED)


@pytest.mark.parametrize("row", ROWS)
def test_what_a_row_names_is_there(row: str) -> None:
    """Modules by their names, tests by their files; without code, the row says why."""
    code, test = ROWS[row]
    named = set(re.findall(r"``([\w/]+)``", code))
    for name in named:
        places = [ROOT / name, *(ROOT / "nova_numa_ext" / each / f"{name}.py" for each in CODE)]
        places.append(ROOT / "nova_numa_ext" / f"{name}.py")
        assert any(place.exists() for place in places), name
    assert named or "elsewhere" in code or code in {"the same"} or code.startswith("none:")
    for name in re.findall(r"``(tests/[\w/]+|test_\w+)``", test):
        whole = ROOT / f"{name}.py"
        unit = [ROOT / "tests/unit/nova_numa_ext" / each / f"{name}.py" for each in CODE]
        assert any(place.exists() for place in (whole, *unit)), name
    for name in re.findall(r"``make bench-(\w+)", test):
        assert (ROOT / f"benchmarks/bench_{name}.py").exists(), name
    assert "``" in test or code.startswith("none:")


OF_TRANSPORTS = [f"F-002-{number}" for number in (*range(40, 55), *range(60, 76), *range(90, 96))]
OPEN = (
    "*not there*",
    "*not shown*",
    "*not measured*",
    "*in part*",
    "*hardware only*",
    "modelled",
)


def rows_of_transports() -> dict[str, str]:
    """Return features of the other page as they are written -> where each is, and its test, or what is open."""
    text = (PAGE.parent / "remote-gpus.rst").read_text()
    (table,) = re.findall(r"^=+ =+\nfeature  .*\n=+ =+\n((?:.+\n)+?)=+ =+$", text, re.M)
    joined = re.sub(r"\n {14}", " ", table)
    return {line[:13].strip(): line[14:] for line in joined.splitlines()}


def test_each_feature_of_transports_has_one_row_with_its_test_or_what_is_open() -> None:
    found = rows_of_transports()
    assert sorted(each for row in found for each in features(row)) == OF_TRANSPORTS
    tests = {file.stem for file in (ROOT / "tests").rglob("test_*.py")}
    for row, text in found.items():
        named = set(re.findall(r"``(test_\w+)``", text))
        assert named <= tests, row
        assert named or "``make bench-" in text or any(each in text for each in OPEN), row
