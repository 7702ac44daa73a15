# SPDX-License-Identifier: Apache-2.0
"""What the doctor of a host says; what it needs of the host are files, which the tests make."""

from pathlib import Path

import pytest

from emulation.hosts import four_nodes
from emulation.servers import BE_SPECS, Server
from host_agent.conf import configuration
from host_agent.conf.paths import HostPaths
from host_agent.console import doctor
from host_agent.machine.libvirt import ListedDomain
from host_agent.model.workload import Activity
from placement_traits.findings import Finding, Level


class Host:
    """A host's files below one folder, all good as made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("proc/sys/kernel/numa_balancing", "0\n")
        self.write("sys/kernel/mm/ksm/run", "0\n")
        self.write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
        self.write("nova.conf", "[compute]\ncpu_dedicated_set = 1-7\n")
        self.write("pids/none", "")
        self.options: dict[str, dict[str, str]] = {}

    def write(self, name: str, text: str) -> Path:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def check(self, **placement: str) -> dict[str, Finding]:
        """Let the doctor look; findings by what was checked."""
        options = {"enabled": "false", "bandwidth_mbps_per_node": "20000", **placement}
        config = self.write(
            "agent.conf",
            f"[host]\nproc = {self.folder}/proc\nsys = {self.folder}/sys\nresctrl = {self.folder}/resctrl\n"
            f"nova_conf = {self.folder}/nova.conf\n[agent]\nstate_dir = {self.folder}/state\n"
            f"[libvirt_host]\npid_dir = {self.folder}/pids\n[placement]\n"
            + "".join(f"{key} = {value}\n" for key, value in options.items()),
        )
        conf = configuration.load([f"--config-file={config}"])
        return {finding.check: finding for finding in doctor.check(conf)}


class Libvirt:
    """Domains without a libvirt."""

    servers: tuple[Server, ...] = ()

    def __init__(self, _uri: str) -> None:
        pass

    def hostname(self) -> str:
        return "h1"

    def domains(self) -> tuple[ListedDomain, ...]:
        return tuple(ListedDomain(s.uuid, s.xml, Activity.RUNNING) for s in self.servers)

    def close(self) -> None:
        pass


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(doctor, "LibvirtSource", Libvirt)
    monkeypatch.setattr(Libvirt, "servers", ())
    monkeypatch.setattr(doctor, "topology_reader", lambda _conf: four_nodes)
    return Host(tmp_path)


@pytest.mark.parametrize(
    ("file", "text", "check", "words"),
    [
        ("proc/sys/kernel/numa_balancing", "1\n", "kernel.numa_balancing", "sysctl"),
        ("proc/77/comm", "numad\n", "numad", "process 77"),
        ("sys/kernel/mm/ksm/run", "1\n", "kernel samepage merging", "disable --now ksmtuned"),
        (
            "sys/kernel/mm/transparent_hugepage/enabled",
            "always madvise [never]\n",
            "transparent huge pages",
            "echo madvise",
        ),
        ("nova.conf", "[compute]\n", "nova cpu_dedicated_set", "not set"),
        (
            "nova.conf",
            "[compute]\npacking_host_numa_cells_allocation_strategy = true\n",
            "nova cell order",
            "set [placement]cell_packing = pack",
        ),
        ("nova.conf", "[compute\n", "nova.conf", "files that nova reads"),
        ("state/paused", "", "agent", "numa-host-agent-ctl resume"),
    ],
)
def test_each_disturbance_is_one_line_that_says_what_to_do(
    host: Host, file: str, text: str, check: str, words: str
) -> None:
    before = host.check().get(check)
    host.write(file, text)
    after = host.check()[check]
    assert after.level is Level.DEGRADED
    assert words in after.detail
    assert "\n" not in after.detail
    assert before is None or before.level is Level.GOOD or check == "agent"


def test_page_merging_names_the_servers_that_are_open_to_it(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.write("sys/kernel/mm/ksm/run", "1\n")
    monkeypatch.setattr(Libvirt, "servers", (Server("be", BE_SPECS), Server("foreign", {})))
    detail = host.check()["kernel samepage merging"].detail
    assert "may merge pages of be." in detail


def test_an_agent_that_runs_is_known_by_its_process(host: Host) -> None:
    assert host.check()["agent"].level is Level.DEGRADED
    lock = HostPaths(state=host.folder / "state").lock
    host.write(str(lock.relative_to(host.folder)), "42\n")
    host.write("proc/42/cmdline", "/usr/bin/python3\0/usr/bin/numa-host-agent\0")
    assert host.check()["agent"].level is Level.GOOD


def test_missing_bandwidth_and_placement_are_told(host: Host) -> None:
    found = host.check(bandwidth_mbps_per_node="")
    assert "bandwidth_mbps_per_node" in found["memory bandwidth"].detail
    assert found["placement"].detail == "[placement]enabled is false"
    answers = host.check(enabled="true")
    assert answers["placement"].level is Level.BROKEN
    assert "auth_type" in answers["placement"].detail
    assert "not re-homed" in answers["nova API"].detail
