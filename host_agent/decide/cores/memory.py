# SPDX-License-Identifier: Apache-2.0
"""What the mapping keeps over restarts, as plain JSON types: expectations and the learnt benefit matrix.

Slots are not kept: they are read from the host, which is never disturbed by a restart. Moves in flight, rests and left
nodes are forgotten; the worst that follows is one move more.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from host_agent.decide.cores.mapping import Expectation, State
from placement_traits.errors import InvalidValueError
from placement_traits.interference import BENEFIT_MAX, BENEFIT_MIN, IsolationLevel
from placement_traits.names import InterferenceClass


def to_plain(state: State) -> dict[str, Any]:
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


def from_plain(data: Mapping[str, Any], where: str = "mapping memory") -> State:
    """Return a fresh state with what was kept.

    :param where: name of the file, the start of the path in an error
    :raises InvalidValueError: naming the path of the first wrong value
    """
    benefit = {
        domain: {
            kind: _number(data, f"{where}.benefit", domain.value, kind.value)
            for kind in InterferenceClass
        }
        for domain in IsolationLevel
    }
    for domain, row in benefit.items():
        for kind, value in row.items():
            if not BENEFIT_MIN <= value <= BENEFIT_MAX:
                place = f"{where}.benefit.{domain}.{kind}"
                raise InvalidValueError(place, value, f"{BENEFIT_MIN:g} to {BENEFIT_MAX:g}")
    expected = data.get("expectations", {})
    if not isinstance(expected, Mapping):
        raise InvalidValueError(f"{where}.expectations", expected, "an object")
    known = {}
    for name, value in expected.items():
        if not isinstance(value, int | float) or value < 0:
            raise InvalidValueError(f"{where}.expectations.{name}", value, "a number >= 0")
        known[str(name)] = Expectation(float(value))
    return replace(State(), benefit=benefit, expectations=known)


def _number(data: Mapping[str, Any], where: str, domain: str, kind: str) -> float:
    try:
        value = data["benefit"][domain][kind]
    except (KeyError, TypeError):
        value = None
    if not isinstance(value, int | float):
        raise InvalidValueError(f"{where}.{domain}.{kind}", value, "a number")
    return float(value)
