# SPDX-License-Identifier: Apache-2.0
"""What the doctor of a host says; what it needs of the host are files, which the tests make."""

import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import pytest

from emulation.hosts import four_nodes
from emulation.kernel.resctrl import ResctrlModel
from emulation.kernel.shape import AMD
from emulation.servers import BE_SPECS, Server
from host_agent.conf import configuration
from host_agent.conf.paths import HostPaths
from host_agent.console import doctor
from host_agent.control import rollout_store, slo_store
from host_agent.control.calibration_store import Calibration, distances
from host_agent.control.calibration_store import store as calibration_file
from host_agent.machine.libvirt import ListedDomain
from host_agent.machine.privileged import frames, server
from host_agent.machine.rdt.resctrl import Resctrl
from host_agent.model.modes import Feature, Modes
from host_agent.model.workload import Activity
from host_agent.observe.topology.offline import all_online, with_offline
from host_agent.report.metrics import Metrics, serve
from nova_numa_ext.policy.modes import Mode
from placement_traits.findings import Finding, Level
from placement_traits.topology import HostTopology
from tests.support.hosts import shown


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
        self.helper_user, self.more = "daemon", ""

    def write(self, name: str, text: str) -> Path:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def check(
        self,
        *,
        agent: Mapping[str, str] = MappingProxyType({}),
        lanes: Mapping[str, str] = MappingProxyType({}),
        **placement: str,
    ) -> dict[str, Finding]:
        """Let the doctor look; findings by what was checked.

        :param agent: options of its section
        :param lanes: options of its section
        :param placement: options of its section
        """
        agents = "".join(f"{key} = {value}\n" for key, value in agent.items())
        of_lanes = "".join(f"{key} = {value}\n" for key, value in lanes.items())
        options = {"enabled": "false", "bandwidth_mbps_per_node": "20000", **placement}
        config = self.write(
            "agent.conf",
            f"[host]\nproc = {self.folder}/proc\nsys = {self.folder}/sys\nresctrl = {self.folder}/resctrl\n"
            f"nova_conf = {self.folder}/nova.conf\n[agent]\nstate_dir = {self.folder}/state\n{agents}"
            f"[helper]\nsocket = {self.folder}/helper.sock\nstate_dir = {self.folder}/helper\n"
            f"agent_user = {self.helper_user}\n"
            f"{self.more}[lanes]\n{of_lanes}[libvirt_host]\npid_dir = {self.folder}/pids\n[placement]\n"
            + "".join(f"{key} = {value}\n" for key, value in options.items()),
        )
        conf = configuration.load([f"--config-file={config}"])
        return {finding.check: finding for finding in doctor.check(conf)}


class Libvirt:
    """Domains without a libvirt."""

    servers: tuple[Server, ...] = ()

    def __init__(self, _uri: str, _timeout_s: float) -> None:
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


def test_a_password_that_every_user_can_read_is_found(host: Host) -> None:
    assert host.check()["secrets"].level is Level.GOOD, "it holds none"
    found = host.check(auth_type="password", password="x")["secrets"]
    config = host.folder / "agent.conf"
    assert (found.level, found.detail.startswith(f"{config}: holds passwords")) == (
        Level.DEGRADED,
        True,
    )
    config.chmod(0o640)
    assert host.check(auth_type="password", password="x")["secrets"].level is Level.GOOD


def test_what_adapters_of_uplinks_do_by_themselves_is_shown(host: Host) -> None:
    assert not [check for check in host.check() if check.startswith("classes of")]
    lanes = {"uplinks": "eth0,eth1", "tc": str(host.folder / "tc")}
    missing = host.check(lanes=lanes)["classes of eth0"]
    assert (missing.level, "No such file" in missing.detail) == (Level.DEGRADED, True)
    flow = "[false,false,false,true,false,false,false,false]"
    script = host.write(
        "dcb",
        f"#!/bin/sh\ncase \"$*\" in '-j pfc show dev eth0') echo '{{\"prio_pfc\":{flow}}}';; "
        "*) echo 'Attribute read: Operation not supported' >&2; exit 1;; esac\n",
    )
    script.chmod(0o755)
    found = host.check(lanes=lanes)
    shown = [
        (found[f"classes of {one}"].level, found[f"classes of {one}"].detail)
        for one in ("eth0", "eth1")
    ]
    assert shown == [
        (Level.GOOD, "PFC of priorities 3"),
        (Level.GOOD, "the adapter does no DCB"),
    ]


