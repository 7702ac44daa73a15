# SPDX-License-Identifier: Apache-2.0
"""What servers have claimed of this host's L3 domains, read from Placement."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from placement_traits import names
from placement_traits.client import PlacementClient

Claimed = Mapping[int, Mapping[str, Mapping[str, int]]]
"""L3 domain -> consumer -> amounts by resource class."""


@dataclass(frozen=True, slots=True)
class _Read:
    """The claims on one provider at one moment."""

    generation: int
    amounts: Mapping[str, Mapping[str, int]]


class ClaimReader:
    """Reads the claims on one host; those of a domain again when its provider has changed.

    A consumer that was deleted as a whole raises no generation: it is seen with the next change.

    :param client: Placement
    :param root: name of nova's root provider
    """

    def __init__(self, client: PlacementClient, root: str) -> None:
        self._client = client
        self._root = root
        self._root_uuid: str | None = None
        self._read: dict[str, _Read] = {}

    def read(self) -> Claimed:
        """Return the claims; a host without providers has none.

        :raises NumaExtError: Placement does not answer, or does not let us
        """
        found: dict[int, Mapping[str, Mapping[str, int]]] = {}
        for provider in self._tree():
            l3 = names.parse_l3_provider(self._root, provider["name"])
            if l3 is not None:
                found[l3] = self._claims(provider["uuid"], provider["generation"])
        return found

    def _tree(self) -> list[Mapping[str, Any]]:
        if self._root_uuid is None:
            root = self._client.provider_named(self._root)
            self._root_uuid = root["uuid"] if root else None
        if self._root_uuid is None:
            return []
        body = self._client.get(f"/resource_providers?in_tree={self._root_uuid}")
        found: list[Mapping[str, Any]] = body["resource_providers"]
        if not found:  # nova has made the tree again, or will
            self._root_uuid = None
            self._read.clear()
        return found

    def _claims(self, provider: str, generation: int) -> Mapping[str, Mapping[str, int]]:
        known = self._read.get(provider)
        if known is None or known.generation != generation:
            body = self._client.get(f"/resource_providers/{provider}/allocations")
            amounts = {uuid: entry["resources"] for uuid, entry in body["allocations"].items()}
            known = _Read(body["resource_provider_generation"], amounts)
            self._read[provider] = known
        return known.amounts
