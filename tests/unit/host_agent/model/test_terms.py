# SPDX-License-Identifier: Apache-2.0
"""The names of what the agent decides by, and their sentences."""

import pytest

from host_agent.model.terms import SENTENCES, Term, sentence
from placement_traits.reason import Reason


@pytest.mark.parametrize("term", Term)
def test_every_term_has_a_sentence_that_shows_what_was_found(term: Term) -> None:
    text = sentence(Reason(term, "VALUE", "AGAINST", "WHERE"))
    template = SENTENCES[term]
    for name in ("value", "against", "where"):
        assert (name.upper() in text) == (f"{{{name}}}" in template)
    assert "{" not in text