def test_where_leases_are_led_into_servers_these_need_a_port_and_the_kernel_a_module(
    host: Host,
) -> None:
    assert not {"vhost-vsock", "nova num_pcie_ports"} & host.check().keys()
    host.more = "[remote_gpus]\nuses = true\nguests = true\ntransport = pocl\n"
    found = host.check()
    assert "modprobe vhost_vsock" in found["vhost-vsock"].detail
    assert "[libvirt]num_pcie_ports" in found["nova num_pcie_ports"].detail
    host.write("sys/class/misc/vhost-vsock/dev", "10:241\n")
    host.write("nova.conf", "[compute]\ncpu_dedicated_set = 1-7\n[libvirt]\nnum_pcie_ports = 12\n")
    found = host.check()
    levels = [found[each].level for each in ("vhost-vsock", "nova num_pcie_ports")]
    assert levels == [Level.GOOD, Level.GOOD]


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


class Answering:
    """A helper that answers each greeting in the same way."""

    def __init__(self, path: Path, answer: object) -> None:
        self._listening = server.listen(path)
        self._message = frames.pack(answer)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                connection, _address = self._listening.accept()
                with connection:
                    frames.receive(connection)
                    connection.sendall(self._message)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_error: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


def test_a_helper_that_is_missing_is_broken(host: Host) -> None:
    """Without it nothing would release throttles, so the agent does not start."""
    (host.folder / "state").mkdir()
    missing = host.check()["helper"]
    assert missing.level is Level.BROKEN
    assert "numa-host-agent-helper.socket" in missing.detail
    with Answering(host.folder / "helper.sock", ("done", True)):
        assert host.check()["helper"].level is Level.GOOD


