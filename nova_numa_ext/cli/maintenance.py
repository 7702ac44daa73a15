# SPDX-License-Identifier: Apache-2.0
"""``openstack numa host drain``, ``undrain`` and ``remove``: hosts that are to be repaired, or left."""

import argparse
from collections.abc import Iterator
from typing import Any, Final

from osc_lib.command import command
from osc_lib.exceptions import CommandError

from nova_numa_ext.cli import formatting
from nova_numa_ext.cli.cloud import Cloud
from placement_traits.removal import Removal

_DETAIL_WIDTH: Final = 100
_RESTART: Final = (
    "Restart nova-compute there before servers are made or deleted: it remembers providers for 300 s by default, and "
    "leaves a server in ERROR that is deleted meanwhile."
)


class DrainHost(command.Lister):  # type: ignore[misc]
    """Keep new servers with a tier away from hosts, for maintenance; those that run there stay and are controlled.

    The tiers are withdrawn at once, whatever the host's agent publishes, until openstack numa host undrain. Servers
    without a tier still come: openstack compute service set --disable keeps all away.
    """

    on = True

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add hosts."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("host", metavar="<host>", nargs="+", help="Compute node, by name")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows."""
        rows = self.app.client_manager.numa.drain(parsed_args.host, on=self.on)
        return ("Host", "Result"), rows


class UndrainHost(DrainHost):
    """Let new servers with a tier come to hosts again.

    The host's agent offers its tiers at its next look at Placement (within a minute, [placement]interval_s).
    """

    on = False


class RemoveHost(command.Lister):  # type: ignore[misc]
    """Take all that host agents have put into Placement out again: providers, traits of the root, beats.

    Stop the agent before: one that runs puts all back within a minute. A provider of which servers hold a part stays
    and takes no new ones; call this again when they are gone. With --all traits and resource classes go, too, when no
    flavor, server or image asks for them. The exit code is 1 when something stays.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add hosts."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("host", metavar="<host>", nargs="*", help="Compute node, by name")
        parser.add_argument(
            "--all",
            action="store_true",
            help="All hosts of which anything is there, those that nova no longer has included, instead of names",
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="Only show what would be removed"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows."""
        if bool(parsed_args.host) == parsed_args.all:
            raise CommandError("Name hosts, or give --all.")
        cloud: Cloud = self.app.client_manager.numa
        dry_run = parsed_args.dry_run
        found = list(cloud.remove(parsed_args.host, all_hosts=parsed_args.all, dry_run=dry_run))
        self._stays = any(map(_stays, (result for _, result in found)))
        if not dry_run and any(_is_removed(removal) for _, removal in found):
            print(_RESTART, file=self.app.stderr)
        if parsed_args.all and not self._stays:
            words = cloud.forget(dry_run=dry_run)
            self._stays = _stays(words)
            found.append(("all hosts", words))
        rows = [
            (host, result, formatting.folded(detail, parsed_args, _DETAIL_WIDTH))
            for host, removal in found
            for result, detail in _results(removal, "would remove" if dry_run else "removed")
        ]
        return ("Host", "Result", "Detail"), rows

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Return 1 when something stays."""
        code: int = super().run(parsed_args)
        return code or int(self._stays)


def _is_removed(removal: Removal | str) -> bool:
    return not isinstance(removal, str) and bool(removal.removed)


def _stays(removal: Removal | str) -> bool:
    return isinstance(removal, str) or bool(removal.held or removal.failed)


def _results(removal: Removal | str, done: str) -> Iterator[tuple[str, str]]:
    """Yield each result with its detail."""
    if isinstance(removal, str):
        yield "failed", removal
        return
    if removal.removed:
        yield done, ", ".join(removal.removed)
    elif not _stays(removal):
        yield "nothing to do", "nothing of ours is there"
    yield from (("held", sentence) for sentence in removal.held)
    yield from (("failed", sentence) for sentence in removal.failed)
