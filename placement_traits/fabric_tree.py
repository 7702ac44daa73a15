# SPDX-License-Identifier: Apache-2.0
"""A fabric in Placement: a provider tree of its own, and one trait on the root of each host. One writer.

::

    net:train                 CUSTOM_NUMA_EXT_NET_FABRIC    FABRIC_PLAN 1
    ├─ net:train:p1           …NET_LEVEL_POD                POD_UPLINK 10000
    │  ├─ net:train:l001      …NET_LEVEL_LEAF, …LEAF_TRAIN_L001, …NET_INDEX_0, …NET_BLOCK_16,
    │  │                      …NET_OVERSUBSCRIPTION_400
    │  │                      LEAF_UPLINK 1000000000, LEAF_UPLINK_MBPS where the plan says it
    │  │                      partitioned: LEAF_BLOCK 16 (only whole), LEAF_REST 2
    │  └─ net:train:l002      for remainders: LEAF_REMAINDER 18     for groups of one leaf: LEAF_HOST 18
    └─ net:train:p2 …
    compute001                nova's root                   …LEAF_TRAIN_L001

What the root has is written last, and its one unit of ``FABRIC_PLAN`` is what planners find the fabric by: they see no
half of one. A pass that is cut short is done again. Layouts are the planners': a leaf keeps its own, in its new size.
Leafs keep the index that they were published with, for groups are where they are by it; new ones come after the last.
What the job service's engine says of a leaf's uplinks (:mod:`.network_demand`) stays.
"""

import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Final, NoReturn

from placement_traits import names
from placement_traits.client import PlacementClient, PlacementError
from placement_traits.errors import ConflictError, NumaExtError
from placement_traits.fabric import Fabric, LeafLayout
from placement_traits.names import LEAF_UPLINK_UNITS, WHOLE_UPLINK

Inventories = Mapping[str, Mapping[str, int]]

_SPACE: Final = uuid.UUID("6f3d6a86-5d0a-4f0b-9d0c-2f4d3c1b7e55")
_SINGLE: Final = {
    names.LEAF_REMAINDER: LeafLayout.REMAINDER,
    names.LEAF_HOST: LeafLayout.WHOLE,
}
_MOST_NAMED: Final = 5
_TRIES: Final = 5
_TRAITS_AT_ONCE: Final = 50
_MOST_MBPS: Final = 2**31 - 1  # Placement counts so far
_USUAL: Final = {"min_unit": 1, "step_size": 1, "allocation_ratio": 1.0}


class HeldError(NumaExtError):
    """Groups hold what a new plan would take from them; nothing was written."""


@dataclass(frozen=True, slots=True)
class FabricChanges:
    """What a pass did, or would do.

    :param done: one sentence for each provider or host that changed
    :param problems: one sentence for each host that could not be given its leaf
    """

    done: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedProvider:
    """One provider of a fabric's tree as it should be.

    :param name: of the provider
    :param parent: name of its parent, None for the root
    :param traits: all of them
    :param inventories: all of them
    """

    name: str
    parent: str | None
    traits: frozenset[str]
    inventories: Inventories


def leaf_inventories(size: int, block: int, layout: LeafLayout) -> dict[str, dict[str, int]]:
    """Return the inventories of a leaf: its hosts, by what groups may do with them.

    :param size: hosts of the leaf
    :param block: so many of them are only given as a whole
    """
    if layout is not LeafLayout.PARTITIONED:
        name = next(each for each in _SINGLE if _SINGLE[each] is layout)
        return {name: {"total": size, "max_unit": size}}
    rest = size % block
    blocks = size - rest
    whole = {"total": blocks, "min_unit": block, "max_unit": blocks, "step_size": block}
    return {
        **({names.LEAF_BLOCK: whole} if blocks else {}),
        **({names.LEAF_REST: {"total": rest, "max_unit": rest}} if rest else {}),
    }


def layout_of(classes: Collection[str]) -> LeafLayout:
    """Return the layout of a leaf with inventories of some classes."""
    return next((_SINGLE[each] for each in _SINGLE if each in classes), LeafLayout.PARTITIONED)


