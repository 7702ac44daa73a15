# SPDX-License-Identifier: Apache-2.0
"""The providers of a host's tree as they were read, remembered with their generations; which of them are ours.

Placement raises a provider's generation at any change of its traits, inventories or allocations: what was read holds
while the list of the tree shows the same one. So a pass over an unchanged host is a single GET.
"""

import dataclasses
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from placement_traits import names
from placement_traits.client import PlacementClient
from placement_traits.errors import NumaExtError
from placement_traits.tree import Inventory


class RootMissingError(NumaExtError):
    """The root is not (yet) there, or is no root; that of a compute node nova makes, never we."""


@dataclass(frozen=True, slots=True)
class ProviderContents:
    """A provider as it was read."""

    generation: int
    traits: frozenset[str]
    inventories: Mapping[str, Inventory]


@dataclass(frozen=True, slots=True)
class TreeProvider:
    """A provider as the list of its tree shows it."""

    uuid: str
    name: str
    generation: int
    is_root: bool = False


def child_uuid(root_uuid: str, name: str) -> str:
    """Return the uuid of our child ``name`` under a root: the same at every start, another one for another root."""
    return str(uuid.uuid5(uuid.UUID(root_uuid), name))


class KnownProviders:
    """What is known of the providers of one host's tree.

    :param client: Placement
    :param mark: the trait by which our children are known beside their uuids
    """

    def __init__(self, client: PlacementClient, mark: str) -> None:
        self._client = client
        self._mark = mark
        self._root_uuid: str | None = None
        self._seen: dict[str, ProviderContents] = {}
        self._known_names: set[str] = set()

    def forget(self) -> None:
        """Drop everything remembered, so that the next pass reads all."""
        self._root_uuid = None
        self._seen.clear()
        self._known_names.clear()

    def listed(self, root_name: str) -> list[TreeProvider]:
        """Return all providers of the host's tree, the root first."""
        if self._root_uuid is not None:
            found = self._tree(self._root_uuid)
            if found and found[0].name == root_name:
                return found
        self.forget()
        known = self._client.provider_named(root_name)
        if known is None:
            raise RootMissingError(
                f"Placement has no provider {root_name}; it appears when nova-compute of this host has started."
            )
        self._root_uuid = str(known["root_provider_uuid"])
        found = self._tree(self._root_uuid)
        if not found or found[0].name != root_name:
            raise RootMissingError(
                f"Provider {root_name} is not the root of its tree, so it is not a compute node."
            )
        return found

    def _tree(self, root_uuid: str) -> list[TreeProvider]:
        body = self._client.get(f"/resource_providers?in_tree={root_uuid}")
        found = [
            TreeProvider(
                provider["uuid"],
                provider["name"],
                provider["generation"],
                provider["uuid"] == root_uuid,
            )
            for provider in body["resource_providers"]
        ]
        return sorted(found, key=lambda provider: not provider.is_root)

    def actual(self, provider: TreeProvider, *, fresh: bool = False) -> ProviderContents:
        """Return what a provider holds, from memory while its generation is the one remembered.

        :param fresh: read it whatever is remembered
        """
        seen = self._seen.get(provider.uuid)
        if seen is not None and seen.generation == provider.generation and not fresh:
            return seen
        path = f"/resource_providers/{provider.uuid}"
        traits = self._client.get(f"{path}/traits")
        inventories: dict[str, Any] = {}
        if not provider.is_root:  # nova's inventories are none of our business
            body = self._client.get(f"{path}/inventories")
            if body["resource_provider_generation"] != traits["resource_provider_generation"]:
                return self.actual(provider, fresh=True)  # two different moments
            inventories = body["inventories"]
        actual = ProviderContents(
            traits["resource_provider_generation"],
            frozenset(traits["traits"]),
            {name: _inventory(body) for name, body in inventories.items()},
        )
        self._seen[provider.uuid] = actual
        return actual

    def is_ours(self, root: TreeProvider, provider: TreeProvider) -> bool:
        """Return whether a provider below a root is ours."""
        if provider.uuid == child_uuid(root.uuid, provider.name):
            return True
        if not provider.name.startswith(f"{root.name}:"):
            return False
        return self._mark in self.actual(provider).traits

    def traits_seen(self, provider: TreeProvider) -> frozenset[str]:
        """Return the traits that a provider had when it was read or written last."""
        seen = self._seen.get(provider.uuid)
        return seen.traits if seen is not None else frozenset()

    def remember(self, provider: TreeProvider, actual: ProviderContents | None) -> None:
        """Note what a write left behind; None when the provider is gone."""
        if actual is None:
            self._seen.pop(provider.uuid, None)
        else:
            self._seen[provider.uuid] = actual

    def ensure_traits(self, traits: frozenset[str]) -> None:
        """Make traits exist."""
        unknown = traits - self._known_names
        if not unknown:
            return
        existing = self._client.get(f"/traits?name=in:{','.join(sorted(unknown))}")["traits"]
        for trait in sorted(unknown.difference(existing)):
            self._client.put(f"/traits/{trait}")
        self._known_names |= unknown

    def ensure_resource_classes(self) -> None:
        """Make all resource classes of ours exist."""
        if self._known_names.issuperset(names.PUBLISHED_CLASSES):
            return
        existing = {c["name"] for c in self._client.get("/resource_classes")["resource_classes"]}
        for resource_class in names.PUBLISHED_CLASSES:
            if resource_class not in existing:
                self._client.put(f"/resource_classes/{resource_class}")
            self._known_names.add(resource_class)

    def forget_names(self) -> None:
        """Look again which traits and classes exist before the next write: a refusal may mean that one was deleted."""
        self._known_names.clear()


def _inventory(body: Mapping[str, Any]) -> Inventory:
    return Inventory(**{f.name: body[f.name] for f in dataclasses.fields(Inventory)})
