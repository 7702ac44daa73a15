# SPDX-License-Identifier: Apache-2.0
"""``openstack numa doctor``."""

import argparse
from pathlib import Path
from typing import Any, Final

from osc_lib.command import command

from nova_numa_ext.cli import formatting
from nova_numa_ext.cli.cloud import Cloud
from placement_traits.findings import Level

_DETAIL_WIDTH: Final = 72


class Doctor(command.Lister):  # type: ignore[misc]
    """Check the whole cloud over Placement and Nova, and recommend what to do about each problem.

    No API shows the configuration of nova-scheduler: give its files where they are at hand. A compute host is checked
    by numa-host-agent-ctl doctor, there. The exit code is 1 when something is broken.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the configuration files."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "--nova-conf",
            metavar="<file>",
            type=Path,
            action="append",
            default=[],
            help="Configuration file of nova-scheduler (can be given several times)",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows."""
        cloud: Cloud = self.app.client_manager.numa
        findings = cloud.doctor().examine(cloud.fleet, parsed_args.nova_conf)
        self._broken = any(finding.level is Level.BROKEN for finding in findings)
        rows = [
            (
                found.check,
                found.level.value,
                formatting.folded(found.detail, parsed_args, _DETAIL_WIDTH),
            )
            for found in findings
        ]
        return ("Check", "Level", "Detail"), rows

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Return 1 when something is broken."""
        code: int = super().run(parsed_args)
        return code or int(self._broken)
