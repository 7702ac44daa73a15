# SPDX-License-Identifier: Apache-2.0
"""A guest's way to a lease by the link: real processes from the program in the guest to the server that echoes.

Unix sockets stand for vsock, and this process for the guest's QEMU::

    this test ── TCP ── guest ══ Unix ══ doorman of c1 ══ TLS 1.3 ══ gateway, in the lease's namespaces ── TCP ── server
"""

import ast
import os
import signal
import socket
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from numa_lab import link_build

from benchmarks.link_certificates import write_certificates
from host_agent.remote_gpu.answer import AttachedLease, ServedLease
from host_agent.remote_gpu.doors import Doors, GuestDomain
from host_agent.remote_gpu.link_files import LinkFiles, LinkPaths
from host_agent.remote_gpu.processes import (
    LeaseCommand,
    LeaseProcesses,
    LeaseProcessGoneError,
)
from host_agent.transports.fake import FakeTransport
from placement_traits.errors import ServiceUnavailableError
from tests.support.apart import lease_groups
from tests.support.built_link import cached_link
from tests.support.killing import descendants, words_of
from tests.support.lease_spy import write_spy
from tests.support.polling import until
from tests.support.ports import free_port

LEASE = "5e0f6d1c-0000-4000-8000-000000000001"
SERVER = "5e0f6d1c-0000-4000-8000-000000000002"
CID = 7
STARTED = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
ANSWERS_S = 20.0
SILENT_S = 1.0


class LeaseRoad:
    """A lease on host g1, and a guest on host c1.

    :param transport: of the lease
    :ivar processes: the leases' of g1
    """

    def __init__(self, folder, processes, *, apart, transport="fake"):
        self.folder, self.program = folder, cached_link() / link_build.PROGRAM
        self._processes = processes
        write_spy(folder)
        self.options, _ = write_certificates(folder, "c1", "g1")
        paths = (folder / name for name in ("g1.pem", "g1.key", "ca.pem", "crl.pem"))
        self.certificates = LinkFiles(LinkPaths(*paths))
        command = LeaseCommand(transport, folder, "127.0.0.1", {"gpu": "gpu"}, link=self.program)
        run = folder / "run"
        groups = lease_groups(run) if apart else None
        self.processes = LeaseProcesses(run, command, groups, self.certificates)
        self.port = free_port()
        self.doors = Doors(
            self,
            lambda: [GuestDomain(SERVER, CID)],
            FakeTransport(),
            folder / "attachments.json",
            first_port=self.port,
        )

    def serve(self, epoch=1, client="c1"):
        """Have the lease served; return its address."""
        self.processes.start(ServedLease(LEASE, epoch, "gpu", 500, "silver", "cuda", 0, client))
        found, address = self.processes.serve(LEASE, epoch, client)
        assert found == epoch
        return address

    def attach(self, address, epoch=1):
        """Let the doorman know of it, as the service says it to c1."""
        self.doors.turn([AttachedLease(LEASE, epoch, SERVER, "cuda", address, "g1")])

    def process(self, _server):
        """What the helper of c1 says."""
        return SimpleNamespace(pid=os.getpid(), started=STARTED)

    def open(self):
        """Start doorman and guest."""
        self.open_doorman()
        self.open_guest()

    def open_doorman(self):
        """Start one where none runs."""
        door = self.folder / "door"
        door.unlink(missing_ok=True)
        file = self.folder / "attachments.json"
        words = ("-listen", f"unix:{door}", "-attachments", file, *self.options)
        self.doorman = self.run("doorman", *words)
        until(door.exists, ANSWERS_S)

    def open_guest(self):
        """Start the guest's end."""
        where = f"unix:{self.folder / 'door'}#{CID}"
        self.guest = self.run("guest", "-doorman", where, "-environment", self.folder / "env")

    def run(self, *words):
        process = subprocess.Popen([self.program, *map(str, words)], stdin=subprocess.DEVNULL)
        self._processes.callback(lambda: (process.kill(), process.wait()))
        return process

    def client(self):
        """A program in the guest."""

        def connected():
            try:
                return socket.create_connection(("127.0.0.1", self.port), ANSWERS_S)
            except ConnectionRefusedError:
                return None

        found = []
        until(lambda: found.append(connected()) or found[-1], ANSWERS_S)
        self._processes.callback(found[-1].close)
        return found[-1]

    def attached(self):
        """A program in the guest of a lease that is served."""
        self.attach(self.serve())
        self.open()
        return self.client()

    def gateway(self):
        """Number of its process; other tests that run have leases of that name."""
        for each in descendants():
            if words_of(each)[:2] == [str(self.program), "gateway"]:
                return each
        raise AssertionError("no gateway runs")


def echo(client, text):
    client.sendall(text)
    client.settimeout(ANSWERS_S)
    found = b""
    while len(found) < len(text):
        found += client.recv(len(text))
    return found


@pytest.fixture
def way(request):
    with tempfile.TemporaryDirectory() as short, ExitStack() as processes:
        apart, transport = getattr(request, "param", (False, "fake"))
        found = LeaseRoad(Path(short), processes, apart=apart, transport=transport)
        processes.callback(lambda: found.processes.end(LEASE))
        yield found


