# SPDX-License-Identifier: Apache-2.0
"""What people and CI logs see."""

import io
import json
from pathlib import Path

import pytest
from numa_lab import terminal
from numa_lab.errors import LabError
from numa_lab.process import wait_for
from numa_lab.terminal import Progress, last_lines, report_failure


def test_a_plain_log_names_a_step_when_it_begins_and_when_it_ends() -> None:
    stream = io.StringIO()
    progress = Progress(stream)

    with progress.step("building the ship"):
        begun = stream.getvalue()
    progress.close()

    assert "building the ship" in begun
    assert "ok     building the ship" in stream.getvalue()
    assert "\033" not in stream.getvalue(), "no control characters in a file"


def test_times_of_good_steps_are_expected_next_time_and_failed_ones_forgotten(
    tmp_path: Path,
) -> None:
    timings = tmp_path / "timings.json"
    timings.write_text(json.dumps({"launch": 120.0}))
    stream = io.StringIO()
    progress = Progress(stream, timings)

    with progress.step("launch"):
        pass
    with pytest.raises(LabError), progress.step("landing"):
        raise LabError("no moon")
    progress.close()

    assert "launch (usually 120 s)" in stream.getvalue()
    known = json.loads(timings.read_text())
    assert known["launch"] < 120.0
    assert "landing" not in known


@pytest.mark.parametrize("text", ["", "not json", "[1, 2]", '{"a": "b"}'])
def test_an_unreadable_file_of_times_only_means_that_none_are_known(
    tmp_path: Path, text: str
) -> None:
    timings = tmp_path / "timings.json"
    timings.write_text(text)
    stream = io.StringIO()

    with Progress(stream, timings).step("anything"):
        pass

    assert "usually" not in stream.getvalue()


def test_a_long_step_is_named_again_and_again_in_a_plain_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Minutes of silence look like a hang."""
    monkeypatch.setattr(terminal, "_REMIND_S", 0.01)
    stream = io.StringIO()
    progress = Progress(stream)

    with progress.step("waiting for nova to see hypervisor h1"):
        wait_for(
            "the step is named twice more",
            lambda: stream.getvalue().count("still: waiting for nova to see hypervisor h1 ") > 1,
            30,
        )
    progress.close()


@pytest.mark.parametrize(
    ("usual_s", "shown"), [(0.0001, " 0 s (usually 0)"), (60.0, " 0/60 s")], ids=["late", "in-time"]
)
def test_a_step_that_takes_longer_than_usual_is_said_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, usual_s: float, shown: str
) -> None:
    monkeypatch.setattr(terminal, "_REMIND_S", 0.01)
    timings = tmp_path / "timings.json"
    timings.write_text(json.dumps({"launch": usual_s}))
    stream = io.StringIO()
    progress = Progress(stream, timings)
    with progress.step("launch"):
        wait_for("it is named again", lambda: f"still: launch{shown}" in stream.getvalue(), 30)
    progress.close()


def test_parts_that_run_side_by_side_keep_their_names() -> None:
    stream = io.StringIO()
    progress = Progress(stream)

    with progress.part("h1").step("booting"), progress.part("h2").step("booting"):
        pass

    assert "ok     h1: booting" in stream.getvalue()
    assert "ok     h2: booting" in stream.getvalue()


def test_an_error_without_a_log_takes_that_of_its_step(tmp_path: Path) -> None:
    log = tmp_path / "step.log"

    with pytest.raises(LabError) as caught, Progress(io.StringIO()).step("x", log):
        raise LabError("broken")

    assert caught.value.log == log


def test_a_failure_shows_the_end_of_the_log_and_the_command_to_retry(tmp_path: Path) -> None:
    log = tmp_path / "thing.log"
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    stream = io.StringIO()

    report_failure(LabError("thing failed", log), "devstack/lab/lab up", stream)

    said = stream.getvalue()
    assert "error: thing failed" in said
    assert "| line 80\n" in said
    assert "| line 99\n" in said
    assert "line 79" not in said
    assert said.rstrip().endswith("to try again: devstack/lab/lab up")


def test_a_log_that_is_not_there_has_no_lines(tmp_path: Path) -> None:
    assert last_lines(tmp_path / "nothing.log") == []
