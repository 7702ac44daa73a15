# SPDX-License-Identifier: Apache-2.0
"""A host's boots are watched, its services are known by pid file."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from numa_lab import emulated
from numa_lab.emulated import EmulatedHost, GuestService
from numa_lab.emulated_machine import Shape
from numa_lab.errors import LabError
from numa_lab.process import identify
from numa_lab.terminal import Progress

PANIC = "[    7.9] Kernel panic - not syncing: Attempted to kill init!\n"


class Boots:
    """Stands for QEMU: each boot writes the next console text; None is a boot that succeeds."""

    def __init__(self, host: EmulatedHost, monkeypatch, *consoles: str | None) -> None:
        self.host = host
        self.consoles = list(consoles)
        self.threads: list[str] = []
        host.folder.mkdir(parents=True)
        self.resumed: list[bool] = []
        monkeypatch.setattr(
            EmulatedHost, "_boot_once", lambda _, __, threads, resume: self.boot(threads, resume)
        )
        monkeypatch.setattr(EmulatedHost, "stop", lambda _: None)

    def boot(self, threads: str, resume: bool) -> None:
        self.threads.append(threads)
        self.resumed.append(resume)
        said = self.consoles.pop(0)
        if said is not None:
            if said:
                self.host.console.write_text(said)
            raise LabError("h1 has ended unexpectedly")

    def run(self) -> emulated.BootRecord:
        self.host._boot(None, Progress(io.StringIO()))
        return self.host._record()


@pytest.fixture
def host(settings) -> EmulatedHost:
    return EmulatedHost(settings, 0)


def test_a_panic_is_counted_kept_and_tried_again(host, monkeypatch):
    record = Boots(host, monkeypatch, PANIC, PANIC, None).run()
    assert (record.boots, record.failed, record.threads) == (3, 2, "multi")
    assert (host.folder / "console.failed-2.log").read_text() == PANIC


def test_the_last_try_is_single_threaded_and_it_stays_so(host, monkeypatch):
    boots = Boots(host, monkeypatch, PANIC, PANIC, PANIC, None, None)
    assert boots.run().threads == "single"
    assert boots.run().boots == 5
    assert boots.threads == ["multi", "multi", "multi", "single", "single"]


def test_a_host_that_does_not_go_on_with_a_saved_state_boots(host, monkeypatch):
    boots = Boots(host, monkeypatch, PANIC, PANIC, None)
    boots.run()
    assert boots.resumed == [True, False, False]


def test_a_host_that_always_panics_is_given_up_with_its_console(host, monkeypatch):
    with pytest.raises(LabError, match="h1 did not boot in 4 tries") as error:
        Boots(host, monkeypatch, PANIC, PANIC, PANIC, PANIC).run()
    assert error.value.log == host.folder / "console.failed-4.log"
    assert host._record().failed == 4


def test_trying_again_is_no_cure_when_init_gives_up_or_qemu_refuses(host, monkeypatch):
    boots = Boots(host, monkeypatch, "numa-lab: set-up failed\n" + PANIC)
    with pytest.raises(LabError, match="could not be set up"):
        boots.run()
    host.console.unlink()
    boots.consoles = [""]
    with pytest.raises(LabError, match="QEMU does not run h1") as error:
        boots.run()
    assert error.value.log == host.process.log


def test_a_silent_console_is_a_hung_kernel_and_a_talking_one_is_not(host, monkeypatch):
    clock = iter(range(0, 10_000, 60))
    monkeypatch.setattr(emulated.time, "monotonic", lambda: next(clock))
    host.folder.mkdir(parents=True)
    listening = host._listening_unless_hung()
    for line in range(5):
        host.console.write_text("talks\n" * (line + 1))
        assert not listening()
    assert not listening()
    with pytest.raises(LabError, match="has said nothing for 90 s"):
        listening()


def test_what_init_looks_for_is_what_it_says(settings):
    init = (settings.source / "guest" / "init").read_text()
    assert f'say "{emulated._SETUP_FAILED.removeprefix("numa-lab: ")}"' in init


def test_nova_gets_the_hosts_own_cpus_folders_and_devices(host):
    config = host.config
    shared, dedicated = (
        {int(cpu) for cpu in text.split(",")}
        for text in (config.cpu_shared_set, config.cpu_dedicated_set)
    )
    assert shared | dedicated == set(range(host.shape.cpus)) and not shared & dedicated
    assert config.state.is_relative_to(host.folder) and config.slow
    assert [json.loads(spec)["vendor_id"] for spec in config.pci_device_specs] == ["1b36"]


def test_hosts_let_each_other_in_at_their_own_addresses_of_one_ethernet(settings):
    """Else a live migration fails: each host's libvirt listens, and all see their disks at one path."""
    hosts = [EmulatedHost(settings, index) for index in range(2)]
    for host in hosts:
        host._write_folder()
        libvirtd = (host.folder / "libvirt" / "etc" / "libvirtd.conf").read_text()
        assert f'listen_addr = "{host.peer_address}"' in libvirtd
        assert host.config.migration_address == host.peer_address
        assert host.config.instances == emulated.INSTANCES
        assert f"INSTANCES={emulated.INSTANCES}\n" in (host.folder / "machine.env").read_text()
        assert "--listen" in host._libvirtd().argv
        assert (host.folder / "state" / "instances").is_dir()
    assert len({host.peer_address for host in hosts}) == 2
    init = (settings.source / "guest" / "init").read_text()
    assert 'mount -o bind "/new$SHARE/state/instances" "/new$INSTANCES"' in init


