# SPDX-License-Identifier: Apache-2.0
"""Which searches for a spread of memory run at a time, and which wait for their turn. Pure.

Each search reads counters several times a second and moves memory, which the measurements of the others see: with many
servers at once the agent would cost too much, and they would disturb each other. So ``[bwap]at_once`` bounds those that
place or measure. The others wait in the order in which they were ready to begin.

One that was held up (:attr:`~host_agent.decide.pages.shares.Memory.held`) keeps no place free and goes on at once when
it may again, so a few more than that can run for a while.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from host_agent.conf.bwap import BwapOptions
from host_agent.decide.pages.bwap import BwapSearch
from host_agent.decide.pages.shares import Memory


@dataclass(frozen=True, slots=True)
class Turns:
    """Which searches may begin with the next sample.

    :param called: UUIDs of those that have waited the longest
    :param more: how many may begin that have not waited
    """

    called: frozenset[str]
    more: int

    def may_begin(self, uuid: str) -> bool:
        """Tell whether a server's search may begin."""
        return uuid in self.called or self.more > 0

    def after(self, uuid: str, known: Memory, found: Memory) -> "Turns":
        """Return what is left when a server's search has taken its sample."""
        began = found.begun and not known.begun and uuid not in self.called
        return Turns(self.called, self.more - 1) if began else self


def turns(memories: Mapping[str, Memory], options: BwapOptions) -> Turns:
    """Return which searches may begin.

    :param memories: UUID -> what is known of servers that can be balanced
    """
    searches = _searches(memories)
    free = max(0, options.at_once - sum(search.begun for search in searches.values()))
    queue = sorted((search.queued_s, uuid) for uuid, search in searches.items() if search.queued)
    return Turns(frozenset(uuid for _, uuid in queue[:free]), max(0, free - len(queue)))


def read_often(memories: Mapping[str, Memory], options: BwapOptions) -> frozenset[str]:
    """Return UUIDs of servers whose counters are read at the rate of searches.

    Those are the searches that have begun, and as many as may begin beside them; of those that get no counters none is.
    """
    searches = {
        uuid: search
        for uuid, search in _searches(memories).items()
        if search.blind < options.blind_samples
    }
    begun = [uuid for uuid, search in searches.items() if search.begun]
    waiting = sorted(searches.keys() - set(begun), key=lambda uuid: (searches[uuid].queued_s, uuid))
    return frozenset((*begun, *waiting[: max(0, options.at_once - len(begun))]))


def _searches(memories: Mapping[str, Memory]) -> dict[str, BwapSearch]:
    return {
        uuid: known.search
        for uuid, known in memories.items()
        if known.searching and known.search is not None
    }
