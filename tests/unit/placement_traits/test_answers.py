# SPDX-License-Identifier: Apache-2.0
"""Answers of Placement have its form, or name the member that has not."""

import json

import pytest

from placement_traits.answers import malformed

ROW = {"uuid": "a", "name": "h1", "generation": 1, "root_provider_uuid": "a"}
INVENTORY = {
    **dict.fromkeys(("total", "reserved", "min_unit", "max_unit", "step_size"), 1),
    "allocation_ratio": 1.0,
}
RIGHT = {
    "resource_providers": [ROW, {**ROW, "links": []}],
    "traits": ["CUSTOM_A"],
    "resource_provider_generation": 0,
    "inventories": {"VCPU": INVENTORY, "PCPU": {**INVENTORY, "allocation_ratio": 1}},
    "allocations": {"a": {"resources": {"VCPU": 1}}, "b": {"resources": {}}},
    "usages": {"VCPU": 0},
    "resource_classes": [{"name": "VCPU"}],
    "of": ["no", "interest"],
}


def test_what_placement_answers_is_right() -> None:
    assert malformed(RIGHT) == ""
    assert malformed({}) == ""
    used = {
        "usages": {"INSTANCE": {"VCPU": 3, "consumer_count": 3}, "unknown": {"consumer_count": 1}}
    }
    assert malformed(used, of_project=True) == ""
    assert malformed(used) == "usages" == malformed({"usages": {"VCPU": 3}}, of_project=True)


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("resource_providers", None),
        ("resource_providers", {}),
        ("resource_providers", [ROW, 7]),
        ("resource_providers", [ROW, []]),
        ("resource_providers", [{**ROW, "uuid": 7}]),
        ("resource_providers", [{**ROW, "generation": "1"}]),
        ("resource_providers", [ROW, {"uuid": "a"}]),
        ("traits", "CUSTOM_A"),
        ("traits", [["CUSTOM_A"]]),
        ("resource_provider_generation", True),
        ("resource_provider_generation", None),
        ("inventories", []),
        ("inventories", {"VCPU": 1}),
        ("inventories", {"VCPU": {**INVENTORY, "total": "8"}}),
        ("inventories", {"VCPU": {**INVENTORY, "allocation_ratio": None}}),
        ("allocations", {"a": {}}),
        ("allocations", {"a": {"resources": [1]}}),
        ("allocations", {"a": {"resources": {"VCPU": 1.5}}}),
        ("usages", {"VCPU": None}),
        ("resource_classes", [None]),
    ],
    ids=json.dumps,
)
def test_a_wrong_inner_part_names_its_member(member: str, value: object) -> None:
    assert malformed({**RIGHT, member: value}) == member
