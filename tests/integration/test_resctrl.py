# SPDX-License-Identifier: Apache-2.0
"""The conformance cases of the resctrl model hold on the real kernel of an emulated host."""

from pathlib import Path

import pytest

from tests.integration.cloud import Cloud

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_S = 400


@pytest.mark.parametrize(
    "backend",
    # libpqos passes on the FUSE tree; here it makes no group yet (EIO): see doc/source/operator/proven.rst
    ["resctrl", pytest.param("pqos", marks=pytest.mark.long)],
)
def test_the_kernel_of_an_emulated_host_conforms(running_cloud: Cloud, backend: str) -> None:
    """The agent stands aside: the cases take every group away, and it puts its own back afterwards."""
    host = running_cloud.hosts["h2"]
    profile = ".".join(host.run("uname -r").split(".")[:2])
    python = host.agent.description.argv[0]
    host.agent.stop()
    try:
        output = host.run(
            f"cd {REPOSITORY} && "
            f"{python} -m tests.conformance.run --profile {profile} --backend {backend}",
            TIMEOUT_S,
        )
    finally:
        host.agent.start()
    assert output.rstrip().endswith(" 0 failed")
