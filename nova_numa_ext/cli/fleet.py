# SPDX-License-Identifier: Apache-2.0
"""What commands read from Placement: the fleet, free amounts, and what hosts lack for a flavor."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from nova_numa_ext import gpu_options
from nova_numa_ext.conf import GROUP, SchedulerOptions
from nova_numa_ext.policy.numa import capacity, whatif
from nova_numa_ext.policy.numa.multipliers import Multipliers, aggregate_key
from nova_numa_ext.policy.numa.score import SCORED
from placement_traits import reader
from placement_traits.client import HttpAdapter, PlacementClient
from placement_traits.fleet import Amount
from placement_traits.snapshot import FleetSnapshot
from placement_traits.view import FleetView
from placement_traits.workload_request import WorkloadRequest


def one_reading(endpoint: HttpAdapter) -> FleetSnapshot:
    """Return the whole fleet, read once, for a command that ends soon.

    :raises ServiceUnavailableError: Placement does not answer
    """
    view = FleetView(endpoint, background=False)
    view.refresh()
    return view.snapshot()


@dataclass(frozen=True, slots=True)
class Reading:
    """The fleet with what is nova's own in it.

    :param fleet: all hosts
    :param free: what nova's own providers have left: by resource class by root
    :param disabled: root providers of hosts whose nova-compute is disabled
    """

    fleet: FleetSnapshot
    free: Mapping[str, Mapping[str, int]]
    disabled: frozenset[str]


def reading_with_novas(endpoint: HttpAdapter) -> Reading:
    """Return the whole fleet, read once, with what is nova's own.

    The answers that show the trees of hosts hold both, so it costs nothing more.

    :raises ServiceUnavailableError: Placement does not answer
    """
    amounts: dict[str, Mapping[str, Amount]] = {}
    view = FleetView(endpoint, background=False, root_amounts=amounts)
    view.refresh()
    fleet = view.snapshot()
    free = {
        root: {name: amount.free for name, amount in amounts[root].items()} for root in fleet.hosts
    }
    return Reading(fleet, free, reader.disabled(PlacementClient(endpoint)))


def what_if(
    endpoint: HttpAdapter,
    request: WorkloadRequest,
    flavor: str,
    *,
    options: SchedulerOptions,
    aggregates: Mapping[str, Mapping[str, str]],
    aliases: Mapping[str, frozenset[str]] = MappingProxyType({}),
) -> tuple[whatif.Answer, ...]:
    """Ask every host of the fleet what it lacks for a flavor.

    :param flavor: its name
    :param options: of nova-scheduler, or their defaults: how GPUs are judged and terms weighted
    :param aggregates: metadata of nova's host aggregates by uuid; nova keeps their members in Placement, too
    :param aliases: resource classes of nova's PCI aliases, where they are known
    :raises ServiceUnavailableError: Placement does not answer
    """
    read = reading_with_novas(endpoint)
    weights = {term: options.multiplier(term) for term in SCORED}
    multipliers = Multipliers(weights, _metadata_of_hosts(PlacementClient(endpoint), aggregates))
    rules = gpu_options.rules(options.gpu, GROUP)
    return whatif.ask(
        request,
        read.fleet,
        read.free,
        multipliers=multipliers,
        flavor=flavor,
        rules=rules,
        aliases=aliases,
        disabled=read.disabled,
    )


def capacity_of_fleet(
    endpoint: HttpAdapter, request: WorkloadRequest, aliases: Mapping[str, frozenset[str]]
) -> tuple[capacity.HostCapacity, ...]:
    """Return how many more servers fit on each host, the most first.

    :param aliases: resource classes of nova's PCI aliases, where they are known
    :raises ServiceUnavailableError: Placement does not answer
    """
    read = reading_with_novas(endpoint)
    return capacity.of_fleet(request, read.fleet, read.free, aliases, read.disabled)


def _metadata_of_hosts(
    client: PlacementClient, aggregates: Mapping[str, Mapping[str, str]]
) -> dict[str, list[Mapping[str, str]]]:
    """Return the metadata of aggregates that change a weight, by root provider of their hosts."""
    keys = frozenset(map(aggregate_key, SCORED))
    found: dict[str, list[Mapping[str, str]]] = {}
    for uuid, metadata in aggregates.items():
        if not keys.isdisjoint(metadata):
            members = client.get(f"/resource_providers?member_of={uuid}")["resource_providers"]
            for member in members:
                found.setdefault(member["uuid"], []).append(metadata)
    return found
