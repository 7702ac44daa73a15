# SPDX-License-Identifier: Apache-2.0
"""The mapping's part of what NUMA balancing keeps over restarts: expectations and the learnt benefit matrix.

Slots are not kept: they are read from the host, which is never disturbed by a restart. Moves in flight, rests and left
nodes are forgotten; the worst that follows is one move more.
"""

from dataclasses import replace
from typing import Any

from host_agent.decide.cores.mapping_state import Expectation, MappingState
from placement_traits.interference import BENEFIT_MAX, BENEFIT_MIN, IsolationLevel
from placement_traits.names import InterferenceClass
from placement_traits.plain import Value


def to_plain(state: MappingState) -> dict[str, Any]:
    """Return what is kept of a state, for a file."""
    return {
        "benefit": {
            domain.value: {kind.value: state.benefit[domain][kind] for kind in InterferenceClass}
            for domain in IsolationLevel
        },
        "expectations": {
            name: known.value
            for name, known in sorted(state.expectations.items())
            if known.value is not None
        },
    }


def from_plain(found: Value) -> MappingState:
    """Return a fresh state with what was kept.

    :raises InvalidValueError: naming the path of the first wrong value
    """
    rows = found.member("benefit")
    benefit = {
        domain: {
            kind: rows.member(domain).member(kind).number(BENEFIT_MIN, BENEFIT_MAX)
            for kind in InterferenceClass
        }
        for domain in IsolationLevel
    }
    expected = found.member("expectations").members()
    known = {name: Expectation(value.number(0.0)) for name, value in expected.items()}
    return replace(MappingState(), benefit=benefit, expectations=known)
