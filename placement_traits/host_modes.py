# SPDX-License-Identifier: Apache-2.0
"""The mode of a host in Placement: operators let a host's agent observe only, from anywhere, by a trait on nova's root.

::

    compute1    CUSTOM_NUMA_EXT_MODE_OBSERVE       set and removed here, for operators; the agent only reads it
                CUSTOM_NUMA_EXT_OBSERVES_RDT …     published by the agent: what observes there now, for whatever reason

The agent finds it in what it reads anyway: it compares the generations of its tree with one request a minute, and a
root whose traits have changed has another generation. So a fleet whose modes stay costs no request, and a host
whose mode changes costs one, of its root's traits. The root is written with its generation: neither writer undoes what
the other has done.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from placement_traits import names
from placement_traits.client import GenerationConflictError, PlacementClient
from placement_traits.errors import ConflictError

_TRIES: Final = 12


def observes_only(root_traits: Iterable[str]) -> bool:
    """Return whether operators let this host observe only."""
    return names.MODE_OBSERVE in root_traits


@dataclass(frozen=True, slots=True)
class Root:
    """Nova's root provider of a host."""

    uuid: str
    name: str


class HostModes:
    """Reads and sets modes; all errors of :class:`~placement_traits.client.PlacementClient`.

    :param client: Placement
    """

    def __init__(self, client: PlacementClient) -> None:
        self._client = client

    def prepare(self) -> None:
        """Have Placement know the trait, once before the first mode is set."""
        self._client.put(f"/traits/{names.MODE_OBSERVE}")

    def root(self, host: str) -> Root | None:
        """Return a host's root by its name, None where nova has made none."""
        found = self._client.provider_named(host)
        return Root(found["uuid"], found["name"]) if found else None

    def to_change(self, *, observe: bool) -> list[Root]:
        """Return the hosts with an agent whose mode is the other one, by name, in one request."""
        required = f"{names.HOST},{'!' if observe else ''}{names.MODE_OBSERVE}"
        body = self._client.get(f"/resource_providers?required={required}")
        found = [Root(each["uuid"], each["name"]) for each in body["resource_providers"]]
        return sorted(found, key=lambda root: root.name)

    def set(self, root: Root, *, observe: bool) -> bool:
        """Set one host's mode; tell whether it was the other one.

        :raises ConflictError: others wrote again and again
        """
        path = f"/resource_providers/{root.uuid}/traits"
        for attempt in range(_TRIES):
            there = self._client.get(path)
            if observes_only(there["traits"]) == observe:
                return False
            traits = {*there["traits"]} ^ {names.MODE_OBSERVE}
            generation = there["resource_provider_generation"]
            body = {"resource_provider_generation": generation, "traits": sorted(traits)}
            try:
                self._client.put(path, body)
            except GenerationConflictError:
                self._client.pause(attempt)
            else:
                return True
        raise ConflictError(f"The provider {root.name} was changed {_TRIES} times meanwhile.")
