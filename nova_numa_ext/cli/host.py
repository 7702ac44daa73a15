# SPDX-License-Identifier: Apache-2.0
"""``openstack numa host list``, ``show`` and ``set``."""

import argparse
from collections.abc import Iterator
from typing import Any, Final

from osc_lib.command import command
from osc_lib.exceptions import CommandError

from nova_numa_ext.cli import formatting, modes
from nova_numa_ext.cli.cloud import ListedProvider
from nova_numa_ext.policy.modes import Mode
from placement_traits.fleet import Amount, HostView
from placement_traits.names import NeighbourTrait, TierTrait

_AGENT_WIDTH: Final = 20


class ListHost(command.Lister):  # type: ignore[misc]
    """List hosts that an agent publishes: tiers, classes of service, L3 ways and bandwidth (used/capacity).

    Mode: whether its agent does what it decides, or observes only; what it says itself of its features is shown.
    Agent: whether it reports; where it is gone, its tiers are withdrawn, or it is silent for three beats.
    Neighbours: the tiers and classes of the servers that live there now.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows."""
        cloud = self.app.client_manager.numa
        fleet = cloud.fleet()
        agents = cloud.agents(fleet)
        columns = (
            "Host",
            "Agent",
            "Mode",
            "Tiers",
            "CLOS",
            "L3 domains",
            "Ways",
            "Bandwidth MB/s",
            "Neighbours",
            "GPUs",
        )
        hosts = sorted(fleet.hosts.values(), key=lambda host: host.name)
        return columns, [
            _row(host, formatting.folded(agents[host.name], parsed_args, _AGENT_WIDTH))
            for host in hosts
        ]


class ShowHost(command.Lister):  # type: ignore[misc]
    """Show the providers of one host as a tree: inventories (used/capacity) and our traits as text."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the host."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("host", metavar="<host>", help="Compute node, by name or uuid")
        parser.add_argument(
            "--long", action="store_true", help="Show uuids; formats other than table always do"
        )
        parser.add_argument(
            "--costs",
            action="store_true",
            help="Show what latency-critical servers withhold from others instead: ways, and memory bandwidth",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows."""
        if parsed_args.costs:
            found = self.app.client_manager.numa.costs(parsed_args.host)
            return ("Server", "Where", "Withheld"), found
        providers = self.app.client_manager.numa.tree(parsed_args.host)
        root = next(provider for provider in providers if provider.parent is None)
        rows = [
            (
                name,
                formatting.folded(resources, parsed_args),
                formatting.folded(traits, parsed_args),
                uuid,
            )
            for name, resources, traits, uuid in _tree(root, providers, "")
        ]
        columns = ("Provider", "Resources", "Traits", "UUID")
        if parsed_args.formatter == "table" and not parsed_args.long:
            return columns[:-1], [row[:-1] for row in rows]
        return columns, rows


class SetHost(command.Lister):  # type: ignore[misc]
    """Let agents of hosts observe only, or do again what they decide.

    An agent obeys at its next look at Placement (every minute, [placement]interval_s), and from its next round on;
    openstack numa host list shows when it has. Running servers stay as they are.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add hosts and mode."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("host", metavar="<host>", nargs="*", help="Compute node, by name")
        parser.add_argument(
            "--all", action="store_true", help="All hosts that an agent publishes, instead of names"
        )
        parser.add_argument(
            "--mode",
            required=True,
            choices=(Mode.OBSERVE.value, Mode.ENFORCE.value),
            help="observe: journal and count what would be done; enforce: do it, as far as the host's options allow",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows."""
        if bool(parsed_args.host) == parsed_args.all:
            raise CommandError("Name hosts, or give --all.")
        done = self.app.client_manager.numa.set_modes(
            parsed_args.host, all_hosts=parsed_args.all, observe=parsed_args.mode == Mode.OBSERVE
        )
        return ("Host", "Mode", "Result"), [
            (host, parsed_args.mode, result) for host, result in done
        ]


def _row(host: HostView, agent: str) -> tuple[str, ...]:
    tiers = [tier.name for tier in TierTrait if tier in host.traits]
    neighbours = {trait for domain in host.l3 for trait in domain.neighbours}
    return (
        host.name,
        agent,
        modes.text(host.traits),
        " ".join(tiers) or "-",
        formatting.amount(host.rdt.clos if host.rdt else None),
        str(len(host.l3)),
        formatting.amount(_sum([domain.ways for domain in host.l3])),
        formatting.amount(_sum([domain.bandwidth_mbps for domain in host.l3])),
        " ".join(trait.name for trait in NeighbourTrait if trait in neighbours) or "-",
        str(len(host.gpus)),
    )


def _sum(amounts: list[Amount | None]) -> Amount | None:
    known = [amount for amount in amounts if amount is not None]
    if not known:
        return None
    return Amount(sum(amount.capacity for amount in known), sum(amount.used for amount in known))


def _tree(
    provider: ListedProvider, providers: tuple[ListedProvider, ...], indent: str
) -> Iterator[tuple[str, str, str, str]]:
    resources = ", ".join(formatting.stock(name, stock) for name, stock in provider.stocks.items())
    yield (
        f"{indent}{provider.name}",
        resources or "-",
        formatting.traits(provider.traits) or "-",
        provider.uuid,
    )
    for child in providers:
        if child.parent == provider.uuid:
            yield from _tree(child, providers, indent + "  ")
