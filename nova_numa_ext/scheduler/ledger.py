# SPDX-License-Identifier: Apache-2.0
"""What this scheduler process has picked lately, for ranking only: small, bounded, forgotten after a while."""

import threading
from collections import OrderedDict
from collections.abc import Iterable

from nova_numa_ext.policy.picks import Pick


class Ledger:
    """Recent picks, safe to use from several threads.

    :param ttl_s: seconds after which a pick is forgotten
    :param limit: largest number of picks; the oldest go first
    """

    def __init__(self, ttl_s: float, limit: int) -> None:
        self._ttl_s = ttl_s
        self._limit = limit
        self._picks: OrderedDict[str, tuple[float, Pick]] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, ttl_s: float, limit: int) -> None:
        """Take other bounds, from the next pick on; parameters as of the class."""
        self._ttl_s, self._limit = ttl_s, limit

    def record(self, pick: Pick, now_s: float) -> None:
        """Remember a pick; a newer one of the same server takes its place.

        :param now_s: monotonic clock, seconds
        """
        with self._lock:
            self._picks.pop(pick.server, None)
            self._picks[pick.server] = (now_s, pick)
            while len(self._picks) > self._limit:
                self._picks.popitem(last=False)

    def forget(self, servers: Iterable[str]) -> None:
        """Drop picks of servers that are not placed after all."""
        with self._lock:
            for server in servers:
                self._picks.pop(server, None)

    def by_host(self, now_s: float, *, without: str) -> dict[str, list[Pick]]:
        """Return remembered picks by host, except the one of server ``without``.

        :param now_s: monotonic clock, seconds
        """
        hosts: dict[str, list[Pick]] = {}
        with self._lock:
            while self._picks:
                server, (at_s, _) = next(iter(self._picks.items()))
                if now_s - at_s < self._ttl_s:
                    break
                del self._picks[server]
            for _, pick in self._picks.values():
                if pick.server != without:
                    hosts.setdefault(pick.host, []).append(pick)
        return hosts
