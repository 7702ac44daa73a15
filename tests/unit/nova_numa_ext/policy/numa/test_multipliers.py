# SPDX-License-Identifier: Apache-2.0
"""What a term weighs on a host: as nova says, which is asked here."""

from types import SimpleNamespace

import pytest
from nova.scheduler import utils

from nova_numa_ext.policy.numa.multipliers import Multipliers, aggregate_key
from nova_numa_ext.policy.numa.score import SCORED
from nova_numa_ext.policy.terms import Term


@pytest.mark.parametrize(
    ("said", "weight"),
    [
        ([], 0.5),
        (["2"], 2.0),
        (["3", "0.25", None], 0.25),
        (["2", "much"], 0.5),
        (["0"], 0.0),
    ],
)
def test_aggregates_of_a_host_replace_the_option_as_in_nova(said, weight):
    key = aggregate_key(Term.WAYS)
    metadata = [{} if value is None else {key: value} for value in said]
    options = {term: 0.5 if term is Term.WAYS else 1.0 for term in SCORED}
    found = Multipliers(options, {"root": metadata})
    assert found.of("root") == [weight if term is Term.WAYS else 1.0 for term in SCORED]
    assert found.of("another") == [options[term] for term in SCORED]
    state = SimpleNamespace(aggregates=[SimpleNamespace(metadata=each) for each in metadata])
    assert utils.get_weight_multiplier(state, key, options[Term.WAYS]) == weight


def test_a_negative_weight_is_none():
    """A term that counts against a host would make the score leave its bounds."""
    options = dict.fromkeys(SCORED, 1.0)
    found = Multipliers(options, {"root": [{aggregate_key(Term.GPU): "-1"}]})
    assert found.of("root")[SCORED.index(Term.GPU)] == 0.0
