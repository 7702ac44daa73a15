# SPDX-License-Identifier: Apache-2.0
"""What hosts' agents may do, as Placement shows it: the mode that operators set, and those that each agent reports."""

from collections.abc import Callable, Collection, Iterator, Sequence

from nova_numa_ext.cli.each import each
from placement_traits import host_modes
from placement_traits.client import PlacementClient
from placement_traits.host_modes import HostModes, Root
from placement_traits.names import ObserveTrait


def text(root_traits: Collection[str]) -> str:
    """Return how far an agent is switched on, for tables.

    :param root_traits: of its host's root
    """
    reported = [trait.name.lower() for trait in ObserveTrait if trait in root_traits]
    whole = len(reported) == len(ObserveTrait)
    if host_modes.observes_only(root_traits):
        return "observe" if whole else "observe, not obeyed yet"
    if not reported:
        return "enforce"
    return "observe (its options)" if whole else f"observe {' '.join(reported)}"


def set_all(
    make_client: Callable[[], PlacementClient], roots: Sequence[Root], *, observe: bool
) -> Iterator[tuple[str, str]]:
    """Set modes of hosts; yield each with what came of it: ``set``, ``unchanged`` or a sentence.

    The trait is prepared already (:meth:`placement_traits.host_modes.HostModes.prepare`).
    """

    def one(client: PlacementClient, root: Root) -> str:
        return "set" if HostModes(client).set(root, observe=observe) else "unchanged"

    for root, result in each(make_client, roots, one):
        yield root.name, result
