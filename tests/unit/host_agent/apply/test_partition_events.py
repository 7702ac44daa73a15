# SPDX-License-Identifier: Apache-2.0
"""Who shares a class of service is reported when it begins and ends."""

from host_agent.apply.partition_events import (
    ClassChange,
    Classes,
    Sharing,
    beyond_levels,
    class_changes,
    shared_classes,
)
from host_agent.model.partition import PartitionPlace, PartitionRequest, Write, WriteKind
from placement_traits.names import Tier


def classes(**members: str) -> Classes:
    """Class -> letters of its servers."""
    requests = [PartitionRequest(u, Tier.BE, (0,)) for text in members.values() for u in text]
    places = [
        PartitionPlace(uuid, group, "", False, (), 0, "")
        for group, text in members.items()
        for uuid in text
    ]
    critical = PartitionRequest("L", Tier.LC, (0,))
    return shared_classes(
        [*requests, critical], [*places, PartitionPlace("L", "x", "", True, (), 0, "")]
    )


def test_only_best_effort_servers_that_share_count() -> None:
    assert classes(x="ab", y="c") == {"x": {"a", "b"}}
    assert classes(x="a") == {}


def test_a_merge_and_a_split_are_told_once() -> None:
    apart, together = classes(x="a", y="b"), classes(x="ab")
    assert class_changes(apart, together) == [ClassChange(Sharing.MERGED, "x", ("a", "b"))]
    assert class_changes(together, together) == []
    assert class_changes(together, apart) == [ClassChange(Sharing.SPLIT, "x", ("a", "b"))]


def test_a_third_server_is_news_and_the_two_that_stay_are_not() -> None:
    two, three = classes(x="ab"), classes(x="abc")
    assert class_changes(two, three) == [ClassChange(Sharing.MERGED, "x", ("a", "b", "c"))]
    assert class_changes(three, two) == [ClassChange(Sharing.SPLIT, "x", ("c",))]


def test_levels_are_told_from_all_else() -> None:
    level = Write(WriteKind.SCHEMATA, "numa_ext-be-0", schemata={"MB": {0: 50, 1: 100}})
    both = Write(WriteKind.SCHEMATA, "numa_ext-be-0", schemata={"MB": {0: 50}, "L3": {0: 0xF}})
    removal = Write(WriteKind.REMOVE_GROUP, "numa_ext-be-0")
    ours = {"numa_ext-be-0"}
    assert beyond_levels([level], ours) == ()
    assert beyond_levels([level], {"numa_ext-be-1"}) == (level,)
    assert beyond_levels([level, both, removal], ours) == (both, removal)
