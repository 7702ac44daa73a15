# SPDX-License-Identifier: Apache-2.0
"""Reads one host's part of Placement back as the tree that its agent wrote, for commands and tools."""

import dataclasses

from placement_traits import names
from placement_traits.client import PlacementClient
from placement_traits.errors import InvalidValueError
from placement_traits.tree import Inventory, Provider, ProviderTree


def hosts(client: PlacementClient) -> dict[str, str]:
    """Return the root providers of all hosts with our agent: uuid by name, in order of name."""
    if not client.get(f"/traits?name=in:{names.HOST}")["traits"]:
        return {}
    found = client.get(f"/resource_providers?required={names.HOST}")["resource_providers"]
    return dict(sorted((provider["name"], provider["uuid"]) for provider in found))


def disabled(client: PlacementClient) -> frozenset[str]:
    """Return the root providers of hosts whose nova-compute is disabled: nova says so by a trait."""
    found = client.get(f"/resource_providers?required={names.COMPUTE_DISABLED}")
    return frozenset(provider["uuid"] for provider in found["resource_providers"])


def members(client: PlacementClient, aggregate: str) -> frozenset[str]:
    """Return the providers of an aggregate; of one of nova's these are root providers of its hosts.

    :param aggregate: its uuid
    """
    found = client.get(f"/resource_providers?member_of={aggregate}")
    return frozenset(provider["uuid"] for provider in found["resource_providers"])


def read_tree(client: PlacementClient, host: str) -> ProviderTree:
    """Read our part of a host's tree; traits and resource classes of others are left out.

    :param client: Placement
    :param host: name of nova's root provider
    :raises InvalidValueError: there is no such host, or our agent does not run there
    """
    found = client.provider_named(host)
    traits = _traits(client, found["uuid"]) if found else frozenset()
    if found is None or names.HOST not in traits:
        raise InvalidValueError("host", host, ", ".join(hosts(client)) or "none: no agent reports")
    root = found["uuid"]
    # Not ``required=``: Placement refuses a trait that has not been made yet, and a host may have no children.
    below = client.get(f"/resource_providers?in_tree={root}")["resource_providers"]
    children = []
    for provider in below:
        its = _traits(client, provider["uuid"])
        ours = not its.isdisjoint((names.OWNER, names.REMOTE_GPU_CLIENT_NIC))
        if provider["uuid"] != root and ours:
            inventories = _inventories(client, provider["uuid"])
            children.append(Provider(provider["name"], its, inventories))
    return ProviderTree(host, traits, tuple(sorted(children, key=lambda child: child.name)))


def _traits(client: PlacementClient, provider: str) -> frozenset[str]:
    body = client.get(f"/resource_providers/{provider}/traits")
    return frozenset(filter(names.is_ours, body["traits"]))


def _inventories(client: PlacementClient, provider: str) -> dict[str, Inventory]:
    body = client.get(f"/resource_providers/{provider}/inventories")
    fields = [field.name for field in dataclasses.fields(Inventory)]
    return {
        name: Inventory(**{field: inventory[field] for field in fields})
        for name, inventory in body["inventories"].items()
        if name in names.PUBLISHED_CLASSES
    }
