# SPDX-License-Identifier: Apache-2.0
"""``openstack numa group list``, ``show``, ``topology`` and ``simulate``: server groups on fabrics."""

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from osc_lib.command import command
from osc_lib.exceptions import CommandError

from nova_numa_ext.cli.group_repair import OUTSIDE, UNCOUNTED
from nova_numa_ext.cli.jobs_client import JobsClient
from nova_numa_ext.fabrics import FabricState, only_shares
from nova_numa_ext.group_topology import FORMATS, CabledServer, as_json, hashed
from nova_numa_ext.policy.network.groups import GroupRequest, LeafPlan, PlanOptions, PolicyName
from nova_numa_ext.policy.network.planner import SHARING, plan
from nova_numa_ext.policy.network.terms import sentence
from placement_traits.claims import Amounts, Claim
from placement_traits.command_line import whole_from
from placement_traits.names import UplinkShare

_MOST_HOSTS: Final = 100_000
_MOST_NAMED: Final = 5
_DEFAULT: Final = PlanOptions()


class ListGroup(command.Lister):  # type: ignore[misc]
    """List the server groups of several leafs of a fabric, and those that hold hosts there.

    Groups that share hold none. One that shares and is in one leaf is not listed: it uses no uplink.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows."""
        del parsed_args
        fabrics = self.app.client_manager.numa.fabrics()
        states, rows = fabrics.read(), []
        for claim in fabrics.all():
            for state in states:
                leafs = _leafs_of(claim, state)
                if leafs:
                    hosts = sum(leafs.values())
                    rows.append(
                        (claim.consumer, claim.project, state.name, hosts, ", ".join(leafs))
                    )
        return ("Server group", "Project", "Fabric", "Hosts held", "Leafs"), rows


class ShowGroup(command.Lister):  # type: ignore[misc]
    """Show on which leafs the servers of a group are, what it holds there, and which other groups are there.

    These hold hosts, or share the uplinks; groups that share and are in one leaf are not seen. What is found not to be
    as it was planned is for openstack numa group repair.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the group."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        _add_group(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows."""
        numa, group = self.app.client_manager.numa, parsed_args.group
        state, servers = _placed(numa, group)
        claims = numa.fabrics().all()
        claim = next((each for each in claims if each.consumer == group), None)
        own, amounts = (_leafs_of(claim, state), claim.amounts) if claim else ({}, {})
        on_leaf = Counter(each.nodes[0] for each in servers if each.nodes)
        rows = []
        for leaf in state.leafs.leafs:
            if leaf.name in own or leaf.name in on_leaf:
                others = [
                    each.consumer + ("" if here[leaf.name] else " (shares)")
                    for each in claims
                    for here in [_leafs_of(each, state)]
                    if each.consumer != group and leaf.name in here
                ]
                rows.append(
                    (
                        leaf.name,
                        leaf.pod or "-",
                        on_leaf[leaf.name],
                        own.get(leaf.name, 0),
                        ", ".join(others) or "-",
                        _finding(state, amounts, (leaf.name, *leaf.above), on_leaf[leaf.name]),
                    )
                )
        return ("Leaf", "Pod", "Servers", "Hosts held", "Other groups", "Finding"), rows


class ShowGroupTopology(command.Command):  # type: ignore[misc]
    """Print where the servers of a group hang, for a scheduler that runs inside them.

    The job service is asked, which hashes names of switches; the group's users may ask, too. Administrators may read
    Placement instead: with a key of their own, or with the names as they are.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add group, format and key."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        _add_group(parser)
        parser.add_argument(
            "--format",
            choices=tuple(FORMATS),
            default="json",
            help="What is printed (default: json)",
        )
        source = parser.add_mutually_exclusive_group()
        source.add_argument(
            "--key-file",
            type=Path,
            metavar="<file>",
            help="Secret by which names of switches are hashed for the group's project: the job service is not asked",
        )
        source.add_argument(
            "--names",
            action="store_true",
            help="Names of switches as they are, for no tenant: the job service is not asked",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Print it."""
        numa, group = self.app.client_manager.numa, parsed_args.group
        if parsed_args.key_file is None and not parsed_args.names:
            self.app.stdout.write(_of_service(numa.jobs(), group, parsed_args.format))
            return
        state, servers = _placed(numa, group)
        if parsed_args.key_file is not None:
            try:
                key = parsed_args.key_file.read_bytes().strip()
            except OSError as error:
                raise CommandError(
                    f"{parsed_args.key_file} cannot be read: {error.strerror}."
                ) from error
            if not key:
                raise CommandError(f"{parsed_args.key_file} is empty: a key is needed.")
            servers = hashed(servers, numa.group_project(group), state.name, key)
        self.app.stdout.write(FORMATS[parsed_args.format](servers, state.leafs.levels))


