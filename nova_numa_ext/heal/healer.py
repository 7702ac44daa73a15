# SPDX-License-Identifier: Apache-2.0
"""Make what servers hold in Placement agree with where nova has put them: the one owner of such changes.

Per host: what each server should hold (:mod:`nova_numa_ext.policy.numa.claims`) is compared with what it holds. Where
they differ, nova is asked whether something is under way with the server; the allocation is read again, and dropped
when it is another one; then all of the host are written in one request, so that servers can swap places; where that
is refused, one by one.

The second read is there because generations begin again: nova empties a server's allocation when it starts to move it,
Placement forgets the consumer, and the claim on the target may get the very generation that was read first. Between
the second read and the write nova would have to empty *and* claim, with a scheduling in between.

An agent reserves what runs in another domain than it is counted in. Where a claim finds its own room reserved like
that, the reservation gives way in the same transaction (``POST /reshaper``), by no more than what is missing; the
agent counts again when it sees the changed provider.

Nothing is ever deleted: what a consumer holds that nova does not know, or of a host that its server has left, is
reported.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from nova_numa_ext.heal.nova_servers import NovaServer, NovaServers
from nova_numa_ext.policy.numa.claims import Resources, ServerCell, healed
from nova_numa_ext.policy.numa.nova_part import nova_part
from placement_traits import names
from placement_traits.client import (
    GenerationConflictError,
    NotFoundError,
    PlacementClient,
    PlacementError,
)
from placement_traits.errors import CapabilityMissingError, InvalidValueError
from placement_traits.fleet import HostView
from placement_traits.names import TierTrait
from placement_traits.request import InvalidRequestError, WorkloadRequest, parse
from placement_traits.snapshot import FleetSnapshot

_SERVERS: Final = frozenset({"INSTANCE", "unknown"})  # nova does not say what its consumers are
_MIGRATION: Final = "MIGRATION"
_TRIES: Final = 3
_NO_HOSTS: Final = "none: no agent reports"
_CHANGED: Final = (
    "Its allocation changed meanwhile, again and again: it is looked at in the next run."
)


class Result(StrEnum):
    """What became of something that differs."""

    DONE = "done"
    WOULD = "would"  # a dry run
    LEFT = "left"  # nova's business, now or for good
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that differs.

    :param server: name; "" for a consumer that nova does not know
    :param holds: amounts by provider name
    :param should_hold: the same
    :param problem: why it was not done
    """

    result: Result
    host: str
    server: str
    uuid: str
    holds: Resources
    should_hold: Resources
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The row for JSON."""
        return {
            "result": str(self.result),
            "host": self.host,
            "server": self.server,
            "uuid": self.uuid,
            "holds": self.holds,
            "should_hold": self.should_hold,
            "problem": self.problem,
        }

    @property
    def change(self) -> str:
        """What differs, as text: ``h1:l3_0 -CUSTOM_LLC_WAY 4``."""
        parts = []
        for provider in sorted({*self.holds, *self.should_hold}):
            before, after = self.holds.get(provider, {}), self.should_hold.get(provider, {})
            signs = [f"-{name} {n}" for name, n in sorted(before.items()) if after.get(name) != n]
            signs += [f"+{name} {n}" for name, n in sorted(after.items()) if before.get(name) != n]
            parts += [f"{provider} {' '.join(signs)}"] if signs else []
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class _Plan:
    """One replacement.

    :param held: all that the server holds, amounts by provider uuid
    :param consumer: what else Placement knows of it: project, user, generation
    :param desired: all that it shall hold
    """

    server: NovaServer
    held: Resources
    consumer: Mapping[str, Any]
    desired: Resources

    @property
    def bandwidth(self) -> Counter[str]:
        """How much more bandwidth the server declares then than now, MB/s by provider."""
        found: Counter[str] = Counter()
        for resources, sign in ((self.desired, 1), (self.held, -1)):
            for provider, amounts in resources.items():
                found[provider] += sign * amounts.get(names.MEMORY_BANDWIDTH_MBPS, 0)
        return found


class _LeftAloneError(CapabilityMissingError):
    """A server's allocation is not ours to change."""


