# SPDX-License-Identifier: Apache-2.0
"""Steps run as soon as they can, never before what they need."""

import graphlib
import threading

import pytest
from numa_lab.errors import LabError
from numa_lab.graph import Task, run


def test_a_step_runs_after_all_that_it_needs() -> None:
    done: list[str] = []
    tasks = {
        "roof": Task(lambda: done.append("roof"), ("walls",)),
        "walls": Task(lambda: done.append("walls"), ("ground", "bricks")),
        "ground": Task(lambda: done.append("ground")),
        "bricks": Task(lambda: done.append("bricks")),
    }

    run(tasks)

    assert done[2:] == ["walls", "roof"]
    assert set(done[:2]) == {"ground", "bricks"}


def test_independent_steps_run_at_the_same_time() -> None:
    meeting = threading.Barrier(2, timeout=20)

    run(
        {"one": Task(lambda: meeting.wait() and None), "two": Task(lambda: meeting.wait() and None)}
    )


def test_after_a_failure_nothing_new_begins_and_the_first_error_is_told() -> None:
    done: list[str] = []

    def fail() -> None:
        raise LabError("the ground is soft")

    tasks = {"ground": Task(fail), "walls": Task(lambda: done.append("walls"), ("ground",))}

    with pytest.raises(LabError, match="the ground is soft"):
        run(tasks)
    assert done == []


def test_steps_that_wait_for_each_other_are_refused() -> None:
    def nothing() -> None:
        """Do nothing."""

    with pytest.raises(graphlib.CycleError):
        run({"hen": Task(nothing, ("egg",)), "egg": Task(nothing, ("hen",))})
