# SPDX-License-Identifier: Apache-2.0
"""What each running server should hold of L3 domains in Placement, by where nova-compute really put it. Pure.

Placement's candidate names an L3 domain; nova-compute then picks the host cells itself, and may pick others. The host
wins: a server's ways, declared bandwidth and cache neighbourhood belong to the L3 domains of its cells. The agent
reserves there what is counted elsewhere; allocations are moved on the controller's side, by ``numa-ext-heal``.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from host_agent.decide.partitions.requests import l3_amounts
from host_agent.model.assignment import Guest, Observation
from host_agent.model.workload import Activity
from placement_traits.request import L3Amount
from placement_traits.topology import HostTopology


@dataclass(frozen=True, slots=True)
class DomainPart:
    """What a server should hold of one L3 domain.

    :param l3: the domain
    :param ways: cache ways, 0 when none
    :param bandwidth_mbps: declared memory bandwidth, MB/s, 0 when none
    :param neighbourhood: units of the cache neighbourhood, 0 when none
    """

    l3: int
    ways: int
    bandwidth_mbps: int
    neighbourhood: int = 0

    @classmethod
    def of(cls, l3: int, amount: L3Amount) -> "DomainPart":
        """Return the part that one request group of a flavor is in an L3 domain."""
        return cls(l3, amount.ways, amount.bandwidth_mbps, amount.neighbourhood)

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
    found = l3_amounts(topology, domain.cells, domain.vcpu_pins, request.l3)
    if len(found) < len(request.l3):
        return None
    parts = tuple(DomainPart.of(l3, amount) for l3, amount in found.items())
    return ServerClaim(workload.uuid, workload.title, parts)


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
    counted = {server for servers in held.values() for server in servers}
    found: dict[int, Counter[str]] = {}
    for claim in present:
        if claim.uuid not in counted:
            continue
        for part in claim.parts:
            there = held.get(part.l3, {}).get(claim.uuid, {})
            missing = Counter(part.resources) - Counter(there)
            if missing:
                found[part.l3] = found.get(part.l3, Counter()) + missing
    return found
