# SPDX-License-Identifier: Apache-2.0
"""Leases that move with all that their processes have: real CRIU, real processes, real TLS between two hosts.

Two folders of one machine stand for two hosts, this test for the job service. The server keeps a state over which each
of its answers goes (``tests/support/counting.py``): a byte that was lost, or a server that began anew, is a wrong
number.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType

import pytest
from numa_lab import criu_build

from benchmarks.link_certificates import write_certificates
from host_agent.remote_gpu import moves
from host_agent.remote_gpu.answer import (
    AttachedLease,
    EndedLease,
    LeaseAnswer,
    ReceivedLease,
    SentLease,
    ServedLease,
)
from host_agent.remote_gpu.checkpoint import NOTHING_AROUND, Around
from host_agent.remote_gpu.gpu_host import GpuHost
from host_agent.remote_gpu.link_files import LinkFiles, LinkPaths
from host_agent.remote_gpu.moves import HostMoves, MoveTools
from host_agent.remote_gpu.processes import LeaseCommand, LeaseProcesses
from placement_traits.errors import ServiceUnavailableError
from tests.functional.host_agent.test_lease_link import LEASE, SERVER, LeaseRoad
from tests.support.apart import groups_of, lease_groups, processes_in
from tests.support.built_link import settings
from tests.support.counting import NAME, Chain, write_counting
from tests.support.polling import until

MOVES_S = 60.0
GPUS = MappingProxyType({"gpu": "gpu"})


def cached_criu():
    """CRIU of the lab, or this machine's; the test is skipped where there is none."""
    found = criu_build.cached(settings())
    if found is None:
        pytest.skip("CRIU is not built: devstack/lab/lab criu")
    return found


class GpuHosts:
    """g1 and g2, which lend GPUs, and c1 with a guest.

    :ivar epoch: of the lease
    :ivar where: host that serves it
    """

    def __init__(self, folder, processes, mib=4, gpus=GPUS):
        self.folder, self.mib, self.gpus = folder, mib, dict(gpus)
        self.criu = cached_criu()
        self.road = LeaseRoad(folder, processes, apart=False, transport=NAME)
        write_counting(folder, mib)
        write_certificates_of(folder)
        self.hosts, self.epoch, self.where, self.around = {}, 1, "g1", NOTHING_AROUND
        for host in ("g1", "g2"):
            self.start(host)
        processes.callback(self.end)

    def start(self, host):
        """A supervisor of a host."""
        programs = (self.criu, self.road.program)
        more = {"around": self.around, "gpus": self.gpus}
        self.hosts[host] = supervisor(self.folder, host, *programs, **more)

    def client_host(self):
        """What a host does that lends no GPU."""
        run = self.folder / "c1"
        return GpuHost(made(self.folder, "g1", None, None, run=run)[0], run / "epochs.json")

    def served(self, client="c1", epoch=0):
        return ServedLease(LEASE, epoch or self.epoch, "gpu", 64, "silver", "cuda", 0, client)

    def serve(self, host=None):
        """Have a host serve it, and the guest reach it."""
        self.where = host or self.where
        found = []
        answer = LeaseAnswer(serves=(self.served(),))
        until(lambda: found.append(self.hosts[self.where].obey(answer)) or found[-1][0], MOVES_S)
        serves, ended = found[-1]
        assert not ended
        assert serves[LEASE][0] == self.epoch
        self.lead(serves[LEASE][1])

    def lead(self, address):
        """Have the guest reach it."""
        address = self.cabled(self.where, address)
        attached = AttachedLease(LEASE, self.epoch, SERVER, "cuda", address, self.where)
        self.road.doors.turn([attached])

    def cabled(self, _host, address):
        """At which another host reaches an address of a host."""
        return address

    def move(self, stop=lambda _source, _destination: False, **sent):
        """Play the service until the source has ended it, or either says why it does not move; return that."""
        source, destination = self.where, "g2" if self.where == "g1" else "g1"
        self.epoch += 1
        comes = LeaseAnswer(receives=(ReceivedLease(self.served("", self.epoch), source),))
        until_s = time.monotonic() + MOVES_S
        address = ""
        while time.monotonic() < until_s:
            self.hosts[destination].obey(comes)
            there = self.hosts[destination].moving.get(LEASE)
            address = address or (there.address if there else "")
            reached = address and self.cabled(destination, address)
            goes = SentLease(LEASE, self.epoch, destination, reached, **sent)
            _serves, ended = self.hosts[source].obey(LeaseAnswer(sends=(goes,)))
            if LEASE in ended:
                self.epoch += 1
                self.hosts[source].obey(LeaseAnswer())
                self.where = destination
                return ""
            here = self.hosts[source].moving.get(LEASE)
            if stop(source, destination):
                return "stopped"
            if here is not None and here.why:
                self.epoch += 1
                self.hosts[destination].obey(LeaseAnswer())
                return here.why
            if there is not None and there.why and not address:
                self.epoch += 1
                return there.why
            time.sleep(0.02)
        raise AssertionError("it does not move, and nobody says why")

    def nothing_of(self, host):
        """Whether nothing of the lease is left at a host after two rounds, each as long as what it has begun."""
        found = self.hosts[host]
        for _ in range(2):
            found.obey(LeaseAnswer())
            wait(found._in_hand.values(), MOVES_S)
            until(lambda: not found._moves.in_hand(), MOVES_S)
        run = self.folder / host
        left = [each.name for each in run.iterdir() if each.name != "epochs.json"]
        return (left, processes_in(run), groups_of(run)) == ([], [], [])

    def end(self):
        for host, each in self.hosts.items():
            each.obey(LeaseAnswer(ends=(EndedLease(LEASE, self.epoch),)))
            until(lambda host=host: self.nothing_of(host), MOVES_S)


