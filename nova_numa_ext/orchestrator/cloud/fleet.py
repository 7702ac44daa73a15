# SPDX-License-Identifier: Apache-2.0
"""The hosts that jobs may be placed on, as Placement shows them to the service's own user.

Placement alone is asked, with the role ``service`` or ``admin``: for hosts with an agent of ours, what they have, what
is taken of it, and which of them nova has disabled. It knows neither which nova-compute is down, nor what hosts without
an agent are able to do: nova's scheduler decides, and a host that it refuses is left out until no others are left.

What groups hold of the fabric's leafs is read with it, in two requests.

Each reading compares generations and reads the hosts that differ: what was taken since is seen at once. Placement
raises none where nova deletes an allocation, so what became free is seen

* at once, of a host that who reads names as one where a job's server has gone;
* else with the next complete reading. Where that is cheap each one is complete; on a large cloud one a minute. Until
  then less is free in the view than there is: a job may start so much later, and none starts for it that must not.
"""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from math import inf
from types import MappingProxyType
from typing import Final

from nova_numa_ext.fabrics import PlacementFabrics
from nova_numa_ext.policy.jobs.host_view import HostsView, ViewFabric
from placement_traits import reader
from placement_traits.client import HttpAdapter, PlacementClient, RetrySettings
from placement_traits.fleet import Amount
from placement_traits.view import FleetView, ViewSettings, pause_s

# Of the time, complete readings take this share; a cloud on which they would take more has one each so many seconds.
_COMPLETE_SHARE: Final = 0.05
_COMPLETE_S: Final = 60.0


class PlacementHosts:
    """Reads the hosts, no more often than its settings allow; for one thread.

    :param placement: a keystoneauth1 adapter for service type ``placement``
    :param settings: how often it is read
    :param aliases: resource classes of nova's PCI aliases
    :param aggregate: uuid of the aggregate whose hosts are read; '': all
    :param clock: monotonic seconds; injected by tests
    """

    def __init__(
        self,
        placement: HttpAdapter,
        settings: ViewSettings,
        aliases: Mapping[str, frozenset[str]] = MappingProxyType({}),
        clock: Callable[[], float] = time.monotonic,
        *,
        aggregate: str = "",
    ) -> None:
        self._amounts: dict[str, Mapping[str, Amount]] = {}
        never = replace(settings, full_interval_s=inf)
        self._fleet = FleetView(
            placement, never, clock, background=False, root_amounts=self._amounts
        )
        self._client = PlacementClient(placement, RetrySettings(attempts=2))
        self._fabrics = PlacementFabrics(self._client)
        self._settings = settings
        self._aliases = aliases
        self._aggregate = aggregate
        self._clock = clock
        self._hosts: HostsView | None = None
        self._due_s = -inf
        self._complete_due_s = -inf

    def read(self, freed: Collection[str] = ()) -> HostsView:
        """Return the hosts; the same object as before where they were not due to be read again.

        :param freed: root providers of hosts on which something was freed lately
        :raises ServiceUnavailableError: Placement does not answer; it is asked again the next time
        :raises PlacementError: it refuses what is asked, such as to a user without the role
        """
        if self._hosts is None or self._clock() >= self._due_s:
            self._hosts = None
            self._refresh(freed)
            arrays = self._fleet.snapshot().arrays
            roots = self._amounts.keys() & arrays.rows.keys()
            if self._aggregate:
                roots &= reader.members(self._client, self._aggregate)
            amounts = {root: self._amounts[root] for root in arrays.rows if root in roots}
            closed = reader.disabled(self._client)
            fabrics = [ViewFabric(each.leafs, each.leaf_of_trait) for each in self._fabrics.read()]
            self._hosts = HostsView.of(arrays, amounts, closed, self._aliases, fabrics)
            took_s = self._fleet.stats.last_duration_s
            self._due_s = self._clock() + pause_s(self._settings, took_s)
        return self._hosts

    def _refresh(self, freed: Collection[str]) -> None:
        before = self._fleet.stats.full_reads
        self._fleet.refresh(complete=self._clock() >= self._complete_due_s, again=freed)
        stats = self._fleet.stats
        if stats.full_reads > before:
            pause = min(stats.last_duration_s / _COMPLETE_SHARE, _COMPLETE_S)
            self._complete_due_s = self._clock() + pause
