# SPDX-License-Identifier: Apache-2.0
"""Options of leases of remote GPUs: section ``[remote_gpus]``."""

from dataclasses import dataclass
from typing import ClassVar, Final

from placement_traits.errors import InvalidValueError
from placement_traits.names import RemoteGpuApi
from placement_traits.options import Section, option
from placement_traits.pool_tree import LentGpu, LentNic, LentPool, pool_tree

TRANSPORT: Final = "fake"


@dataclass(frozen=True, slots=True)
class RemoteGpuOptions(Section):
    """``[remote_gpus]``."""

    section: ClassVar = "remote_gpus"
    title: ClassVar = "Leases of remote GPUs: numa-host-agent-leases, which is optional"

    fake_gpus: tuple[str, ...] = option(
        (),
        "GPUs that this host lends by the transport fake, NAME=MiB each. No GPU is behind it: a lease's process sends "
        "back what it gets, to every client that reaches its port. No other transport is there in this release.",
        change="you try the control plane of remote GPUs in a cloud without users",
        leave="users could get a lease: they would get no GPU",
    )
    nics: tuple[str, ...] = option(
        (),
        "NICs over which lent GPUs are reached, NAME=MB/s each: what leases may be promised together.",
        change="this host lends GPUs, which needs one or more",
        leave="this host lends none",
    )
    fabrics: tuple[str, ...] = option(
        (),
        "Networks from which lent GPUs are reached, by names of your own.",
        change="this host lends GPUs, which needs one or more",
        leave="this host lends none",
    )
    cores: int = option(
        1,
        "Cores for the processes of leases, one each.",
        minimum=1,
        change="this host lends GPUs to more than one lease",
        leave="this host lends none",
    )
    address: str = option(
        "127.0.0.1",
        "Address of this host on which the processes of leases listen.",
        change="this host lends GPUs to other hosts: its address in the network of the fabric",
        leave="it lends none, or only to itself",
    )
    uses: bool = option(
        False,
        "Servers of this host use leases: which ones run is asked of libvirt and reported to the job service.",
        change="this is a compute node whose servers may use leases",
        leave="this host only lends GPUs",
    )
    interval_s: float = option(
        2.0,
        "Seconds between two questions to the job service; each pause is up to a quarter longer or shorter.",
        minimum=0.5,
        change="the job service is loaded by its hosts (raise)",
        leave="a lease should be attached within seconds",
    )

    def check(self) -> None:
        """See :meth:`Section.check`."""
        if self.fake_gpus:
            pool_tree(self.lent("this host"))

    def lent(self, host: str) -> LentPool:
        """Return what this host lends.

        :param host: its name in Placement
        :raises InvalidValueError: an amount or a name cannot be
        """
        return LentPool(
            host,
            self.cores,
            tuple(LentNic(name, mbps) for name, mbps in _amounts("nics", self.nics)),
            tuple(
                LentGpu(name, mib, frozenset(RemoteGpuApi), frozenset({TRANSPORT}))
                for name, mib in _amounts("fake_gpus", self.fake_gpus)
            ),
            frozenset(self.fabrics),
        )


def _amounts(name: str, given: tuple[str, ...]) -> list[tuple[str, int]]:
    found = []
    for each in given:
        what, _, amount = each.rpartition("=")
        if not what or not (amount.isascii() and amount.isdecimal()):
            raise InvalidValueError(f"[remote_gpus]{name}", each, "NAME=NUMBER")
        found.append((what, int(amount)))
    return found