@dataclass(slots=True)
class _Host:
    """One host while it is looked at.

    :param declared: bandwidth that servers have declared, MB/s by provider
    :param held: what its servers held when they were first looked at, by server
    """

    view: HostView
    declared: Counter[str]
    held: dict[str, Resources] = field(default_factory=dict)

    @classmethod
    def of(cls, view: HostView) -> "_Host":
        declared = {d.uuid: d.bandwidth_mbps.used for d in view.l3 if d.bandwidth_mbps}
        return cls(view, Counter(declared))

    @property
    def providers(self) -> dict[str, str]:
        """Names of its providers by uuid."""
        view = self.view
        found = {view.root_uuid: view.name}
        found |= {d.uuid: names.l3_provider(view.name, d.l3_id) for d in view.l3}
        return found | ({view.rdt.uuid: names.rdt_provider(view.name)} if view.rdt else {})

    def named(self, held: Resources) -> dict[str, dict[str, int]]:
        """Return amounts by provider name; a provider of another host goes by its uuid."""
        return {self.providers.get(uuid, uuid): dict(found) for uuid, found in held.items()}

    def unaccounted(self) -> frozenset[str]:
        """Return the providers of ours of which more is used than the servers of this host hold."""
        counted: Counter[tuple[str, str]] = Counter()
        for held in self.held.values():
            for provider, amounts in held.items():
                counted.update({(provider, name): number for name, number in amounts.items()})
        return frozenset(uuid for uuid, name, used in self._used() if used > counted[uuid, name])

    def _used(self) -> Iterator[tuple[str, str, int]]:
        view = self.view
        if view.rdt is not None and view.rdt.clos is not None:
            yield view.rdt.uuid, names.RDT_CLOS, view.rdt.clos.used
        for domain in view.l3:
            for name, amount in (
                (names.LLC_WAY, domain.ways),
                (names.MEMORY_BANDWIDTH_MBPS, domain.bandwidth_mbps),
                (names.LLC_NEIGHBOURHOOD, domain.neighbourhood),
            ):
                if amount is not None:
                    yield domain.uuid, name, amount.used


