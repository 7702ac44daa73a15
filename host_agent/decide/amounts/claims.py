# SPDX-License-Identifier: Apache-2.0
"""What each running server should hold of our providers in Placement, by where nova-compute really put it. Pure.

Placement's candidate names an L3 domain; nova-compute then picks the host cells itself, and may pick others. The host
wins: a server's ways, declared bandwidth and cache neighbourhood belong to the L3 domains of its cells.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from host_agent.decide.partitions.requests import l3_amounts
from host_agent.model.assignment import Guest, Observation
from host_agent.model.workload import Activity
from placement_traits import names
from placement_traits.errors import NumaExtError
from placement_traits.request import L3Amount, WorkloadRequest
from placement_traits.topology import HostTopology

Resources = Mapping[str, int]
L3_CLASSES: Final = frozenset({names.LLC_WAY, names.MEMORY_BANDWIDTH_MBPS, names.LLC_NEIGHBOURHOOD})


class NotTouchableError(NumaExtError):
    """Nothing of a server's allocations may be changed now."""


@dataclass(frozen=True, slots=True)
class Held:
    """All that one server holds.

    :param resources: amounts by provider name; a provider outside of this host's tree goes by its uuid
    :param consumer: what else Placement knows of the server: project, user, generation; empty when it holds nothing
    """

    resources: Mapping[str, Resources]
    consumer: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Replacement:
    """One replacement.

    :param uuid: of the server
    :param held: what it was made from
    :param resources: all that the server shall hold, amounts by provider name or uuid
    :param consumer: of a server that holds nothing: project, user, and None as generation
    """

    uuid: str
    held: Held
    resources: Mapping[str, Resources]
    consumer: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Part:
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
    def of(cls, l3: int, amount: L3Amount) -> "Part":
        """Return the part that one request group of a flavor is in an L3 domain."""
        return cls(l3, amount.ways, amount.bandwidth_mbps, amount.neighbourhood)

    @property
    def resources(self) -> dict[str, int]:
        """The amounts by resource class."""
        every = {
            names.LLC_WAY: self.ways,
            names.MEMORY_BANDWIDTH_MBPS: self.bandwidth_mbps,
            names.LLC_NEIGHBOURHOOD: self.neighbourhood,
        }
        return {name: number for name, number in every.items() if number}


@dataclass(frozen=True, slots=True)
class Claim:
    """What one server should hold of our providers.

    :param uuid: of the server
    :param title: its name
    :param parts: by L3 domain, ascending
    :param clos: classes of service
    :param anywhere: the agent chooses where it runs, so that any L3 domains will do
    """

    uuid: str
    title: str
    parts: tuple[Part, ...]
    clos: int = 0
    anywhere: bool = False

    def l3(self, root: str) -> dict[str, dict[str, int]]:
        """Return the amounts of L3 domains, by provider name under compute node ``root``."""
        return {names.l3_provider(root, part.l3): part.resources for part in self.parts}

    def all(self, root: str) -> dict[str, dict[str, int]]:
        """Return all amounts, by provider name under compute node ``root``."""
        clos = {names.rdt_provider(root): {names.RDT_CLOS: self.clos}} if self.clos else {}
        return {**self.l3(root), **clos}


def claims(observation: Observation) -> tuple[Claim, ...]:
    """Return the claims of all running servers whose flavor asks for something of ours.

    Left out are servers that nova has not bound to cells (the agent itself chooses where those run), and servers whose
    groups do not all find a cell with an L3 domain.
    """
    found = (_claim(observation.topology, guest) for guest in observation.guests)
    return tuple(claim for claim in found if claim is not None)


def floating_claims(
    observation: Observation, home_nodes: Mapping[str, tuple[int, ...]], bound: Iterable[Claim]
) -> tuple[Claim, ...]:
    """Return the claims of running servers that nova has not bound to cells, of flavors that ask for something of ours.

    Any L3 domain of the server's home nodes will do, or of its CPUs while it has no home: the agent moves the claim to
    where the server runs (:mod:`host_agent.report.rehome`). It is the one for which servers have declared least
    bandwidth, a domain of its own for each group. Left out are servers with more groups than domains.

    :param home_nodes: home nodes by server
    :param bound: claims of the other servers
    """
    declared = Counter(declared_mbps(bound))
    found = []
    for guest in observation.guests:
        workload, request = guest.workload, _asked(guest)
        if request is None or not workload.floating:
            continue
        domains = _domains(observation.topology, guest, home_nodes.get(guest.uuid, ()))
        if len(domains) < len(request.l3):
            continue
        emptiest = sorted(domains, key=lambda l3: (declared[l3], l3))
        matched = sorted(zip(emptiest, request.l3, strict=False), key=lambda pair: pair[0])
        parts = tuple(Part.of(l3, amount) for l3, amount in matched)
        claim = Claim(workload.uuid, workload.title, parts, request.clos, anywhere=True)
        declared.update(declared_mbps([claim]))
        found.append(claim)
    return tuple(found)


