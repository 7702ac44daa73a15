# SPDX-License-Identifier: Apache-2.0
"""``openstack numa net qos apply`` and ``remove``: DSCP by Neutron, for the ports of servers with a tier."""

import argparse
from collections.abc import Iterable
from typing import Any

from osc_lib.command import command

from nova_numa_ext.cli.port_policies import PortOutcome

_COLUMNS = ("Server", "Port", "Policy", "Result")


class ApplyNetQos(command.Lister):  # type: ignore[misc]
    """Have Neutron mark what servers send by their tier: DSCP 46 (latency-critical) and 8 (best-effort).

    Two QoS policies, numa-ext-lc and numa-ext-be, are made where they are needed, and attached to the ports of servers
    with a tier where neither the port nor its network has a policy. All others are left alone. Hosts on which
    numa-host-agent-lanes runs leave a port with a policy alone, these two included: use one of both.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the dry run."""
        return _with_dry_run(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows."""
        numa = self.app.client_manager.numa
        return _table(numa.port_policies().apply(numa.servers(), dry_run=parsed_args.dry_run))


class RemoveNetQos(command.Lister):  # type: ignore[misc]
    """Take the QoS policies numa-ext-lc and numa-ext-be off the ports of servers, and delete them."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the dry run."""
        return _with_dry_run(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows."""
        numa = self.app.client_manager.numa
        return _table(numa.port_policies().remove(numa.servers(), dry_run=parsed_args.dry_run))


def _with_dry_run(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("--dry-run", action="store_true", help="Change nothing, only show")
    return parser


def _table(outcomes: Iterable[PortOutcome]) -> tuple[Any, Any]:
    rows = [
        (
            each.server,
            each.port,
            each.policy,
            f"{each.result}: {each.why}" if each.why else each.result,
        )
        for each in outcomes
    ]
    return _COLUMNS, [tuple(map(str, row)) for row in rows]
