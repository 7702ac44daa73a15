# SPDX-License-Identifier: Apache-2.0
"""A fabric in a Placement, as its writer leaves it."""

from placement_traits import names
from placement_traits.client import PlacementClient
from placement_traits.fabric import Fabric
from placement_traits.fabric_tree import FabricWriter


def put_fabric(client: PlacementClient, plan: Fabric) -> dict[str, str]:
    """Write a fabric without groups; returns the uuids of its providers by node, that of the root by ''."""
    FabricWriter(client).apply(plan)
    root = client.provider_named(names.fabric_provider(plan.name))
    assert root is not None
    tree = client.get(f"/resource_providers?in_tree={root['uuid']}")["resource_providers"]
    return {
        each["name"].removeprefix(root["name"]).removeprefix(":"): each["uuid"] for each in tree
    }
