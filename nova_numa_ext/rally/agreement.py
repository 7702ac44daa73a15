# SPDX-License-Identifier: Apache-2.0
"""Do the decision, Placement and the host tell the same of a server? Pure: decoded answers in, sentences out.

A host is read back by ``devstack/lab/readback.py`` or a program with the same output, which must share no code with the
host agent: the decision and the agent are what is examined here.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from placement_traits import names

Facts = Mapping[str, Any]

_RESIDENT: Final = 0.95  # of a guest's memory: before that, nothing is known of where it is
_NEAR: Final = 0.99  # of what is resident
_NAMED: Final = 13  # characters of a server's UUID in the names of its groups


@dataclass(frozen=True, slots=True)
class HeldAmounts:
    """A server with what Placement counts for it.

    :param uuid: the server
    :param host: its compute host, as nova shows it
    :param amounts: by resource class, by the provider's name
    :param providers: UUIDs of these providers
    :param decided: its flavor concerns our filter, which passes all others without a note
    """

    uuid: str
    host: str
    amounts: Mapping[str, Mapping[str, int]]
    providers: frozenset[str] = frozenset()
    decided: bool = True

    @property
    def l3_domains(self) -> frozenset[int]:
        """L3 domains with an allocation."""
        found = (names.parse_l3_provider(self.host, name) for name in self.amounts)
        return frozenset(number for number in found if number is not None)

    @property
    def ways(self) -> int:
        """L3 ways, over all domains."""
        return sum(amounts.get(names.LLC_WAY, 0) for amounts in self.amounts.values())

    @property
    def latency_critical(self) -> bool:
        """It holds ways of its own."""
        return self.ways > 0


def placement_faults(
    server: HeldAmounts, explained: Sequence[Mapping[str, Any]], facts: Facts
) -> tuple[str, ...]:
    """Tell where the decision, the allocation and the place of a server differ; nothing when all agree.

    :param explained: what ``numa-ext-explain -f json`` prints for the server
    :param facts: read back from its host
    """
    return tuple(_placement_faults(server, explained, facts))


def _placement_faults(
    server: HeldAmounts, explained: Sequence[Mapping[str, Any]], facts: Facts
) -> Iterator[str]:
    decisions = [one for one in explained if one.get("filter") and not _alternates(one)]
    if not decisions and not server.decided:
        return
    if not decisions:
        yield f"{server.uuid}: the filter has noted no decision"
        return
    decided = _decided_for(decisions[-1], server.host)
    if decided is None or decided["reasons"]:
        yield f"{server.uuid}: is on {server.host}, which the filter has not let pass"
        return
    candidates = decided["candidates"]
    if candidates and server.providers != frozenset(candidates[0]["providers"]):
        yield (
            f"{server.uuid}: the allocation ({', '.join(sorted(server.amounts))}) is not the candidate decided for"
        )
    domain = _domain(facts, server.uuid)
    if domain is None:
        yield f"{server.uuid}: does not run on {server.host}"
        return
    runs_in = _l3_domains(facts, domain)
    if server.l3_domains and server.l3_domains != runs_in:
        yield (
            f"{server.uuid}: allocated in L3 {_numbers(server.l3_domains)}, runs in L3 {_numbers(runs_in)}"
        )
    nodes = _nodes(facts, domain)
    if decided["nodes"] is not None and frozenset(decided["nodes"]) != nodes:
        yield (
            f"{server.uuid}: NUMA node {_numbers(decided['nodes'])} decided, runs on {_numbers(nodes)}"
        )


def read_back_faults(server: HeldAmounts, facts: Facts) -> tuple[str, ...]:
    """Tell what a host does not do for a server that was allocated to it; nothing when it does all."""
    return tuple(_read_back_faults(server, facts))


def _read_back_faults(server: HeldAmounts, facts: Facts) -> Iterator[str]:
    domain = _domain(facts, server.uuid)
    if domain is None:
        yield f"{server.uuid}: does not run on {server.host}"
        return
    resident_kb = sum(domain["pages_kb"].values())
    if resident_kb < _RESIDENT * domain["ram_kb"]:
        yield f"{server.uuid}: {resident_kb} of {domain['ram_kb']} KiB of its memory are resident"
    elif server.latency_critical:
        near_kb = sum(domain["pages_kb"].get(str(node), 0) for node in _nodes(facts, domain))
        if near_kb < _NEAR * resident_kb:
            yield f"{server.uuid}: {near_kb} of {resident_kb} KiB are on its own NUMA nodes"
    if not facts["resctrl"]:
        if server.latency_critical:
            yield f"{server.uuid}: holds {server.ways} L3 ways on a host without resctrl"
        return
    groups = domain["groups"]
    if groups == [""]:
        yield f"{server.uuid}: its vCPUs are in the root group"
    elif len(groups) != 1:
        yield f"{server.uuid}: its vCPUs are in {len(groups)} groups ({', '.join(groups)})"
    elif server.latency_critical:
        mask = _masks(facts, groups[0])
        given = sum(mask[number].bit_count() for number in _l3_domains(facts, domain))
        if given < server.ways:
            yield f"{server.uuid}: {server.ways} L3 ways are allocated, its group has {given}"


def shared_ways(servers: Iterable[HeldAmounts], facts: Facts) -> tuple[int, int]:
    """Return the pairs of latency-critical servers of a host, and the L3 ways that pairs share.

    A way counts in the L3 domains where one of the two runs. A server that has no group of its own shares nothing here:
    that is a fault of reading back.
    """
    placed = []
    for server in servers:
        domain = _domain(facts, server.uuid)
        if server.latency_critical and domain is not None:
            own = domain["groups"][0] if len(domain["groups"]) == 1 else ""
            placed.append((own, _l3_domains(facts, domain)))
    pairs = ways = 0
    for number, (group, l3) in enumerate(placed):
        for other, other_l3 in placed[:number]:
            pairs += 1
            if group and other and group != other:
                one, two = _masks(facts, group), _masks(facts, other)
                ways += sum((one[each] & two[each]).bit_count() for each in l3 | other_l3)
            elif group and group == other:
                ways += sum(_masks(facts, group)[each].bit_count() for each in l3 | other_l3)
    return pairs, ways


def orphans(
    gone: Iterable[HeldAmounts],
    before: Facts,
    after: Facts,
    allocated: Mapping[str, Collection[str]],
) -> tuple[str, ...]:
    """Tell what is left of deleted servers of a host; nothing when all of them are gone.

    :param before: read back while they ran; without, groups are known by their names alone
    :param after: read back afterwards
    :param allocated: names of providers where Placement still counts something, by server
    """
    return tuple(_orphans(gone, before, after, allocated))


def _orphans(
    gone: Iterable[HeldAmounts],
    before: Facts,
    after: Facts,
    allocated: Mapping[str, Collection[str]],
) -> Iterator[str]:
    monitors = {each for group in after["resctrl"].values() for each in group["monitors"]}
    for server in gone:
        if allocated.get(server.uuid):
            yield f"{server.uuid}: allocations in {', '.join(sorted(allocated[server.uuid]))}"
        if _domain(after, server.uuid) is not None:
            yield f"{server.uuid}: its domain still runs on {server.host}"
        domain = _domain(before, server.uuid) or {"groups": (), "monitors": ()}
        own = set(domain["groups"]) if server.latency_critical else set()
        for group in sorted(after["resctrl"].keys() - {""}):
            if group in own or server.uuid[:_NAMED] in group:
                yield f"{server.uuid}: its group {group} is still on {server.host}"
        for monitor in sorted(monitors):
            if monitor in domain["monitors"] or server.uuid[:_NAMED] in monitor:
                yield f"{server.uuid}: its monitoring group {monitor} is still on {server.host}"


def latency(rows: Iterable[Mapping[str, Any]], server: str) -> tuple[float, float] | None:
    """Return (99th percentile, its objective) of a server, microseconds; None while the agent knows none.

    :param rows: what ``numa-host-agent-ctl status -f json`` prints on its host
    """
    for row in rows:
        if row["uuid"] == server:
            slo = row.get("slo") or {}
            if slo.get("p99_us") is not None and slo.get("slo_p99_us"):
                return float(slo["p99_us"]), float(slo["slo_p99_us"])
    return None


def _alternates(explanation: Mapping[str, Any]) -> bool:
    return bool(explanation["filter"].get("alternates"))


def _decided_for(explanation: Mapping[str, Any], host: str) -> Mapping[str, Any] | None:
    """What the decision notes of a host: the filter's entry, or the weigher's where the filter left it out."""
    noted = [explanation["filter"], explanation.get("weigh") or {}]
    described = (each for entry in noted for each in entry.get("details", ()))
    return next((each for each in described if each["host"] == host), None)


def _domain(facts: Facts, uuid: str) -> Mapping[str, Any] | None:
    return next((each for each in facts["domains"] if each["uuid"] == uuid), None)


def _cpus(domain: Mapping[str, Any]) -> frozenset[int]:
    return frozenset().union(*(_cpu_list(vcpu["cpus"]) for vcpu in domain["vcpus"]))


def _nodes(facts: Facts, domain: Mapping[str, Any]) -> frozenset[int]:
    return _where(facts["node_cpus"], domain)


def _l3_domains(facts: Facts, domain: Mapping[str, Any]) -> frozenset[int]:
    return _where(facts["l3_cpus"], domain)


def _where(lists: Mapping[str, str], domain: Mapping[str, Any]) -> frozenset[int]:
    cpus = _cpus(domain)
    return frozenset(int(number) for number, text in lists.items() if _cpu_list(text) & cpus)


def _masks(facts: Facts, group: str) -> dict[int, int]:
    """L3 mask of a group by domain."""
    l3 = facts["resctrl"][group]["schemata"]["L3"]
    return {int(number): int(mask, 16) for number, mask in l3.items()}


def _cpu_list(text: str) -> frozenset[int]:
    """Parse a kernel CPU list such as ``0-2,5``."""
    cpus: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def _numbers(numbers: Iterable[int]) -> str:
    return "+".join(map(str, sorted(numbers))) or "-"
