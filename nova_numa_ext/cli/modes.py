# SPDX-License-Identifier: Apache-2.0
"""What hosts' agents may do, as Placement shows it: the switch of the fleet, and what each agent says it does."""

from collections.abc import Callable, Collection, Iterator, Sequence

from nova_numa_ext.cli.each import each
from placement_traits import switch
from placement_traits.client import PlacementClient
from placement_traits.names import ObserveTrait
from placement_traits.switch import Root, Switch


def text(root_traits: Collection[str]) -> str:
    """Return how far an agent is switched on, for tables.

    :param root_traits: of its host's root
    """
    said = [trait.name.lower() for trait in ObserveTrait if trait in root_traits]
    whole = len(said) == len(ObserveTrait)
    if switch.is_on(root_traits):
        return "observe" if whole else "observe, not obeyed yet"
    if not said:
        return "enforce"
    return "observe (its options)" if whole else f"observe {' '.join(said)}"


def turn(
    make_client: Callable[[], PlacementClient], roots: Sequence[Root], *, observe: bool
) -> Iterator[tuple[str, str]]:
    """Switch hosts; yield each with what came of it: ``switched``, ``unchanged`` or a sentence.

    The trait is prepared already (:meth:`placement_traits.switch.Switch.prepare`).
    """

    def one(client: PlacementClient, root: Root) -> str:
        return "switched" if Switch(client).set(root, observe=observe) else "unchanged"

    for root, result in each(make_client, roots, one):
        yield root.name, result
