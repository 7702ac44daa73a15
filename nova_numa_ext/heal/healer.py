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
from typing import Any, Final

from nova_numa_ext.heal.nova_servers import NovaServer, NovaServers
from nova_numa_ext.heal.plan import (
    SERVERS,
    HealPlan,
    HealResult,
    Host,
    LeftAloneError,
    Row,
    amounts_of,
    consumer_type,
    plan_of,
    request_of,
    row_of,
)
from nova_numa_ext.heal.unknown_consumers import UnknownConsumers
from nova_numa_ext.policy.numa.claims import Resources
from placement_traits import names
from placement_traits.client import GenerationConflictError, PlacementClient, PlacementError
from placement_traits.errors import CapabilityMissingError, InvalidValueError
from placement_traits.snapshot import FleetSnapshot
from placement_traits.workload_request import WorkloadRequest

_TRIES: Final = 3
_NO_HOSTS: Final = "none: no agent reports"
_CHANGED: Final = (
    "Its allocation changed meanwhile, again and again: it is looked at in the next run."
)


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
        unknown = UnknownConsumers(self._client, self._nova, known)
        for name in sorted(hosts or views):
            if name not in views:
                raise InvalidValueError("--host", name, ", ".join(sorted(views)) or _NO_HOSTS)
            host = Host.of(views[name])
            yield from self._host(host, servers.get(name, ()), write=write)
            yield from unknown.of(host, servers.get(name, ()))

    def _host(self, host: Host, servers: Iterable[NovaServer], *, write: bool) -> Iterator[Row]:
        pending = [(server, request) for server in servers if (request := request_of(server))]
        for attempt in range(1, _TRIES + 1):
            plans, rows = self._plans(host, pending)
            yield from rows
            if not write:
                yield from (row_of(host, plan, HealResult.WOULD) for plan in plans)
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
                    yield row_of(host, plan, HealResult.DONE)
                else:
                    lost = isinstance(error, GenerationConflictError)
                    yield row_of(host, plan, HealResult.FAILED, _CHANGED if lost else str(error))
            pending = [pair for pair in pending if pair[0].uuid in again]

    def _plans(
        self, host: Host, pending: Iterable[tuple[NovaServer, WorkloadRequest]]
    ) -> tuple[list[HealPlan], list[Row]]:
        plans, rows = [], []
        for server, request in pending:
            if server.why_busy:
                continue  # it is looked at when it has come to rest
            cells = self._nova.cells(server.uuid)
            if cells is None:  # deleted meanwhile
                continue
            plan: HealPlan | None = None
            left = problem = ""
            held: Resources = {}
            try:
                held, consumer = self._held(server.uuid)
                plan = plan_of(host, server, request, cells=cells, held=held, consumer=consumer)
            except LeftAloneError as error:
                left = str(error)
            except CapabilityMissingError as error:
                problem = str(error)
            if plan is None and not left and not problem:
                continue
            busy = self._nova.why_busy(server.uuid, host.view.name)
            left = f"something is under way: {busy}" if busy else left
            shown = plan or HealPlan(server, held, {}, held)
            if left:
                rows.append(row_of(host, shown, HealResult.LEFT, left))
            elif problem:
                rows.append(row_of(host, shown, HealResult.FAILED, problem))
            elif plan is not None:
                host.declared.update(plan.bandwidth)
                plans.append(plan)
        return plans, rows

    def _held(self, server: str) -> tuple[Resources, Mapping[str, Any]]:
        """Return what a server holds and its consumer.

        :raises LeftAloneError: its consumer is not a server
        """
        body = self._client.get(f"/allocations/{server}")
        kind = consumer_type(body)
        if kind not in SERVERS:
            raise LeftAloneError(f"its consumer is of type {kind}")
        keys = ("project_id", "user_id", "consumer_generation")
        consumer = {key: body[key] for key in keys if key in body}
        return amounts_of(body), consumer

    def _carry_out(self, plans: Sequence[HealPlan]) -> dict[str, PlacementError]:
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

    def _is_held(self, plan: HealPlan) -> bool:
        try:
            held, consumer = self._held(plan.server.uuid)
        except LeftAloneError:
            return False
        return held == plan.held and (not held or consumer == plan.consumer)

    def _post(self, plans: Sequence[HealPlan]) -> None:
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

    def _released(self, plans: Sequence[HealPlan]) -> dict[str, Any]:
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
