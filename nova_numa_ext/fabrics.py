# SPDX-License-Identifier: Apache-2.0
"""Fabrics as Placement has them, and what server groups hold there.

One query finds every fabric: its root has one unit of ``FABRIC_PLAN`` that nothing takes, so Placement answers with the
capacity and usage of the whole tree::

    net:train                 CUSTOM_NUMA_EXT_NET_FABRIC    FABRIC_PLAN 1
    ├─ net:train:p1           …NET_LEVEL_POD                POD_UPLINK 10000
    │  ├─ net:train:l001      …NET_LEVEL_LEAF, …LEAF_TRAIN_L001, …NET_INDEX_0, …NET_BLOCK_16
    │  │                      LEAF_UPLINK 1000000000
    │  │                      partitioned: LEAF_BLOCK 16 (only whole), LEAF_REST 2
    │  └─ net:train:l002      for remainders: LEAF_REMAINDER 18     for groups of one leaf: LEAF_HOST 18
    └─ net:train:p2 …

Placement keeps two groups from holding the same hosts. What no single leaf shows is how many leafs of a pod are for
remainders; so a leaf's layout changes in three steps: write it under the leaf's generation, write the root's inventory
as it is under the generation that was read before all else, claim. Of two who planned at the same time one loses at the
second step, and reads again what the other has written; an empty leaf may have any layout.

Groups that share hold no hosts. One of several leafs takes units of their ``LEAF_UPLINK``, so that groups that ask to
be alone see it; leafs that an older release wrote do not count them until the fabric is applied again.

Of a leaf of several blocks a group's block takes a part of the uplinks only, so that one that shares them finds units,
too. Who takes any there writes the root as above once more, after the claim, and gives the claim back where another has
done so since the fabric was read: of two who planned at the same time one loses, and sees the other's claim then.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from nova_numa_ext.policy.network.groups import LeafPlan
from nova_numa_ext.policy.network.leafs import Leaf, Leafs
from nova_numa_ext.policy.network.uplinks import residents
from placement_traits import names
from placement_traits.claim_store import ClaimStore, ForeignConsumerError, NoRoomError
from placement_traits.claims import Amounts, Claim, emptied
from placement_traits.client import GenerationConflictError, PlacementClient, PlacementError
from placement_traits.errors import ConflictError
from placement_traits.fabric import LeafLayout
from placement_traits.fabric_tree import layout_of, leaf_inventories

_PLAN: Final = f"/allocation_candidates?resources={names.FABRIC_PLAN}:1"


@dataclass(frozen=True, slots=True)
class FabricState:
    """A fabric and what groups hold there.

    :param name: of the fabric
    :param leafs: without free hosts: which hosts are free depends on the server
    :param leaf_of_trait: leafs by the trait of their hosts
    :param providers: of its nodes, by name
    :param root: its provider
    :param generation: of the root, from before all else was read
    :param counted: leafs whose uplinks are counted
    """

    name: str
    leafs: Leafs
    leaf_of_trait: Mapping[str, str]
    providers: Mapping[str, str]
    root: str = ""
    generation: int = 0
    counted: frozenset[str] = frozenset()

    def held(self, amounts: Amounts) -> dict[str, Mapping[str, int]]:
        """Return the hosts and pods' uplinks among some amounts that are of this fabric, by node."""
        of_nodes = {
            node: {key: units for key, units in amounts[uuid].items() if key != names.LEAF_UPLINK}
            for node, uuid in self.providers.items()
            if uuid in amounts
        }
        return {node: held for node, held in of_nodes.items() if held}

    @property
    def divided(self) -> frozenset[str]:
        """Leafs of several blocks, whose groups use the same uplinks."""
        return frozenset(leaf.name for leaf in self.leafs.leafs if leaf.size >= 2 * leaf.block)

    def nodes_above(self, traits: Collection[str]) -> tuple[str, ...]:
        """Return the leaf of a host and the nodes above it, () where it hangs on no leaf.

        :param traits: of the host's root provider
        """
        leaf = next((self.leaf_of_trait[each] for each in traits if each in self.leaf_of_trait), "")
        return next(((leaf, *each.above) for each in self.leafs.leafs if each.name == leaf), ())

    def has_beyond(self, amounts: Amounts, nodes: Collection[str]) -> bool:
        """Return whether a host is outside of what a group holds; nothing is outside of what holds nothing here.

        :param nodes: above the host, see :meth:`nodes_above`
        """
        there = self.nodes(amounts) if only_shares(amounts) else self.held(amounts).keys()
        return bool(there) and there.isdisjoint(nodes)

    def nodes(self, amounts: Amounts) -> frozenset[str]:
        """Return the nodes of which there is something among some amounts, uplinks included."""
        return frozenset(node for node, uuid in self.providers.items() if uuid in amounts)


