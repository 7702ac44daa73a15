# SPDX-License-Identifier: Apache-2.0
"""The page quotes what the product says, and misses no reason for which a host is refused."""

import re
from pathlib import Path

import pytest

from host_agent.report.metrics import METRICS as AGENT_METRICS
from nova_numa_ext.metrics import METRICS as SCHEDULER_METRICS
from nova_numa_ext.policy.terms import SENTENCES, Term
from tests.support.messages import is_said

PAGE = (Path(__file__).parents[2] / "doc/source/operator/troubleshooting.rst").read_text()
QUOTES = re.findall(r"^``([^`]+)``\n    \S", PAGE, re.M)
METRICS = {spec.name for spec in (*AGENT_METRICS.values(), *SCHEDULER_METRICS.values())}


@pytest.mark.parametrize("quote", QUOTES)
def test_a_sentence_is_one_of_the_products_or_a_metric(quote: str) -> None:
    assert quote in METRICS if quote.startswith("numa_ext_") else is_said(quote)


@pytest.mark.parametrize("term", sorted(SENTENCES.keys() - {Term.FLAVOR}))
def test_every_reason_for_a_refusal_is_explained(term: Term) -> None:
    assert re.sub(r"\{\w+\}", "…", SENTENCES[term]) in QUOTES


def test_what_is_not_said_is_found() -> None:
    assert not is_said("no L3 cache allocation: feature … is …")
    assert not is_said(
        "numa_ext:tier=BE needs resources:CUSTOM_RDT_CLOS=1, its own class of service."
    )


def test_a_symptom_has_a_cause_or_a_command() -> None:
    assert len(QUOTES) == len(set(QUOTES)) > 60
