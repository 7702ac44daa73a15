# SPDX-License-Identifier: Apache-2.0
"""The lab's host as the agent discovers it; tests calculate with it, benchmarks fill fleets with it."""

from placement_traits.names import GpuLink
from placement_traits.rdt_capability import L3Cat, Mba, RdtCapability, RdtMonitoring
from placement_traits.topology import Core, Gpu, GpuEdge, HostTopology, L3Domain, NumaNode, Socket


def four_nodes(**changes: object) -> HostTopology:
    """The lab's host: distances are 10/16/22/160, ways 14 and 15 of each L3 are shareable with devices::

        socket 0                                   socket 1
        ├─ node 0 = L3 0    CPUs 0, 1              ├─ node 2 = L3 2    CPUs 4, 5
        │  └─ GPU 0000:05:00.0  ◄─────── NV2 ──────┼──└► GPU 0000:85:00.0
        └─ node 1 = L3 1    CPUs 2, 3              └─ node 3 = L3 3    CPUs 6, 7

        each node   2048 MB, 10,000 MB/s
        each L3     16 MiB in 16 ways, 8 classes of service, 8 bandwidth throttles in steps of 10 %

    :param changes: fields of the topology that differ
    """
    l3_ids = (0, 1, 2, 3)
    values = {
        "sockets": (Socket(0), Socket(1)),
        "nodes": tuple(NumaNode(n, n // 2, 2048, (), 10_000) for n in range(4)),
        "l3_domains": tuple(L3Domain(n, n // 2, (n,), 16_384) for n in range(4)),
        "cores": tuple(Core(c, c // 2, c // 4, c // 2, (c,)) for c in range(8)),
        "distances": ((10, 16, 22, 160), (16, 10, 160, 22), (22, 160, 10, 16), (160, 22, 16, 10)),
        "gpus": (Gpu("0000:05:00.0", 0), Gpu("0000:85:00.0", 2)),
        "gpu_links": (GpuEdge("0000:05:00.0", "0000:85:00.0", GpuLink.NV2),),
        "rdt": RdtCapability(
            L3Cat(8, 16, 0xC000),
            Mba(8, 10, 10),
            RdtMonitoring(32, ("llc_occupancy", "mbm_total_bytes", "mbm_local_bytes")),
            l3_ids=l3_ids,
        ),
    }
    return HostTopology(**(values | changes))  # type: ignore[arg-type]
