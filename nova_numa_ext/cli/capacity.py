# SPDX-License-Identifier: Apache-2.0
"""``openstack numa capacity show`` and ``openstack numa capacity list``."""

import argparse
from typing import Any, Final

from osc_lib.command import command

from nova_numa_ext.cli import flavor_request, formatting
from nova_numa_ext.policy.numa.capacity import HostCapacity, obstacles
from placement_traits.words import counted

_UNKNOWN: Final = (
    "Placement does not know NUMA cells (free CPUs and memory may be scattered over nodes), disks, server groups, "
    "availability zones, quotas and services that are down: fewer may fit."
)
_WIDTH: Final = 100


class _Capacity:
    """What both commands read."""

    app: Any

    def read(
        self, parsed_args: argparse.Namespace
    ) -> tuple[flavor_request.FlavorRequest, tuple[HostCapacity, ...]]:
        """Return the flavor and how many more of its servers fit on each host; warns of what is not judged."""
        cloud = self.app.client_manager.numa
        about = flavor_request.read(cloud, parsed_args.flavor, parsed_args)
        if about.warning():
            print(about.warning(), file=self.app.stderr)
        return about, cloud.capacity(about.request, about.aliases)


def _with_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("flavor", metavar="<flavor>", help="Flavor, by name or id")
    flavor_request.add_arguments(parser)
    return parser


class ShowCapacity(_Capacity, command.ShowOne):  # type: ignore[misc]
    """Show how many more servers of a flavor fit into the cloud, and what is in the way of more.

    In the way is, on each host, what is used up first, or what the host is not able to do; "more" is how many servers
    would fit in addition if that alone were there in plenty. NUMA cells are not in Placement: the number is a bound.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the flavor and what the image asks."""
        return _with_arguments(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return names and values; an invalid flavor raises InvalidRequestError with its sentences."""
        about, hosts = self.read(parsed_args)
        there = [*obstacles(hosts)]
        found = [{"what": str(each.term), "hosts": each.hosts, "more": each.more} for each in there]
        lines = "\n".join(
            f"{each.term}: {counted(each.hosts, 'host')}, {each.more} more without it"
            for each in there
        )
        rows = {
            "flavor": about.flavor,
            "fits": sum(host.fits for host in hosts),
            "hosts": len(hosts),
            "hosts_with_room": sum(host.fits > 0 for host in hosts),
            "in_the_way": (lines or "-") if parsed_args.formatter == "table" else found,
            "unknown": formatting.folded(_UNKNOWN, parsed_args, _WIDTH),
        }
        return tuple(rows), tuple(rows.values())


class ListCapacity(_Capacity, command.Lister):  # type: ignore[misc]
    """List how many more servers of a flavor fit on each host, what is in the way, and what each amount would let in.

    NUMA cells are not in Placement: the numbers are bounds.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the flavor and what the image asks."""
        return _with_arguments(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows; an invalid flavor raises InvalidRequestError with its sentences."""
        _, hosts = self.read(parsed_args)
        rows = [
            (
                each.host.name,
                each.fits,
                formatting.folded(", ".join(each.in_the_way), parsed_args),
                formatting.folded(
                    ", ".join(f"{term} {limit}" for term, limit in each.limits.items()), parsed_args
                ),
            )
            for each in hosts
        ]
        return ("Host", "Fits", "In the way", "Limits"), rows