def test_hosts_of_a_lab_differ_in_their_hardware_addresses(settings):
    numbers = set()
    for index in range(2):
        host = EmulatedHost(settings, index)
        host._write_folder()
        words = (host.folder / "machine.env").read_text()
        numbers.add(re.search("^NUMBER=([0-9a-f]{2})$", words, re.M)[1])
    assert len(numbers) == 2
    init = (settings.source / "guest" / "init").read_text()
    assert 'address "52:54:00:4e:0${device#eth}:$NUMBER"' in init


def test_only_usual_hosts_are_worth_a_saved_state(settings):
    assert EmulatedHost(settings, 0)._usual and EmulatedHost(settings, 1)._usual
    assert not EmulatedHost(settings, 0, Shape(sockets=4))._usual
    assert not EmulatedHost(settings, 0, series="6.1")._usual


def test_a_python_program_is_asked_of_the_fork_server(host, monkeypatch):
    monkeypatch.setattr(EmulatedHost, "_control", lambda *_, timeout_s: None)
    for folder in (host.folder / "run", host.folder / "services"):
        folder.mkdir(parents=True)
    host._launch(host._nova_compute())
    request = json.loads((host.folder / "services" / "nova-compute.request").read_text())
    assert request["argv"] == list(host._nova_compute().argv[1:])
    assert request["environment"] == host._environment()
    assert request["log"] == str(host.log / "nova-compute.log")
    assert request["pid_file"] == str(host.folder / "run" / "nova-compute.pid")
    host._launch(host._libvirtd())
    assert not (host.folder / "services" / "libvirtd.request").exists()


def test_the_controllers_ports_are_the_same_inside(settings):
    rules = emulated._port_forwarding(settings.ports.needed_by_compute())
    assert all(str(port) in rules for port in settings.ports.needed_by_compute())
    assert "dnat to 10.0.2.2" in rules


def test_a_host_without_process_says_how_to_start_it(host):
    with pytest.raises(LabError, match="h1 does not run: devstack/lab/lab up"):
        host.run("true")
    assert host.status()["state"] == "stopped"


def test_unknown_services_are_refused_with_the_known_ones(host):
    with pytest.raises(LabError, match="no service nova-api: it has libvirtd, nova-compute"):
        host.service("nova-api")


def test_a_service_is_asked_to_restart_when_what_it_reads_has_changed(host, tmp_path):
    read = tmp_path / "agent.conf"
    read.write_text("[DEFAULT]\n")
    service = GuestService("agent", ("/bin/agent",), reads=(read,))
    before = host._fingerprint(service)
    assert host._fingerprint(service) == before
    read.write_text("[DEFAULT]\ndry_run = true\n")
    assert host._fingerprint(service) != before


def test_a_service_runs_its_packages_as_they_are_when_it_is_launched(host, monkeypatch, tmp_path):
    monkeypatch.setattr(EmulatedHost, "_control", lambda *_, timeout_s: None)
    monkeypatch.setattr(emulated, "_compile", lambda _: None)
    monkeypatch.setattr(emulated, "_PACKAGES_INSIDE", str(tmp_path / "inside"))
    for folder in (host.folder / "run", host.folder / "services", tmp_path / "package"):
        folder.mkdir(parents=True)
    code = tmp_path / "package" / "__init__.py"
    service = GuestService("agent", ("cat", f"{tmp_path}/inside/package/__init__.py"))
    service = replace(service, packages=(code.parent,))
    for text in ("old = 1\n", "new = 2\n"):
        code.write_text(text)
        host._launch(service)
        done = subprocess.run(
            [host.folder / "services" / "agent"], capture_output=True, text=True, check=True
        )
        assert done.stdout == text
        shutil.rmtree(tmp_path / "inside")
        prepare = [host.folder / "services" / "agent", "prepare"]
        assert subprocess.run(prepare, capture_output=True, check=True).stdout == b""
        assert (tmp_path / "inside" / "package" / "__init__.py").read_text() == text
    assert (tmp_path / "inside").stat().st_mtime == 0, "stevedore would look for entry points anew"
    assert host._environment()["PYTHONPATH"] == str(tmp_path / "inside")