def write_certificates_of(folder):
    """Certificates of c1, g1 and g2 by one authority."""
    write_certificates(folder, "c1", "g1", "g2")


@pytest.fixture
def hosts():
    with tempfile.TemporaryDirectory() as short, ExitStack() as processes:
        yield GpuHosts(Path(short), processes)


@pytest.fixture
def client(hosts):
    hosts.serve()
    hosts.road.open()
    found = hosts.road.client()
    found.settimeout(MOVES_S)
    return found


def compute(chain, client, steps=20):
    for _ in range(steps):
        chain.step(client)


def test_a_lease_goes_to_another_host_and_back_with_all_that_it_has(hosts, client):
    chain = Chain()
    compute(chain, client)
    for there, here in (("g2", "g1"), ("g1", "g2")):
        assert hosts.move() == ""
        assert hosts.where == there
        assert hosts.nothing_of(here)
        hosts.serve()
        compute(chain, client)
    second = hosts.road.client()
    second.settimeout(MOVES_S)
    chain.step(second)  # the state is the server's, not the connection's


def test_who_computes_all_the_time_sees_a_pause_and_nothing_else(hosts, client):
    chain, over = Chain(), threading.Event()

    def works():
        while not over.is_set():
            chain.step(client)

    worker = threading.Thread(target=works)
    worker.start()
    try:
        until(lambda: chain.steps > 100, MOVES_S)
        assert hosts.move() == ""
        hosts.serve()
        before = chain.steps
        until(lambda: chain.steps > before + 100 or not worker.is_alive(), MOVES_S)
    finally:
        over.set()
        worker.join(MOVES_S)
    assert chain.steps > before + 100


@contextmanager
def full_disk(hosts):
    """Give the images of where the lease is 1 MiB."""
    images = hosts.folder / hosts.where / f"{LEASE}.images"
    made = Path.mkdir

    def small(path, *args, **kwargs):
        made(path, *args, **kwargs)
        if path == images:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", path], check=True)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Path, "mkdir", small)
        patched.setattr(moves, "remove_images", unmounted(moves.remove_images, images))
        yield


@contextmanager
def without_criu(hosts, host):
    """Let a host restore nothing."""
    good, hosts.criu = hosts.criu, Path("/usr/bin/false")
    hosts.start(host)
    yield
    hosts.criu = good
    hosts.start(host)


def test_where_the_disk_is_full_a_lease_goes_on_where_it_was(hosts, client):
    chain = Chain()
    compute(chain, client)
    with full_disk(hosts):
        why = hosts.move()
    assert "cannot be dumped" in why
    hosts.serve()
    compute(chain, client)
    assert hosts.nothing_of("g2")
    assert hosts.move() == ""
    hosts.serve()
    compute(chain, client)


def unmounted(remove, images):
    """Remove images whose folder is a file system of its own."""

    def removed(folder, lease):
        if images.is_mount():
            subprocess.run(["umount", images], check=True)
        remove(folder, lease)

    return removed


def test_a_lease_that_the_other_host_cannot_restore_goes_on_where_it_was(hosts, client):
    chain = Chain()
    compute(chain, client)
    with without_criu(hosts, "g2"):
        assert hosts.move().startswith("refused: ")
        hosts.serve()
        compute(chain, client)
        assert hosts.nothing_of("g2")
    assert hosts.move() == ""
    hosts.serve()
    compute(chain, client)


def test_a_lease_whose_move_is_cancelled_goes_on_where_it_was(hosts, client):
    chain = Chain()
    compute(chain, client)
    assert "cancelled" in hosts.move(cancelled=True)
    hosts.serve()
    compute(chain, client)


