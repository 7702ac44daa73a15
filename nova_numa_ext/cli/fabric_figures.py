# SPDX-License-Identifier: Apache-2.0
"""``openstack numa fabric capacity`` and ``calculate``: what is left for groups, and what a tree would have."""

import argparse
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final

from osc_lib.command import command
from osc_lib.exceptions import CommandError

from nova_numa_ext.policy.network.fragmentation import fragmentation, placeable
from nova_numa_ext.policy.network.groups import GroupRequest, LeafPlan, PlanOptions, PolicyName
from nova_numa_ext.policy.network.leafs import Leafs
from nova_numa_ext.policy.network.planner import SHARING, plan
from nova_numa_ext.policy.network.sharing import most_jobs, most_jobs_per_link
from nova_numa_ext.policy.network.xgft import Xgft
from placement_traits.command_line import number_from, whole_from
from placement_traits.names import UplinkShare

_MOST_HOSTS: Final = 100_000
_MOST_MBPS: Final = 1e9
_DEFAULT: Final = PlanOptions()
_UNKNOWN: Final = "-"


class ShowFabricCapacity(command.Lister):  # type: ignore[misc]
    """Show how many groups of some sizes a fabric still has room for, one after the other.

    Hosts that no group holds count as free: servers of no group, and of groups that share, are not looked at. "Out of
    reach" is which part of the free hosts groups of this size cannot get; some of it is of the size itself: groups of
    10 leave 8 of each leaf of 18. "Others at most" is how many groups could share uplinks with the next one where each
    other host of its leafs was another group's.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add fabric, sizes and what the groups ask for."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("fabric", metavar="<fabric>", help="Fabric, by name")
        parser.add_argument(
            "hosts",
            nargs="+",
            type=whole_from(1, _MOST_HOSTS),
            metavar="<hosts>",
            help="Hosts of a group; several sizes are several rows",
        )
        parser.add_argument(
            "--share",
            choices=[each.value for each in UplinkShare],
            default=UplinkShare.SHARED.value,
            help="With whom they share uplinks (default: shared)",
        )
        parser.add_argument(
            "--policy",
            choices=[each.value for each in SHARING],
            default=_DEFAULT.shared.value,
            help="How leafs are chosen for groups that share, [numa_ext]net_policy of nova-scheduler "
            "(default: %(default)s)",
        )
        parser.add_argument(
            "--remainders",
            type=whole_from(0, _MOST_HOSTS),
            default=_DEFAULT.remainders_most,
            metavar="<leafs>",
            help="Leafs for remainders in a pod at most, [numa_ext]net_remainders of nova-scheduler "
            "(default: %(default)s)",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows."""
        fabrics = self.app.client_manager.numa.fabrics()
        state = next((each for each in fabrics.read() if each.name == parsed_args.fabric), None)
        if state is None:
            raise CommandError(f"Placement has no fabric {parsed_args.fabric}.")
        left = (replace(leaf, free=leaf.size - leaf.held_hosts) for leaf in state.leafs.leafs)
        leafs = replace(state.leafs, leafs=tuple(left))
        share = UplinkShare(parsed_args.share)
        options = PlanOptions(
            PolicyName(parsed_args.policy), remainders_most=parsed_args.remainders
        )
        rows = []
        for hosts in parsed_args.hosts:
            lost = fragmentation(leafs, hosts, options, share)
            rows.append(
                (
                    hosts,
                    placeable(leafs, GroupRequest(hosts, share), options),
                    _UNKNOWN if lost is None else f"{100 * lost:.0f} %",
                    _others(leafs, GroupRequest(hosts, share), options),
                )
            )
        return ("Hosts", "Groups", "Out of reach", "Others at most"), rows


def _others(leafs: Leafs, asked: GroupRequest, options: PlanOptions) -> int | str:
    """Return how many groups may share uplinks with one that comes now: none where it asks for that, or uses none."""
    found = plan(leafs, asked, options)
    if not isinstance(found, LeafPlan):
        return _UNKNOWN
    if len(found.places) == 1 or asked.share is not UplinkShare.SHARED:
        return 0
    size = {leaf.name: leaf.size for leaf in leafs.leafs}
    return sum(most_jobs_per_link(one.hosts, size[one.leaf]) for one in found.places)


class CalculateFabric(command.Lister):  # type: ignore[misc]
    """Show what a fat tree has: its nodes and links by level, and what a group of hosts sees of them.

    The tree is an XGFT of two lists, one number for each level of switches, bottom up: how many children a switch has,
    and how many parents a node below has. 18,18,10 and 1,14,18 is a tree of 3,240 hosts, 18 on each of 180 leafs, each
    leaf with 14 uplinks. Neither a cloud nor a plan is read.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the tree and a group."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        for name, what in (
            ("children", "Children of a switch by level, such as 18,18,10"),
            ("parents", "Parents of a node by level, such as 1,14,18"),
        ):
            parser.add_argument(name, type=_numbers, metavar=f"<{name}>", help=what)
        parser.add_argument(
            "--link-mbps", type=number_from(0, _MOST_MBPS), metavar="<Mbit/s>", default=1.0,
            help="Bandwidth of one link in one direction (default: 1, for numbers of links)",
        )  # fmt: skip
        for name, what in (
            ("hosts", "Hosts of the group"),
            ("per-leaf", "Hosts of it on each of its leafs"),
        ):
            parser.add_argument(
                f"--{name}", type=whole_from(1, _MOST_HOSTS), metavar="<hosts>", help=what
            )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows."""
        tree = Xgft(parsed_args.children, parsed_args.parents)
        hosts, per_leaf, link = parsed_args.hosts, parsed_args.per_leaf, parsed_args.link_mbps
        if (hosts is None) != (per_leaf is None):
            raise CommandError("Give --hosts and --per-leaf, or neither.")
        seen: tuple[float | None, ...] = ()
        if hosts is not None:
            if hosts % per_leaf:
                raise CommandError(f"--hosts {hosts} is no multiple of --per-leaf {per_leaf}.")
            found = tree.seen(hosts, per_leaf, link)
            if found is None:
                raise CommandError(
                    f"{hosts} hosts, {per_leaf} on each leaf, do not fit in the tree."
                )
            seen = (None, *found)
        rows: list[tuple[Any, ...]] = [(0, tree.nodes(0), *[_UNKNOWN] * (3 + 2 * bool(seen)))]
        below = 1  # hosts below a node of the level under this one
        for level in range(1, tree.height + 1):
            row: tuple[Any, ...] = (
                level,
                tree.nodes(level),
                tree.links(level),
                _whole(tree.bandwidth(level, link)),
                _UNKNOWN if level == tree.height else _ratio(tree.contention(level)),
            )
            if seen:
                here = seen[level - 1]
                of_group = min(hosts, per_leaf * below // tree.children[0])
                row += (
                    _UNKNOWN if here is None else _whole(here),
                    0 if here is None else most_jobs(hosts, of_group, below),
                )
            rows.append(row)
            below *= tree.children[level - 1]
        columns = ("Level", "Nodes", "Links", "Mbit/s", "Down per up")
        return (*columns, *(("The group sees", "Others at most") if seen else ())), rows


def _whole(mbps: float) -> str:
    """Return a bandwidth without an exponent, as long as it has a meaning."""
    return f"{mbps:.12g}"


def _ratio(ratio: Fraction) -> str:
    return f"{float(ratio):g}"


def _numbers(text: str) -> tuple[int, ...]:
    """Return whole numbers that stand between commas."""
    read = whole_from(1, _MOST_HOSTS)
    return tuple(map(read, text.split(",")))
