# SPDX-License-Identifier: Apache-2.0
"""Pools of GPUs for other hosts, and hosts that reach them."""

from dataclasses import replace

from host_agent.conf.remote_gpus import RemoteGpuOptions
from placement_traits import names
from placement_traits.names import RemoteGpuApi
from placement_traits.pool_tree import LentGpu, LentNic, LentPool


def gpu(name, memory_mb=8000, apis=(RemoteGpuApi.OPENCL,)):
    return LentGpu(name, memory_mb, frozenset(apis), frozenset({"fake"}), enforced=True)


def pool(host, gpus=("a",), fabrics=("main",), cores=4, mbps=1000):
    return LentPool(
        host, cores, (LentNic("eth1", mbps),), tuple(map(gpu, gpus)), frozenset(fabrics)
    )


def movable_pool(host, **more):
    """One whose leases lose nothing by a move."""
    found = pool(host, **more)
    return replace(found, gpus=tuple(replace(each, migratable=True) for each in found.gpus))


def client_nic(cloud, root, name, mbps):
    """Give a compute node what its agent publishes of its way to pools; returns the provider of the NIC."""
    cloud.traits(root, names.REMOTE_GPU_CLIENT, names.fabric("main"))
    amounts = {names.REMOTE_GPU_NETWORK_MBPS: mbps}
    return cloud.child(root, names.client_provider(name), names.REMOTE_GPU_CLIENT_NIC, **amounts)


def client(*fabrics, mbps=1000):
    """What an agent publishes of its host's way to pools."""
    uses = RemoteGpuOptions(uses=True, fabrics=fabrics or ("main",), client_mbps=mbps)
    return uses.reach()