def test_a_helper_that_only_listens_is_as_one_that_is_missing(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The socket is systemd's, and accepts for a helper that ends at once."""
    monkeypatch.setattr(doctor, "_HELPER_S", 0.1)
    with server.listen(host.folder / "helper.sock"):
        found = host.check()["helper"]
    assert found.level is Level.BROKEN
    assert "does not answer" in found.detail


def test_why_a_helper_serves_no_one_is_said(host: Host) -> None:
    refusal = ("refused", "InvalidValueError", ("[helper]state_dir", "/x", "a folder of root's"))
    with Answering(host.folder / "helper.sock", refusal):
        found = host.check()["helper"]
    assert found.level is Level.BROKEN
    assert "[helper]state_dir: '/x' is not allowed" in found.detail


@pytest.mark.parametrize(
    ("user", "owner", "words"),
    [
        ("daemon", 1, ""),
        ("daemon", 0, ""),
        ("daemon", 65534, "serves root and daemon ([helper]agent_user), the agent's folder belong"),
        ("none-of-that-name", 65534, "there is no user none-of-that-name ([helper]agent_user)"),
        ("none-of-that-name", None, ""),
        ("none-of-that-name", 0, ""),
    ],
)
def test_a_helper_that_would_refuse_the_agent_is_broken(
    host: Host, monkeypatch: pytest.MonkeyPatch, user: str, owner: int | None, words: str
) -> None:
    """The doctor is called by root, whom it always serves."""
    if owner is not None:
        (host.folder / "state").mkdir()
    found = Path.stat

    def stat(path: Path, **how: bool) -> object:
        status = found(path, **how)
        return SimpleNamespace(st_uid=owner) if path == host.folder / "state" else status

    monkeypatch.setattr(Path, "stat", stat)
    host.helper_user = user
    with Answering(host.folder / "helper.sock", ("done", True)):
        finding = host.check()["helper"]
    assert words in finding.detail
    assert finding.level is (Level.BROKEN if words else Level.GOOD)


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
    host.write("proc/42/cmdline", "python3\0-P\0-m\0host_agent.cmd.agent\0--config-file=f\0")
    assert host.check()["agent"].level is Level.GOOD


def test_a_process_that_has_the_id_of_an_agent_that_ended_is_none(host: Host) -> None:
    """L3: by its own name, not by a word of its command line."""
    lock = HostPaths(state=host.folder / "state").lock
    host.write(str(lock.relative_to(host.folder)), "42\n")
    for words in ("numa-host-agent-helper", "tail\0-f\0/var/log/numa-host-agent.log"):
        host.write("proc/42/cmdline", f"/usr/bin/{words}\0")
        assert host.check()["agent"].level is Level.DEGRADED


def test_bandwidth_that_was_measured_is_known(host: Host) -> None:
    """L3: the agent publishes it where the operator has set none."""
    local = {node: dict.fromkeys(range(4), 9000.0 + node) for node in range(4)}
    found = Calibration(distances(four_nodes()), {}, local, "today")
    calibration_file(HostPaths(state=host.folder / "state").calibration).save(found)
    answer = host.check(bandwidth_mbps_per_node="")["memory bandwidth"]
    assert answer.level is Level.GOOD
    assert answer.detail.startswith("measured: 9000 MB/s on node 0, 9001 MB/s on node 1, ")


def test_a_host_that_observes_is_named_with_who_let_it(host: Host) -> None:
    assert "mode" not in host.check(), "no agent has run"
    store = rollout_store.store(HostPaths(state=host.folder / "state").rollout)
    whole = Modes.all(Mode.ENFORCE).of
    store.save(rollout_store.RolloutState(Mode.ENFORCE, {**whole, Feature.RDT: Mode.OBSERVE}))
    finding = host.check()["mode"]
    assert (finding.level, finding.detail.split(":")[0]) == (Level.DEGRADED, "observe rdt")
    assert finding.detail.endswith(
        "so says its configuration, by [agent]mode or the mode of a feature"
    )
    store.save(rollout_store.RolloutState(Mode.OBSERVE, Modes.all(Mode.OBSERVE).of))
    assert "the mode in Placement says observe" in host.check()["mode"].detail
    store.save(rollout_store.RolloutState(Mode.ENFORCE, whole, ("a", "b")))
    assert host.check()["mode"].detail == "enforce; waiting: 2 servers"


def test_a_deny_list_with_a_slip_is_broken(host: Host) -> None:
    path = host.write("deny", "11111111-1111-4111-8111-111111111111\n")
    found = host.check(agent={"deny_servers": str(path)})["deny list"]
    assert (found.level, found.detail) == (Level.GOOD, f"1 server in {path}")
    host.write("deny", "web1\n")
    found = host.check(agent={"deny_servers": str(path)})["deny list"]
    assert found.level is Level.BROKEN
    assert "line 1: 'web1' is not allowed" in found.detail


def test_a_metrics_port_of_another_program_is_one_line(host: Host) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        threading.Thread(target=lambda: _answer(other), daemon=True).start()
        finding = host.check(agent={"metrics_port": str(port)})["metrics port"]
    assert finding.level is Level.DEGRADED
    assert f"127.0.0.1:{port} is in use by another program" in finding.detail
    assert "[agent]metrics_port" in finding.detail


def test_a_metrics_port_of_the_agent_or_of_nobody_is_good(host: Host) -> None:
    server = serve(Metrics(), "127.0.0.1", 0)
    port = str(server.server_port)
    try:
        serving = host.check(agent={"metrics_port": port})["metrics port"]
    finally:
        server.shutdown()
        server.server_close()
    free = host.check(agent={"metrics_port": port})["metrics port"]
    assert (serving.level, free.level) == (Level.GOOD, Level.GOOD)
    assert serving.detail.startswith("the agent's metrics are on")
    assert "is free" in free.detail


def _answer(server: socket.socket) -> None:
    """Answer like another exporter: to the look whether the port is taken, then to the question whose it is."""
    for _ in range(2):
        connection, _peer = server.accept()
        with connection:
            if connection.recv(1024):
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n# HELP libvirt_up Up.\n")


def test_missing_bandwidth_and_placement_are_told(host: Host) -> None:
    found = host.check(bandwidth_mbps_per_node="")
    assert "bandwidth_mbps_per_node" in found["memory bandwidth"].detail
    assert found["placement"].detail == "[placement]enabled is false"
    answers = host.check(enabled="true")
    assert answers["placement"].level is Level.BROKEN
    assert "auth_type" in answers["placement"].detail
    assert not {"credentials", "nova API"} & answers.keys()


@pytest.mark.parametrize(
    ("topology", "level", "words"),
    [
        (four_nodes(), Level.GOOD, "none"),
        (shown(four_nodes(), {3, 6, 7}), Level.DEGRADED, "3,6-7: never seen online"),
        (
            with_offline(shown(four_nodes(), {3, 6, 7}), all_online(four_nodes())),
            Level.GOOD,
            "3,6-7, their L3 domains stay published",
        ),
    ],
    ids=["all online", "never seen", "seen before"],
)
def test_offline_cpus_are_told_where_nothing_is_known_of_them(
    host: Host, monkeypatch: pytest.MonkeyPatch, topology: HostTopology, level: Level, words: str
) -> None:
    monkeypatch.setattr(doctor, "topology_reader", lambda _conf: lambda: topology)
    found = host.check()["offline CPUs"]
    assert found.level is level
    assert found.detail.startswith(words)


@pytest.mark.parametrize(
    ("roles", "level", "named"),
    [
        (["numa_ext_host"], Level.GOOD, "only the role numa_ext_host"),
        (["numa_ext_host", "service"], Level.DEGRADED, "has the role service, too"),
        (["admin", "member", "reader"], Level.DEGRADED, "has the role admin, member, reader, too"),
    ],
)
def test_what_is_lost_with_the_hosts_credentials_is_told(
    roles: list[str], level: Level, named: str
) -> None:
    access = SimpleNamespace(role_names=roles)
    auth = SimpleNamespace(get_access=lambda _session: access)
    adapter = SimpleNamespace(session=SimpleNamespace(auth=auth))
    (finding,) = doctor.credentials(adapter)
    assert (finding.level, named in finding.detail) == (level, True)


def test_without_keystone_no_role_is_looked_for() -> None:
    adapter = SimpleNamespace(session=SimpleNamespace(auth=object()))
    assert list(doctor.credentials(adapter)) == []


@pytest.mark.parametrize(
    ("full_mbps", "level"), [(0, Level.DEGRADED), (40_000, Level.GOOD)], ids=["not", "calibrated"]
)
def test_absolute_bandwidth_levels_have_to_be_calibrated(
    host: Host, monkeypatch: pytest.MonkeyPatch, full_mbps: int, level: Level
) -> None:
    resctrl = Resctrl(ResctrlModel(AMD), full_mbps=full_mbps)
    monkeypatch.setattr(doctor, "tree", lambda _paths: resctrl)
    assert host.check()["rdt MB levels"].level is level


def test_objectives_that_nothing_watches_are_told(host: Host) -> None:
    assert host.check()["latency objectives"].level is Level.GOOD
    lcs = {"a": {"name": "silent", "state": "unwatched"}, "b": {"name": "well", "state": "met"}}
    report = {"lcs": lcs}
    slo_store.SloStore(host.folder / "state/slo.json").save(lambda: slo_store.Kept(report=report))
    found = host.check()["latency objectives"]
    assert found.level is Level.DEGRADED
    assert found.detail.startswith("nothing tells the latency of silent: ")
