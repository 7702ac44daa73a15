# SPDX-License-Identifier: Apache-2.0
"""Fixtures over the running lab; ``make test-integration`` brings it up first."""

from collections.abc import Iterator

import pytest

from tests.integration.cloud import LabCloud, LabHost
from tests.integration.jobs import LabJobs


@pytest.fixture(scope="session")
def running_cloud() -> LabCloud:
    """The lab of this checkout, without servers: these stories are about free GPUs, cores and L3 domains.

    ::

        controller   keystone, glance, placement, nova-api, -conductor, -scheduler with our plug-ins; job service
        ├─ h1        emulated: 2 sockets, 4 nodes = 4 L3 domains (distances 10/16/22/160), 4 GPUs of a Minsky
        └─ h2        the same with the 8 GPUs of a DGX-1
           each runs nova-compute, libvirtd, numa-host-agent and QEMU's RDT model
    """
    found = LabCloud.connect()
    found.empty()
    return found


@pytest.fixture
def cloud(running_cloud: LabCloud) -> Iterator[LabCloud]:
    """The lab; servers and flavors that the test makes end with it."""
    mine = running_cloud.of_one_test()
    yield mine
    mine.end()


@pytest.fixture
def jobs(cloud: LabCloud) -> Iterator[LabJobs]:
    """The job service; jobs that the test submits end with it, and what it has stopped runs again."""
    made = LabJobs(cloud)
    yield made
    made.end()


@pytest.fixture
def h1(running_cloud: LabCloud) -> LabHost:
    """The first emulated host, as ``running_cloud`` draws it: the one with the GPUs of a Minsky."""
    return running_cloud.hosts["h1"]
