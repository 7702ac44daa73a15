# SPDX-License-Identifier: Apache-2.0
"""``openstack numa server show``."""

import argparse
from typing import Any

from osc_lib.command import command

from nova_numa_ext.cli import formatting
from nova_numa_ext.cli.cloud import Cloud, ListedProvider
from placement_traits import names
from placement_traits.request import InvalidRequestError, parse


class ShowServer(command.ShowOne):  # type: ignore[misc]
    """Show what a server asked of the NUMA extension and what Placement holds for it."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the server."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("server", metavar="<server>", help="Server, by name or uuid")
        parser.add_argument(
            "--all-projects", action="store_true", help="Look for the name in all projects (admin)"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return names and values."""
        cloud: Cloud = self.app.client_manager.numa
        server = cloud.server(parsed_args.server, parsed_args.all_projects)
        allocations = cloud.allocations(server.id)
        held = [(cloud.provider(uuid), resources) for uuid, resources in allocations.items()]
        held.sort(key=lambda pair: pair[0].name)
        rows = {**_asked(server), **_held(held), "gpus": _gpus(cloud, held)}
        return tuple(rows), tuple(rows.values())


def _asked(server: Any) -> dict[str, Any]:
    flavor = server.flavor
    rows = {
        "server": server.name,
        "id": server.id,
        "status": server.status,
        "host": server.hypervisor_hostname or server.compute_host or "-",
        "flavor": flavor.name,
    }
    try:
        request = parse(flavor.extra_specs or {}, vcpus=flavor.vcpus, memory_mb=flavor.ram)
    except InvalidRequestError as error:
        return {**rows, "problems": " ".join(error.problems)}
    return {
        **rows,
        "tier": str(request.tier or "-"),
        "interference_class": str(request.interference_class),
        "memory_policy": str(request.memory_policy)
        + ("" if request.memory_policy_applies else " (not applicable: NUMA guest)"),
        "slo_p99_us": request.slo_p99_us or "-",
        "managed": request.managed,
    }


def _held(held: list[tuple[ListedProvider, dict[str, int]]]) -> dict[str, Any]:
    def total(resource: str) -> int:
        return sum(resources.get(resource, 0) for _, resources in held)

    domains = [provider for provider, _ in held if _numbers(provider, "L3")]
    others = [
        f"{provider.name}: " + ", ".join(f"{name} {n}" for name, n in sorted(resources.items()))
        for provider, resources in held
        if not set(resources) & set(names.RESOURCE_CLASSES)
    ]
    return {
        "classes_of_service": total(names.RDT_CLOS),
        "l3_domains": ", ".join(provider.name for provider in domains) or "-",
        "l3_ways": total(names.LLC_WAY),
        "memory_bandwidth_mbps": total(names.MEMORY_BANDWIDTH_MBPS),
        "llc_neighbourhood": total(names.LLC_NEIGHBOURHOOD),
        "numa_nodes": ", ".join(
            str(node) for node in sorted({n for d in domains for n in _numbers(d, "NODE")})
        )
        or "-",
        "domain_traits": "; ".join(formatting.traits(provider.traits) for provider in domains)
        or "-",
        "other_allocations": "\n".join(others) or "-",
    }


def _gpus(cloud: Cloud, held: list[tuple[ListedProvider, dict[str, int]]]) -> str:
    """GPUs that the server holds; without a device among its allocations no API is called."""
    devices = [
        provider
        for provider, resources in held
        if provider.parent is not None and not set(resources) & set(names.RESOURCE_CLASSES)
    ]
    if not devices:
        return "-"
    hosts = map(cloud.fleet().host, {device.root for device in devices})
    lines = [
        formatting.gpus_of([device.uuid for device in devices], host) for host in hosts if host
    ]
    return "\n".join(lines) or "-"


def _numbers(provider: ListedProvider, kind: str) -> list[int]:
    parsed = (names.parse_numbered(trait) for trait in provider.traits)
    return [pair[1] for pair in parsed if pair is not None and pair[0] == kind]
