# SPDX-License-Identifier: Apache-2.0
"""The absence of the agent is published: real processes, a real libvirt, a real Placement over HTTP."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from placement_traits import beats
from placement_traits.names import TierTrait
from tests.functional.host_agent.conftest import ComputeHost, wait_for
from tests.support.placement_over_http import PlacementOverHttp, placement_over_http

pytestmark = pytest.mark.root

SILENCE_S = 2
NEVER_S = 3600


@pytest.fixture
def placement() -> Iterator[PlacementOverHttp]:
    """What nova-compute makes at its first start::

    h1    VCPU 8, MEMORY_MB 8192; HW_CPU_X86_AVX2
    """
    with placement_over_http() as found:
        found.root = found.cloud.compute("h1")
        yield found


class Supervised:
    """The host's agent under its supervisor, publishing in Placement."""

    def __init__(self, host: ComputeHost, placement: PlacementOverHttp) -> None:
        self.host, self.placement = host, placement
        self.config = host.config(**placement.options, host__name="h1")
        self.supervisor: subprocess.Popen[bytes] | None = None

    def start(self, **patience: float) -> None:
        """Start a supervisor: tiers are withdrawn after SILENCE_S."""
        words = [
            f"--{name.replace('_', '-')}={value}"
            for name, value in {"max_silence": SILENCE_S, **patience}.items()
        ]
        self.supervisor = self.host._start(
            [
                *(sys.executable, "-m", "host_agent.cmd.supervisor"),
                *(f"--config-file={self.config}", *words),
            ],
            "supervisor.log",
        )

    def stop(self) -> None:
        """End it and the agent."""
        if self.supervisor is not None:
            self.supervisor.terminate()
            self.supervisor.wait(60)

    def agent(self) -> int:
        """Pid of the agent that is in charge."""
        return int((self.host.state / "agent.lock").read_text())

    def tiers(self) -> frozenset[str]:
        """Tiers that Placement offers of this host."""
        cloud = self.placement.cloud
        found = cloud.client.get(f"/resource_providers/{self.placement.root}/traits")["traits"]
        return frozenset(TierTrait) & frozenset(found)


@pytest.fixture
def supervised(empty_host: ComputeHost, placement: PlacementOverHttp) -> Iterator[Supervised]:
    found = Supervised(empty_host, placement)
    yield found
    found.stop()


def test_tiers_of_a_killed_agent_are_withdrawn_in_time_and_its_successor_puts_them_back(
    supervised: Supervised,
) -> None:
    supervised.start(restart_after=NEVER_S)
    wait_for(supervised.tiers, "the tiers")
    offered = supervised.tiers()
    client = supervised.placement.cloud.client
    wait_for(lambda: beats.last(client, "h1"), "the beat")
    os.kill(supervised.agent(), signal.SIGKILL)
    killed = time.monotonic()
    time.sleep(SILENCE_S / 2)
    assert supervised.tiers() == offered, "a restart within that time is not noticed"
    wait_for(lambda: not supervised.tiers(), "the withdrawal")
    assert time.monotonic() - killed > SILENCE_S
    supervised.stop()
    supervised.start()
    wait_for(lambda: supervised.tiers() == offered, "the tiers")
    time.sleep(SILENCE_S)
    assert supervised.tiers() == offered


def test_placement_that_is_down_at_that_moment_is_told_later(supervised: Supervised) -> None:
    supervised.start(restart_after=NEVER_S)
    wait_for(supervised.tiers, "the tiers")
    os.kill(supervised.agent(), signal.SIGKILL)
    supervised.placement.down = True
    before = supervised.placement.refused
    wait_for(lambda: supervised.placement.refused > before, "the first attempt")
    supervised.placement.down = False
    wait_for(lambda: not supervised.tiers(), "the withdrawal")


def test_the_absence_is_published_without_libvirt_and_with_a_mistake_in_the_configuration(
    supervised: Supervised, empty_host: ComputeHost
) -> None:
    """What keeps the agent from starting must not hide that it is not there."""
    supervised.start()
    wait_for(supervised.tiers, "the tiers")
    supervised.stop()
    mistaken = supervised.config.with_name("mistaken.conf")
    text = supervised.config.read_text().replace("interval_s = 0.1", "interval_s = soon", 1)
    text = text.replace("name = h1\n", "")
    mistaken.write_text(text.replace(empty_host.uri, "qemu:///system?socket=/nonexistent"))
    supervised.config = mistaken
    supervised.start()
    assert supervised.supervisor is not None
    assert supervised.supervisor.wait(120) == 78
    assert supervised.tiers() == frozenset()
    log = Path(empty_host.folder / "supervisor.log").read_text()
    assert "[agent]interval_s = soon" in log