# -- the script that runs inside, here on this machine

needs_busybox = pytest.mark.skipif(
    not Path("/bin/busybox").exists(), reason="busybox-static is not installed"
)


class Inside:
    def __init__(self, script: Path, folder: Path) -> None:
        self.script, self.folder = script, folder
        for name in ("services", "log", "run"):
            (folder / name).mkdir(parents=True)

    def define(self, name: str, body: str) -> None:
        path = self.folder / "services" / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [self.script, self.folder, *words]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)

    def pids(self) -> dict[str, int]:
        return {name: int(pid) for name, pid in map(str.split, self("list").stdout.splitlines())}


@pytest.fixture
def inside(settings, tmp_path):
    made = Inside(settings.source / "guest" / "service", tmp_path / "host")
    made.define("agent", "echo begins; exec sleep 600")
    yield made
    for pid in made.pids().values():
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(made.folder)


@needs_busybox
def test_a_service_runs_once_until_it_is_stopped(inside):
    ready = ("30", f"grep -q begins {inside.folder}/log/agent.log")
    assert inside("start", "agent", *ready).returncode == 0
    first = inside.pids()
    assert list(first) == ["agent"]
    assert inside("start", "agent").returncode == 0
    assert inside.pids() == first
    assert inside("stop", "agent", "10").returncode == 0
    assert inside.pids() == {}
    assert inside("stop", "agent", "10").returncode == 0


@needs_busybox
def test_a_service_with_a_request_is_forked_after_its_script(inside, monkeypatch):
    monkeypatch.setenv("FORK_SERVER", f"{inside.folder}/fork-server")
    os.mkfifo(inside.folder / "fork-server")
    request = inside.folder / "services" / "forked.request"
    request.write_text("{}")
    inside.define("forked", f"echo $1 > {inside.folder}/log/script")
    sleeper = subprocess.Popen(["sleep", "600"])

    def fork() -> None:
        with (inside.folder / "fork-server").open() as requests:
            asked.append(requests.readline())
            asked.append((inside.folder / "log" / "script").read_text())
            (inside.folder / "run" / "forked.pid").write_text(str(identify(sleeper.pid)))

    asked: list[str] = []
    server = threading.Thread(target=fork)
    server.start()
    try:
        done = inside("start", "forked")
        server.join()
        assert done.returncode == 0, done.stderr
        assert asked == [f"{request}\n", "prepare\n"]
        assert inside.pids() == {"forked": sleeper.pid}
    finally:
        sleeper.kill()
        sleeper.wait()


@needs_busybox
def test_a_service_that_was_killed_does_not_run_and_starts_again(inside):
    inside("start", "agent")
    before = inside.pids()["agent"]
    assert inside("signal", "agent", "KILL").returncode == 0
    assert inside("start", "agent").returncode == 0
    assert inside.pids()["agent"] != before


@needs_busybox
def test_one_that_ends_before_it_is_ready_is_told(inside):
    inside.define("broken", "exit 3")
    failed = inside("start", "broken", "30", "false")
    assert failed.returncode == 1
    assert "broken" in failed.stderr and "ended" in failed.stderr


@needs_busybox
def test_a_pid_that_belongs_to_somebody_else_is_not_touched(inside):
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        (inside.folder / "run" / "agent.pid").write_text(f"{stranger.pid} 1 another-boot\n")
        assert inside.pids() == {}
        assert inside("stop", "agent", "1").returncode == 0
        assert inside("signal", "agent", "KILL").returncode == 1
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize("plain", [False, True])
def test_the_agent_of_a_plain_cloud_is_the_operators(settings, plain):
    """The lab started a second one beside it, when it was brought up once more."""
    host = EmulatedHost(replace(settings, plain=plain), 0)
    host.agent_conf.parent.mkdir(parents=True)
    host.agent_conf.touch()
    names = [service.name for service in host.services()]
    assert ("numa-host-agent" in names) is not plain
