# SPDX-License-Identifier: Apache-2.0
"""Services that our agent depends on go away and come back."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.cloud import LabCloud, LabHost, eventually


@pytest.fixture
def placement_frozen(cloud: LabCloud) -> Iterator[Callable[[], None]]:
    """Placement does not answer until the value is called: its processes are frozen, so that no data is lost."""
    (pid,) = [row["pid"] for row in cloud.lab.status()["services"] if row["name"] == "placement"]
    workers = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    processes = (pid, *map(int, workers))

    def thaw() -> None:
        for process in processes:
            os.kill(process, signal.SIGCONT)

    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        yield thaw
    finally:
        thaw()


def synced(cloud: LabCloud, host: LabHost) -> bool:
    """What the agent's metric says about Placement."""
    port = cloud.settings.ports.agent_metrics
    metrics = host.run(f"curl -sf http://127.0.0.1:{port}/metrics")
    (value,) = [
        line.split()[1]
        for line in metrics.splitlines()
        if line.startswith("numa_ext_placement_synced ")
    ]
    return float(value) == 1.0


def test_with_placement_down_the_agent_keeps_controlling_and_catches_up(
    cloud: LabCloud, h1: LabHost, request: pytest.FixtureRequest
) -> None:
    server = cloud.boot("lc.small", "--host", "h1")
    before = h1.enforced(server.id)
    eventually("the agent has published", lambda: synced(cloud, h1), 120, 3)
    thaw = request.getfixturevalue("placement_frozen")
    h1.run(f"rmdir /sys/fs/resctrl/{before.group}")
    after = h1.enforced(server.id)
    assert after.group == before.group
    eventually("the agent notices that Placement is away", lambda: not synced(cloud, h1), 240, 3)
    thaw()
    eventually("the agent has caught up", lambda: synced(cloud, h1), 180, 3)
