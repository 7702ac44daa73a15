# SPDX-License-Identifier: Apache-2.0
"""What a server of a host should hold instead of what it holds, and how that is shown."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from nova_numa_ext.heal.nova_servers import NovaServer
from nova_numa_ext.policy.numa.claims import Resources, ServerCell, healed
from nova_numa_ext.policy.numa.nova_part import nova_part
from placement_traits import names
from placement_traits.errors import CapabilityMissingError
from placement_traits.fleet import HostView
from placement_traits.names import TierTrait
from placement_traits.request import InvalidRequestError, parse
from placement_traits.workload_request import WorkloadRequest

SERVERS: Final = frozenset({"INSTANCE", "unknown"})  # nova does not say what its consumers are


class HealResult(StrEnum):
    """What became of something that differs."""

    DONE = "done"
    WOULD = "would"  # a dry run
    LEFT = "left"  # nova's business, now or for good
    FAILED = "failed"


class HealKind(StrEnum):
    """Who holds what differs."""

    SERVER = "server"
    GROUP = "server_group"


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that differs.

    :param server: name; "" for a consumer that nova does not know, and for a server group
    :param uuid: of what ``kind`` says
    :param holds: amounts by provider name
    :param should_hold: the same
    :param problem: why it was not done, "" when it was done or would be
    """

    result: HealResult
    host: str
    server: str
    uuid: str
    holds: Resources
    should_hold: Resources
    problem: str = ""
    kind: HealKind = HealKind.SERVER

    def to_dict(self) -> dict[str, Any]:
        """The row for JSON."""
        return {
            "result": str(self.result),
            "kind": str(self.kind),
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
class HealPlan:
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


class LeftAloneError(CapabilityMissingError):
    """A server's allocation is not ours to change."""


@dataclass(slots=True)
class Host:
    """One host while it is looked at.

    :param declared: bandwidth that servers have declared, MB/s by provider
    :param held: what its servers held when they were first looked at, by server
    """

    view: HostView
    declared: Counter[str]
    held: dict[str, Resources] = field(default_factory=dict)

    @classmethod
    def of(cls, view: HostView) -> "Host":
        """Begin to look at a host."""
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


def consumer_type(body: Mapping[str, Any]) -> str:
    """Return the type of a consumer, as Placement shows its allocations."""
    return str(body.get("consumer_type", "unknown"))


def amounts_of(body: Mapping[str, Any]) -> Resources:
    """Return what a consumer holds, amounts by provider, as Placement shows its allocations."""
    return {uuid: each["resources"] for uuid, each in body["allocations"].items()}


def may_hold(server: NovaServer) -> bool:
    """Return whether a server's flavor asks for amounts of ours, right or wrong."""
    return any(key.partition(":")[2] in names.RESOURCE_CLASSES for key in server.specs)


def request_of(server: NovaServer) -> WorkloadRequest | None:
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


def plan_of(
    host: Host,
    server: NovaServer,
    request: WorkloadRequest,
    *,
    cells: Sequence[ServerCell],
    held: Resources,
    consumer: Mapping[str, Any],
) -> HealPlan | None:
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
        raise LeftAloneError(
            "it holds nothing of nova's own provider of this host, but something elsewhere"
        )
    return HealPlan(server, held, consumer, desired)


def _novas(server: NovaServer, cells: Sequence[ServerCell]) -> dict[str, int]:
    return nova_part(
        server.sizes,
        server.specs,
        server.image_properties,
        pinned=sum(len(cell.cpus) for cell in cells),
        from_volume=server.from_volume,
    )


def row_of(host: Host, plan: HealPlan, result: HealResult, problem: str = "") -> Row:
    """Return how a plan is shown."""
    server = plan.server
    before, after = host.named(plan.held), host.named(plan.desired)
    return Row(result, host.view.name, server.name, server.uuid, before, after, problem)