def test_a_lease_whose_dump_was_killed_is_ended_and_its_client_hears_of_it(hosts, client):
    chain = Chain()
    compute(chain, client)
    killed = []

    def kill(_source, _destination):
        for each in Path("/proc").iterdir():
            with suppress(OSError):
                words = (each / "cmdline").read_bytes().split(b"\0")
                if words[0] == bytes(hosts.criu) and b"dump" in words and not killed:
                    os.kill(int(each.name), signal.SIGKILL)
                    killed.append(each.name)
        return False

    assert hosts.move(kill) == ""  # it is ended, and starts empty elsewhere
    assert killed
    hosts.serve()
    with pytest.raises(ConnectionError):
        compute(chain, client)
    again = hosts.road.client()
    again.settimeout(MOVES_S)
    compute(Chain(), again)


CUDA = """#!/bin/sh
# $1 suspend or resume, $2 the server: a suspended one cannot be suspended, nor one that runs be resumed.
kill -0 "$2" || exit 1
if [ "$1" = suspend ]; then [ ! -e /lease/suspended ] && : > /lease/suspended
else /usr/bin/rm /lease/suspended; fi
"""


def test_the_memory_of_a_gpu_is_suspended_before_a_dump_and_resumed_afterwards(hosts, client):
    """An imitation of cuda-checkpoint, which has never been run by this."""
    program = hosts.folder / "cuda"
    program.write_text(CUDA)
    program.chmod(0o755)
    hosts.around = Around((str(program), "suspend", "{pid}"), (str(program), "resume", "{pid}"))
    for host in ("g1", "g2"):
        hosts.start(host)
    hosts.hosts["g1"].obey(LeaseAnswer(ends=(EndedLease(LEASE, 1),)))
    hosts.epoch += 1
    hosts.serve()
    found = hosts.road.client()
    found.settimeout(MOVES_S)
    chain = Chain()
    compute(chain, found)
    with without_criu(hosts, "g2"):
        assert hosts.move().startswith("refused")  # it was suspended, and goes on here
    for _ in range(2):
        hosts.serve()
        compute(chain, found)
        assert hosts.move() == ""
    hosts.serve()
    compute(chain, found)
    program.write_text(CUDA.replace("kill -0", "exit 1; kill -0"))
    assert "cannot be dumped" in hosts.move()
    hosts.serve()
    compute(chain, found)


def test_a_host_tries_at_its_start_whether_leases_can_move(hosts):
    place = hosts.folder / "tried"
    found, tools = made(hosts.folder, "g1", hosts.criu, hosts.road.program, run=place)
    moves.try_out(found, place, tools, "gpu", 64)
    assert (list(place.iterdir()), groups_of(place)) == ([], [])
    false = Path("/usr/bin/false")
    found, tools = made(hosts.folder, "g1", false, hosts.road.program, run=place)
    with pytest.raises(ServiceUnavailableError, match="It cannot be dumped"):
        moves.try_out(found, place, tools, "gpu", 64)
    assert (list(place.iterdir()), groups_of(place)) == ([], [])


SUPERVISOR = """
import json, os, signal, sys, time
from pathlib import Path
from host_agent.remote_gpu.answer import LeaseAnswer, ReceivedLease, SentLease, ServedLease
from tests.functional.host_agent.test_lease_moves import LEASE, supervisor
folder, host, left, asked, criu, program, transport = sys.argv[1:]
gpu_host = supervisor(Path(folder), host, Path(criu), Path(program), transport=transport)
left, steps, asked = int(left), 0, json.loads(asked)
def step(event, _arguments):
    global steps
    if event in STEPS:
        steps += 1
        if steps == left:
            os.kill(os.getpid(), signal.SIGKILL)
STEPS = {"subprocess.Popen", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "fcntl.flock", "socket.connect",
         "os.symlink"}
sys.addaudithook(step)
if "to" in asked:
    answer = LeaseAnswer(sends=(SentLease(**asked),))
else:
    answer = LeaseAnswer(receives=(ReceivedLease(ServedLease(**asked), "g1"),))
while True:
    serves, ended = gpu_host.obey(answer)
    found = gpu_host.moving.get(LEASE)
    if found is not None and found.address:
        Path(folder, "draft").write_text(found.address)
        os.replace(Path(folder, "draft"), Path(folder, "address"))
    if LEASE in ended or (found is not None and found.why) or "to" not in asked and Path(folder, "over").exists():
        break
    time.sleep(0.02)
print(steps)
"""


def supervisor(folder, host, criu, program, **more):
    """The supervisor of a host, for a process of its own."""
    run = folder / host
    found, tools = made(folder, host, criu, program, run=run, **more)
    return GpuHost(found, run / "epochs.json", HostMoves(found, run, tools))


