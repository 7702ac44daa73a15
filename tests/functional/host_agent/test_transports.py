# SPDX-License-Identifier: Apache-2.0
"""Transports with real processes and sockets: fake, one that a file declares for a script of this test, and PoCL."""

import os
import socket
import sys
import tempfile
from pathlib import Path

import pytest

from host_agent.remote_gpu.answer import ServedLease
from host_agent.remote_gpu.processes import LeaseCommand, LeaseProcesses
from host_agent.transports import pocl_probe
from placement_traits.errors import ServiceUnavailableError
from tests.support.built_pocl import cached_pocl
from tests.support.pocl_server import write_pocl
from tests.support.polling import until

SCRIPT = """
import contextlib, os, socket, sys, threading
from pathlib import Path
def serve(port):
    with socket.create_server(("127.0.0.1", port)) as listening:
        while True:
            client, _ = listening.accept()
            with client, contextlib.suppress(ConnectionError):
                client.sendall(f"{os.getpid()} {os.environ['GPU']} {port}\\n".encode())
                while data := client.recv(100):
                    client.sendall(data)
first = int(sys.argv[1])
Path(__file__).with_name("served").touch()
threading.Thread(target=serve, args=(first + 1,), daemon=True).start()
serve(first)
"""
DECLARED = """
name = "{name}"
apis = ["cuda"]
slices = "advisory"
ports = 2
[server]
argv = ["{python}", "-I", "{script}", "{{port}}"]
environment = {{ GPU = "{{gpu}}", HOME = "{{folder}}" }}
probe = {probe}
[guest.device]
"MINE_{{j}}" = "127.0.0.1:{{port}}"
"""


class GpuHostProcesses:
    """The processes of leases by one transport; a greeting is what its server says first."""

    def __init__(self, folder, transport):
        self.folder, self.transport = folder, transport
        self.command = LeaseCommand(transport, folder, "127.0.0.1", {"gpu-uuid": "GPU-8f"})
        self.processes = LeaseProcesses(folder / "run", self.command)
        self.greets = transport == "mine"

    def connected(self, address, asked):
        host, _, port = address.rpartition(":")
        client = socket.create_connection((host, int(port)), 5)
        client.sendall(f"{asked}\n".encode())
        lines = client.makefile("rwb")
        return lines if lines.readline() == b"ok\n" else None

    def answers(self, client):
        """Whether the server behind a client answers in its transport's way."""
        if self.transport == "pocl":
            return pocl_probe.offered(LinesAsSocket(client)) == 1
        client.write(b"hello\n")
        client.flush()
        return client.readline() == b"hello\n"

    def serve(self, lease="lease-1", epoch=1):
        self.processes.start(served(lease))
        return self.processes.serve(lease, epoch)[1]


class LinesAsSocket:
    """A client that has read a line, for who wants a socket."""

    def __init__(self, lines):
        self._lines = lines

    def sendall(self, data):
        self._lines.write(data)
        self._lines.flush()

    def recv(self, count):
        return self._lines.read1(count)


def served(lease, gpu="gpu-uuid"):
    return ServedLease(lease, 1, gpu, 500, "silver", "cuda", 0)


def declare(folder, name, script, probe="[]"):
    (folder / f"{name}.py").write_text(script)
    values = {"name": name, "python": sys.executable, "script": folder / f"{name}.py"}
    (folder / f"{name}.toml").write_text(DECLARED.format(probe=probe, **values))


@pytest.fixture
def folder(monkeypatch):
    with tempfile.TemporaryDirectory() as short:  # a socket's path has 107 bytes
        monkeypatch.chdir(short)
        yield Path(short)


@pytest.fixture(params=["fake", "mine", "pocl"])
def gpus(folder, request):
    declare(folder, "mine", SCRIPT)
    if request.param == "pocl":
        pocl = cached_pocl()
        write_pocl(folder, pocl.server, pocl.layer)
    found = GpuHostProcesses(folder, request.param)
    yield found
    for lease in found.processes.running():
        found.processes.end(lease)


