# SPDX-License-Identifier: Apache-2.0
"""Latency ports on a real libvirt with real QEMU: plugged in, read, plugged in again, and what that leads to."""

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from emulation.kernel.fuse import FAULT
from emulation.servers import BE_SPECS, LC_SPECS, Server
from tests.functional.host_agent.conftest import ComputeHost, wait_for

pytestmark = pytest.mark.root

CONTROLLER = "<controller type='virtio-serial' index='0'/>"
SLO = {**LC_SPECS, "numa_ext:slo_p99_us": "1000"}
PORT = "org.numa_ext.slo.0"


@pytest.fixture
def agent(empty_host: ComputeHost) -> Iterator[subprocess.Popen[bytes]]:
    """The agent, as a process of its own, with long rounds: only events wake it."""
    process = empty_host.agent(agent__interval_s=2)
    wait_for((empty_host.state / "journal.jsonl").exists, "the agent")
    yield process
    process.terminate()
    process.wait(20)


def journal(host: ComputeHost, action: str) -> list[dict[str, Any]]:
    """Entries of one kind."""
    lines = (host.state / "journal.jsonl").read_text().splitlines()
    return [entry for line in lines if (entry := json.loads(line))["action"] == action]


def port(host: ComputeHost, server: Server) -> str:
    """Path of the host's socket, "" while there is none; as libvirt says it."""
    import xml.etree.ElementTree as ET

    channel = ET.fromstring(host.domain(server).XMLDesc()).find(f".//target[@name='{PORT}']/..")
    source = None if channel is None else channel.find("source")
    return "" if source is None else source.get("path", "")


def test_a_port_is_plugged_in_and_again_after_a_hard_reboot(
    empty_host: ComputeHost, agent: subprocess.Popen[bytes]
) -> None:
    host = empty_host
    lc = Server("lc", SLO, cpus=(1,), devices=CONTROLLER)
    host.boot(lc)
    # Not the XML: it tells of a port whose plugging QEMU has not answered yet, and would never if it ended now.
    wait_for(lambda: journal(host, "plug"), "the port")
    assert port(host, lc)
    old = host.pid(lc)
    host.destroy(lc)
    host.boot(lc)  # from nova's XML, which knows nothing of the port
    assert host.pid(lc) != old
    wait_for(lambda: port(host, lc), "the port after the hard reboot")
    wait_for(lambda: len(journal(host, "plug")) == 2, "both in the journal")
    assert [e.get("problem", "") for e in journal(host, "plug")] == ["", ""]


def test_a_restarted_agent_adopts_the_port_that_is_there(empty_host: ComputeHost) -> None:
    host = empty_host
    lc = Server("lc", SLO, cpus=(1,), devices=CONTROLLER)
    host.boot(lc)
    process = host.agent()
    wait_for(lambda: port(host, lc) and journal(host, "plug"), "the port")
    process.kill()
    process.wait(10)
    path = port(host, lc)
    again = host.agent()
    try:
        wait_for((host.state / "slo.json").exists, "the agent")
        wait_for(lambda: json.loads((host.state / "slo.json").read_text())["report"]["lcs"], "lc")
        assert port(host, lc) == path
        assert len(journal(host, "plug")) == 1, "it was plugged in twice"
    finally:
        again.terminate()
        again.wait(20)


def test_without_a_controller_the_reason_is_told_once(
    empty_host: ComputeHost, agent: subprocess.Popen[bytes]
) -> None:
    host = empty_host
    lc = Server("lc", SLO, cpus=(1,))
    host.boot(lc)
    wait_for(lambda: journal(host, "plug"), "the reason")
    (entry,) = journal(host, "plug")
    assert entry["result"] == "failed"
    assert "hw_qemu_guest_agent=yes" in entry["problem"]


class Reporter:
    """Stands for QEMU, whose firmware reports nothing: listens at the path that libvirt has named."""

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(1)
        self._listener.settimeout(30)
        self._connection: socket.socket | None = None

    def report(self, p99_us: int) -> None:
        """Send one report."""
        if self._connection is None:
            self._connection, _ = self._listener.accept()
        self._connection.send(f"h {p99_us // 2}:950 {p99_us}:50\n".encode())

    def close(self) -> None:
        """Let go."""
        with suppress(OSError):
            if self._connection:
                self._connection.close()
        self._listener.close()


def break_counters(host: ComputeHost, group: str, fault: str) -> set[str]:
    """Let no counter of a group be read any more; return what they say instead."""
    folder = host.resctrl / group
    for place in (folder, *(folder / "mon_groups").iterdir()):
        os.setxattr(place, FAULT, fault.encode())
    return {file.read_text().strip() for file in folder.glob("**/mbm_*_bytes")}


@pytest.mark.parametrize(
    "fault", ["", "Unavailable", pytest.param("Error", marks=pytest.mark.long)]
)
def test_a_violation_throttles_in_the_real_tree_and_recovery_releases(
    empty_host: ComputeHost, tmp_path: Path, fault: str
) -> None:
    """Whether the counters of the best-effort server can be read or not: unknown traffic is no reason to spare it."""
    host = empty_host
    path = tmp_path / "port"
    device = (
        f"{CONTROLLER}<channel type='unix'><source mode='bind' path='{path}'/>"
        f"<target type='virtio' name='{PORT}'/></channel>"
    )
    lc, be = Server("lc", SLO, cpus=(1,), devices=device), Server("be", BE_SPECS)
    host.boot(lc)
    host.boot(be)
    path.unlink()
    reporter = Reporter(path)
    process = host.agent()
    group = "numa_ext-be-0"

    def level() -> str:
        return host.schemata(group)["MB"][0] if group in host.groups() else ""

    try:
        wait_for(lambda: level() == "50", "the fixed level")
        if fault:
            assert break_counters(host, group, fault) == {fault}
        for _ in range(20):
            reporter.report(900)
        wait_for(lambda: _reporting(reporter, 2000, level() == "10"), "the throttle")
        wait_for(lambda: _reporting(reporter, 600, level() == "100"), "the release")
        assert {entry["server"] for entry in journal(host, "violated")} == {lc.uuid}
        acted_on = {entry["server"] for entry in journal(host, "balm") if "server" in entry}
        assert acted_on == {be.uuid}
        output = [line for entry in journal(host, "balm") for line in entry["reasons"]]
        unknown = f"traffic_mbps[{be.uuid}]=unknown"
        assert any(unknown in line for line in output) or not fault
        assert process.poll() is None
        host_row = {row["uuid"]: row for row in json.loads(host.ctl("status", "-f", "json"))}
        assert host_row[lc.uuid]["slo"]["state"] in {"ample", "met"}
    finally:
        process.terminate()
        process.wait(20)
        reporter.close()


def _reporting(reporter: Reporter, p99_us: int, reached: bool) -> bool:
    """Report once per look."""
    if not reached:
        reporter.report(p99_us)
    return reached