class Healer:
    """Compares nova with Placement.

    :param nova: servers
    :param client: Placement
    :param writer: Placement, without retries, with :data:`~placement_traits.client.ALLOCATIONS_MICROVERSION`
    :param read_fleet: reads the whole fleet
    """

    def __init__(
        self,
        nova: NovaServers,
        client: PlacementClient,
        writer: PlacementClient,
        read_fleet: Callable[[], FleetSnapshot],
    ) -> None:
        self._nova = nova
        self._client = client
        self._writer = writer
        self._read_fleet = read_fleet

    def run(self, *, write: bool, hosts: Collection[str] = ()) -> Iterator[Row]:
        """Look at every server once; yield what differs, host by host, with what became of it.

        :param write: False: nothing is written
        :param hosts: names of compute nodes; empty: all
        :raises NumaExtError: nova or Placement does not answer, or does not let us; what was yielded was done
        """
        servers: dict[str, list[NovaServer]] = defaultdict(list)
        known: dict[str, NovaServer] = {}
        for server in self._nova.all():
            known[server.uuid] = server
            servers[server.host].append(server)
        views = {view.name: view for view in self._read_fleet().hosts.values()}
        unknown = _Unknown(self._client, self._nova, known)
        for name in sorted(hosts or views):
            if name not in views:
                raise InvalidValueError("--host", name, ", ".join(sorted(views)) or _NO_HOSTS)
            host = _Host.of(views[name])
            yield from self._host(host, servers.get(name, ()), write=write)
            yield from unknown.of(host)

    def _host(self, host: _Host, servers: Iterable[NovaServer], *, write: bool) -> Iterator[Row]:
        pending = [(server, request) for server in servers if (request := _request(server))]
        for attempt in range(1, _TRIES + 1):
            plans, rows = self._plans(host, pending)
            yield from rows
            if not write:
                yield from (_row(host, plan, Result.WOULD) for plan in plans)
                return
            refused = self._carry_out(plans)
            again = set()
            for plan in plans:
                error = refused.get(plan.server.uuid)
                if error is not None:
                    host.declared.subtract(plan.bandwidth)
                if isinstance(error, GenerationConflictError) and attempt < _TRIES:
                    again.add(plan.server.uuid)
                elif error is None:
                    yield _row(host, plan, Result.DONE)
                else:
                    lost = isinstance(error, GenerationConflictError)
                    yield _row(host, plan, Result.FAILED, _CHANGED if lost else str(error))
            pending = [pair for pair in pending if pair[0].uuid in again]

    def _plans(
        self, host: _Host, pending: Iterable[tuple[NovaServer, WorkloadRequest]]
    ) -> tuple[list[_Plan], list[Row]]:
        plans, rows = [], []
        for server, request in pending:
            if server.why_busy:
                continue  # it is looked at when it has come to rest
            cells = self._nova.cells(server.uuid)
            if cells is None:  # deleted meanwhile
                continue
            plan: _Plan | None = None
            left = problem = ""
            held: Resources = {}
            try:
                held, consumer = self._held(server.uuid)
                plan = _plan(host, server, request, cells=cells, held=held, consumer=consumer)
            except _LeftAloneError as error:
                left = str(error)
            except CapabilityMissingError as error:
                problem = str(error)
            if plan is None and not left and not problem:
                continue
            busy = self._nova.why_busy(server.uuid, host.view.name)
            left = f"something is under way: {busy}" if busy else left
            shown = plan or _Plan(server, held, {}, held)
            if left:
                rows.append(_row(host, shown, Result.LEFT, left))
            elif problem:
                rows.append(_row(host, shown, Result.FAILED, problem))
            elif plan is not None:
                host.declared.update(plan.bandwidth)
                plans.append(plan)
        return plans, rows

    def _held(self, server: str) -> tuple[Resources, Mapping[str, Any]]:
        """Return what a server holds and its consumer.

        :raises _LeftAloneError: its consumer is not a server
        """
        body = self._client.get(f"/allocations/{server}")
        kind = body.get("consumer_type", "unknown")
        if kind not in _SERVERS:
            raise _LeftAloneError(f"its consumer is of type {kind}")
        keys = ("project_id", "user_id", "consumer_generation")
        consumer = {key: body[key] for key in keys if key in body}
        return {uuid: each["resources"] for uuid, each in body["allocations"].items()}, consumer

    def _carry_out(self, plans: Sequence[_Plan]) -> dict[str, PlacementError]:
        """Replace allocations, all at once or, where that is refused, one by one; return refusals by server.

        A refusal of any kind concerns one server: /reshaper may be forbidden where /allocations is allowed.
        """
        refused: dict[str, PlacementError] = {
            plan.server.uuid: GenerationConflictError("POST /allocations", 409, "", _CHANGED)
            for plan in plans
            if not self._is_held(plan)
        }
        steady = [plan for plan in plans if plan.server.uuid not in refused]
        if not steady:
            return refused
        try:
            self._post(steady)
        except PlacementError as error:
            if len(steady) == 1:
                return refused | {steady[0].server.uuid: error}
            for plan in steady:
                refused |= self._carry_out([plan])
        return refused

    def _is_held(self, plan: _Plan) -> bool:
        try:
            held, consumer = self._held(plan.server.uuid)
        except _LeftAloneError:
            return False
        return held == plan.held and (not held or consumer == plan.consumer)

    def _post(self, plans: Sequence[_Plan]) -> None:
        allocations = {
            plan.server.uuid: {
                "allocations": {
                    provider: {"resources": dict(amounts)}
                    for provider, amounts in plan.desired.items()
                },
                **plan.consumer,
            }
            for plan in plans
        }
        inventories = self._released(plans)
        if inventories:
            self._writer.post("/reshaper", {"inventories": inventories, "allocations": allocations})
        else:
            self._writer.post("/allocations", allocations)

    def _released(self, plans: Sequence[_Plan]) -> dict[str, Any]:
        """Return the inventories in which less must be reserved, so that the plans find room."""
        gained: dict[str, Counter[str]] = defaultdict(Counter)
        more: Counter[tuple[str, str]] = Counter()
        for plan in plans:
            for provider in plan.desired.keys() | plan.held.keys():
                before, after = plan.held.get(provider, {}), plan.desired.get(provider, {})
                for name in names.RESOURCE_CLASSES:
                    difference = after.get(name, 0) - before.get(name, 0)
                    more[provider, name] += difference
                    if difference > 0:
                        gained[provider][name] += difference
        found = {}
        for provider, gains in gained.items():
            path = f"/resource_providers/{provider}"
            body = self._client.get(f"{path}/inventories")
            usages = self._client.get(f"{path}/usages")["usages"]
            changed = False
            for name, gain in gains.items():
                stock = body["inventories"].get(name)
                if stock is None:
                    continue  # Placement says so
                used = usages.get(name, 0) + more[provider, name]
                room = stock["total"] - math.ceil(used / stock["allocation_ratio"])
                reserved = min(stock["reserved"], max(room, stock["reserved"] - gain, 0))
                changed |= reserved != stock["reserved"]
                stock["reserved"] = reserved
            if changed:
                found[provider] = body
        return found


