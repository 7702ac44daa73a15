# SPDX-License-Identifier: Apache-2.0
"""``openstack numa flavor check``."""

import argparse
from typing import Any

from osc_lib.command import command

from nova_numa_ext.request import InvalidRequestError, concerns_us, parse


class CheckFlavor(command.Lister):  # type: ignore[misc]
    """Check a flavor's extra specs alone and together, with the sentences of the API and the scheduler.

    Ends with exit code 1 when something is wrong.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the flavors."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "flavor",
            metavar="<flavor>",
            nargs="+",
            help="Flavor, by name or id; several are allowed",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows."""
        rows: list[tuple[str, str, str]] = []
        for name in parsed_args.flavor:
            flavor = self.app.client_manager.numa.flavor(name)
            rows.extend((flavor.name, result, text) for result, text in check(flavor))
        self._wrong = any(result == "wrong" for _, result, _ in rows)
        return ("Flavor", "Result", "Says"), rows

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Return 1 when something is wrong."""
        code: int = super().run(parsed_args)
        return code or int(self._wrong)


def check(flavor: Any) -> list[tuple[str, str]]:
    """Return (``ok``, ``wrong`` or ``none``, sentence) of an openstacksdk flavor."""
    extra_specs = dict(flavor.extra_specs or {})
    if not concerns_us(extra_specs):
        return [("none", "The flavor says nothing to numa_ext.")]
    try:
        request = parse(extra_specs, vcpus=flavor.vcpus, memory_mb=flavor.ram)
    except InvalidRequestError as error:
        return [("wrong", problem) for problem in error.problems]
    tier = f"tier {request.tier}" if request.tier else "no tier"
    return [("ok", f"{tier}, {request.interference_class}, memory {request.memory_policy}.")]