def made(folder, host, criu, program, *, run, around=NOTHING_AROUND, gpus=GPUS, transport=None):
    """The processes of a host's leases, and by what they move."""
    paths = LinkPaths(*(folder / each for each in (f"{host}.pem", f"{host}.key", "ca.pem", "n")))
    command = LeaseCommand(
        *(transport or NAME, folder, "127.0.0.1", gpus), link=program, criu=criu, around=around
    )
    processes = LeaseProcesses(run, command, lease_groups(run), LinkFiles(paths))
    return processes, MoveTools(criu, program, paths, "127.0.0.1", around)


def started(hosts, host, dies_at, asked):
    words = [SUPERVISOR, hosts.folder, host, dies_at, json.dumps(asked), hosts.criu]
    return subprocess.Popen(
        [sys.executable, "-c", *map(str, words), str(hosts.road.program), NAME],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )


def dies_at(hosts, who, step):
    """The supervisor of one end dies at a step of a move, and the next one goes on; return whether it lived to the end.

    The service asks for the same as before until the lease is served again.
    """
    source, destination = hosts.where, "g2" if hosts.where == "g1" else "g1"
    for each in ("address", "over"):
        (hosts.folder / each).unlink(missing_ok=True)
    epoch = hosts.epoch + 1
    comes = asdict(hosts.served("", epoch))
    if who == "destination":
        child = started(hosts, destination, step, comes)
        until(lambda: (hosts.folder / "address").exists() or child.poll() is not None, MOVES_S)
    answer = LeaseAnswer(receives=(ReceivedLease(hosts.served("", epoch), source),))
    if who == "source":
        until(
            lambda: hosts.hosts[destination].obey(answer) and address_at(hosts, destination),
            MOVES_S,
        )
        goes = asdict(SentLease(LEASE, epoch, destination, address_at(hosts, destination)))
        child = started(hosts, source, step, goes)
        until(lambda: hosts.hosts[destination].obey(answer) and child.poll() is not None, MOVES_S)
        said = child.stdout.read()
        hosts.start(source)
    else:
        hosts.start(destination)
        if child.poll() is None:
            address = (hosts.folder / "address").read_text()
            goes = LeaseAnswer(sends=(SentLease(LEASE, epoch, destination, address),))
            source_host = hosts.hosts[source]

            def over():
                ended = source_host.obey(goes)[1]
                found = source_host.moving.get(LEASE)
                return child.poll() is not None or LEASE in ended or (found and found.why)

            until(over, MOVES_S)
            (hosts.folder / "over").touch()
        child.wait()
        said = child.stdout.read()
    assert (child.returncode == -signal.SIGKILL) != bool(said)
    # From here on both ends have a supervisor that lives.
    why = hosts.move()
    assert why == "" or hosts.where == source
    hosts.serve()
    return bool(said)


def killed_at(hosts, client, chain, who, step):
    """As :func:`dies_at`, under a client that computes.

    It has right answers or an error; afterwards it computes, and nothing is left where the lease is not.
    """
    lived = dies_at(hosts, who, step)
    try:
        compute(chain, client)
    except ConnectionError:
        client.close()
        client = hosts.road.client()
        client.settimeout(MOVES_S)
        chain = Chain()
        compute(chain, client)
    other = "g2" if hosts.where == "g1" else "g1"
    assert hosts.nothing_of(other)
    return lived, client, chain


def address_at(hosts, host):
    found = hosts.hosts[host].moving.get(LEASE)
    return found.address if found is not None else ""


@pytest.mark.parametrize("who", ["source", "destination"])
def test_a_supervisor_that_dies_in_a_move_leaves_a_right_lease_and_nothing_else(hosts, client, who):
    chain = Chain()
    compute(chain, client)
    lived, client, chain = killed_at(hosts, client, chain, who, 7)
    assert not lived


@pytest.mark.long
@pytest.mark.parametrize("who", ["source", "destination"])
def test_a_supervisor_may_die_at_any_step_of_a_move(hosts, client, who):
    chain = Chain()
    compute(chain, client)
    steps = iter(range(1, 400, 3))  # some of them are of looks that wait, and come again and again
    lived = False
    while not lived:
        step = next(steps)
        lived, client, chain = killed_at(hosts, client, chain, who, step)
    assert step > 10


@pytest.mark.long
def test_twenty_moves_in_mid_job_have_all_results_right(hosts, client):
    chain, over, trouble = Chain(), threading.Event(), []

    def works():
        try:
            while not over.is_set():
                chain.step(client)
        except (OSError, AssertionError) as error:
            trouble.append(error)

    worker = threading.Thread(target=works)
    worker.start()
    try:
        for _ in range(20):
            before = chain.steps
            until(lambda before=before: chain.steps > before + 20 or trouble, MOVES_S)
            assert hosts.move() == ""
            hosts.serve()
    finally:
        over.set()
        worker.join(MOVES_S)
    assert trouble == []
