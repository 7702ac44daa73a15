# SPDX-License-Identifier: Apache-2.0
"""What the mapping learnt survives a restart, and a damaged file says where it is damaged."""

import json
from dataclasses import replace

import pytest

from host_agent.control.mapping_store import from_plain, to_plain
from host_agent.decide.cores.mapping_state import Expectation, MappingState
from placement_traits.errors import InvalidValueError
from placement_traits.interference import INITIAL_BENEFIT, IsolationLevel, updated_benefit
from placement_traits.names import InterferenceClass
from placement_traits.plain import Value

RABBIT = InterferenceClass.RABBIT


def learnt() -> MappingState:
    return replace(
        MappingState(),
        benefit=updated_benefit(INITIAL_BENEFIT, IsolationLevel.NODE, RABBIT, 9.0),
        expectations={"s1": Expectation(1.25, (1.2,), ()), "s2": Expectation()},
    )


def test_f_001_10_benefits_and_expectations_survive_a_restart() -> None:
    back = from_plain(Value(json.loads(json.dumps(to_plain(learnt()))), "kept.json"))
    assert back.benefit[IsolationLevel.NODE][RABBIT] == pytest.approx(0.8 * 5 + 0.2 * 9)
    assert back.benefit[IsolationLevel.SOCKET] == INITIAL_BENEFIT[IsolationLevel.SOCKET]
    assert back.expectations == {"s1": Expectation(1.25)}
    assert back.slots == {}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("benefit", "node", "rabbit"), 99),
        (("benefit", "node", "rabbit"), "high"),
        (("expectations", "s1"), -1),
    ],
)
def test_a_wrong_value_is_named_by_its_path(path: tuple[str, ...], value: object) -> None:
    data = to_plain(learnt())
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(InvalidValueError, match=r"kept\.json\." + r"\.".join(path)):
        from_plain(Value(data, "kept.json"))
