# SPDX-License-Identifier: Apache-2.0
"""The conformance cases of the resctrl model hold on the real kernel of an emulated host."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from numa_lab.kernel import DEFAULT_SERIES

from tests.integration.cloud import EmulatedHost, LabCloud, Progress, Shape

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_S = 400


def assert_conforms(host: EmulatedHost, backend: str) -> None:
    """Run the cases on a host whose tree nobody else uses."""
    profile = ".".join(host.run("uname -r").stdout.split(".")[:2])
    words = f"-m tests.conformance.run --profile {profile} --backend {backend}"
    command = f"cd {REPOSITORY} && {sys.executable} {words}"
    done = host.run(command, TIMEOUT_S, check=False)
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.stdout.endswith(" cases, 0 failed\n"), done.stdout


def test_the_kernel_of_an_emulated_host_conforms(running_cloud: LabCloud) -> None:
    """The agent stands aside: the cases take every group away, and it puts its own back afterwards.

    So does the dead-man switch of its helper, because the agent shuts down gracefully.
    """
    host = running_cloud.hosts["h2"]
    host.agent.stop()
    try:
        assert_conforms(host.emulated, "resctrl")
    finally:
        host.agent.start()


@contextmanager
def beside(cloud: LabCloud, shape: Shape, series: str = DEFAULT_SERIES) -> Iterator[EmulatedHost]:
    """A host beside those of the lab, without nova and an agent."""
    host = EmulatedHost(cloud.settings, len(cloud.hosts), shape, series)
    try:
        host.start(Progress())
        yield host
    finally:
        host.stop()
        shutil.rmtree(host.folder)


@pytest.mark.long
def test_the_kernel_of_debian_12_conforms(running_cloud: LabCloud) -> None:
    with beside(running_cloud, Shape(gpu_nodes=()), "6.1") as host:
        assert host.run("uname -r").stdout.startswith("6.1.")
        assert_conforms(host, "resctrl")


@pytest.mark.long
def test_libpqos_on_the_kernel_of_an_emulated_host_conforms(running_cloud: LabCloud) -> None:
    """With one L3 domain in each socket: libpqos knows no others on Intel CPUs."""
    with beside(running_cloud, Shape(gpu_nodes=(), sockets=4)) as host:
        assert_conforms(host, "pqos")
