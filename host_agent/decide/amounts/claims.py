# SPDX-License-Identifier: Apache-2.0
"""What each running server should hold of L3 domains in Placement, by where nova-compute really put it. Pure.

Placement's candidate names an L3 domain; nova-compute then picks the host cells itself, and may pick others. The host
wins: a server's ways, declared bandwidth and cache neighbourhood belong to the L3 domains of its cells; those of a cell
that shares all its CPUs with other servers may be counted in any domain with such CPUs. The agent reserves there what
is counted elsewhere; allocations are moved on the controller's side, by ``numa-ext-heal``.
"""

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from host_agent.decide.partitions.requests import l3_amounts, own_cpus, shared_cpus
from host_agent.model.assignment import Guest, Observation
from host_agent.model.workload import Activity, Cell
from placement_traits.matching import matched
from placement_traits.topology import HostTopology
from placement_traits.workload_request import L3Amount


@dataclass(frozen=True, slots=True)
class DomainPart:
    """What a server should hold of one L3 domain.

    :param l3: the domain
    :param ways: cache ways, 0 when none
    :param bandwidth_mbps: declared memory bandwidth, MB/s, 0 when none
    :param neighbourhood: units of the cache neighbourhood, 0 when none
    :param also: domains where Placement may count it just as well: the cell has no CPU of its own
    """

    l3: int
    ways: int
    bandwidth_mbps: int
    neighbourhood: int = 0
    also: frozenset[int] = frozenset()

    def places(self, bound: Container[int]) -> list[int]:
        """Return where it may be counted, its own domain first; ``bound``: domains of parts that no other may hold."""
        return [self.l3, *sorted(l3 for l3 in self.also if l3 not in bound)]

    @classmethod
    def of(cls, l3: int, amount: L3Amount, also: Iterable[int] = ()) -> "DomainPart":
        """Return the part that one request group of a flavor is in an L3 domain."""
        return cls(l3, amount.ways, amount.bandwidth_mbps, amount.neighbourhood, frozenset(also))

    @property
    def resources(self) -> dict[str, int]:
        """The amounts by resource class."""
        return L3Amount("", self.ways, self.bandwidth_mbps, self.neighbourhood).resources


@dataclass(frozen=True, slots=True)
class ServerClaim:
    """What one server should hold of L3 domains.

    :param uuid: of the server
    :param title: its name
    :param parts: by L3 domain, ascending
    """

    uuid: str
    title: str
    parts: tuple[DomainPart, ...]


def claims(observation: Observation) -> tuple[ServerClaim, ...]:
    """Return the claims of all running servers whose flavor asks for something of ours.

    Left out are servers that nova has not bound to cells (the agent itself chooses where those run), and servers whose
    groups do not all find a cell with an L3 domain.
    """
    found = (_claim(observation.topology, guest) for guest in observation.guests)
    return tuple(claim for claim in found if claim is not None)


def _claim(topology: HostTopology, guest: Guest) -> ServerClaim | None:
    workload = guest.workload
    request = workload.request
    if request is None or workload.floating or workload.activity is not Activity.RUNNING:
        return None
    if not request.l3:
        return None
    domain = workload.domain
    parts = parts_of(topology, domain.cells, domain.vcpu_pins, request.l3)
    return (
        ServerClaim(workload.uuid, workload.title, parts) if len(parts) == len(request.l3) else None
    )


def parts_of(
    topology: HostTopology,
    cells: Iterable[Cell],
    pins: Mapping[int, frozenset[int]],
    amounts: Sequence[L3Amount],
) -> tuple[DomainPart, ...]:
    """Return the parts of a guest that nova has placed, ascending by L3 domain; arguments as of ``l3_amounts``."""
    by_number = sorted(cells, key=lambda cell: cell.id)
    cell_of = dict(zip((amount.group for amount in amounts), by_number, strict=False))
    return tuple(
        DomainPart.of(l3, amount, _also(topology, cell_of[amount.group], pins, l3))
        for l3, amount in l3_amounts(topology, by_number, pins, amounts).items()
    )


def _also(
    topology: HostTopology, cell: Cell, pins: Mapping[int, frozenset[int]], chosen: int
) -> frozenset[int]:
    if own_cpus(cell, pins):
        return frozenset()
    found = {topology.l3_of_cpu(cpu) for cpu in shared_cpus(cell, pins)}
    return frozenset(l3 for l3 in found if l3 is not None and l3 != chosen)


def declared_mbps(placed: Iterable[ServerClaim]) -> dict[int, int]:
    """Return the memory bandwidth that servers declared, MB/s by L3 domain."""
    total: dict[int, int] = {}
    for claim in placed:
        for part in claim.parts:
            total[part.l3] = total.get(part.l3, 0) + part.bandwidth_mbps
    return total


def claimed_elsewhere(
    present: Iterable[ServerClaim], held: Mapping[int, Mapping[str, Mapping[str, int]]]
) -> dict[int, Counter[str]]:
    """Return what servers use in L3 domains while Placement counts it in another domain of this host.

    A server that holds nothing of any domain here is left out: it is being moved, or has lost its allocation.

    :param present: what servers should hold, where they run
    :param held: what they hold: L3 domain -> server -> amounts by resource class
    :returns: L3 domain -> amounts by resource class
    """
    holding = {server for servers in held.values() for server in servers}
    found: dict[int, Counter[str]] = {}
    for claim in present:
        if claim.uuid not in holding:
            continue
        there = {l3: Counter(servers.get(claim.uuid, {})) for l3, servers in held.items()}
        bound = {part.l3 for part in claim.parts if not part.also}
        counted = matched(
            [
                [l3 for l3 in part.places(bound) if there.get(l3) == Counter(part.resources)]
                for part in claim.parts
            ]
        )
        for part, where in zip(claim.parts, counted, strict=True):
            if where is not None:
                continue
            own = there.get(part.l3, Counter()) if part.l3 not in counted else Counter[str]()
            if missing := Counter(part.resources) - own:
                found[part.l3] = found.get(part.l3, Counter()) + missing
    return found
