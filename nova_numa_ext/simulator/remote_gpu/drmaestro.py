# SPDX-License-Identifier: Apache-2.0
"""The experiments of Amaral 2019, section 5.6, as workloads for :mod:`.cluster`.

Machines have 16 cores and four GPUs. CPU-only jobs hold cores for about 800 s, so that of each four machines' 16 GPUs
six have no core for a job of the size of the run: four on a full machine, two on one that has cores for two jobs. GPU
jobs arrive 16 a second, uniform over the Rodinia applications, one GPU each.

The publication has no run times. Their mean is what its makespans with all GPUs busy leave for each job; their spread
is not known, so it is a parameter. Network shares and factors are those of figure 14.
"""

import random
from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

from nova_numa_ext.policy.remote_gpu.completion import Goal
from nova_numa_ext.policy.remote_gpu.fleet import FleetHost, GpuWork
from nova_numa_ext.policy.remote_gpu.slices import GpuRoom, GpuSlice
from nova_numa_ext.simulator.remote_gpu.cluster import CpuWork, RemoteSubmission

CORES: Final = 16
GPUS: Final = 4
GPU_MB: Final = 16_384
LONG_S: Final = 800.0
ARRIVALS_PER_S: Final = 16.0
# Seconds of a GPU for a job, of 512 and of 64 jobs on 16 GPUs.
MEAN_RUN_S: Final = MappingProxyType({64: 65.4, 512: 68.5, 4096: 68.5})
# Shapes of the gamma distribution of run times.
SPREADS: Final = MappingProxyType({"wide": 1.0, "narrow": 4.0, "equal": 100.0})
# Figure 14: share of the run time on the network when the GPU is remote, alone and under full load. Hotspot has none.
NETWORK_SHARES: Final = MappingProxyType(
    {
        "b+tree": (0.002, 0.01),
        "backprop": (0.05, 0.06),
        "gaussian": (0.01, 0.09),
        "lavaMD": (0.02, 0.03),
        "nw": (0.17, 0.49),
        "pathfinder": (0.02, 0.11),
        "srad": (0.03, 0.08),
    }
)
REMOTE_SLOWDOWN: Final = 1.02


def network_factor(application: str) -> float:
    """Return the run time of an application under full load of the network over that alone, less 1."""
    alone, loaded = NETWORK_SHARES[application]
    return (1 - alone) / (1 - loaded) - 1


def machines(count: int, loads: Sequence[float] = ()) -> list[FleetHost]:
    """Return empty machines, all in one fabric.

    :param loads: what others send at each, as a share of its network interface; none where empty
    """
    return [
        FleetHost(
            f"m{number}",
            cores=CORES,
            network_mbps=1,
            lease_cores=GPUS,
            gpus=tuple(GpuRoom(f"m{number}g{gpu}", GPU_MB) for gpu in range(GPUS)),
            fabrics=frozenset({"network"}),
            load=loads[number] if loads else 0.0,
        )
        for number in range(count)
    ]


def cpu_work(
    count: int, cores: int, draw: random.Random, groups: int | None = None
) -> list[CpuWork]:
    """Return the CPU-only jobs: of each four machines one is full, one has cores for two jobs.

    :param cores: of a GPU job
    :param groups: groups of four machines that have them; all when None
    """
    found = []
    for first in range(0, count if groups is None else 4 * groups, 4):
        for machine, held in ((first, CORES), (first + 1, CORES - 2 * cores)):
            found.append(CpuWork(f"m{machine}", held, LONG_S * draw.uniform(0.98, 1.02)))
    return found


def jobs(
    count: int,
    cores: int,
    mean_s: float,
    shape: float,
    draw: random.Random,
    *,
    network_always: bool = False,
) -> list[RemoteSubmission]:
    """Return a workload; the goal of each job is to end within twice the mean run time.

    :param cores: of each job
    :param mean_s: mean run time, seconds
    :param shape: of the gamma distribution of run times, as of :data:`SPREADS`
    :param network_always: they use the network as much with GPUs of their own host
    """
    now = 0.0
    found = []
    for number in range(count):
        now += draw.expovariate(ARRIVALS_PER_S)
        name = draw.choice(list(NETWORK_SHARES))
        work = GpuWork(
            f"{number}-{name}",
            cores,
            memory_mb=0,
            gpus=1,
            part=GpuSlice(GPU_MB),
            goal=Goal(2 * mean_s),
            alone_s=mean_s,
            remote_slowdown=REMOTE_SLOWDOWN,
            network_factor=network_factor(name),
            network_always=network_always,
        )
        run_s = draw.gammavariate(shape, mean_s / shape)
        found.append(RemoteSubmission(now, work, run_s, NETWORK_SHARES[name][0]))
    return found
