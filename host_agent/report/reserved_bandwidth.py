# SPDX-License-Identifier: Apache-2.0
"""How much bandwidth each L3 domain holds back from sale: measured use beyond what the servers there declared."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from host_agent.decide.amounts.claims import ServerClaim, declared_mbps
from host_agent.decide.amounts.reserved_bandwidth import (
    ReservationSettings,
    excess_mbps,
    next_reserved,
)
from host_agent.observe.bandwidth import Bandwidth
from placement_traits.offers import bandwidth_shares
from placement_traits.topology import HostTopology

_TOTAL: Final = "mbm_total_bytes"


class BandwidthReservation:
    """Follows the memory traffic of this host; a domain has no figure before its first measurement.

    :param measure: returns the traffic of the whole host, None when it is not known
    :param settings: how calmly ``reserved`` follows
    :param interval_s: seconds between two looks
    """

    def __init__(
        self,
        measure: Callable[[], Bandwidth | None],
        settings: ReservationSettings,
        interval_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._measure = measure
        self._settings = settings
        self._interval_s = interval_s
        self._clock = clock
        self._looked: float | None = None
        self._reserved: dict[int, int] = {}

    def reserved_mbps(
        self, topology: HostTopology, claims: Sequence[ServerClaim]
    ) -> Mapping[int, int]:
        """Return what to publish as ``reserved``, MB/s by L3 domain; looks at the counters when it is time.

        Without MBM nothing is held back. Where traffic is unknown (a counter began again) the value stays as it is;
        what an earlier agent has published stays in Placement until there is one.

        :param claims: of all servers that declared bandwidth
        """
        if topology.rdt is None or not topology.rdt.monitors(_TOTAL):
            return dict.fromkeys(bandwidth_shares(topology), 0)
        now = self._clock()
        elapsed = self._interval_s if self._looked is None else now - self._looked
        if elapsed < self._interval_s:
            return self._reserved
        self._looked = now
        measured = self._measure()
        declared = declared_mbps(claims)
        known = self._reserved
        self._reserved = {
            l3: next_reserved(known.get(l3, 0), excess, capacity, elapsed, self._settings)
            for l3, capacity in bandwidth_shares(topology).items()
            if (excess := _excess(measured, l3, declared.get(l3, 0))) is not None or l3 in known
        }
        return self._reserved


def _excess(measured: Bandwidth | None, l3: int, declared: int) -> int | None:
    if measured is None or l3 not in measured.domains:
        return None
    return excess_mbps(round(measured.domains[l3].total_mbps), declared)