@dataclass(frozen=True, slots=True)
class GroupOwner:
    """Who holds leafs.

    :param group: uuid of nova's server group
    :param project: whose it is
    :param user: whose it is
    """

    group: str
    project: str
    user: str


class PlacementFabrics:
    """Fabrics and claims of groups in Placement.

    :param client: Placement
    """

    def __init__(self, client: PlacementClient) -> None:
        self._client = client
        self._claims = ClaimStore(client)
        self._name_of: dict[str, str] = {}

    def read(self) -> list[FabricState]:
        """Return the fabrics as they are now, by their names.

        :raises ServiceUnavailableError: Placement does not answer
        :raises PlacementError: it refuses what is asked
        """
        generation_of = self._roots()
        if not generation_of:
            return []
        summaries = self._client.get(_PLAN)["provider_summaries"]
        by_root: dict[str, dict[str, Any]] = {root: {} for root in generation_of}
        for uuid, each in summaries.items():
            if each["root_provider_uuid"] in by_root:
                by_root[each["root_provider_uuid"]][uuid] = each
        found = [
            self._state(root, generation_of[root], tree) for root, tree in by_root.items() if tree
        ]
        return sorted(found, key=lambda state: state.name)

    def _roots(self) -> dict[str, int]:
        try:
            answer = self._client.get(f"/resource_providers?required={names.NET_FABRIC}")
        except PlacementError as error:
            if error.status == 400:  # no fabric was ever there, so that Placement has no such trait
                return {}
            raise
        return {each["uuid"]: each["generation"] for each in answer["resource_providers"]}

    def _state(self, root: str, generation: int, tree: Mapping[str, Any]) -> FabricState:
        if not self._name_of.keys() >= tree.keys():
            members = self._client.get(f"/resource_providers?in_tree={root}")["resource_providers"]
            self._name_of |= {each["uuid"]: each["name"] for each in members}
        prefix = f"{self._name_of[root]}:"
        node_of = {uuid: self._name_of[uuid].removeprefix(prefix) for uuid in tree if uuid != root}

        def above(uuid: str) -> Iterator[str]:
            parent = tree[uuid]["parent_provider_uuid"]
            while parent in node_of:
                yield parent
                parent = tree[parent]["parent_provider_uuid"]

        ordered = sorted(
            (index, uuid)
            for uuid in node_of
            if (index := _number(tree[uuid], "NET_INDEX")) is not None
        )
        leafs = [
            _leaf(
                node_of[uuid],
                tuple(node_of[each] for each in above(uuid)),
                tree[uuid],
                self._planned_size(uuid, tree[uuid]),
            )
            for _, uuid in ordered
        ]
        first = ordered[0][1] if ordered else ""
        levels = tuple(_level(tree[each]) for each in (first, *above(first))) if first else ()
        return FabricState(
            self._name_of[root].removeprefix("net:"),
            Leafs(levels, tuple(leafs), _usual_size(leafs), _uplinks_used(node_of, tree)),
            {
                trait: node_of[uuid]
                for _, uuid in ordered
                for trait in tree[uuid]["traits"]
                if names.is_leaf_trait(trait)
            },
            {name: uuid for uuid, name in node_of.items()},
            root,
            generation,
            frozenset(
                node_of[uuid] for _, uuid in ordered if names.LEAF_UPLINK in tree[uuid]["resources"]
            ),
        )

    def _planned_size(self, leaf: str, summary: Mapping[str, Any]) -> int:
        """Return the hosts of a leaf by its plan; of one that is drained Placement's summaries show none."""
        hosts = [each for key, each in summary["resources"].items() if key in names.LEAF_CLASSES]
        size = sum(int(each["capacity"]) for each in hosts)
        if size:
            return size
        inventories = self._client.get(f"/resource_providers/{leaf}/inventories")["inventories"]
        return sum(
            int(each["total"]) for key, each in inventories.items() if key in names.LEAF_CLASSES
        )

    def held(self, owner: GroupOwner) -> Amounts:
        """Return what a group holds; {} for nothing.

        :raises ForeignConsumerError: it is another project's
        """
        claim = self._claims.read(owner.group)
        if claim is None:
            return {}
        if claim.project != owner.project:
            raise ForeignConsumerError(
                f"Server group {owner.group} holds leafs for another project."
            )
        return claim.amounts

    def claim(self, fabric: FabricState, owner: GroupOwner, found: LeafPlan) -> None:
        """Let a group that holds nothing hold what was planned, all or nothing.

        :raises NoRoomError: another group has some of it
        :raises ConflictError: others have planned since the fabric was read
        """
        sizes = {leaf.name: leaf for leaf in fabric.leafs.leafs}
        for name, layout in found.layouts.items():
            self._lay_out(fabric.providers[name], sizes[name], layout)
        if found.layouts:
            fabric = replace(fabric, generation=self._confirm(fabric))
        used = _uplinks(fabric, found)
        amounts = {
            fabric.providers[node]: {**held, **used.get(node, {})}
            for node, held in found.claims.items()
            if held
        }
        self._claims.write(
            Claim(owner.group, names.GROUP_CONSUMER, owner.project, owner.user, amounts)
        )
        self._confirm_uplinks(fabric, owner, used, {})

    def keep(self, owner: GroupOwner, amounts: Amounts) -> None:
        """Let a group hold what it holds, new for all who have read it before: none of them may release it any more.

        :raises ConflictError: it holds something else by now
        """
        claim = self._claims.read(owner.group)
        if claim is None or claim.amounts != amounts:
            raise ConflictError(f"What server group {owner.group} holds has changed meanwhile.")
        self._claims.write(claim)

    def share(self, fabric: FabricState, owner: GroupOwner, found: LeafPlan) -> None:
        """Let others see whose uplinks a group uses beside them, with those that it uses already.

        :raises NoRoomError: another group has some of them alone
        :raises ConflictError: the group's servers are placed by someone else, too
        """
        used = {fabric.providers[leaf]: units for leaf, units in _uplinks(fabric, found).items()}
        claim = self._claims.read(owner.group)
        if claim is None:
            claim = Claim(owner.group, names.GROUP_CONSUMER, owner.project, owner.user, {})
        if used:
            self._claims.write(replace(claim, amounts={**used, **claim.amounts}))
        if used.keys() - claim.amounts.keys():
            self._confirm_uplinks(fabric, owner, _uplinks(fabric, found), claim.amounts)

    def release(self, group: str) -> None:
        """Let a group hold nothing; done already is done."""
        claim = self._claims.read(group)
        if claim is not None:
            self._claims.write(emptied(claim))

    def providers_of(self, server: str) -> frozenset[str]:
        """Return the providers of which a server has something; none before it has a host."""
        return frozenset(self._client.get(f"/allocations/{server}")["allocations"])

    def all(self) -> list[Claim]:
        """Return what groups hold of all fabrics, by consumer."""
        found: dict[str, Claim] = {}
        for fabric in self.read():
            for leaf in fabric.leafs.leafs:
                if leaf.held_hosts or leaf.residents:
                    for claim in self._claims.of_provider(fabric.providers[leaf.name]):
                        if claim.type == names.GROUP_CONSUMER:
                            found[claim.consumer] = claim
        return [found[consumer] for consumer in sorted(found)]

    def hosts(self, amounts: Amounts) -> frozenset[str]:
        """Return the compute nodes on the leafs of which there is something among some amounts."""
        found = set()
        for fabric in self.read():
            held = fabric.nodes(amounts)
            for trait, leaf in fabric.leaf_of_trait.items():
                if leaf in held:
                    below = self._client.get(f"/resource_providers?required={trait}")
                    found |= {each["name"] for each in below["resource_providers"]}
        return frozenset(found - set(self._name_of.values()))

    def named(self, amounts: Amounts) -> dict[str, Mapping[str, int]]:
        """Return amounts by the names of providers; one of no fabric that was read has its uuid."""
        return {self._name_of.get(uuid, uuid): held for uuid, held in amounts.items()}

    def release_dead(self, claim: Claim) -> bool:
        """Release a claim as it was read; return False where it has changed since."""
        try:
            self._claims.write(emptied(claim))
        except GenerationConflictError:
            return False
        return True

    def follow(self, claim: Claim, hosts: Collection[str], *, dry_run: bool) -> Amounts | None:
        """Let the uplinks that a group shares be those of its servers; a claim of more than uplinks stays.

        An uplink that another group has alone by now is not taken.

        :param claim: as it was read
        :param hosts: compute nodes with servers of the group
        :param dry_run: nothing is written
        :returns: what it holds now; None where it has changed since it was read
        """
        if not only_shares(claim.amounts):
            return claim.amounts
        leafs = self._leafs_of(claim, hosts)
        units = max(of_leaf[names.LEAF_UPLINK] for of_leaf in claim.amounts.values())
        after: Amounts = {
            leaf: claim.amounts.get(leaf, {names.LEAF_UPLINK: units})
            for leaf in (leafs if len(leafs) > 1 else ())
        }
        if after == claim.amounts or dry_run:
            return after
        try:
            self._claims.write(replace(claim, amounts=after))
        except GenerationConflictError:
            return None
        except NoRoomError:
            after = {leaf: held for leaf, held in after.items() if leaf in claim.amounts}
            if after != claim.amounts:
                self._claims.write(replace(claim, amounts=after))
        return after

    def _leafs_of(self, claim: Claim, hosts: Collection[str]) -> frozenset[str]:
        """Return the providers of the leafs whose uplinks are counted and that some hosts hang on."""
        trait_of = {
            fabric.providers[leaf]: trait
            for fabric in self.read()
            for trait, leaf in fabric.leaf_of_trait.items()
            if leaf in fabric.counted
        }
        left, found = {*hosts}, set()
        for leaf in claim.amounts.keys() & trait_of.keys():  # most are where they were
            below = self._client.get(f"/resource_providers?required={trait_of[leaf]}")
            here = left.intersection(each["name"] for each in below["resource_providers"])
            if here:
                found.add(leaf)
                left -= here
        leaf_of = {trait: leaf for leaf, trait in trait_of.items()}
        for host in left:
            root = self._client.provider_named(host)
            if root is not None:
                traits = self._client.get(f"/resource_providers/{root['uuid']}/traits")["traits"]
                found |= {leaf_of[trait] for trait in traits if trait in leaf_of}
        return frozenset(found)

    def _lay_out(self, provider: str, leaf: Leaf, layout: LeafLayout) -> None:
        path = f"/resource_providers/{provider}/inventories"
        body = self._client.get(path)
        others = {
            key: each for key, each in body["inventories"].items() if key not in names.LEAF_CLASSES
        }
        try:
            self._client.put(
                path,
                {
                    "resource_provider_generation": body["resource_provider_generation"],
                    "inventories": {**others, **leaf_inventories(leaf.size, leaf.block, layout)},
                },
            )
        except GenerationConflictError:
            raise
        except PlacementError as error:
            if error.status == 409:  # in use by now
                raise NoRoomError(error.what, error.status, error.code, error.detail) from error
            raise

    def _confirm(self, fabric: FabricState) -> int:
        """Raise the root's generation, if it is still the one that was read; return the new one."""
        path = f"/resource_providers/{fabric.root}/inventories"
        inventories = self._client.get(path)["inventories"]
        written = self._client.put(
            path,
            {"resource_provider_generation": fabric.generation, "inventories": inventories},
        )
        return int(written["resource_provider_generation"])

    def _confirm_uplinks(
        self, fabric: FabricState, owner: GroupOwner, leafs: Collection[str], before: Amounts
    ) -> None:
        """Make sure that no other group takes uplinks of the same leafs of several blocks, planned at the same time.

        :param leafs: of which the group has taken uplinks just now
        :param before: what it held before that, and holds again where another was faster
        :raises ConflictError: another was
        """
        if fabric.divided.isdisjoint(leafs):
            return
        try:
            self._confirm(fabric)
        except ConflictError:
            claim = self._claims.read(owner.group)
            if claim is not None:
                self._claims.write(replace(claim, amounts=before))
            raise


