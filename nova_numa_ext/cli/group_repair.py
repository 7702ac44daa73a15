# SPDX-License-Identifier: Apache-2.0
"""``openstack numa group repair``: what one server group holds, and its servers, against what was planned for it.

=====================================  ==============================================================
the claim of a group without servers   released
uplinks that a group shares            follow its servers
a server outside of what is held       named: a live migration, or a new server, comes to the leafs
a server that failed                   named: a new one with the same hint comes to the leafs
=====================================  ==============================================================

Nothing here deletes, moves or makes a server: these are their users'.
"""

import argparse
from collections.abc import Iterator
from typing import Any, Final

from osc_lib.command import command

from nova_numa_ext.cli.fabric import SWEPT
from nova_numa_ext.fabrics import FabricState, only_shares
from nova_numa_ext.heal.group_claims import GroupMember
from placement_traits.claims import Amounts

OUTSIDE: Final = "outside of what the group holds"
UNCOUNTED: Final = (
    "its uplinks do not count the group: another one has them alone, or they are not counted at all"
)
_OUTSIDE: Final = f"{OUTSIDE}: migrate it live, it comes to the group's leafs where these have room"
_FAILED: Final = "failed: delete it, and make one with the same hint: it comes to the group's leafs"
_MOVES: Final = "nova is doing something with it: run again"


class RepairGroup(command.Lister):  # type: ignore[misc]
    """Release what a server group holds and no server of it uses, let shared uplinks follow its servers, name the rest.

    Servers that failed, or are on hosts outside of what the group holds, are named with what helps; none is deleted,
    moved or made.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add group and dry run."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("group", metavar="<server group>", help="Server group, by id")
        parser.add_argument("--dry-run", action="store_true", help="Change nothing, only show")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows."""
        numa, group = self.app.client_manager.numa, parsed_args.group
        rows: list[tuple[str, str, str]] = []
        after: Amounts = {}
        for swept in numa.sweep_fabrics(dry_run=parsed_args.dry_run, only=group):
            rows.append(("claim", group, SWEPT[swept.result]))
            after = swept.after
        states = numa.fabrics().read()
        for member in numa.group_members(group):
            traits = numa.host_traits(member.host) if member.host else frozenset()
            rows += [
                ("server", member.name or member.uuid, finding)
                for finding in _findings(member, traits, states, after)
            ]
        return ("What", "Which", "Finding"), rows


def _findings(
    member: GroupMember, traits: frozenset[str], states: list[FabricState], held: Amounts
) -> Iterator[str]:
    if not member.is_live:
        yield _FAILED
    elif member.moves:
        yield _MOVES
    elif member.host and any(each.has_beyond(held, each.nodes_above(traits)) for each in states):
        yield UNCOUNTED if only_shares(held) else _OUTSIDE