class SimulateGroup(command.Lister):  # type: ignore[misc]
    """Show which leafs a group would get now, or why it has no place. Nothing is claimed.

    Hosts that no group holds count as free: servers of no group, and of groups that share, are not looked at. Of these
    only the uplinks that they use are seen.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add fabric and what the group asks for."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("fabric", metavar="<fabric>", help="Fabric, by name")
        parser.add_argument(
            "hosts", type=whole_from(1, _MOST_HOSTS), metavar="<hosts>", help="Hosts of the group"
        )
        parser.add_argument(
            "--share",
            choices=[each.value for each in UplinkShare],
            default=UplinkShare.SHARED.value,
            help="With whom it shares uplinks (default: shared)",
        )
        parser.add_argument("--within", metavar="<level>", help="Level of which one node holds all")
        parser.add_argument(
            "--slice", type=whole_from(1, _MOST_HOSTS), default=1, metavar="<hosts>",
            help="Hosts that must be on one leaf (default: 1)",
        )  # fmt: skip
        parser.add_argument("--balance", action="store_true", help="As many hosts of each leaf")
        parser.add_argument(
            "--policy",
            choices=[each.value for each in SHARING],
            default=_DEFAULT.shared.value,
            help="How leafs are chosen for a group that shares, [numa_ext]net_policy of nova-scheduler "
            "(default: %(default)s)",
        )
        parser.add_argument(
            "--remainders", type=whole_from(0, _MOST_HOSTS), default=_DEFAULT.remainders_most, metavar="<leafs>",
            help="Leafs for remainders in a pod at most, [numa_ext]net_remainders of nova-scheduler "
            "(default: %(default)s)",
        )  # fmt: skip
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows."""
        fabrics = self.app.client_manager.numa.fabrics()
        state = next((each for each in fabrics.read() if each.name == parsed_args.fabric), None)
        if state is None:
            raise CommandError(f"Placement has no fabric {parsed_args.fabric}.")
        leafs = replace(
            state.leafs,
            leafs=tuple(replace(leaf, free=leaf.size) for leaf in state.leafs.leafs),
        )
        asked = GroupRequest(
            parsed_args.hosts,
            UplinkShare(parsed_args.share),
            parsed_args.within,
            parsed_args.slice,
            parsed_args.balance,
        )
        options = PlanOptions(
            PolicyName(parsed_args.policy), remainders_most=parsed_args.remainders
        )
        found = plan(leafs, asked, options)
        if not isinstance(found, LeafPlan):
            holders = [each.consumer for each in fabrics.all() if _leafs_of(each, state)]
            raise CommandError(_no_place(list(map(sentence, found.reasons)), found.ever, holders))
        pod_of = {leaf.name: leaf.pod for leaf in leafs.leafs}
        return ("Leaf", "Pod", "Hosts", "Held"), [
            (
                one.leaf,
                pod_of[one.leaf] or "-",
                one.hosts,
                sum(found.claims.get(one.leaf, {}).values()),
            )
            for one in found.places
        ]


def _add_group(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("group", metavar="<server group>", help="Server group, by id")


def _leafs_of(claim: Claim, state: FabricState) -> dict[str, int]:
    """Return the hosts that a group holds of each leaf of a fabric where it is, in its order; 0: it shares uplinks."""
    held, there = state.held(claim.amounts), state.nodes(claim.amounts)
    return {
        leaf.name: sum(held.get(leaf.name, {}).values())
        for leaf in state.leafs.leafs
        if leaf.name in there
    }


def _placed(numa: Any, group: str) -> tuple[FabricState, list[CabledServer]]:
    """Return the fabric where a group's servers are, and these with the nodes above them.

    :raises CommandError: nova does not know the group, or none of them is on a fabric
    """
    members = [each for each in numa.group_members(group) if each.host]
    traits = {host: numa.host_traits(host) for host in sorted({each.host for each in members})}
    for state in numa.fabrics().read():
        nodes_of = {host: state.nodes_above(found) for host, found in traits.items()}
        if any(nodes_of.values()):
            return state, [CabledServer(each.name, nodes_of[each.host]) for each in members]
    if not numa.group_project(group):
        raise CommandError(f"Nova knows no server group {group}: give its uuid.")
    raise CommandError(
        f"Server group {group} has no server on a host of a fabric, as far as nova shows."
    )


def _finding(state: FabricState, amounts: Amounts, nodes: Sequence[str], servers: int) -> str:
    """Return what is not as it was planned of a leaf with servers of a group, or with hosts that it holds.

    :param amounts: what the group holds
    :param nodes: the leaf and those above
    :param servers: of the group, on the leaf
    """
    if not servers:
        return "no server here yet, or no longer"
    if state.has_beyond(amounts, nodes):
        return UNCOUNTED if only_shares(amounts) else OUTSIDE
    return "-"


def _of_service(client: JobsClient, group: str, form: str) -> str:
    found = client.topology(group, form)
    if found["file"] is not None:
        return str(found["file"])
    servers = [CabledServer(each["name"], tuple(each["nodes"])) for each in found["servers"]]
    return as_json(servers, found["levels"])


def _no_place(reasons: Sequence[str], ever: bool, holders: Sequence[str]) -> str:
    if not ever:
        return "No place, not even on an empty fabric: " + "; ".join(reasons) + "."
    text = "No place now: " + "; ".join(reasons) + "."
    named = ", ".join(holders[:_MOST_NAMED]) + " …" * (len(holders) > _MOST_NAMED)
    return f"{text} Server groups that hold hosts: {named or 'none'}."
