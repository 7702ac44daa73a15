# SPDX-License-Identifier: Apache-2.0
"""Events of resource control: which best-effort servers share a class of service, which writes undo foreign ones."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from host_agent.model.partition import PartitionPlace, PartitionRequest, Write
from placement_traits.names import Tier

Classes = Mapping[str, frozenset[str]]
"""Class of service -> best-effort servers that share it; those with one server are left out."""


class Sharing(StrEnum):
    """How a class has changed, as actions of the journal and the metrics."""

    MERGED = "merge"
    SPLIT = "split"


@dataclass(frozen=True, slots=True)
class ClassChange:
    """A class that best-effort servers have begun or ended to share."""

    change: Sharing
    group: str
    servers: tuple[str, ...]


def shared_classes(
    requests: Iterable[PartitionRequest], places: Iterable[PartitionPlace]
) -> Classes:
    """Return the classes that several best-effort servers share."""
    best_effort = {each.uuid for each in requests if each.tier is Tier.BE}
    found: dict[str, set[str]] = {}
    for place in places:
        if place.uuid in best_effort and place.group:
            found.setdefault(place.group, set()).add(place.uuid)
    return {group: frozenset(uuids) for group, uuids in found.items() if len(uuids) > 1}


def class_changes(before: Classes, after: Classes) -> list[ClassChange]:
    """List who has come to share a class, and who shares none any more."""
    merged = [
        ClassChange(Sharing.MERGED, group, tuple(sorted(servers)))
        for group, servers in sorted(after.items())
        if servers - before.get(group, frozenset())
    ]
    sharing = frozenset[str]().union(*after.values())
    split = [
        ClassChange(Sharing.SPLIT, group, tuple(sorted(alone)))
        for group, servers in sorted(before.items())
        if (alone := servers - sharing)
    ]
    return merged + split


def beyond_levels(writes: Iterable[Write], groups: Container[str]) -> tuple[Write, ...]:
    """Return the writes that do more than change the bandwidth levels of some groups."""
    return tuple(write for write in writes if not (write.levels_only and write.group in groups))
