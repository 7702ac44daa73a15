# SPDX-License-Identifier: Apache-2.0
"""Where servers hang on a fabric, as Placement knows it: with the service's credentials, for users see no hosts."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from nova_numa_ext.fabrics import PlacementFabrics
from nova_numa_ext.orchestrator.cloud.asking import SilentError
from nova_numa_ext.orchestrator.cloud.hosts import ServerHosts
from placement_traits.client import NotFoundError, PlacementClient, PlacementError


class Cabling(NamedTuple):
    """Where servers hang; names are the operator's.

    :param fabric: name of the fabric
    :param levels: of its nodes, bottom up
    :param nodes: of each server its leaf and the nodes above; (): it hangs on another fabric, or on none
    """

    fabric: str
    levels: tuple[str, ...]
    nodes: tuple[tuple[str, ...], ...]


class CablingOf(Protocol):
    """Where servers hang on fabrics."""

    def of(self, servers: Sequence[str]) -> Cabling | None:
        """Return where servers hang, by their uuids; None: on no fabric."""


class ServerCabling:
    """Asks Placement; any thread may use it.

    :param client: of a user who may read allocations and providers
    """

    def __init__(self, client: PlacementClient) -> None:
        self._client = client
        self._hosts = ServerHosts(client)

    def of(self, servers: Sequence[str]) -> Cabling | None:
        """Return where servers hang of the first fabric, by name, that has any of them; None: none has.

        Two requests for each server, a third for one whose provider was not seen before.

        :param servers: uuids; one without a host hangs nowhere
        :raises SilentError: Placement refuses what is asked
        :raises ServiceUnavailableError: it does not answer
        """
        try:
            roots = [self._hosts.host(server) for server in servers]
            traits = {root: self._traits(root) for root in {*roots} if root is not None}
            for state in PlacementFabrics(self._client).read():
                nodes_of = {root: state.nodes_above(found) for root, found in traits.items()}
                if any(nodes_of.values()):
                    nodes = tuple(nodes_of[root] if root else () for root in roots)
                    return Cabling(state.name, tuple(state.leafs.levels), nodes)
        except PlacementError as error:  # its words name providers
            raise SilentError("Placement", str(error)) from error
        return None

    def _traits(self, root: str) -> frozenset[str]:
        try:
            return frozenset(self._client.get(f"/resource_providers/{root}/traits")["traits"])
        except NotFoundError:  # the host was removed just now
            return frozenset()
