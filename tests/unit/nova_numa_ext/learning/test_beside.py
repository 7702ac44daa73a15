# SPDX-License-Identifier: Apache-2.0
"""Models that are fitted in a process of their own; what fits is of numpy alone."""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from nova_numa_ext.learning.beside import ModelsBeside
from placement_traits.errors import CapabilityMissingError, ServiceUnavailableError
from tests.support.elastic import SimpleModels

POINTS = np.array([[1.0, 0.5, 0.0], [2.0, 0.5, 0.0], [8.0, 1.5, 0.0], [9.0, 1.5, 0.0]])
LABELS = np.array([1, 1, -1, -1])

FITS = """
from nova_numa_ext.learning import models
from tests.support.elastic import SimpleModels
models.check_installed = lambda: None
models.Models = lambda pool: SimpleModels()
"""
SLOW = """
SimpleModels.predictions = lambda self, history, leads: __import__("time").sleep(60)
"""
DIES = """
SimpleModels.predictions = lambda self, history, leads: __import__("os")._exit(3)
"""
FAILS = """
SimpleModels.predictions = lambda self, history, leads: 1 / 0
"""
MISSING = """
import sys
sys.modules["sklearn"] = None
"""


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Start processes whose models a test chooses."""
    made = []

    def start(text: str = FITS, timeout_s: float = 30.0) -> ModelsBeside:
        script = tmp_path / "python"
        program = (
            f"{text}\nimport sys\nfrom nova_numa_ext.learning import worker\n"
            "sys.exit(worker.main(['68'], sys.stdin, sys.stdout))"
        )
        (tmp_path / "program.py").write_text(program)
        script.write_text(f"#!/bin/sh\nexec {sys.executable} {tmp_path}/program.py\n")
        script.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(script))
        made.append(ModelsBeside(68, timeout_s))
        return made[-1]

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[4]))
    yield start
    for each in made:
        each.close()


def test_what_it_says_is_what_models_say_in_this_process(beside) -> None:
    found, here = beside(), SimpleModels()
    assert found.predictors == here.predictors
    samples = [(POINTS, LABELS), (POINTS[:2], LABELS[:2]), (POINTS[:0], LABELS[:0])]
    assert found.planes(samples) == here.planes(samples)
    assert found.planes(samples)[1:] == [None, None]
    assert found.predictions((1.0, 1 / 3), (1, 3)) == [[1 / 3, 1 / 3]]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [(SLOW, "did not answer within 3 s"), (DIES, "status 3"), (FAILS, "ZeroDivisionError")],
)
def test_a_fit_that_hangs_or_dies_is_an_error_and_the_next_one_is_asked_of_a_new_process(
    beside, text: str, sentence: str
) -> None:
    found = beside(FITS + text, timeout_s=3.0)
    first = found.predictors and found._process.pid
    with pytest.raises(ServiceUnavailableError, match=sentence):
        found.predictions((1.0,), (1,))
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    assert found.planes([(POINTS, LABELS)])[0] is not None
    assert found._process.pid != first


def test_a_process_that_was_killed_is_an_error(beside) -> None:
    found = beside()
    assert found.predictors
    os.kill(found._process.pid, signal.SIGKILL)
    time.sleep(0.2)
    with pytest.raises(ServiceUnavailableError, match="process that fits models"):
        found.predictions((1.0,), (1,))


def test_a_process_that_reads_no_request_is_ended_in_time(beside) -> None:
    found = beside()
    first = found.predictors and found._process.pid
    found._timeout_s = 0.5
    os.kill(first, signal.SIGSTOP)
    more_than_a_pipe_holds = [0.1] * 100_000
    with pytest.raises(ServiceUnavailableError, match=r"did not answer within 0\.5 s"):
        found.predictions(more_than_a_pipe_holds, (1,))
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


def test_what_is_asked_at_length_is_answered(beside) -> None:
    history = [0.1] * 100_000
    assert beside().predictions(history, (1,)) == SimpleModels().predictions(history, (1,))


def test_a_library_that_is_missing_is_named(beside) -> None:
    found = beside(MISSING)
    with pytest.raises(CapabilityMissingError, match=r"install nova-numa-ext\[elastic\]"):
        assert found.predictors
