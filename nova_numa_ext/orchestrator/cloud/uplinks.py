# SPDX-License-Identifier: Apache-2.0
"""Says on leafs of fabrics what best-effort servers of their hosts may send, from what these hosts' agents say.

One writer: the leading engine. What it decides by stands in Placement, on the hosts' own providers and on the leaf's,
so that a new leader goes on with it. Where no host asks, a look is two requests.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from nova_numa_ext.policy.network.uplink_limits import limit
from placement_traits import names, network_demand
from placement_traits.beats import Clock
from placement_traits.client import NotFoundError, PlacementClient
from placement_traits.errors import ConflictError
from placement_traits.leaf_limits import LeafLimit, NetworkDemand

_LOG: Final = logging.getLogger(__name__)


class LeafUplinks:
    """Looks at what hosts ask for; for one thread at a time.

    :param client: Placement
    :param most_kept: share of a leaf's uplinks that is kept for latency-critical servers at most
    :param clock: seconds since 1970
    """

    def __init__(
        self,
        client: PlacementClient,
        most_kept: float,
        clock: Clock = time.time,
    ) -> None:
        self._client, self._most_kept = client, most_kept
        self._clock = clock

    def look(self, may: Callable[[], None]) -> int:
        """Write what is to be said of each leaf, where it is another thing or becomes old; return how many were.

        :param may: called right before each write; raises where this process may not write any more
        :raises ServiceUnavailableError: Placement does not answer
        """
        said = network_demand.demands(self._client, self._clock)
        leafs = {*network_demand.limited_leafs(self._client)}
        for host, demand in said.items():
            if demand.asked and (leaf := network_demand.leaf_of(self._client, host)):
                leafs.add(leaf)
        return sum(self._decide(leaf, said, may) for leaf in sorted(leafs))

    def _decide(
        self, leaf: str, said: Mapping[str, NetworkDemand], may: Callable[[], None]
    ) -> bool:
        path = f"/resource_providers/{leaf}"
        try:
            body = self._client.get(f"{path}/inventories")
            traits = self._client.get(f"{path}/traits")["traits"]
        except NotFoundError:  # its fabric was taken out
            return False
        there = body["inventories"]
        trait = min(filter(names.is_leaf_trait, traits), default="")
        if not trait or names.LEAF_UPLINK_MBPS not in there:
            return False
        _, hosts = network_demand.below(self._client, trait)
        uplink = there[names.LEAF_UPLINK_MBPS]
        now = network_demand.minute(self._clock)
        written = int(there[names.LEAF_MINUTE]["total"]) if names.LEAF_MINUTE in there else None
        is_held = written is not None and network_demand.is_fresh(written, now)
        before = _said(there) if is_held else None
        found = limit(
            int(uplink["total"]),
            [each for host, each in said.items() if host in hosts],
            before,
            self._most_kept,
        )
        if found == before and (written == now or written is None):
            return False
        may()
        try:
            self._client.put(
                f"{path}/inventories",
                {
                    "resource_provider_generation": body["resource_provider_generation"],
                    "inventories": _with(there, found, now),
                },
            )
        except ConflictError as error:  # a group was planned there: the next look writes it
            _LOG.info("limits of leaf %s are written later: %s", trait, error)
            return False
        if found is None:
            _LOG.info("leaf %s: nothing is kept of its uplinks any more", trait)
        elif found != before:
            _LOG.info(
                "leaf %s: %d of %d Mbit/s are kept, best-effort servers of a host may send %d",
                trait,
                found.kept,
                uplink["total"],
                found.best_effort,
            )
        return True


def _said(there: Mapping[str, Any]) -> LeafLimit | None:
    """Return what was said last of a leaf, by its inventories."""
    if names.LEAF_BE_MBPS not in there:
        return None
    kept = int(there[names.LEAF_UPLINK_MBPS]["reserved"])
    return LeafLimit(kept, int(there[names.LEAF_BE_MBPS]["total"]))


def _with(there: Mapping[str, Any], said: LeafLimit | None, now: int) -> dict[str, Any]:
    """Return the inventories of a leaf with what is said of it; all others as they are."""
    found = {key: each for key, each in there.items() if key not in names.LEAF_LIMIT_CLASSES}
    kept = said.kept if said else 0
    found[names.LEAF_UPLINK_MBPS] = {**there[names.LEAF_UPLINK_MBPS], "reserved": kept}
    if said:
        found[names.LEAF_BE_MBPS] = {"total": said.best_effort, "max_unit": 1}
        found[names.LEAF_MINUTE] = {"total": now}
    return found
