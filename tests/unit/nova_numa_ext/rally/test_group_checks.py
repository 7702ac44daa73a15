# SPDX-License-Identifier: Apache-2.0
"""Who shares uplinks among groups that a task has placed, from what ``openstack numa group topology`` prints."""

import json

import pytest

from nova_numa_ext.group_topology import CabledServer, as_json
from nova_numa_ext.policy.network.pairs import PlacedGroup
from nova_numa_ext.rally import samples
from nova_numa_ext.rally.group_checks import COLUMNS, SharingFindings, placed
from nova_numa_ext.rally.samples import Topic
from placement_traits.errors import InvalidValueError

LEVELS = ("leaf", "pod")


def group(name: str, *nodes: tuple[str, str]) -> PlacedGroup:
    """A group as the command prints it."""
    servers = [CabledServer(f"{name}-{n}", above) for n, above in enumerate(nodes)]
    return placed(name, json.loads(as_json(servers, LEVELS)), 10.0, 12.5)


ONE = group("one", ("l0", "p0"), ("l1", "p0"))
TWO = group("two", ("l1", "p0"), ("l2", "p1"))
THREE = group("three", ("l3", "p1"), ("l4", "p0"))
SMALL = group("small", ("l1", "p0"), ("l1", "p0"))


def test_a_group_is_where_its_servers_hang() -> None:
    assert (ONE.hosts, ONE.leafs, ONE.pods) == (2, {"l0", "l1"}, {"p0"})
    assert (SMALL.leafs, SMALL.pods) == ({"l1"}, {"p0"})
    flat = placed("flat", [{"server": "a", "leaf": "l0"}], 0.0, 1.0)
    assert (flat.leafs, flat.pods) == ({"l0"}, frozenset())


def test_groups_of_several_leafs_share_and_one_in_a_leaf_does_not() -> None:
    found = SharingFindings.of((ONE, TWO, THREE, SMALL))
    assert found.others == {"one": ["two"], "two": ["one", "three"], "three": ["two"], "small": []}
    assert (found.leaf_pairs, found.pod_pairs) == (1, 1)
    output = {"output": {"additive": [found.chart()]}}
    assert list(samples.of(output, Topic.SHARING)) == [(3, 3)], "one in a leaf uses no uplinks"
    rows = found.rows()
    assert rows[1] == ["two", 2, 2, 2, 2.5, "one, three"]
    assert {len(row) for row in rows} == {len(COLUMNS)}
    assert found.sentence() == (
        "3 of 4 groups share uplinks, with 1.00 others each in the mean; "
        "pairs that share those of a leaf: 1, of a pod: 1"
    )


def test_groups_that_keep_apart_have_no_fault() -> None:
    found = SharingFindings.of((ONE, SMALL))
    assert list(samples.of({"output": {"additive": [found.chart()]}}, Topic.SHARING)) == [(1, 0)]


@pytest.mark.parametrize(
    "rows",
    [[], None, ["server"], [{"server": "a"}], [{"server": "a", "leaf": "l"}, {"server": "b"}]],
)
def test_what_is_no_topology_is_a_sentence(rows: object) -> None:
    with pytest.raises(InvalidValueError, match="topology"):
        placed("g", rows, 0.0, 1.0)
