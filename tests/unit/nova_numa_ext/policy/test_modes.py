# SPDX-License-Identifier: Apache-2.0
"""Which mode a host has: the option's, or the one of its aggregates that does the least."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_numa_ext.policy.modes import Mode, known, of_host

OPTIONS = st.sampled_from(Mode)


@given(OPTIONS)
def test_the_option_counts_where_no_aggregate_says_anything(option):
    assert of_host(option, ()) is option


@given(OPTIONS, st.lists(OPTIONS, min_size=1))
def test_of_several_aggregates_the_mode_that_does_the_least_counts(option, said):
    least = min(said, key=list(Mode).index)
    assert of_host(option, said) is least
    assert of_host(option, [str(mode) for mode in said]) is least


@given(OPTIONS)
def test_a_slip_in_the_metadata_changes_nothing(option):
    assert not known("Observe")
    assert of_host(option, ["Observe", ""]) is option
    assert of_host(option, ["Observe", "rank"]) is Mode.RANK


@pytest.mark.parametrize(
    ("mode", "acts", "refuses"),
    [(Mode.OBSERVE, False, False), (Mode.RANK, True, False), (Mode.ENFORCE, True, True)],
)
def test_each_mode_does_more_than_the_one_before(mode, acts, refuses):
    assert (mode.acts, mode.refuses) == (acts, refuses)