def planned(
    fabric: Fabric,
    layouts: Mapping[str, LeafLayout],
    indices: Mapping[str, int],
) -> tuple[PlannedProvider, ...]:
    """Return a fabric's providers, parents before children.

    :param layouts: of leafs; partitioned where nothing is said
    :param indices: of leafs that are published
    """
    following = max(indices.values(), default=-1) + 1
    new = iter(range(following, following + len(fabric.leafs)))
    index_of = {leaf: indices[leaf] if leaf in indices else next(new) for leaf in fabric.leafs}
    root = names.fabric_provider(fabric.name)
    found = [
        PlannedProvider(
            root,
            None,
            frozenset({names.NET_FABRIC}),
            {names.FABRIC_PLAN: {"total": 1, "max_unit": 1}},
        )
    ]
    for level in reversed(fabric.levels):
        for node in fabric.nodes.values():
            if node.level != level:
                continue
            is_leaf = level == fabric.levels[0]
            of_leaf = _leaf_traits(fabric, node.name, index_of[node.name]) if is_leaf else ()
            layout = layouts.get(node.name, LeafLayout.PARTITIONED)
            found.append(
                PlannedProvider(
                    names.fabric_provider(fabric.name, node.name),
                    names.fabric_provider(fabric.name, node.parent or ""),
                    frozenset({names.level_trait(level), *of_leaf}),
                    _leaf_counts(fabric, node.name, layout) if is_leaf else _pod_counts(),
                )
            )
    return tuple(found)


def _leaf_counts(fabric: Fabric, leaf: str, layout: LeafLayout) -> dict[str, dict[str, int]]:
    mbps = fabric.nodes[leaf].uplink_mbps
    known = {"total": min(mbps, _MOST_MBPS), "max_unit": 1} if mbps else None
    return {
        **leaf_inventories(fabric.sizes[leaf], fabric.block, layout),
        names.LEAF_UPLINK: {"total": LEAF_UPLINK_UNITS, "max_unit": LEAF_UPLINK_UNITS},
        **({names.LEAF_UPLINK_MBPS: known} if known else {}),
    }


def _pod_counts() -> dict[str, dict[str, int]]:
    return {names.POD_UPLINK: {"total": WHOLE_UPLINK, "max_unit": WHOLE_UPLINK}}


def _leaf_traits(fabric: Fabric, leaf: str, index: int) -> Iterator[str]:
    trait = names.leaf_trait(fabric.name, leaf)
    assert trait is not None, "a fabric refuses such names"
    yield trait
    yield names.numbered("NET_INDEX", index)
    yield names.numbered("NET_BLOCK", fabric.block)
    ratio = fabric.oversubscription(leaf)
    if ratio is not None:
        yield names.numbered("NET_OVERSUBSCRIPTION", round(100 * ratio))


@dataclass(frozen=True, slots=True)
class _There:
    """A provider of the tree as it is."""

    uuid: str
    parent: str | None
    generation: int
    traits: frozenset[str]
    inventories: Mapping[str, Mapping[str, Any]]
    used: Mapping[str, int]

    @property
    def held(self) -> int:
        return sum(self.used.get(each, 0) for each in names.LEAF_CLASSES)

    @property
    def is_drained(self) -> bool:
        hosts = [each for key, each in self.inventories.items() if key in names.LEAF_CLASSES]
        return bool(hosts) and all(each["reserved"] >= each["total"] for each in hosts)

    def reserved(self, key: str, total: int) -> int:
        """Return what stays reserved of a class when its inventory is written."""
        if key == names.LEAF_UPLINK_MBPS and key in self.inventories:
            return min(total, int(self.inventories[key]["reserved"]))
        return total if self.is_drained and key in names.LEAF_CLASSES else 0