def test_bytes_go_to_the_server_and_back_and_an_old_epoch_is_refused(gpus):
    address = gpus.serve()
    client = gpus.connected(address, "1")
    if gpus.greets:
        assert client.readline().split()[1] == b"GPU-8f"
    assert gpus.answers(client)
    for wrong in ("0", "2", "", "x", "1 9", "1 -1", "1 1 1"):
        assert gpus.connected(address, wrong) is None


def test_a_newer_epoch_cuts_clients_before_it_is_acknowledged(gpus):
    address = gpus.serve()
    client = gpus.connected(address, "1")
    if gpus.greets:
        client.readline()
    assert gpus.serve(epoch=2) == address
    try:
        assert client.read(1) == b""
    except ConnectionError:
        pass
    assert gpus.connected(address, "1") is None
    assert gpus.connected(address, "2") is not None


def test_two_leases_have_servers_of_their_own_and_end_alone(gpus):
    first, second = gpus.serve("lease-1"), gpus.serve("lease-2")
    assert first != second
    gpus.processes.end("lease-1")
    assert gpus.processes.running() == {"lease-2"}
    assert not (gpus.folder / "run" / "lease-1.files").exists()
    assert gpus.connected(second, "1") is not None
    with pytest.raises(ConnectionRefusedError):
        gpus.connected(first, "1")


def test_the_next_supervisor_finds_the_process_again(gpus):
    address = gpus.serve()
    found = LeaseProcesses(gpus.folder / "run", gpus.command)
    assert found.serve("lease-1", 1) == (1, address)


def test_a_gpu_that_is_not_lent_is_not_served(gpus):
    with pytest.raises(ServiceUnavailableError, match="does not lend GPU other"):
        gpus.processes.start(served("lease-1", gpu="other"))


def test_no_lease_is_served_without_the_slices_that_its_host_has_published(folder, capfd):
    enforced = LeaseCommand("fake", folder, "127.0.0.1", {"gpu-uuid": "GPU-8f"}, enforced=True)
    with pytest.raises(ServiceUnavailableError, match="does not start"):
        LeaseProcesses(folder / "run", enforced).start(served("lease-1"))
    assert "Transport fake keeps no lease to its memory" in capfd.readouterr().err


def test_a_killed_server_cuts_its_clients_and_is_started_again(folder):
    declare(folder, "mine", SCRIPT)
    gpus = GpuHostProcesses(folder, "mine")
    client = gpus.connected(gpus.serve(), "1")
    first = int(client.readline().split()[0])
    os.kill(first, 9)
    try:
        assert client.read(1) == b""
    except ConnectionError:
        pass
    gpus.processes._wait("lease-1")
    second = gpus.connected(gpus.serve(), "1 1").readline().split()
    assert int(second[0]) != first
    gpus.processes.end("lease-1")
    assert not Path(f"/proc/{int(second[0])}").exists()


def test_a_server_dies_with_a_lease_process_that_is_killed(folder):
    declare(folder, "mine", SCRIPT)
    gpus = GpuHostProcesses(folder, "mine")
    server = int(gpus.connected(gpus.serve(), "1").readline().split()[0])
    gpus.processes._children["lease-1"].kill()
    until(lambda: not Path(f"/proc/{server}/cmdline").exists() or not cmdline(server), 5.0)
    gpus.processes.end("lease-1")


def cmdline(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_server_serves_when_its_probe_says_so_and_one_that_ends_never(folder):
    declare(folder, "asked", SCRIPT, f'["/usr/bin/test", "-e", "{folder}/served"]')
    gpus = GpuHostProcesses(folder, "asked")
    gpus.serve()
    assert (folder / "served").exists()
    gpus.processes.end("lease-1")
    declare(folder, "ends", "raise SystemExit(3)")
    with pytest.raises(ServiceUnavailableError, match="does not start"):
        GpuHostProcesses(folder, "ends").serve()
