# SPDX-License-Identifier: Apache-2.0
"""Fixtures over the running lab; ``make test-integration`` brings it up first."""

from collections.abc import Iterator

import pytest

from tests.integration.cloud import Cloud, Host


@pytest.fixture(scope="session")
def running_cloud() -> Cloud:
    """The lab of this checkout, without servers: these stories are about free GPUs, cores and L3 domains."""
    found = Cloud.connect()
    found.empty()
    return found


@pytest.fixture
def cloud(running_cloud: Cloud) -> Iterator[Cloud]:
    """The lab; servers and flavors that the test makes end with it."""
    mine = running_cloud.of_one_test()
    yield mine
    mine.end()


@pytest.fixture
def h1(running_cloud: Cloud) -> Host:
    """The first emulated host."""
    return running_cloud.hosts["h1"]
