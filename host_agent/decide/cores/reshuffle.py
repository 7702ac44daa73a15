# SPDX-License-Identifier: Apache-2.0
"""Move as few servers as possible, and the cheapest of them, so that one server gets a good slot.

Sets of movable servers are tried by size and then by cost (MiB of memory plus vCPUs, weighted). For each set the
servers in it are taken off the host, the one in need is placed first, and the others, largest first, by backtracking.
The one in need must get a good slot; the others none that disturbs another, nor more slices than before unless these
are the fewest possible. The first set that works is the answer, so the result has the fewest moves and among those
the least cost, as long as the limit of operations is not reached (one operation = one ranking of all slots of one
server). The limit takes the place of a clock: the same input always gives the same answer.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from host_agent.conf.mapping import MappingOptions
from host_agent.decide.cores.choose import exact_slots
from host_agent.decide.cores.ranking import SlotRank, good, rank
from host_agent.decide.cores.slots import MappedServer, Occupancy, Slot
from placement_traits.errors import NumaExtError


@dataclass(frozen=True, slots=True)
class Reshuffle:
    """What to do.

    :param slots: new slots of the moved servers and of the one in need
    :param moved: names of the moved servers
    :param cost_mb: memory to move plus the vCPUs' equivalent, MiB
    """

    slots: Mapping[str, Slot]
    moved: tuple[str, ...]
    cost_mb: int


@dataclass(slots=True)
class Budget:
    """Operations that several searches of one decision share."""

    left: int


class SearchLimitError(NumaExtError):
    """The limit of operations was reached before the search had an answer."""


def move_cost_mb(server: MappedServer, options: MappingOptions) -> int:
    """Return what moving a server costs, MiB."""
    return server.memory_mb + options.vcpu_cost_mb * server.vcpus


def reshuffle(
    occupancy: Occupancy, needy: MappedServer, options: MappingOptions, budget: Budget | None = None
) -> Reshuffle | None:
    """Find the cheapest reshuffle that gives ``needy`` a good slot.

    :param occupancy: the host without ``needy``; unchanged on return
    :param budget: takes the place of the limit of operations, and what was used is taken from it
    :returns: None when no set of at most ``[mapping]reshuffle_moves`` servers works
    :raises SearchLimitError: the limit of operations was reached
    """
    search = _ReshuffleSearch(occupancy, budget or Budget(options.reshuffle_operations))
    candidates = [
        server
        for name in occupancy.slots
        if (server := occupancy.servers[name]).movable and server.name != needy.name
    ]
    for group in _groups(candidates, options):
        found = search.with_moved(needy, group)
        if found is not None:
            cost = sum(move_cost_mb(server, options) for server in group)
            return Reshuffle(found, tuple(server.name for server in group), cost)
    return None


def _groups(
    candidates: Sequence[MappedServer], options: MappingOptions
) -> Iterator[tuple[MappedServer, ...]]:
    def cost(group: tuple[MappedServer, ...]) -> tuple[int, tuple[str, ...]]:
        return sum(move_cost_mb(s, options) for s in group), tuple(s.name for s in group)

    for size in range(1, options.reshuffle_moves + 1):
        yield from sorted(combinations(candidates, size), key=cost)


class _ReshuffleSearch:
    """One search over one working copy of the host."""

    def __init__(self, occupancy: Occupancy, budget: Budget) -> None:
        self._occupancy = occupancy
        self._budget = budget
        self._begun = budget.left

    def with_moved(
        self, needy: MappedServer, group: tuple[MappedServer, ...]
    ) -> dict[str, Slot] | None:
        old = {server.name: self._occupancy.take(server.name) for server in group}
        before = {name: self._rank_before(old, name) for name in old}
        order = (needy, *sorted(group, key=lambda server: (-server.vcpus, server.name)))
        try:
            return self._place(order, old, before)
        finally:
            for name, slot in old.items():
                self._occupancy.put(name, slot)

    def _rank_before(self, old: Mapping[str, Slot], name: str) -> SlotRank:
        """Rank a server's old slot as it was, with the others of the group in place."""
        others = [other for other in old if other != name]
        for other in others:
            self._occupancy.put(other, old[other])
        found = rank(self._occupancy, self._occupancy.servers[name], old[name])
        for other in others:
            self._occupancy.take(other)
        return found

    def _place(
        self, order: Sequence[MappedServer], old: Mapping[str, Slot], before: Mapping[str, SlotRank]
    ) -> dict[str, Slot] | None:
        if not order:
            return {}
        server, *rest = order
        if self._budget.left <= 0:
            raise SearchLimitError(
                f"reshuffling stopped after {self._begun} operations without an answer."
            )
        self._budget.left -= 1
        was = before.get(server.name)
        for found, slot in exact_slots(
            self._occupancy, server, one_group=self._one_group(server, was)
        ):
            if not self._accepted(server, found, was):
                continue
            if server.name in old and set(slot.cpus) == set(old[server.name].cpus):
                continue  # not a move: a smaller group covers it
            self._occupancy.put(server.name, slot)
            try:
                others = self._place(rest, old, before)
            finally:
                self._occupancy.take(server.name)
            if others is not None:
                return {server.name: slot, **others}
        return None

    def _one_group(self, server: MappedServer, before: SlotRank | None) -> bool:
        """Tell whether only slots within one group can be accepted, which are found much faster."""
        layout = self._occupancy.layout
        fits = server.vcpus <= max(group.capacity for group in layout.groups)
        return layout.node_is_group and fits and (before is None or before.nodes == 1)

    def _accepted(self, server: MappedServer, found: SlotRank, before: SlotRank | None) -> bool:
        if good(self._occupancy, server, found):
            return True
        if before is None:
            return False
        slices = (found.chassis, found.nodes)
        return found.violations == 0 and slices <= (before.chassis, before.nodes)
