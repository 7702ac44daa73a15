# SPDX-License-Identifier: Apache-2.0
"""``openstack numa pool list`` and ``show``: GPUs that hosts lend to other hosts' servers, as Placement counts them.

How leases use them, ``show`` asks the job service.
"""

import argparse
from collections.abc import Iterator
from typing import Any

from osc_lib.command import command

from nova_numa_ext.cli import formatting
from nova_numa_ext.cli.jobs_client import JobRefusedError, Lease
from nova_numa_ext.policy.remote_gpu.leases import LeaseState
from placement_traits.errors import (
    CapabilityMissingError,
    InvalidValueError,
    ServiceUnavailableError,
)
from placement_traits.fleet import Amount
from placement_traits.names import POOL
from placement_traits.pools import Pool

_LIVING = tuple(state.value for state in LeaseState if not state.final)
_DECIMALS = 2


class ListPool(command.Lister):  # type: ignore[misc]
    """List hosts that lend GPUs, with what leases hold of them all (used/capacity).

    A pool that is drained takes no new leases.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows."""
        columns = (
            "Host",
            "Fabrics",
            "Drained",
            "GPUs",
            "GPU memory MiB",
            "Shares",
            "Cores",
            "NIC MB/s",
        )
        return columns, [_row(pool) for pool in _pools(self)]


class ShowPool(command.Lister):  # type: ignore[misc]
    """Show what one host lends: each GPU, NIC and its cores (used/capacity), and how leases use each GPU.

    How busy a GPU is (1: all the time), what of its memory is in use, and what goes over the links of its leases is
    what its host reports to the job service of leases that it can tell it of; nothing is shown where it can of none.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the host."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("host", metavar="<host>", help="Host that lends GPUs, by name")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows.

        :raises InvalidValueError: the host lends nothing
        """
        found = _pools(self)
        pool = next((each for each in found if each.host == parsed_args.host), None)
        if pool is None:
            lending = ", ".join(each.host for each in found) or "none lends GPUs"
            raise InvalidValueError("<host>", parsed_args.host, lending)
        columns = (
            "What",
            "Name",
            "GPU memory MiB",
            "Shares",
            "Amount",
            "Busy",
            "In use MiB",
            "Links MB/s",
            "Traits",
            "UUID",
        )
        use = self._use()
        return columns, [
            (*row[:5], *use.get(row[6], ("",) * 3), formatting.folded(row[5], parsed_args), row[6])
            for row in _parts(pool)
        ]

    def _use(self) -> dict[str, tuple[str, ...]]:
        """Return what leases use of each GPU, by its provider; nothing where the job service does not say it."""
        of_gpu: dict[str, list[Lease]] = {}
        try:
            jobs = self.app.client_manager.numa.jobs()
            for lease in jobs.leases(_LIVING, all_projects=True):
                of_gpu.setdefault(lease["gpu"] or "", []).append(lease)
        except (CapabilityMissingError, JobRefusedError, ServiceUnavailableError) as error:
            print(f"How leases use these GPUs is not known: {error}", file=self.app.stderr)
            return {}
        figures = ("busy", "used_mb", "link_mbps")
        return {gpu: tuple(_sum(found, each) for each in figures) for gpu, found in of_gpu.items()}


def _pools(shell_command: Any) -> tuple[Pool, ...]:
    found: tuple[Pool, ...] = shell_command.app.client_manager.numa.pools()
    return found


def _row(pool: Pool) -> tuple[Any, ...]:
    return (
        pool.host,
        ", ".join(sorted(pool.fabrics)),
        pool.drained,
        len(pool.gpus),
        _of(*(gpu.memory_mb for gpu in pool.gpus)),
        _of(*(gpu.share for gpu in pool.gpus)),
        _of(pool.cores),
        _of(*(nic.mbps for nic in pool.nics)),
    )


def _parts(pool: Pool) -> Iterator[tuple[str, ...]]:
    for gpu in pool.gpus:
        traits = ", ".join(sorted(gpu.traits - {POOL}))
        yield "GPU", gpu.name, _of(gpu.memory_mb), _of(gpu.share), "", traits, gpu.uuid
    for nic in pool.nics:
        yield "NIC", nic.device, "", "", f"{_of(nic.mbps)} MB/s", "", nic.uuid
    yield "cores", "", "", "", _of(pool.cores), "", pool.cpu


def _of(*amounts: Amount) -> str:
    return f"{sum(each.used for each in amounts)}/{sum(each.capacity for each in amounts)}"


def _sum(leases: list[Lease], name: str) -> str:
    """Return a figure of some leases together, of those of which it is known; '' where it is known of none."""
    known = [lease[name] for lease in leases if lease.get(name) is not None]
    return f"{round(sum(known), _DECIMALS):g}" if known else ""
