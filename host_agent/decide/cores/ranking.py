# SPDX-License-Identifier: Apache-2.0
"""Which of two slots is better for a server: the one rule for floating servers, whatever the width of the slot. Pure.

Source of terms 1 to 3, 5, 10, 12: Lakew et al., section 4.1 and tables 3 and 4. The others are ours: the source knows
neither latency-critical servers nor devices, and places every server once.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

from host_agent.decide.cores.slots import CoreGroup, MappedServer, Occupancy, Slot
from host_agent.model.terms import Term
from placement_traits.interference import may_share, penalty
from placement_traits.names import InterferenceClass
from placement_traits.reason import Reason


@dataclass(frozen=True, slots=True)
class Ties:
    """What draws a floating server to some nodes.

    :param home: NUMA nodes where it is by the last decision, ascending; empty when it has just come
    :param device_nodes: NUMA node of each passed-through device, as far as it is known
    :param resident_mb: NUMA node -> MiB of its memory that is there
    :param pages_stay: that memory must not be moved
    """

    home: tuple[int, ...] = ()
    device_nodes: tuple[int, ...] = ()
    resident_mb: Mapping[int, float] = field(default_factory=dict)
    pages_stay: bool = False


NO_TIES: Final = Ties()

# The order of the terms; the first that differs decides, the smaller value is better.
#
#  1. overbooked        a vCPU of the server would share its CPU: never while there is a CPU for each; exact
#                       slots never are, so where nova overcommits the host this says nothing and term 13 evens out
#  2. violations        neighbours in an L3 domain that the class matrix forbids: worth more slices
#  3. chassis, nodes    fewest slices, the widest gap first
#  5. memory_away       MiB that find no room on the slot's own nodes. Before the LC: pages that spill to the
#                       LC's node load its memory controller with no throttle, as levels follow the CPUs
#  6. beside_lc         L3 domains with a latency-critical server: the class matrix lets a sheep in, we keep it out
#  7. from_devices      distance to passed-through devices: the scheduler chose them with their place in mind
#  8. pinned_away       part of the memory elsewhere that can never follow (VFIO pins it)
#  9. elsewhere         the server would leave its home: nothing is moved for what comes below
# 10. sockets, l3_domains   fewest slices within the nodes
# 12. crowd             neighbours that are allowed but better apart: two devils, a sheep and a devil
# 13. load              vCPUs per CPU beyond one
# 14. distance          between the slices, weighted by vCPUs
# 15. left_over         idle cores left beside it: best fit keeps whole groups for others
# 16. pages_away        part of its memory that would have to be moved here
#
# Slots that are equal in all of them differ by their lowest CPU numbers.


@dataclass(frozen=True, slots=True, order=True)
class SlotRank:
    """How good a slot is for a server; smaller is better. The fields are in the order of the list above."""

    overbooked: bool
    violations: int
    chassis: int
    nodes: int
    memory_away: int
    beside_lc: int
    from_devices: int
    pinned_away: float
    elsewhere: bool
    sockets: int
    l3_domains: int
    crowd: int
    load: float
    distance: float
    left_over: int
    pages_away: float

    def reasons(self) -> tuple[Reason, ...]:
        """Return the terms that say something to people, as far as they are not zero."""
        return tuple(
            Reason(term, value) for name, term in _SHOWN.items() if (value := getattr(self, name))
        )


_SHOWN: Final = {
    "overbooked": Term.SLOT_OVERBOOKED,
    "violations": Term.SLOT_VIOLATIONS,
    "chassis": Term.SLOT_CHASSIS,
    "nodes": Term.SLOT_NODES,
    "memory_away": Term.SLOT_MEMORY_AWAY,
    "beside_lc": Term.SLOT_BESIDE_LC,
    "crowd": Term.SLOT_CROWD,
    "distance": Term.SLOT_DISTANCE,
}


def rank(occupancy: Occupancy, server: MappedServer, slot: Slot, ties: Ties = NO_TIES) -> SlotRank:
    """Rank a slot for a server that is not placed now.

    Neighbours drive no server from its home, of whatever class and number, except latency-critical ones: it moves for
    them when it is measured to suffer. So what others do costs no moves, and a decision that is repeated is the same.
    """
    layout, mine = occupancy.layout, server.interference_class
    held = layout.spread(slot.cpus)
    touched = [layout.groups[index] for index in held]
    l3_domains = {group.l3 for group in touched}
    nodes = {group.node for group in touched}
    at_home = bool(ties.home) and nodes == set(ties.home)
    neighbours = [occupancy.servers[name] for name in occupancy.neighbours(l3_domains)]
    others = Counter((other.interference_class, other.latency_critical) for other in neighbours)
    beside_lc = sum(map(occupancy.latency_critical_in, l3_domains))
    floating = occupancy.floating_on(slot.cpus) if slot.wide else 0.0
    crowded = 1.0
    if slot.wide:
        crowded = round((server.vcpus + occupancy.vcpus_on(slot.cpus)) / len(slot.cpus), 6)
    total = sum(ties.resident_mb.values())
    has = sum(ties.resident_mb.get(node, 0.0) for node in nodes)
    away = round(1.0 - has / total, 3) if total else 0.0
    return SlotRank(
        overbooked=server.vcpus > len(slot.cpus) if at_home else crowded > 1.0,
        violations=sum(
            number
            for (other, critical), number in others.items()
            if (critical or not at_home) and not may_share(mine, other)
        ),
        chassis=len({group.chassis for group in touched}),
        nodes=len(nodes),
        memory_away=max(0, server.memory_mb - sum(slot.memory_mb.get(n, 0) for n in nodes)),
        beside_lc=beside_lc,
        from_devices=sum(
            min(layout.topology.distance(node, device) for node in nodes)
            for device in ties.device_nodes
        ),
        pinned_away=away if ties.pages_stay else 0.0,
        elsewhere=not at_home,
        sockets=len({group.socket for group in touched}),
        l3_domains=_fewest_l3(touched, held, server.vcpus) if slot.wide else len(l3_domains),
        crowd=sum(
            number * (2 * penalty(mine, other) + (InterferenceClass.DEVIL in (mine, other)))
            for (other, _critical), number in others.items()
        ),
        load=max(0.0, crowded - 1.0),
        distance=_distance(occupancy, touched, held, server.vcpus / len(slot.cpus)),
        left_over=max(0, sum(map(occupancy.idle_cores, touched)) - round(server.vcpus + floating)),
        pages_away=away,
    )


def _distance(
    occupancy: Occupancy, touched: Iterable[CoreGroup], held: Mapping[int, int], per_cpu: float
) -> float:
    """Sum of the distances between the vCPUs of a server; those that float are everywhere in equal parts."""
    layout = occupancy.layout
    total = sum(
        held[a.index] * held[b.index] * layout.distance(a, b) for a, b in combinations(touched, 2)
    )
    return total if per_cpu == 1.0 else round(total * per_cpu**2, 3)


def _fewest_l3(touched: Iterable[CoreGroup], held: Mapping[int, int], vcpus: int) -> int:
    """Count the L3 domains that the vCPUs need, the largest first: those that float are not everywhere at once."""
    sizes: dict[int, int] = {}
    for group in touched:
        sizes[group.l3] = sizes.get(group.l3, 0) + held[group.index]
    needed = 0
    for size in sorted(sizes.values(), reverse=True):
        if vcpus <= 0:
            break
        vcpus -= size
        needed += 1
    return needed


def rank_of(occupancy: Occupancy, name: str) -> SlotRank:
    """Rank the slot of a server that is placed."""
    slot = occupancy.take(name)
    found = rank(occupancy, occupancy.servers[name], slot)
    occupancy.put(name, slot)
    return found


def good(occupancy: Occupancy, server: MappedServer, found: SlotRank) -> bool:
    """Tell whether no forbidden neighbour is there, and no more slices than on an empty machine."""
    slices = (found.chassis, found.nodes)
    return found.violations == 0 and slices == occupancy.layout.fewest(server.vcpus)
