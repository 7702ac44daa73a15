# SPDX-License-Identifier: Apache-2.0
"""What ``make test`` says of the time that its parts took, and when that is red."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import budget
from tests.budget import Part, Report, Result, run
from tests.support.order import in_order
from tests.support.times import Times, by_folder, far_off, rows

ROOT = Path(__file__).parents[2]
LINT, LAB, STORIES = Part("lint", 60), Part("lab-up", 480), Part("stories", 840, needs="lab-up")


def clock_of(*seconds: float):
    """A clock that is read before and after each part."""
    return itertools.accumulate(s for took in seconds for s in (0.0, took)).__next__


def report(*results: Result, limit_s: int = 2700) -> Report:
    return Report("test", limit_s, results)


def test_each_part_is_made_and_timed_even_after_a_failed_one() -> None:
    made = []
    results = run(
        (LINT, LAB, STORIES), lambda name: made.append(name) or name != "lint", clock_of(70, 200, 3)
    )
    assert made == ["lint", "lab-up", "stories"]
    assert [result.took_s for result in results] == [70, 200, 3]
    assert [result.succeeded for result in results] == [False, True, True]


def test_a_part_whose_need_failed_is_not_made_and_not_successful() -> None:
    made = []
    results = run((LAB, STORIES, LINT), lambda name: made.append(name) or name != "lab-up")
    assert made == ["lab-up", "lint"]
    assert results[1] == Result(STORIES, None, succeeded=False)


def test_the_table_names_what_failed_what_took_too_long_and_what_was_not_run() -> None:
    told = report(
        Result(LINT, 61.0, succeeded=True),
        Result(LAB, 481.0, succeeded=False),
        Result(STORIES, None, succeeded=False),
    )
    assert told.text().splitlines() == [
        "part     budget    took",
        "lint       1:00    1:01  ok, over its budget",
        "lab-up     8:00    8:01  FAILED, over its budget",
        "stories   14:00       -  not run: needs lab-up",
        "all       45:00    9:02",
        "make test: red, not successful: lab-up, stories",
    ]


def test_a_run_is_red_above_its_limit_and_not_for_a_part_above_its_budget() -> None:
    in_time = report(Result(LINT, 2000.0, succeeded=True), Result(LAB, 700.0, succeeded=True))
    assert in_time.faults() == ()
    assert in_time.text().endswith("make test: green")
    late = report(Result(LINT, 2000.0, succeeded=True), Result(LAB, 701.0, succeeded=True))
    assert late.faults() == ("45:01 is over the limit of 45:00",)


@pytest.mark.parametrize("name", ["test", "check"])
def test_the_budgets_fit_into_the_limit_and_name_targets_of_the_makefile(name: str) -> None:
    table = budget.load()[name]
    parts = budget.parts(table)
    assert sum(part.budget_s for part in parts) <= table["limit_s"]
    targets = {line.partition(":")[0] for line in (ROOT / "Makefile").read_text().splitlines()}
    assert {part.name for part in parts} <= targets


@pytest.mark.parametrize(
    ("recipe", "status", "last"),
    [("true", 0, "make check: green"), ("false", 1, "make check: red, not successful: test-unit")],
)
def test_the_command_ends_with_the_verdict_and_its_status(
    tmp_path: Path, recipe: str, status: int, last: str
) -> None:
    (tmp_path / "Makefile").write_text(f"lint:\n\ttrue\ntest-unit:\n\t{recipe}\n")
    words = [sys.executable, "-m", "tests.budget", "check", "make", "-C", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == status, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == last


def test_seconds_are_added_up_by_folder() -> None:
    took = {
        "tests/unit/test_errors.py::test_a": 1.0,
        "tests/unit/lab/test_b.py::test_b[x/y]": 2.0,
        "tests/unit/lab/deeper/test_c.py::test_c": 3.0,
    }
    assert by_folder(took) == {"tests/unit": 1.0, "tests/unit/lab": 5.0}


def test_a_folder_over_its_budget_is_named_and_one_without_is_shown() -> None:
    assert rows(
        {"tests/a": 10.5, "tests/b": 3.0, "tests/c": 2.0}, {"tests/a": 10, "tests/b": 3}
    ) == [
        "folder                          budget    took",
        "tests/a                             10    10.5  over its budget",
        "tests/b                              3     3.0",
        "tests/c                              -     2.0",
    ]


def test_every_folder_with_a_budget_is_there() -> None:
    """A folder that was moved takes its budget along."""
    assert [name for name in budget.load()["folders"] if not (ROOT / name).is_dir()] == []


def test_folders_fit_into_the_part_that_runs_them() -> None:
    """As many of them pass at the same time as there are processes."""
    makefile = (ROOT / "Makefile").read_text()
    (processes,) = re.findall(
        r"-n (\d+) .* tests/unit tests/functional tests/conformance", makefile
    )
    parts = {part.name: part.budget_s for part in budget.parts(budget.load()["test"])}
    ran = ("tests/unit", "tests/functional", "tests/conformance")
    folders = budget.load()["folders"].items()
    added_up = sum(seconds for name, seconds in folders if name.startswith(ran))
    assert added_up <= int(processes) * parts["test-unit"]


def test_what_tests_start_is_compiled_once_whatever_the_environment_says() -> None:
    """A container image often sets it; several hundred processes would each compile the product again."""
    shown = ["make", "-s", "--eval", "shown: ; @echo $${PYTHONDONTWRITEBYTECODE-unset}", "shown"]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    found = subprocess.run(
        shown, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert (found.stdout, found.stderr) == ("unset\n", "")


def test_every_file_that_is_begun_first_is_there() -> None:
    first = budget.load()["begun_first"]
    assert [name for name in first if not (ROOT / name).is_file()] == []
    assert len(set(first)) == len(first)


def test_files_that_take_long_are_begun_first_then_those_with_many_tests() -> None:
    names = ["a.py::one", "b.py::one", "b.py::two[x::y]", "c.py::one", "d.py::one"]
    items = [SimpleNamespace(nodeid=name) for name in names]
    found = [item.nodeid for item in in_order(items, ["d.py", "c.py", "gone.py"])]
    assert found == ["d.py::one", "c.py::one", "b.py::one", "b.py::two[x::y]", "a.py::one"]


def test_a_test_that_was_skipped_is_not_held_against_its_line() -> None:
    times = Times()
    for name, when, skipped in (
        ("ran", "setup", False),
        ("ran", "call", False),
        ("not", "setup", True),
    ):
        times.pytest_runtest_logreport(
            SimpleNamespace(nodeid=name, when=when, duration=2.0, skipped=skipped)
        )
    assert times.of_those_that_ran() == {"ran": 4.0}
    assert dict(times.by_test) == {"ran": 4.0, "not": 2.0}


def test_a_long_test_that_took_longer_or_much_shorter_than_its_line_says_is_told() -> None:
    took = {"long": 61.0, "right": 60.0, "short": 19.0, "near": 20.0, "any": 99.0}
    known = {"long": 60, "right": 60, "short": 60, "near": 60}
    assert far_off(took, known) == [
        "tests/long.toml says 60 s, took 61 s: long",
        "tests/long.toml says 60 s, took 19 s: short",
    ]
