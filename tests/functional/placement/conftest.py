# SPDX-License-Identifier: Apache-2.0
"""Named states of a real Placement; each docstring draws the providers."""

import copy

import pytest

from emulation.hosts import four_nodes
from emulation.placement_service import PlacementInProcess
from placement_traits.reporter import Reporter
from placement_traits.tree import desired_tree
from tests.support.allocations import TwoComputes, put_two_computes
from tests.support.filled_placement import FilledPlacement
from tests.support.hosts import SETTINGS


@pytest.fixture(scope="session")
def written():
    """By name: the database as fixtures have filled an empty one, and what they know of it."""
    return {}


@pytest.fixture
def empty_cloud(written):
    """A Placement without providers; nova's client and ours find nothing."""
    with PlacementInProcess() as placement:

        def once(what, write):
            if what not in written:
                known = write()
                written[what] = placement.image(), known
            image, known = written[what]
            placement.restore(image)
            return copy.deepcopy(known)

        cloud = FilledPlacement(placement.adapter)
        cloud.conf = placement.conf
        cloud.once = once
        yield cloud


@pytest.fixture
def one_compute(empty_cloud):
    """What nova-compute makes at its first start::

    h1    VCPU 8, MEMORY_MB 8192; HW_CPU_X86_AVX2
    """
    empty_cloud.root = empty_cloud.compute("h1")
    return empty_cloud


@pytest.fixture
def reported_compute(empty_cloud):
    """The lab's host as our reporter leaves it::

    h1                      VCPU 8, MEMORY_MB 8192; HW_CPU_X86_AVX2, CUSTOM_NUMA_EXT_HOST …
    ├─ h1:rdt               CUSTOM_RDT_CLOS 6
    ├─ h1:l3_0 … h1:l3_3    CUSTOM_LLC_WAY 13, CUSTOM_MEMORY_BANDWIDTH_MBPS 10000
    ├─ h1:gpu-0000:05:00.0  NODE_0, NV2 to the other
    └─ h1:gpu-0000:85:00.0  NODE_2, NV2 to the other
    """
    empty_cloud.tree = desired_tree("h1", four_nodes(), SETTINGS)

    def write():
        root = empty_cloud.compute("h1")
        Reporter(empty_cloud.client).sync(empty_cloud.tree)
        return root

    empty_cloud.root = empty_cloud.once("one reported host", write)
    empty_cloud.reporter = Reporter(empty_cloud.client)
    assert empty_cloud.reporter.sync(empty_cloud.tree).writes == 0
    return empty_cloud


@pytest.fixture
def shared_compute(reported_compute):
    """Our host, used by others too::

    h1                      + CUSTOM_SITE_RACK_7
    ├─ … ours: h1:l3_0      + CUSTOM_SITE_NOTE, CUSTOM_SITE_TOKENS 5
    ├─ h1_0000:05:00.0      (nova) CUSTOM_PCI_GPU 1; CUSTOM_NOVA_PCI
    └─ h1:licences          (site) CUSTOM_LICENCE 3; CUSTOM_SITE_LICENCES
    """
    cloud = reported_compute
    cloud.traits(cloud.root, "CUSTOM_SITE_RACK_7")
    cloud.child(cloud.root, "h1_0000:05:00.0", "CUSTOM_NOVA_PCI", CUSTOM_PCI_GPU=1)
    cloud.child(cloud.root, "h1:licences", "CUSTOM_SITE_LICENCES", CUSTOM_LICENCE=3)
    l3 = cloud.uuid("h1:l3_0")
    cloud.traits(l3, "CUSTOM_SITE_NOTE")
    cloud.client.put("/resource_classes/CUSTOM_SITE_TOKENS")
    there = cloud.client.get(f"/resource_providers/{l3}/inventories")
    there["inventories"]["CUSTOM_SITE_TOKENS"] = {"total": 5}
    cloud.client.put(f"/resource_providers/{l3}/inventories", there)
    return cloud


@pytest.fixture(scope="session")
def two_computes():
    """The database of ``host``, made once."""
    with PlacementInProcess() as placement:
        put_two_computes(placement.adapter)
        return placement.image()


@pytest.fixture
def host(two_computes):
    """Two compute nodes as our agents leave them; servers claim through nova's own client::

    h1                     VCPU 8, PCPU 8, MEMORY_MB 8192
    ├─ h1:rdt              CUSTOM_RDT_CLOS 6
    ├─ h1:l3_0 … h1:l3_3   CUSTOM_LLC_WAY 13, CUSTOM_MEMORY_BANDWIDTH_MBPS 10000
    └─ h1_0000:05:00.0     (nova) CUSTOM_PCI_GPU 1
    h2                     VCPU 8, PCPU 8, MEMORY_MB 8192
    ├─ h2:rdt              CUSTOM_RDT_CLOS 6
    └─ h2:l3_0 … h2:l3_3   CUSTOM_LLC_WAY 13, CUSTOM_MEMORY_BANDWIDTH_MBPS 10000
    """
    with PlacementInProcess() as placement:
        placement.restore(two_computes)
        yield TwoComputes(placement.adapter)