class FabricWriter:
    """Writes fabrics; errors as of :class:`placement_traits.client.PlacementClient`.

    :param client: Placement
    """

    def __init__(self, client: PlacementClient) -> None:
        self._client = client

    def apply(self, fabric: Fabric, *, dry_run: bool = False) -> FabricChanges:
        """Make Placement equal to a plan.

        :param dry_run: only read
        :raises HeldError: a leaf would lose hosts that groups hold, or go, or come to another pod; names both
        :raises ConflictError: others wrote to the same provider again and again
        """
        there = self._read(fabric.name)
        prefix = names.fabric_provider(fabric.name, " ")[:-1]
        of_leafs = {name.removeprefix(prefix): each for name, each in there.items()}
        desired = planned(
            fabric,
            {name: layout_of(each.inventories) for name, each in of_leafs.items()},
            {name: index for name, each in of_leafs.items() if (index := _index(each)) is not None},
        )
        self._check_held(desired, there)
        gone = [name for name in there if name not in {each.name for each in desired}]
        if not dry_run:
            self._ensure_names(desired)
        old = {*there}
        done = [*self._created(desired, there, dry_run=dry_run)]
        for each in (*desired[1:], desired[0]):
            if dry_run and each.name not in old:
                continue
            if self._update(each, there, dry_run=dry_run) and each.name in old:
                done.append(f"{each.name} changed")
        done += self._removed(gone, there, dry_run=dry_run)
        left = [
            trait for name in gone for trait in there[name].traits if names.is_leaf_trait(trait)
        ]
        on_hosts = self._on_hosts(fabric, left, dry_run=dry_run)
        return FabricChanges((*done, *on_hosts.done), on_hosts.problems)

    def remove(self, fabric: str, *, dry_run: bool = False) -> FabricChanges:
        """Take a fabric out: its leafs off the hosts, then its providers, the root last.

        What is cut short leaves a part, which another call takes; a fabric that is not there is no change. Traits stay
        known to Placement, and go with those of hosts (:mod:`placement_traits.removal`).

        :param dry_run: only read
        :raises HeldError: groups hold hosts or share uplinks of it; names both
        :raises ConflictError: others wrote to the same host's root again and again
        """
        there = self._read(fabric)
        for name, each in there.items():
            if each.held or each.used.get(names.LEAF_UPLINK):
                self._refuse(name, each, "would go")
        done = []
        traits = {trait for each in there.values() for trait in each.traits}
        for trait in sorted(filter(names.is_leaf_trait, traits)):
            for host in sorted(self._with_trait(trait, dry_run=dry_run)):
                done.append(f"{host} has {trait} no longer")
                if not dry_run:
                    self._set_traits(host, {trait, names.MISCABLED}, set())
        below = [name for name, each in there.items() if each.parent is not None]
        done += self._removed([*below, *(there.keys() - {*below})], there, dry_run=dry_run)
        return FabricChanges(tuple(done))

    def drain(self, fabric: str, leaf: str, *, on: bool) -> bool:
        """Keep new groups off a leaf, or no longer; what groups hold there stays. Return whether that is new.

        :raises NumaExtError: there is no such leaf
        :raises ConflictError: others wrote to it again and again
        """
        name = names.fabric_provider(fabric, leaf)
        for attempt in range(_TRIES):
            there = self._read(fabric).get(name)
            if there is None or not any(map(names.is_leaf_trait, there.traits)):
                raise NumaExtError(f"Placement has no leaf {leaf} of a fabric {fabric}.")
            inventories = {
                key: {**each, "reserved": each["total"] if on else 0}
                if key in names.LEAF_CLASSES
                else each
                for key, each in there.inventories.items()
            }
            if inventories == there.inventories:
                return False
            try:
                self._put_inventories(there, inventories)
            except ConflictError:
                self._client.pause(attempt)
                continue
            return True
        raise ConflictError(f"Others wrote to {name} {_TRIES} times while it was drained.")

    def mark(self, fabric: Fabric, elsewhere: Collection[str]) -> None:
        """Let planned hosts that hang on another leaf have the trait for it, and only those.

        :raises ConflictError: others wrote to a host's root again and again
        """
        self._client.put(f"/traits/{names.MISCABLED}")
        marked = self._with_trait(names.MISCABLED, dry_run=False)
        for host in sorted(fabric.hosts.keys() & (marked - {*elsewhere})):
            self._set_traits(host, {names.MISCABLED}, set())
        for host in sorted({*elsewhere} - marked):
            self._set_traits(host, set(), {names.MISCABLED})

    # What is there --------------------------------------------------------------------------------------------------

    def _read(self, fabric: str) -> dict[str, _There]:
        """Return the providers of a fabric's tree by name."""
        name = names.fabric_provider(fabric)
        root = self._client.provider_named(name)
        if root is None:
            return {}
        found = {}
        tree = self._client.get(f"/resource_providers?in_tree={root['uuid']}")
        for each in tree["resource_providers"]:
            path = f"/resource_providers/{each['uuid']}"
            found[each["name"]] = _There(
                each["uuid"],
                each["parent_provider_uuid"],
                each["generation"],
                frozenset(self._client.get(f"{path}/traits")["traits"]),
                self._client.get(f"{path}/inventories")["inventories"],
                self._client.get(f"{path}/usages")["usages"],
            )
        if found and root["uuid"] != str(uuid.uuid5(_SPACE, name)):
            raise NumaExtError(f"Provider {name} is there and is no fabric of ours: rename it.")
        return found

    def _check_held(self, desired: Sequence[PlannedProvider], there: Mapping[str, _There]) -> None:
        planned_as = {each.name: each for each in desired}
        name_of = {each.uuid: name for name, each in there.items()}
        for name, each in there.items():
            after = planned_as.get(name)
            if after is None and (each.held or each.used.get(names.LEAF_UPLINK)):
                self._refuse(name, each, "would go")
            if after is None or not each.held:
                continue
            for resource_class, used in each.used.items():
                total = after.inventories.get(resource_class, {}).get("total", 0)
                if used > total:
                    self._refuse(
                        name, each, f"would have {total} {resource_class}, {used} are held"
                    )
            if after.parent != name_of.get(each.parent or ""):
                self._refuse(name, each, f"would hang on {after.parent}")

    def _refuse(self, name: str, there: _There, what: str) -> NoReturn:
        body = self._client.get(f"/resource_providers/{there.uuid}/allocations")
        groups = sorted(body["allocations"])
        more = " …" * (len(groups) > _MOST_NAMED)
        raise HeldError(
            f"{name} {what}, but {len(groups)} server groups are there: "
            f"{', '.join(groups[:_MOST_NAMED])}{more}. Drain it, and do this again when they are gone."
        )

    # What is written ------------------------------------------------------------------------------------------------

    def _ensure_names(self, desired: Sequence[PlannedProvider]) -> None:
        classes = {
            each["name"] for each in self._client.get("/resource_classes")["resource_classes"]
        }
        for name in names.FABRIC_CLASSES:
            if name not in classes:
                self._client.put(f"/resource_classes/{name}")
        traits = sorted({trait for each in desired for trait in each.traits})
        for begin in range(0, len(traits), _TRAITS_AT_ONCE):
            some = traits[begin : begin + _TRAITS_AT_ONCE]
            known = self._client.get(f"/traits?name=in:{','.join(some)}")["traits"]
            for trait in sorted({*some} - {*known}):
                self._client.put(f"/traits/{trait}")

    def _created(
        self, desired: Sequence[PlannedProvider], there: dict[str, _There], *, dry_run: bool
    ) -> Iterator[str]:
        """Create what is missing, parents first; it is noted in ``there``."""
        for each in desired:
            if each.name in there:
                continue
            yield f"{each.name} created"
            if dry_run:
                continue
            new = str(uuid.uuid5(_SPACE, each.name))
            parent = None if each.parent is None else there[each.parent].uuid
            body = {"name": each.name, "uuid": new}
            if parent is not None:
                body["parent_provider_uuid"] = parent
            self._client.post("/resource_providers", body)
            there[each.name] = _There(new, parent, 0, frozenset(), {}, {})

    def _update(
        self, desired: PlannedProvider, tree: Mapping[str, _There], *, dry_run: bool
    ) -> bool:
        """Make one provider hang and hold as planned; return whether it did not."""
        there = tree[desired.name]
        above = desired.parent
        parent = tree[above].uuid if above is not None and above in tree else above
        same_parent = there.parent == parent
        inventories = {
            key: {
                **_USUAL,
                **each,
                "reserved": there.reserved(key, each["total"]),
            }
            for key, each in desired.inventories.items()
        }
        if names.LEAF_UPLINK_MBPS in inventories:
            inventories |= {
                key: {**each}
                for key, each in there.inventories.items()
                if key in names.LEAF_LIMIT_CLASSES
            }
        same_traits = there.traits == desired.traits
        same_inventories = there.inventories == inventories
        if (same_parent and same_traits and same_inventories) or dry_run:
            return not (same_parent and same_traits and same_inventories)
        generation = there.generation
        path = f"/resource_providers/{there.uuid}"
        if not same_parent:
            moved = {"name": desired.name, "parent_provider_uuid": parent}
            generation = self._client.put(path, moved)["generation"]
        if not same_traits:
            body = {"resource_provider_generation": generation, "traits": sorted(desired.traits)}
            generation = self._client.put(f"{path}/traits", body)["resource_provider_generation"]
        if not same_inventories:
            self._put_inventories(replace(there, generation=generation), inventories)
        return True

    def _put_inventories(self, there: _There, inventories: Mapping[str, Mapping[str, Any]]) -> None:
        self._client.put(
            f"/resource_providers/{there.uuid}/inventories",
            {"resource_provider_generation": there.generation, "inventories": inventories},
        )

    def _removed(
        self, gone: Sequence[str], there: Mapping[str, _There], *, dry_run: bool
    ) -> Iterator[str]:
        """Delete providers, children first."""
        parents = {there[name].parent for name in gone}
        leafs = [name for name in gone if there[name].uuid not in parents]
        for name in (*leafs, *(each for each in gone if each not in leafs)):
            yield f"{name} deleted"
            if not dry_run:
                self._client.delete(f"/resource_providers/{there[name].uuid}")

    def _on_hosts(self, fabric: Fabric, left: Sequence[str], *, dry_run: bool) -> FabricChanges:
        """Give each host the trait of its leaf, and take it from others.

        :param left: traits of leafs that are gone
        """
        done: list[str] = []
        problems: list[str] = []
        planned_for: dict[str, set[str]] = {trait: set() for trait in left}
        for host, leaf in fabric.hosts.items():
            trait = names.leaf_trait(fabric.name, leaf)
            assert trait is not None, "a fabric refuses such names"
            planned_for.setdefault(trait, set()).add(host)
        have = {trait: self._with_trait(trait, dry_run=dry_run) for trait in planned_for}
        for trait, hosts in planned_for.items():
            for host in sorted(have[trait] - hosts):
                done.append(f"{host} has {trait} no longer")
                if not dry_run:
                    self._set_traits(host, {trait}, set())
        for trait, hosts in planned_for.items():
            for host in sorted(hosts - have[trait]):
                problem = self._problem_of(host, {*planned_for})
                if problem:
                    problems.append(problem)
                    continue
                done.append(f"{host} has {trait}")
                if not dry_run:
                    self._set_traits(host, set(), {trait})
        return FabricChanges(tuple(done), tuple(problems))

    def _with_trait(self, trait: str, *, dry_run: bool) -> set[str]:
        try:
            found = self._client.get(f"/resource_providers?required={trait}")["resource_providers"]
        except PlacementError as error:
            if dry_run and error.status == 400:  # it is not there yet
                return set()
            raise
        return {each["name"] for each in found if each["parent_provider_uuid"] is None}

    def _problem_of(self, host: str, ours: Collection[str]) -> str:
        root = self._client.provider_named(host)
        if root is None:
            return (
                f"{host} is not in Placement: start nova-compute there, and apply the plan again."
            )
        traits = self._client.get(f"/resource_providers/{root['uuid']}/traits")["traits"]
        others = sorted(each for each in traits if names.is_leaf_trait(each) and each not in ours)
        return (
            f"{host} hangs on another fabric, it has {others[0]}: remove it there."
            if others
            else ""
        )

    def _set_traits(self, host: str, gone: set[str], new: set[str]) -> None:
        """Change where a host hangs; others write to its root all the time."""
        root = self._client.provider_named(host)
        if root is None:
            return
        path = f"/resource_providers/{root['uuid']}/traits"
        for attempt in range(_TRIES):
            body = self._client.get(path)
            traits = ({*body["traits"]} - gone) | new
            generation = body["resource_provider_generation"]
            try:
                self._client.put(
                    path,
                    {"resource_provider_generation": generation, "traits": sorted(traits)},
                )
            except ConflictError:
                self._client.pause(attempt)
                continue
            self._touch(host, root["uuid"])
            return
        raise ConflictError(f"Others wrote to {host} {_TRIES} times while it got its leaf.")

    def _touch(self, host: str, root: str) -> None:
        """Write one provider of the host's agent as it is: views see by its generation that the host has changed.

        They do not compare roots, which change with every server, and would read of the leaf minutes later. Where
        another writer is faster, its write shows the same.
        """
        compared = (names.rdt_provider(host), names.l3_provider(host, 0)[:-1])
        try:
            found = self._client.get(f"/resource_providers?in_tree={root}&required={names.OWNER}")
        except PlacementError as error:
            if error.status == HTTPStatus.BAD_REQUEST:  # no agent has published anything yet
                return
            raise
        ours = (each for each in found["resource_providers"] if each["name"].startswith(compared))
        child = max(ours, key=lambda each: str(each["name"]), default=None)
        if child is None:
            return
        path = f"/resource_providers/{child['uuid']}/inventories"
        try:
            self._client.put(path, self._client.get(path))
        except ConflictError:
            return


def _index(there: _There) -> int | None:
    found = (names.parse_numbered(trait) for trait in there.traits)
    return next((each[1] for each in found if each and each[0] == "NET_INDEX"), None)
