# SPDX-License-Identifier: Apache-2.0
"""What is submitted is what the queue plans, whatever it is, after it was stored."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nova_numa_ext.orchestrator import queued
from nova_numa_ext.orchestrator.store.jobs import Jobs
from nova_numa_ext.orchestrator.store.stored_job import Sizes
from nova_numa_ext.policy.jobs.job import BuildFailure, Job, Scope, ScopeWait
from nova_numa_ext.policy.jobs.states import JobState
from tests.support.jobs_database import new_job, part, stored_job, with_tables


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    return Jobs(with_tables(tmp_path_factory.mktemp("jobs") / "jobs.db"))


SECONDS = st.floats(min_value=1e-3, max_value=1e9)
WAITS = st.one_of(
    st.just((ScopeWait(Scope.FLEET),)),
    SECONDS.map(lambda wait_s: (ScopeWait(Scope.HOST, wait_s), ScopeWait(Scope.FLEET, math.inf))),
    st.just((ScopeWait(Scope.HOST),)),
)
SPECS = st.fixed_dictionaries(
    {"numa_ext:tier": st.just("BE")},
    optional={
        "numa_ext:gpu_policy": st.sampled_from(["topo", "topo_p", "pack"]),
        "numa_ext:min_utility": st.sampled_from(["0.0", "0.25", "1.0"]),
        "pci_passthrough:alias": st.integers(1, 8).map("gpu:{}".format),
    },
)
PARTS = st.lists(
    st.builds(
        dict,
        count=st.integers(1, 1024),
        sizes=st.builds(Sizes, st.integers(1, 512), st.integers(1, 2**22), st.integers(0, 2**20)),
        extra_specs=SPECS,
        wait_for=WAITS,
        image=st.sampled_from(["", "image-1"]),
        networks=st.lists(st.sampled_from("abc"), unique=True).map(tuple),
        on_failure=st.sampled_from(BuildFailure),
    ),
    min_size=1,
    max_size=3,
)
FIELDS = st.fixed_dictionaries(
    {
        "name": st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=30),
        "priority": st.integers(-1000, 1000),
        "walltime_s": st.none() | SECONDS,
        "max_wait_s": st.none() | SECONDS,
        "deadline_at": st.none() | SECONDS,
        "held": st.booleans(),
        "preemptible": st.booleans(),
    }
)


@settings(max_examples=40, deadline=None)
@given(parts=PARTS, fields=FIELDS)
def test_a_job_comes_back_as_it_was_submitted(jobs, parts, fields):
    new = new_job(parts=[part(f"p{number}", **each) for number, each in enumerate(parts)], **fields)
    stored = jobs.create(new)
    assert queued.job(stored) == Job(
        stored.uuid,
        new.project,
        tuple(map(queued.part, new.parts)),
        stored.submitted_at,
        queued_at=stored.submitted_at,
        user=new.user,
        **fields,
    )


def test_a_job_that_ends_without_a_plan_has_no_places():
    ends = stored_job(uuid="0", state=JobState.ENDING, ending_at=1.0, plan=None)
    assert queued.active(ends, now=2.0).plan.places == ()