class _Unknown:
    """Finds consumers of our providers that should not be there."""

    def __init__(
        self, client: PlacementClient, nova: NovaServers, known: Mapping[str, NovaServer]
    ) -> None:
        self._client = client
        self._nova = nova
        self._known = known
        self._migrations: frozenset[str] | None = None

    def of(self, host: _Host) -> Iterator[Row]:
        """Yield the consumers of a host that nova does not know, or knows on another host with nothing under way.

        Consumers are read only where more is used than the servers of the host account for.
        """
        found: dict[str, dict[str, dict[str, int]]] = defaultdict(dict)
        for provider in sorted(host.unaccounted()):
            try:
                body = self._client.get(f"/resource_providers/{provider}/allocations")
            except NotFoundError:  # it went since the fleet was read, and all consumers with it
                continue
            for consumer, entry in body["allocations"].items():
                found[consumer][provider] = entry["resources"]
        for consumer, held in sorted(found.items()):
            problem = self._problem(consumer, host)
            if problem:
                server = self._known.get(consumer)
                name, amounts = server.name if server else "", host.named(held)
                yield Row(Result.LEFT, host.view.name, name, consumer, amounts, {}, problem)

    def _problem(self, consumer: str, host: _Host) -> str:
        server = self._known.get(consumer) or self._nova.one(consumer)
        if server is None:
            if self._migrations is None:
                self._migrations = self._nova.migrations_under_way()
            if consumer in self._migrations or self._is_others(consumer):
                return ""
            return (
                "nova knows no server of this id, and no migration that is under way. What holds CPUs or memory, too, "
                f"nova-manage placement audit --delete --resource_provider {host.view.root_uuid} removes; anything "
                f"else: openstack resource provider allocation delete {consumer}"
            )
        if server.host in (host.view.name, ""):
            return ""
        if self._nova.why_busy(consumer, server.host):
            return ""
        return (
            f"the server is on {server.host}. After an evacuation nova removes this when nova-compute of "
            f"{host.view.name} starts; when it never will: nova-manage placement audit --delete --resource_provider "
            f"{host.view.root_uuid}"
        )

    def _is_others(self, consumer: str) -> bool:
        """Return whether a consumer is of a type that nova does not have."""
        kind = self._client.get(f"/allocations/{consumer}").get("consumer_type", "unknown")
        return kind not in _SERVERS | {_MIGRATION}


def _request(server: NovaServer) -> WorkloadRequest | None:
    """Return what a server requests of ours; None when nothing, or when the agent leaves it alone."""
    # A tier that the image requires nova does not show.
    for tier in ((), (TierTrait.LC,), (TierTrait.BE,)):
        try:
            request = parse(
                server.specs,
                vcpus=server.sizes.vcpus,
                memory_mb=server.sizes.memory_mb,
                image_traits=frozenset(tier),
                image_properties=server.image_properties,
            )
        except InvalidRequestError:
            continue
        return request if request.managed and (request.l3 or request.clos) else None
    return None


def _plan(
    host: _Host,
    server: NovaServer,
    request: WorkloadRequest,
    *,
    cells: Sequence[ServerCell],
    held: Resources,
    consumer: Mapping[str, Any],
) -> _Plan | None:
    """Return what to replace, None when all is right.

    :raises CapabilityMissingError: what the server should hold cannot be counted, or is not ours to change
    """
    host.held.setdefault(server.uuid, held)
    desired = healed(request, cells, host.view, held, host.declared)
    if desired == held:
        return None
    if not held:
        desired = {host.view.root_uuid: _novas(server, cells), **desired}
        consumer = {"project_id": server.project, "user_id": server.user}
        consumer |= {"consumer_generation": None}
    elif host.view.root_uuid not in held:
        raise _LeftAloneError(
            "it holds nothing of nova's own provider of this host, but something elsewhere"
        )
    return _Plan(server, held, consumer, desired)


def _novas(server: NovaServer, cells: Sequence[ServerCell]) -> dict[str, int]:
    return nova_part(
        server.sizes,
        server.specs,
        server.image_properties,
        pinned=sum(len(cell.cpus) for cell in cells),
        from_volume=server.from_volume,
    )


def _row(host: _Host, plan: _Plan, result: Result, problem: str = "") -> Row:
    server = plan.server
    before, after = host.named(plan.held), host.named(plan.desired)
    return Row(result, host.view.name, server.name, server.uuid, before, after, problem)
