# SPDX-License-Identifier: Apache-2.0
"""``openstack numa topology show``."""

import argparse
from pathlib import Path

from osc_lib.command import command

from placement_traits import presets
from placement_traits.draw import draw_text
from placement_traits.draw_svg import draw_svg
from placement_traits.errors import InvalidValueError
from placement_traits.topology import HostTopology


class ShowTopology(command.Command):  # type: ignore[misc]
    """Draw a host: chassis, sockets, NUMA nodes, L3 domains, GPUs and their links.

    Placement knows no cores, distances and sizes; --file takes the complete topology that numa-host-agent-ctl topology
    prints on the host itself.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the host and the form."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        which = parser.add_mutually_exclusive_group(required=True)
        which.add_argument(
            "host", metavar="<host>", nargs="?", help="Compute node, by name, as Placement knows it"
        )
        which.add_argument(
            "--file", metavar="<file>", type=Path, help="Topology in JSON instead of Placement's"
        )
        which.add_argument(
            "--preset",
            metavar="<preset>",
            help=f"One of the machines that come with the package: {', '.join(presets.available())}",
        )
        form = parser.add_mutually_exclusive_group()
        form.add_argument("--svg", metavar="<file>", type=Path, help="Write a drawing to this file")
        form.add_argument("--json", action="store_true", help="Print JSON, for --file")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Print, or write the drawing."""
        title, topology = self._topology(parsed_args)
        if parsed_args.svg:
            _write(parsed_args.svg, draw_svg(topology, title))
        elif parsed_args.json:
            self.app.stdout.write(topology.to_json(2) + "\n")
        else:
            self.app.stdout.write(draw_text(topology, title))

    def _topology(self, parsed_args: argparse.Namespace) -> tuple[str, HostTopology]:
        if parsed_args.preset:
            preset = presets.load(parsed_args.preset)
            return preset.title, preset.topology
        if parsed_args.file:
            return parsed_args.file.stem, _read(parsed_args.file)
        return parsed_args.host, self.app.client_manager.numa.topology(parsed_args.host)


def _read(file: Path) -> HostTopology:
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.reason
        raise InvalidValueError("--file", str(file), f"a readable file ({reason})") from error
    return HostTopology.from_json(text, str(file))


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text)
    except OSError as error:
        raise InvalidValueError(
            "--svg", str(file), f"a file to write ({error.strerror})"
        ) from error
