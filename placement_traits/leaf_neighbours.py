# SPDX-License-Identifier: Apache-2.0
"""Which hosts hang on a host's leaf, and which on the pod above it, as Placement has a fabric (:mod:`.fabric_tree`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from placement_traits import names
from placement_traits.client import PlacementClient
from placement_traits.network_demand import leaf_of

_AT_ONCE: Final = 50


@dataclass(frozen=True, slots=True)
class LeafNeighbours:
    """Hosts near one, itself included.

    :param leaf: on its leaf
    :param pod: below the node above its leaf; where there is none all of the fabric
    """

    leaf: frozenset[str]
    pod: frozenset[str]


def neighbours(client: PlacementClient, host: str) -> LeafNeighbours | None:
    """Return them, in five requests; None for a host that hangs on no leaf. Errors as of the client.

    :param host: name of nova's root provider
    """
    leaf = leaf_of(client, host)
    if leaf is None:
        return None
    tree = client.get(f"/resource_providers?in_tree={leaf}")["resource_providers"]
    parents = {each["uuid"]: each["parent_provider_uuid"] for each in tree}
    traits = {
        each["uuid"]: _trait(str(each["name"]))
        for each in tree
        if each["parent_provider_uuid"] == parents.get(leaf)
    }
    if leaf not in traits:  # its fabric was taken out meanwhile
        return None
    return LeafNeighbours(
        _hosts(client, [traits[leaf]]),
        _hosts(client, sorted(traits.values())),
    )


def _trait(provider: str) -> str:
    _, fabric, leaf = provider.split(":", 2)
    trait = names.leaf_trait(fabric, leaf)
    assert trait is not None, "a fabric refuses such names"
    return trait


def _hosts(client: PlacementClient, traits: Sequence[str]) -> frozenset[str]:
    found = set()
    for begin in range(0, len(traits), _AT_ONCE):
        some = ",".join(traits[begin : begin + _AT_ONCE])
        listed = client.get(f"/resource_providers?required=in:{some}")["resource_providers"]
        found |= {str(each["name"]) for each in listed if each["parent_provider_uuid"] is None}
    return frozenset(found)