@pytest.mark.parametrize(
    "way", [(False, "fake"), (True, "fake")], ids=["together", "apart"], indirect=True
)
def test_a_program_in_a_guest_reaches_the_server_of_its_lease(way):
    client = way.attached()
    assert echo(client, b"hello\n" * 50_000) == b"hello\n" * 50_000
    both_ways = 2 * len(b"hello\n" * 50_000)
    until(lambda: way.processes._ask(LEASE, {})["bytes"] == both_ways, ANSWERS_S)
    until((way.folder / "env").exists, ANSWERS_S)
    assert (way.folder / "env").read_text() == f"FAKE_GPUS=127.0.0.1:{way.port}\n"
    host, _, port = way.serve().rpartition(":")
    with socket.create_connection((host, int(port)), ANSWERS_S) as plain:
        plain.sendall(b"1\n")
        assert b"ok" not in plain.recv(100), "nobody comes by plain TCP"


@pytest.mark.parametrize(
    ("way", "apart"), [((False, "fake"), False), ((True, "fake"), True)], indirect=["way"]
)
def test_the_port_of_a_server_is_reached_from_its_own_namespace_alone(way, apart):
    """Where a lease is not kept apart, what is tried here is seen to reach it."""
    way.attached()
    words = words_of(way.gateway())
    at = ("127.0.0.1", int(words[words.index("-ports") + 1].split(",")[0]))
    if apart:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(at, ANSWERS_S)
    else:
        socket.create_connection(at, ANSWERS_S).close()


def test_a_stream_goes_on_at_the_newest_epoch_and_at_no_other(way):
    client = way.attached()
    echo(client, b"before\n")
    address = way.serve(2)
    client.sendall(b"at epoch 1\n")
    client.settimeout(SILENT_S)
    with pytest.raises(TimeoutError):
        client.recv(100)
    way.attach(address, 2)
    client.settimeout(ANSWERS_S)
    assert client.recv(100) == b"at epoch 1\n", "it waited in the guest for another link"
    assert way.processes.serve(LEASE, 1, "c1")[0] == 2, "what is said late changes nothing"
    assert echo(client, b"after\n") == b"after\n"


def test_a_doorman_of_another_host_than_the_leases_is_cut_and_refused(way):
    client = way.attached()
    echo(client, b"before\n")
    way.serve(1, "c2")
    client.sendall(b"refused\n")
    client.settimeout(SILENT_S)
    with pytest.raises(TimeoutError):
        client.recv(100)
    way.serve(1, "c1")
    client.settimeout(ANSWERS_S)
    assert client.recv(100) == b"refused\n"


def test_certificates_that_cannot_be_are_reported_and_those_before_stay(way, caplog):
    good = (way.folder / "g1.pem").read_text()
    (way.folder / "g1.pem").write_text("none\n")
    with pytest.raises(ServiceUnavailableError, match=r"No doorman can reach lease .* certificate"):
        way.serve()
    (way.folder / "g1.pem").write_text(good)
    client = way.attached()
    (way.folder / "g1.pem").write_text("none again\n")
    for _ in range(3):
        way.serve()
    assert caplog.text.count("certificates of before stay") == 1
    (way.folder / "g1.pem").unlink()
    way.serve()
    assert "are as they were read last" in caplog.text
    assert echo(client, b"still\n") == b"still\n"


def test_a_lease_whose_gateway_is_killed_is_gone_with_its_server(way):
    client = way.attached()
    echo(client, b"before\n")
    os.kill(way.gateway(), signal.SIGKILL)
    with pytest.raises(LeaseProcessGoneError):
        until(lambda: way.processes.serve(LEASE, 1, "c1") and False, ANSWERS_S)
    way.attach(way.serve(2), 2)
    with pytest.raises(ConnectionResetError):
        echo(client, b"x")
    assert echo(way.client(), b"again\n") == b"again\n"


@pytest.mark.parametrize("way", [(True, "spy")], indirect=True)
def test_a_server_gets_no_key_of_its_host(way):
    lines = way.attached().makefile("rw")

    def sees(expression):
        lines.write(f"{expression}\n")
        lines.flush()
        return ast.literal_eval(lines.readline())

    words = "open(f'/proc/{each}/cmdline').read()"
    (gateway,) = sees(
        f"[each for each in os.listdir('/proc') if each.isdecimal() and 'gateway' in {words}]"
    )
    for file in ("mem", "environ", "maps"):
        assert "PermissionError" in sees(f"open('/proc/{gateway}/{file}', 'rb')")
    # By number: root, whom the test may run as, may list the folder whoever owns the process.
    assert "PermissionError" in sees(f"os.readlink('/proc/{gateway}/fd/0')")
    assert "PermissionError" in sees(f"open('/proc/{gateway}/fd/0', 'rb')")
    assert sees(f"failed(libc.ptrace(16, {gateway}, 0, 0))") != "done"  # PTRACE_ATTACH
    assert sees(f"[os.path.exists(each) for each in {[str(way.folder / 'g1.key')]!r}]") == [False]
