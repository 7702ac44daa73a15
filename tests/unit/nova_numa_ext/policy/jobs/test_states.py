# SPDX-License-Identifier: Apache-2.0
"""The table of a job's transitions."""

import pytest

from nova_numa_ext.policy.jobs.states import (
    TRANSITIONS,
    JobState,
    TransitionError,
    check_transition,
)


def reached(state: JobState) -> frozenset[JobState]:
    """Every state that can follow, at any distance."""
    found: frozenset[JobState] = frozenset()
    while (
        more := found | TRANSITIONS[state].union(*(TRANSITIONS[each] for each in found))
    ) != found:
        found = more
    return found


def test_every_state_can_be_reached_and_can_end() -> None:
    assert {JobState.QUEUED} | reached(JobState.QUEUED) == set(JobState) == set(TRANSITIONS)
    ends = {JobState.DONE, JobState.FAILED, JobState.CANCELLED}
    assert {state for state in JobState if state.final} == ends
    for state in set(JobState) - ends:
        assert reached(state) >= ends


def test_a_job_that_has_or_may_have_servers_ends_only_through_ending() -> None:
    before = {state for state in JobState if JobState.CANCELLED in TRANSITIONS[state]}
    assert before == {JobState.QUEUED, JobState.PLANNED, JobState.ENDING}
    for state in (JobState.BUILDING, JobState.RUNNING):
        assert JobState.QUEUED not in TRANSITIONS[state]


def test_active_is_what_has_places() -> None:
    idle = {state for state in JobState if not state.active}
    assert idle == {JobState.QUEUED} | {state for state in JobState if state.final}


def test_a_transition_that_is_not_in_the_table_says_what_is_allowed() -> None:
    check_transition("j", JobState.RUNNING, JobState.ENDING)
    with pytest.raises(TransitionError) as found:
        check_transition("j", JobState.RUNNING, JobState.QUEUED)
    assert str(found.value) == "Job j is running and cannot become queued; allowed: ending."
    with pytest.raises(TransitionError, match="allowed: nothing, it has ended"):
        check_transition("j", JobState.DONE, JobState.QUEUED)
