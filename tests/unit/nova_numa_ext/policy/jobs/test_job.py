# SPDX-License-Identifier: Apache-2.0
"""What a job may be, and what its figures mean."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

import nova_numa_ext
from nova_numa_ext.policy.jobs.job import ActiveJob, Job, Part, Scope, ScopeWait
from nova_numa_ext.policy.jobs.terms import SENTENCES, JobTerm, sentence
from placement_traits.errors import InvalidValueError
from placement_traits.reason import Reason
from tests.support.fleet import be, lc

PART = Part("workers", 4, "flavor", be())
JOB = Job("uuid", "project", (PART,), submitted_at=100.0)


@pytest.mark.parametrize(
    ("change", "sentence_about"),
    [
        ({"parts": ()}, "parts"),
        ({"parts": (PART, PART)}, "each with its own name"),
        ({"priority": 1001}, "an integer from -1000 to 1000"),
        ({"walltime_s": 0.0}, "walltime"),
        ({"max_wait_s": math.nan}, "max_wait"),
    ],
)
def test_a_job_without_meaning_is_refused(change: dict[str, object], sentence_about: str) -> None:
    with pytest.raises(InvalidValueError, match=sentence_about):
        replace(JOB, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"count": 0},
        {"wait_for": ()},
        {"wait_for": (ScopeWait(Scope.FLEET, 10), ScopeWait(Scope.HOST, 20))},
        {"wait_for": (ScopeWait(Scope.HOST, 20), ScopeWait(Scope.FLEET, 10))},
        {"apart": True, "wait_for": (ScopeWait(Scope.HOST),)},
    ],
)
def test_a_part_without_meaning_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidValueError, match="part workers"):
        replace(PART, **change)  # type: ignore[arg-type]


def test_a_narrow_scope_is_waited_for_and_then_a_wider_one_will_do() -> None:
    part = replace(PART, wait_for=(ScopeWait(Scope.HOST, 600), ScopeWait(Scope.FLEET)))
    assert part.scope(599.9).scope is Scope.HOST
    assert part.scope(600.0).scope is Scope.FLEET
    last = replace(PART, wait_for=(ScopeWait(Scope.HOST, 600),))
    assert last.scope(10_000).scope is Scope.HOST


def test_a_job_that_was_stopped_waits_from_its_return_and_keeps_what_it_had_waited() -> None:
    assert JOB.waiting_s(160.0) == 60.0
    assert replace(JOB, queued_at=7300.0, waited_s=60.0).waiting_s(7310.0) == 70.0


def test_a_job_is_latency_critical_by_one_part_and_best_effort_by_all() -> None:
    mixed = replace(JOB, parts=(PART, Part("front", 1, "flavor", lc())))
    assert (JOB.latency_critical, JOB.best_effort) == (False, True)
    assert (mixed.latency_critical, mixed.best_effort) == (True, False)
    assert mixed.servers == 5


def test_places_are_free_at_the_walltime_or_when_a_job_is_ending() -> None:
    assert ActiveJob(JOB, None, 200.0).ends_at(300.0) == math.inf
    limited = replace(JOB, walltime_s=60.0)
    assert ActiveJob(limited, None, 200.0).ends_at(210.0) == 260.0
    assert ActiveJob(limited, None, 200.0).ends_at(300.0) == 300.0
    assert ActiveJob(JOB, None, 200.0, ending_at=290.0).ends_at(300.0) == 300.0
    assert ActiveJob(limited, None, 200.0, ending_at=290.0).ends_at(1000.0) == math.inf


def test_every_term_has_a_sentence() -> None:
    assert set(JobTerm) <= SENTENCES.keys()
    for term in JobTerm:
        text = sentence(Reason(term, "VALUE", "AGAINST", "WHERE"))
        assert text and "{" not in text


def test_every_term_is_a_reason_of_something() -> None:
    package = Path(nova_numa_ext.__file__).parent
    sources = [path.read_text() for path in package.rglob("*.py") if path.name != "terms.py"]
    named = {name for source in sources for name in re.findall(r"JobTerm\.([A-Z_]+)", source)}
    assert {term.name for term in JobTerm} == named
