# SPDX-License-Identifier: Apache-2.0
"""Guests that are not there: what they report follows levels and pages, and is understood by the agent."""

import socket
from pathlib import Path
from typing import Any

import pytest

from emulation.slo_guests import BeState, Port, measure, p99_us
from host_agent.observe.latency.channel import SloFeed


class Kernel:
    """Two servers; one has ended."""

    def __init__(self, state: BeState) -> None:
        self.state = state

    def read(self, uuid: str) -> BeState | None:
        return self.state if uuid == "be" else None


def test_latency_follows_level_and_pages() -> None:
    quiet = p99_us(1000, 0.5, 4.0, 0, [])
    full = p99_us(1000, 0.5, 4.0, 0, [BeState({0: 0.25, 1: 0.75}, 100)])
    throttled = p99_us(1000, 0.5, 4.0, 0, [BeState({0: 0.25, 1: 0.75}, 10)])
    moved = p99_us(1000, 0.5, 4.0, 0, [BeState({1: 1.0}, 100)])
    assert quiet == moved == 500.0
    assert full == 1000.0
    assert throttled == pytest.approx(550.0)


def test_the_agents_feed_understands_the_reports(tmp_path: Path) -> None:
    path = tmp_path / "port"
    path.write_text("QEMU's")
    kernel = Kernel(BeState({0: 0.25}, 100))
    lc = {"port": str(path), "node": 0, "slo_p99_us": 1000, "load": 0.6}
    reported: dict[str, Any] = {"gain": 4.0, "bes": ["be", "gone"], "lcs": [lc]}
    ports: dict[str, Port] = {}
    measure(reported, kernel, ports)  # nobody listens yet
    reader = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    reader.connect(str(path))
    measure(reported, kernel, ports)
    feed = SloFeed(1000.0)
    feed.received(reader.recv(65536), 0.0)
    assert feed.read(0.0).p99_us == pytest.approx(1200.0, rel=0.02)
    reported["lcs"] = [{**lc, "flood": True}]
    measure(reported, kernel, ports)
    feed.received(reader.recv(65536), 0.1)
    assert feed.counts.malformed
    reader.close()
    for port in ports.values():
        port.close()
