# SPDX-License-Identifier: Apache-2.0
"""Which GPU a lease gets that is asked for by itself."""

from dataclasses import replace

import pytest

from nova_numa_ext.policy.remote_gpu.choosing import choose
from nova_numa_ext.policy.remote_gpu.slices import GpuSlice
from placement_traits.fleet import Amount
from placement_traits.names import RemoteGpuApi, ServiceLevel
from placement_traits.pools import Pool, PoolGpu, PoolNic

PART = GpuSlice(1000, ServiceLevel.SILVER)
OPENCL = RemoteGpuApi.OPENCL


def pool(*nics, drained=False):
    """A host that lends one GPU, with NICs of (capacity, used)."""
    gpu = PoolGpu("gpu", "a", frozenset({OPENCL.trait}), Amount(8000, 0), Amount(100, 0))
    found = tuple(
        PoolNic(f"nic{number}", f"eth{number}", Amount(*mbps)) for number, mbps in enumerate(nics)
    )
    return Pool("g1", "g1", frozenset(), drained, "cpu", Amount(4, 0), found, (gpu,))


@pytest.mark.parametrize(
    ("nics", "asked", "nic"),
    [
        (((1000, 900),), 100, "nic0"),
        (((1000, 900), (1000, 0)), 200, "nic1"),
        (((1000, 900),), 200, None),
        (((100, 300),), 1, None),
        (((100, 300),), 0, "nic0"),
    ],
    ids=["just enough", "the second", "none", "shrunk", "shrunk and nothing asked"],
)
def test_a_nic_counts_as_far_as_bandwidth_is_asked_for(nics, asked, nic):
    """What a NIC has free is below 0 where its host has come to lend less of it than leases hold."""
    found = choose([pool(*nics)], PART, OPENCL, asked)
    assert (found and found.route.pool_nic) == nic


def test_a_drained_pool_gets_no_lease():
    assert choose([pool((1000, 0), drained=True)], PART, OPENCL) is None


def test_a_lease_gets_the_least_shared_gpu():
    """F-002-28, ``perf``: whichever comes first."""
    found = pool((1000, 0))
    (gpu,) = found.gpus
    used = replace(gpu, uuid="used", share=replace(gpu.share, used=gpu.share.used + 1))
    for gpus in ((gpu, used), (used, gpu)):
        chosen = choose([replace(found, gpus=gpus)], PART, OPENCL)
        assert chosen is not None
        assert chosen.route.gpu == gpu.uuid
