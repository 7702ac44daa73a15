# SPDX-License-Identifier: Apache-2.0
"""``openstack numa lease …``: GPUs of other hosts that projects hold."""

import argparse
import time
from datetime import UTC, datetime
from typing import Any

from osc_lib.command import command

from nova_numa_ext.cli import formatting
from nova_numa_ext.cli.jobs_client import JobsClient, Lease
from nova_numa_ext.policy.remote_gpu.choosing import Unmet
from nova_numa_ext.policy.remote_gpu.leases import LeaseState
from placement_traits.command_line import number_from, whole_from
from placement_traits.errors import NumaExtError
from placement_traits.names import RemoteGpuApi, ServiceLevel

_MOST = 2**31 - 1
_HIGHEST_PRIORITY = 9
_LOOK_S = 1.0
_MOST_SECONDS = 10 * 366 * 86_400.0


class CreateLease(command.ShowOne):  # type: ignore[misc]
    """Ask for a lease of a GPU that another host lends; where none has room, it waits."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add what is asked for."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "--memory-mb",
            type=whole_from(1, _MOST),
            required=True,
            metavar="<MiB>",
            help="Memory of the GPU",
        )
        parser.add_argument(
            "--api",
            choices=[each.value for each in RemoteGpuApi],
            required=True,
            help="By which the GPU is used",
        )
        parser.add_argument(
            "--service-level",
            choices=[each.value for each in ServiceLevel],
            default=ServiceLevel.SILVER.value,
            help="Part of its time (default: silver)",
        )
        parser.add_argument(
            "--network-mbps",
            type=whole_from(0, _MOST),
            default=0,
            metavar="<MB/s>",
            help="Promised on the NIC of its host (default: 0, what others leave)",
        )
        _add_pool(parser, "Host whose GPU it must be (default: any)")
        parser.add_argument(
            "--unmet",
            choices=[each.value for each in Unmet],
            default=Unmet.WAIT.value,
            help="Where no GPU has room: wait until one has, in the order of requests (default), or stop",
        )
        parser.add_argument(
            "--priority",
            type=whole_from(0, _HIGHEST_PRIORITY),
            default=0,
            metavar="<0-9>",
            help="Among leases that wait: more is earlier (default: 0)",
        )
        parser.add_argument(
            "--max-wait",
            type=number_from(1.0, _MOST_SECONDS),
            metavar="<seconds>",
            help="Give it up when it has waited for so long (default: never)",
        )
        parser.add_argument(
            "--server",
            dest="server_id",
            metavar="<uuid>",
            help="Server that it is for: attached where that runs (default: none)",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and values."""
        asked = ("memory_mb", "api", "service_level", "network_mbps", "pool", "unmet", "priority")
        body = {name: getattr(parsed_args, name) for name in asked}
        if parsed_args.server_id is not None:
            body["server_id"] = parsed_args.server_id
        if parsed_args.max_wait is not None:
            body["max_wait_s"] = parsed_args.max_wait
        return _shown(_client(self).create_lease(body))


class ListLease(command.Lister):  # type: ignore[misc]
    """List leases, oldest first; hosts are shown to administrators only."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add filters."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "--state",
            action="append",
            default=[],
            choices=[state.value for state in LeaseState],
            help="Only leases of this state; can be given several times",
        )
        parser.add_argument(
            "--all-projects", action="store_true", help="Leases of all projects (admin or service)"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows."""
        columns = (
            "ID",
            "State",
            "Held",
            "GPU memory MiB",
            "Level",
            "API",
            "Host",
            "Project",
            "Why",
        )
        found = _client(self).leases(parsed_args.state, all_projects=parsed_args.all_projects)
        return columns, [
            (
                each["id"],
                each["state"],
                each["held"],
                each["memory_mb"],
                each["service_level"],
                each["api"],
                each["host"] or "",
                each["project_id"],
                formatting.folded(_why(each), parsed_args),
            )
            for each in found
        ]


class ShowLease(command.ShowOne):  # type: ignore[misc]
    """Show a lease."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the lease."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        _add_lease(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and values."""
        return _shown(_client(self).lease(parsed_args.lease))


