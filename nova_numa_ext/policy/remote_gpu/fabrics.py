# SPDX-License-Identifier: Apache-2.0
"""Networks between a client and its remote GPU, and what they cost a job (Prades 2021, chapters 2 and 7).

A job spends a share of its run time in copies to and from its GPU. The rest does not change when the GPU is remote; the
copies take as much longer as the network is slower than the bus (figure 2.8: two measured shares predict all others).
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from placement_traits.errors import InvalidValueError

# A copy from pageable memory of a VM takes twice the time of one from the host's (figure 2.7c).
PAGEABLE_IN_VM: Final = 0.5


@dataclass(frozen=True, slots=True)
class GpuFabric:
    """A network as GPU servers and clients use it.

    :param name: its name
    :param gbps: effective bandwidth between two hosts, Gbit/s
    :param rdma: two GPU servers copy directly; else through the client, which is twice the way
    """

    name: str
    gbps: float
    rdma: bool

    @property
    def hops(self) -> int:
        """Times the data of a move cross the network."""
        return 1 if self.rdma else 2


# Figure 7.4, section 2.5 (the virtual network of Xen from 32 KiB on) and figure 2.2 (TCP over InfiniBand).
FABRICS: Final = MappingProxyType(
    {
        fabric.name: fabric
        for fabric in (
            GpuFabric("edr", 92.0, rdma=True),
            GpuFabric("fdr", 48.0, rdma=True),
            GpuFabric("fdr-pcie1", 13.2, rdma=True),
            GpuFabric("vm-bridge", 12.8, rdma=False),
            GpuFabric("ip-over-ib", 9.52, rdma=False),
            GpuFabric("1gbe", 1.0, rdma=False),
        )
    }
)


def fabric(name: str) -> GpuFabric:
    """Return the fabric of a name.

    :raises InvalidValueError: there is none
    """
    if name not in FABRICS:
        raise InvalidValueError("fabric", name, ", ".join(FABRICS))
    return FABRICS[name]


def run_time_ratio(transfer_share: float, local_gbps: float, remote_gbps: float) -> float:
    """Return the run time with another path to the GPU over that with the local one.

    :param transfer_share: part of the run time that is copies when the GPU is local, in [0, 1]
    :param local_gbps: bandwidth of those copies, Gbit/s
    :param remote_gbps: bandwidth of the other path, Gbit/s
    """
    return 1.0 - transfer_share + transfer_share * local_gbps / remote_gbps
