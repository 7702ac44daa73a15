# SPDX-License-Identifier: Apache-2.0
"""What requests read the fleet of Placement: of all hosts, of their generations, of one host alone.

The queries ask for the probe, of which each host has one unit that is never allocated, so a host that is full is seen
as any other. A host whose agent publishes no probe is read provider by provider. Providers of GPUs, of other devices,
and nova's roots are not in the list that is compared (a root changes with every server of any kind): what is published
there is picked up with the next change of an L3 or RDT provider of the host, or by the next complete reading. A view
that is asked for what roots have compares them, too; a server takes a device and something of its root together.
"""

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from placement_traits import beats, names, shards
from placement_traits.client import NotFoundError, PlacementClient
from placement_traits.fleet import Amount, HostView
from placement_traits.host_view import (
    DEVICES,
    ProviderFacts,
    bounded,
    host_view,
    known_names,
    relevant,
)
from placement_traits.names import TierTrait
from placement_traits.shards import Shard

LOG = logging.getLogger(__name__)

_ASKED_FOR: Final = (names.OWNER, names.HOST, names.GPU, names.BEAT, *shards.all_traits())


class FleetReader:
    """Reads hosts, and remembers what later requests ask for.

    :param client: Placement
    :param root_amounts: is filled with what nova's root providers have, by resource class by root, and kept as fresh as
        the rest; roots that have gone stay in it. None: that is not read
    """

    def __init__(
        self, client: PlacementClient, root_amounts: dict[str, Mapping[str, Amount]] | None
    ) -> None:
        self._client = client
        self._root_amounts = root_amounts
        self._traits: frozenset[str] = frozenset()  # those of ours that Placement knows
        self._limit: int | None = None  # most hosts that one query of candidates has shown
        self._without_probe: set[str] = set()

    def learn(self) -> None:
        """Ask which of our traits exist; one that does is not deleted while providers hold it."""
        if not self._traits.issuperset(_ASKED_FOR):
            self._traits = self._existing(*_ASKED_FOR)

    def forget(self) -> None:
        """Forget which exist: a query has failed because one was deleted, with all that we had in Placement."""
        self._traits = frozenset()

    @property
    def finds_any(self) -> bool:
        """Some agent had published something when that was asked last."""
        return names.OWNER in self._traits

    def fingerprints(self) -> dict[str, int]:
        """Return one number by root that changes with any generation below it."""
        if not self.finds_any:
            return {}
        without_gpus = f",!{names.GPU}" if names.GPU in self._traits else ""
        prints: dict[str, int] = {}
        for provider in self._list(f"required={names.OWNER}{without_gpus}"):
            root = provider["root_provider_uuid"]
            prints[root] = prints.get(root, 0) ^ _mark(provider)
        if self._root_amounts is not None and names.HOST in self._traits:
            for provider in self._list(f"required={names.HOST}"):
                if provider["uuid"] in prints:
                    prints[provider["uuid"]] ^= _mark(provider)
        return prints

    def hosts(self, roots: Collection[str]) -> dict[str, HostView | None]:
        """Return all hosts, by root; None for those that are not there any more.

        :param roots: their root providers
        """
        if not roots:
            return {}
        living = beats.living(self._client) if names.BEAT in self._traits else None
        named = [trait for trait in (names.HOST, names.GPU) if trait in self._traits]
        names_of: dict[str, dict[str, str]] = {}
        for provider in self._list(f"required=in:{','.join((*named, *DEVICES))}"):
            tree = names_of.setdefault(provider["root_provider_uuid"], {})
            tree[provider["uuid"]] = provider["name"]
        hosts = {root: names_of[root][root] for root in roots if _is_named(root, names_of)}
        trees = self._read_trees(hosts)
        read: dict[str, HostView | None] = {}
        for root in roots:
            facts = trees.get(root)
            host = (
                self._read_tree_slowly(root)
                if facts is None
                else host_view(root, facts, names_of.get(root, {}))
            )
            read[root] = host and _marked(host, beats.is_silent(host.name, living))
        return read

    def again(self, root: str, before: HostView | None) -> HostView | None:
        """Read one host; whether its agent is silent shows at the next complete reading."""
        host = self._read_tree(root, before)
        return host and _marked(host, before is not None and before.silent)

    def _read_trees(self, hosts: Mapping[str, str]) -> dict[str, dict[str, ProviderFacts]]:
        """Read the trees of all hosts with a probe, in as few queries as Placement's limit allows.

        Where hosts are missing in the answers, either a limit is new or lower than thought, or their agents publish no
        probe yet: they are asked for once more, by no more than the shortest answer showed.

        :param hosts: names by root
        """
        shard = {
            root: shard
            for root, name in hosts.items()
            if root not in self._without_probe
            and self._traits.issuperset((shard := shards.shard_of(name)).traits)
        }
        trees: dict[str, dict[str, ProviderFacts]] = {}
        shortest = self._read_parts(shard, self._limit, trees)
        if shard.keys() - trees.keys() and shortest > 0:
            before = len(trees)
            self._read_parts(shard, shortest, trees)
            if len(trees) > before:
                self._limit = shortest
        self._without_probe |= shard.keys() - trees.keys()
        return trees

    def _read_parts(
        self,
        shard: Mapping[str, Shard],
        limit: int | None,
        trees: dict[str, dict[str, ProviderFacts]],
    ) -> int:
        """Ask for the hosts that are missing; returns how many hosts the shortest incomplete answer showed.

        :param shard: of each host
        :param limit: most hosts of one query; None: all at once
        :param trees: what was read by root; is added to
        """
        shortest = 0
        parts = [None] if limit is None else shards.parts(shard.values(), limit)
        for part in parts:
            asked = {root for root, its in shard.items() if part is None or its in part}
            if asked <= trees.keys():
                continue
            found = self._summaries(part.query if part is not None else "")
            trees.update(found)
            if not asked <= found.keys():
                shortest = min(shortest or len(found), len(found))
        return shortest

    def _existing(self, *traits: str) -> frozenset[str]:
        """Return those traits that exist at all: Placement refuses queries with one that does not."""
        return frozenset(self._client.get(f"/traits?name=in:{','.join(traits)}")["traits"])

    def _list(self, query: str) -> Any:
        return self._client.get(f"/resource_providers?{query}")["resource_providers"]

    def _summaries(self, query: str) -> dict[str, dict[str, ProviderFacts]]:
        """Return what the provider summaries of a query for the probe hold: facts by provider, by root.

        :param query: further parameters, each with its ``&``
        """
        body = self._client.get(f"/allocation_candidates?resources={names.PROBE}:1{query}")
        trees: dict[str, dict[str, ProviderFacts]] = {}
        for uuid, summary in body["provider_summaries"].items():
            traits = relevant(summary["traits"])
            amounts = {
                name: bounded(resource["capacity"], resource["used"])
                for name, resource in summary["resources"].items()
                if traits and (name in names.RESOURCE_CLASSES or names.HOST not in traits)
            }
            facts = ProviderFacts(traits, amounts)
            root = summary["root_provider_uuid"]
            trees.setdefault(root, {})[uuid] = facts
            if self._root_amounts is not None and uuid == root:
                self._root_amounts[root] = {
                    name: bounded(resource["capacity"], resource["used"])
                    for name, resource in summary["resources"].items()
                }
        return trees

    def _read_tree(self, root: str, before: HostView | None) -> HostView | None:
        """Read one host."""
        probed = not self._traits.isdisjoint(shards.all_traits())
        facts = self._summaries(f"&in_tree={root}").get(root) if probed else None
        if facts is None:
            return self._read_tree_slowly(root)
        self._without_probe.discard(root)
        known = {} if before is None else known_names(before)
        if any(fact.named and uuid not in known for uuid, fact in facts.items()):
            known = self._names(root)
        return host_view(root, facts, known)

    def _names(self, root: str) -> dict[str, str]:
        return {provider["uuid"]: provider["name"] for provider in self._list(f"in_tree={root}")}

    def _read_tree_slowly(self, root: str) -> HostView | None:
        """Read one host provider by provider: its agent publishes no probe."""
        names_of = self._names(root)
        if root not in names_of:
            return None
        facts = {}
        for uuid, name in names_of.items():
            try:
                facts[uuid] = self._read_provider(uuid)
                if self._root_amounts is not None and uuid == root:
                    self._root_amounts[root] = self._amounts(root)
            except NotFoundError:
                LOG.debug("Provider %s went away while it was read.", name)
        return host_view(root, facts, names_of)

    def _read_provider(self, uuid: str) -> ProviderFacts:
        path = f"/resource_providers/{uuid}"
        traits = relevant(self._client.get(f"{path}/traits")["traits"])
        if not traits or names.HOST in traits:
            return ProviderFacts(traits, {})
        return ProviderFacts(traits, self._amounts(uuid))

    def _amounts(self, uuid: str) -> dict[str, Amount]:
        path = f"/resource_providers/{uuid}"
        inventories = self._client.get(f"{path}/inventories")["inventories"]
        used = self._client.get(f"{path}/usages")["usages"]
        return {
            name: bounded(
                int((body["total"] - body["reserved"]) * body["allocation_ratio"]),
                used.get(name, 0),
            )
            for name, body in inventories.items()
        }


def _mark(provider: Mapping[str, Any]) -> int:
    return hash((provider["uuid"], provider["generation"]))


def _marked(host: HostView, silent: bool) -> HostView:
    """Mark a host whose agent is silent; where its tiers were withdrawn they are what shows it."""
    if not silent or host.traits.isdisjoint(TierTrait):
        return host
    return replace(host, traits=host.traits | {names.SILENT})


def _is_named(root: str, names_of: Mapping[str, Mapping[str, str]]) -> bool:
    return root in names_of.get(root, ())