class AttachLease(command.ShowOne):  # type: ignore[misc]
    """Say which server a lease is for that was asked for without one: it is attached where that runs."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the lease and the server."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        _add_lease(parser)
        parser.add_argument("server", metavar="<server>", help="Server of its project, by id")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and values."""
        return _shown(_client(self).attach_lease(parsed_args.lease, parsed_args.server))


class MoveLease(command.ShowOne):  # type: ignore[misc]
    """Move a lease that is attached to another GPU.

    It goes with all that its server has in memory where both hosts can do that; else it begins with empty memory there.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the lease and where it is to go."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        _add_lease(parser)
        _add_pool(parser, "Host whose GPU it gets (default: any)")
        parser.add_argument(
            "--wait",
            action="store_true",
            help="Wait until it is there, or stays, and show how far it is",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and values."""
        client = _client(self)
        lease = client.move_lease(parsed_args.lease, parsed_args.pool)
        shown = ""
        while parsed_args.wait and not _has_moved(lease):
            progress = _progress(lease)
            if progress != shown:
                self.app.stderr.write(f"{progress}\n")
                shown = progress
            time.sleep(_LOOK_S)
            lease = client.lease(parsed_args.lease)
        return _shown(lease)


class RequeueLease(command.ShowOne):  # type: ignore[misc]
    """Release a lease that is lost, and ask for the same again; shows the new lease."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the lease."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        _add_lease(parser, "Lease that is lost, by id")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and values."""
        return _shown(_client(self).requeue_lease(parsed_args.lease))


class ReleaseLease(command.Lister):  # type: ignore[misc]
    """End leases: what they hold is free when the host of their GPU serves them no more."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the leases."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("lease", metavar="<lease>", nargs="+", help="Lease, by id")
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Return 1 where a lease could not be released."""
        self._failed = False
        return int(super().run(parsed_args)) or int(self._failed)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows; a lease that refuses leaves the others as they are."""
        rows = []
        for uuid in parsed_args.lease:
            try:
                rows.append((uuid, _client(self).release_lease(uuid)["state"], "done"))
            except NumaExtError as error:
                self._failed = True
                rows.append((uuid, "", formatting.folded(str(error), parsed_args)))
        return ("Lease", "State", "Result"), rows


class HostOff(command.Lister):  # type: ignore[misc]
    """Say that a host which does not report is off: its leases end, and the same is asked for of other hosts.

    Only of a host whose power is off, or whose networks are: one that still runs goes on serving them. One that runs
    and is to be emptied is drained (the trait CUSTOM_NUMA_EXT_DRAINED of its pool), and its leases are moved.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the host."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("host", metavar="<host>", help="Host that lends GPUs, by name")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows: the leases that ended."""
        found = _client(self).host_off(parsed_args.host)
        return ("Lease", "State", "Project", "Why"), [
            (
                each["id"],
                each["state"],
                each["project_id"],
                formatting.folded(_why(each), parsed_args),
            )
            for each in found
        ]


def _add_lease(parser: argparse.ArgumentParser, text: str = "Lease, by id") -> None:
    parser.add_argument("lease", metavar="<lease>", help=text)


def _add_pool(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--pool", default="", metavar="<host>", help=text)


def _client(shell_command: Any) -> JobsClient:
    found: JobsClient = shell_command.app.client_manager.numa.jobs()
    return found


def _shown(lease: Lease) -> tuple[Any, Any]:
    values = {**lease, "reasons": _why(lease)}
    for key in ("created_at", "ended_at"):
        if values[key] is not None:
            values[key] = f"{datetime.fromtimestamp(values[key], UTC):%Y-%m-%dT%H:%M:%SZ}"
    return tuple(values), tuple(values.values())


def _has_moved(lease: Lease) -> bool:
    """Whether a lease goes nowhere any more, and is used, or will not be soon."""
    return lease.get("move") is None and lease["state"] != LeaseState.STARTING


def _progress(lease: Lease) -> str:
    move = lease.get("move")
    if not move or not move["of_mb"]:
        return str(lease["state"])
    return f"{lease['state']}, {move['sent_mb']} of {move['of_mb']} MiB"


def _why(lease: Lease) -> str:
    return "; ".join(each["sentence"] for each in lease["reasons"])
