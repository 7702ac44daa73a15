# SPDX-License-Identifier: Apache-2.0
"""Does this host hang on the leaf that Placement has for it? Compared with what lldpd hears; a trait says where not.

The plan decides, what is heard only verifies it::

    own leaf heard                       cabled as planned; the trait is removed
    another leaf of a fabric, not own    CUSTOM_NUMA_EXT_MISCABLED: no server of a group is placed here
    no leaf of a fabric heard            not known: the trait stays as it is
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from placement_traits import names
from placement_traits.client import PlacementClient, PlacementError
from placement_traits.errors import NumaExtError
from placement_traits.lldp import SwitchPort

_MOST: Final = 16  # switches that are looked for: a host has as many uplinks at most


@dataclass(frozen=True, slots=True)
class HeardLeaf:
    """What is known of a host's cables.

    :param planned: trait of the leaf that Placement has for it
    :param own: where its own leaf is heard
    :param other: where another leaf of a fabric is, and its own is not
    """

    planned: str
    own: SwitchPort | None = None
    other: SwitchPort | None = None

    def __str__(self) -> str:
        """Say what is heard and what is planned."""
        if self.own is not None:
            return f"LLDP says {self.own}, as planned"
        if self.other is not None:
            return f"LLDP says {self.other}, the plan says {self.planned}: no group is placed here"
        return f"LLDP says nothing of a leaf, the plan says {self.planned}"


def compare(
    client: PlacementClient, root_traits: frozenset[str], heard: Sequence[SwitchPort]
) -> HeardLeaf | None:
    """Compare what is heard with Placement; None for a host that hangs on no leaf. Errors as of the client.

    Traits do not say where a fabric's name ends and its leaf's begins, so Placement is asked for the names of fabrics.

    :param root_traits: of the host's root
    """
    planned = min(filter(names.is_leaf_trait, root_traits), default="")
    if not planned:
        return None
    fabrics = _fabrics(client) if heard else []
    for port in heard:
        own = (names.leaf_trait(name, each) for name in fabrics for each in _spelled(port))
        if planned in own:
            return HeardLeaf(planned, own=port)
    for port in heard[:_MOST]:
        nodes = (names.fabric_provider(name, each) for name in fabrics for each in _spelled(port))
        if any(map(client.provider_named, nodes)):
            return HeardLeaf(planned, other=port)
    return HeardLeaf(planned)


class CableWriter(Protocol):
    """What writes the trait: :class:`placement_traits.reporter.Reporter`."""

    def cabled(self, host: str, *, wrong: bool) -> Any:
        """Let a host's root have the trait of a wrong cable, or not have it."""


class CableCheck:
    """Compares a host's cables and writes the trait.

    :param hear: returns the switches that are heard
    :param placement: returns Placement, and what writes there; called when the first host has a leaf
    """

    def __init__(
        self,
        hear: Callable[[], Sequence[SwitchPort]],
        placement: Callable[[], tuple[PlacementClient, CableWriter]],
    ) -> None:
        self._hear = hear
        self._placement = placement
        self._made: tuple[PlacementClient, CableWriter] | None = None

    def turn(self, host: str, root_traits: frozenset[str]) -> tuple[str, ...]:
        """Compare once; return what is wrong, or why it is not known.

        :param host: name of nova's root provider
        :param root_traits: that it has
        """
        if not any(map(names.is_leaf_trait, root_traits)):
            return ()
        try:
            heard = self._hear()
            self._made = self._made or self._placement()
            client, writer = self._made
            found = compare(client, root_traits, heard)
            if found is None or (found.own is None and found.other is None):
                return ()
            wrong = found.other is not None
            if wrong is not (names.MISCABLED in root_traits):
                writer.cabled(host, wrong=wrong)
        except NumaExtError as error:
            return (f"The cables of this host are not compared. {error}",)
        return (f"{found}.",) if wrong else ()


def _spelled(port: SwitchPort) -> Iterator[str]:
    """Yield the names that a plan may have for a switch: switches may tell their domain, too."""
    yield port.system
    if "." in port.system:
        yield port.system.partition(".")[0]


def _fabrics(client: PlacementClient) -> list[str]:
    try:
        found = client.get(f"/resource_providers?required={names.NET_FABRIC}")["resource_providers"]
    except PlacementError as error:
        if error.status == 400:  # no fabric was ever there, so that Placement has no such trait
            return []
        raise
    return [each["name"].removeprefix(names.fabric_provider("")) for each in found]