def only_shares(held: Amounts) -> bool:
    """Return whether a group holds nothing but uplinks beside others."""
    return bool(held) and all({*of_node} == {names.LEAF_UPLINK} for of_node in held.values())


def _leaf(name: str, above: tuple[str, ...], summary: Mapping[str, Any], planned_size: int) -> Leaf:
    amounts = {key: each for key, each in summary["resources"].items() if key in names.LEAF_CLASSES}
    size = sum(each["capacity"] for each in amounts.values())
    percent = _number(summary, "NET_OVERSUBSCRIPTION")
    block = _number(summary, "NET_BLOCK") or size + 1
    held = {key: each["used"] for key, each in amounts.items() if each["used"]}
    uplinks = summary["resources"].get(names.LEAF_UPLINK, {"used": 0})
    return Leaf(
        name,
        above,
        size,
        0,
        block,
        layout_of(amounts),
        held,
        residents(uplinks["used"], planned_size, block, held),
        oversubscription=None if percent is None else percent / 100,
        drained=planned_size - size,
    )


def _uplinks(fabric: FabricState, found: LeafPlan) -> dict[str, dict[str, int]]:
    """Return what a plan takes of uplinks, by leafs that count them."""
    return {
        leaf: {names.LEAF_UPLINK: units}
        for leaf, units in found.uplinks.items()
        if leaf in fabric.counted
    }


def _number(summary: Mapping[str, Any], kind: str) -> int | None:
    found = (names.parse_numbered(trait) for trait in summary["traits"])
    return next((number for each in found if each and each[0] == kind for number in each[1:]), None)


def _usual_size(leafs: Sequence[Leaf]) -> int:
    """Return the size that most leafs have, the larger one of two."""
    sizes = Counter(leaf.planned_size for leaf in leafs)
    return max(sizes.items(), key=lambda item: (item[1], item[0]))[0] if sizes else 0


def _uplinks_used(node_of: Mapping[str, str], tree: Mapping[str, Any]) -> dict[str, int]:
    """Return what is used of the uplinks of pods, by node."""
    return {
        node: tree[uuid]["resources"][names.POD_UPLINK]["used"]
        for uuid, node in node_of.items()
        if names.POD_UPLINK in tree[uuid]["resources"]
    }


def _level(summary: Mapping[str, Any]) -> str:
    return next((level for trait in summary["traits"] if (level := names.parse_level(trait))), "")