def _domains(topology: HostTopology, guest: Guest, home: Iterable[int]) -> set[int]:
    """L3 domains of a floating server's home nodes, or of all CPUs that nova lets it share."""
    found = {domain.id for node in home for domain in topology.l3_of_node(node)}
    if found:
        return found
    allowed = guest.workload.domain.vcpu_cpuset
    every = frozenset(topology.cpus)
    usable = every if allowed is None else every & allowed
    return {l3 for cpu in usable if (l3 := topology.l3_of_cpu(cpu)) is not None}


def _asked(guest: Guest) -> WorkloadRequest | None:
    """Return the request of a running server whose flavor asks for something of ours, None for all others."""
    request = guest.workload.request
    if request is None or guest.workload.activity is not Activity.RUNNING:
        return None
    return request if request.l3 or request.clos else None


def _claim(topology: HostTopology, guest: Guest) -> Claim | None:
    workload, request = guest.workload, _asked(guest)
    if request is None or workload.floating:
        return None
    domain = workload.domain
    found = l3_amounts(topology, domain.cells, domain.vcpu_pins, request.l3)
    if len(found) < len(request.l3):
        return None
    parts = tuple(Part.of(l3, amount) for l3, amount in found.items())
    return Claim(workload.uuid, workload.title, parts, request.clos)


def declared_mbps(placed: Iterable[Claim]) -> dict[int, int]:
    """Return the memory bandwidth that servers declared, MB/s by L3 domain."""
    total: dict[int, int] = {}
    for claim in placed:
        for part in claim.parts:
            total[part.l3] = total.get(part.l3, 0) + part.bandwidth_mbps
    return total


def moved(
    claim: Claim, root: str, held: Mapping[str, Resources]
) -> dict[str, dict[str, int]] | None:
    """Return what a server should hold when its L3 part goes to where the server runs.

    :param root: name of nova's root provider
    :param held: all that it holds, amounts by provider name
    :returns: all that it should hold; None when its L3 part is there already, or differs in more than its place
    """
    rest, ours = split(held, L3_CLASSES)
    desired = claim.l3(root)
    if ours == desired or totals(ours) != totals(desired):
        return None
    return joined(rest, desired)


def healed(
    claim: Claim, root: str, held: Mapping[str, Resources]
) -> dict[str, dict[str, int]] | None:
    """Return what a server should hold when all that it should hold of ours is made good; None when it does.

    Parameters as of :func:`moved`.
    """
    rest, ours = split(held, frozenset(names.RESOURCE_CLASSES))
    desired = claim.all(root)
    right = ours == desired or (claim.anywhere and totals(ours) == totals(desired))
    return None if right else joined(rest, desired)


def split(
    held: Mapping[str, Resources], classes: frozenset[str]
) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, int]]]:
    """Return (the rest, amounts of ``classes``), each by provider; a provider without amounts is left out."""
    rest: dict[str, dict[str, int]] = {}
    picked: dict[str, dict[str, int]] = {}
    for provider, resources in held.items():
        for name, number in resources.items():
            (picked if name in classes else rest).setdefault(provider, {})[name] = number
    return rest, picked


def joined(*parts: Mapping[str, Resources]) -> dict[str, dict[str, int]]:
    """Return the amounts of all parts, by provider."""
    whole: dict[str, dict[str, int]] = {}
    for part in parts:
        for provider, resources in part.items():
            whole.setdefault(provider, {}).update(resources)
    return whole


def totals(held: Mapping[str, Resources]) -> dict[str, int]:
    """Return the amounts by resource class."""
    total: dict[str, int] = {}
    for resources in held.values():
        for name, number in resources.items():
            total[name] = total.get(name, 0) + number
    return total
