# SPDX-License-Identifier: Apache-2.0
"""Leases in real namespaces and control groups: what their servers reach, and that nothing of them is left.

The server is a script that says what it sees; the supervisor dies at each of its steps.
"""

import ast
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from host_agent.cmd import leases as command
from host_agent.conf.remote_gpus import RemoteGpuOptions
from host_agent.remote_gpu import isolation, processes
from host_agent.remote_gpu.answer import EndedLease, LeaseAnswer, ServedLease
from host_agent.remote_gpu.gpu_host import GpuHost
from host_agent.remote_gpu.groups import LeaseGroups, own_group
from host_agent.remote_gpu.processes import (
    LeaseBounds,
    LeaseCommand,
    LeaseProcesses,
    LeaseProcessGoneError,
)
from placement_traits.errors import CapabilityMissingError, ServiceUnavailableError
from placement_traits.oslo_options import ConfigurationError
from tests.support.apart import groups_of, lease_groups, processes_in
from tests.support.lease_spy import write_spy
from tests.support.polling import until

TASKS, FOLDER_MB = 100, 4
DEVICES = {"GPU-a": (Path("/dev/full"),), "GPU-b": (Path("/dev/tty"),)}


class Leases:
    """Leases of a host that keeps them apart, by the script."""

    def __init__(self, folder):
        self.folder, self.run = folder, folder / "run"
        write_spy(folder)
        names = {each: each for each in DEVICES}
        self.command = LeaseCommand(
            "spy",
            folder,
            "127.0.0.1",
            names,
            dict(DEVICES),
            bounds=LeaseBounds(TASKS, FOLDER_MB),
        )
        self.start()

    def start(self):
        """A supervisor."""
        self.processes = LeaseProcesses(self.run, self.command, lease_groups(self.run))

    def serve(self, lease="lease-1", gpu="GPU-a"):
        self.processes.start(served(lease, gpu))
        return Spy(self.processes.serve(lease, 1)[1])

    def tree(self, lease="lease-1"):
        """The processes of a lease: the one that waits, its init, the one that serves, and the server."""
        return list(map(int, (self.run / f"{lease}.group/cgroup.procs").read_text().split()))


class Spy:
    """A client of the script."""

    def __init__(self, address):
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), 10)
        self.lines = self.socket.makefile("rw")
        self.said("1")
        assert self.lines.readline() == "ok\n"

    def said(self, text):
        self.lines.write(f"{text}\n")
        self.lines.flush()

    def sees(self, expression):
        self.said(expression)
        return ast.literal_eval(self.lines.readline())

    def close(self):
        with suppress(OSError):
            self.lines.close()
        self.socket.close()


def served(lease="lease-1", gpu="GPU-a"):
    return ServedLease(lease, 1, gpu, 500, "silver", "cuda", 0)


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory() as short:  # a socket's path has 107 bytes
        yield Path(short)


@pytest.fixture
def leases(folder):
    found = Leases(folder)
    yield found
    found.start()
    for each in found.processes.running():
        found.processes.end(each)
    assert groups_of(found.run) == []


@pytest.fixture
def spy(leases):
    found = leases.serve()
    yield found
    found.close()


def test_a_server_sees_programs_its_folder_and_its_gpu(leases, spy):
    assert spy.sees("sorted(os.listdir('/dev'))") == [
        *("fd", "full", "null", "random", "shm", "stdin", "urandom", "zero"),
    ]
    assert set(spy.sees("os.listdir('/')")) <= {
        *("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "dev", "proc", "tmp"),
        *("lease", Path(sys.prefix).parts[1], leases.folder.parts[1], Path(__file__).parts[1]),
    }
    hidden = (
        *("/var", "/run", "/sys", "/root", "/home", "/etc/passwd", "/etc/numa-host-agent"),
        *(__file__, str(leases.run), "/dev/kmsg", "/dev/tty"),
    )
    for each in hidden:
        if (
            Path(each) in Path(sys.prefix).parents
        ):  # the way to the interpreter, and nothing beside it
            way = Path(sys.prefix).relative_to(each).parts[0]
            assert spy.sees(f"os.listdir({each!r})") == [way]
        else:
            assert not spy.sees(f"os.path.exists({each!r})"), each
    spy.sees("open('/lease/mine', 'w').write('x')")
    assert list((leases.run / "lease-1.files").iterdir()) == [], "nothing on the host's disk"
    for place in ("/", "/usr", "/etc", "/dev", "/proc/sys/user"):
        assert "Read-only" in spy.sees(f"open('{place}/x', 'w')") or place.startswith("/proc")
    assert spy.sees("open('/tmp/x', 'w').write('x')") == 1
    assert "No space left" in spy.sees("open('/tmp/x', 'wb').write(bytes(65 << 20))")


def test_what_a_server_writes_has_a_bound(leases, spy):
    """It has no file of the host open, be it the lock of its lease."""
    mib, files = spy.sees("fills('/lease')")
    assert (mib, files > 100, files < 2000) == (FOLDER_MB, True, True)
    lock = (leases.run / "lease-1.lock").stat().st_ino
    assert lock not in spy.sees("[os.stat(each).st_ino for each in range(64) if is_open(each)]")


def test_a_server_has_no_rights_and_can_get_none(spy):
    assert spy.sees("os.getresuid() + os.getresgid()") == (65534,) * 6
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(spy.sees(f"status({kind!r})"), 16) == 0
    assert spy.sees("status('NoNewPrivs')") == "1"
    assert spy.sees("failed(libc.unshare(1 << 28))") != "done"
    assert spy.sees("failed(libc.mount(b'x', b'/tmp', b'tmpfs', 0, b''))") != "done"
    assert spy.sees("failed(libc.sethostname(b'x', 1))") != "done"
    assert spy.sees("failed(libc.umount2(b'/tmp', 2))") != "done"
    assert spy.sees("failed(libc.ptrace(16, 2, 0, 0))") != "done"  # PTRACE_ATTACH
    assert "PermissionError" in spy.sees("os.mknod('/lease/sda', 0o60600, os.makedev(254, 0))")
    for file in ("environ", "fd/0", "root", "cwd"):
        for pid in (1, 2):
            assert "PermissionError" in spy.sees(f"os.listdir('/proc/{pid}/{file}')") or (
                file in ("environ", "fd/0")
                and "PermissionError" in spy.sees(f"open('/proc/{pid}/{file}')")
            )


def test_a_server_reaches_neither_the_hosts_processes_nor_its_network(leases, spy):
    assert spy.sees("[name for _, name in socket.if_nameindex()]") == ["lo"]
    assert spy.sees("socket.gethostname()") == "lease"
    assert spy.sees("sorted(int(each) for each in os.listdir('/proc') if each.isdecimal())")[
        :2
    ] == [1, 2]
    assert spy.sees("len(states())") == 3
    assert "ProcessLookupError" in spy.sees(f"os.kill({os.getpid()}, 0)")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        at = listening.getsockname()
        assert "ConnectionRefusedError" in spy.sees(f"socket.create_connection({at!r}, 5)")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("\0numa-ext-test")
        listening.listen()
        asked = "socket.socket(socket.AF_UNIX).connect('\\0numa-ext-test')"
        assert "ConnectionRefusedError" in spy.sees(asked)
    assert spy.sees("open('/proc/self/cgroup').read().splitlines()[-1]") == "0::/"
    folders = "[os.path.realpath(f'/proc/self/fd/{each}') for each in os.listdir('/proc/self/fd')]"
    assert not [each for each in spy.sees(folders) if os.path.isdir(each) and each != "/proc"]


def test_two_leases_have_a_gpu_and_processes_of_their_own(leases, spy):
    other = leases.serve("lease-2", "GPU-b")
    assert (other.sees("os.environ['SEEN']"), spy.sees("os.environ['SEEN']")) == ("GPU-b", "GPU-a")
    assert other.sees("os.path.exists('/dev/tty'), os.path.exists('/dev/full')") == (True, False)
    assert "No space left" in spy.sees("open('/dev/full', 'wb', 0).write(b'x')")
    assert other.sees("len(states())") == 3
    other.sees("open('/lease/mine', 'w').write('x')")
    assert spy.sees("os.listdir('/lease')") == []
    leases.processes.end("lease-2")
    assert (spy.sees("1 + 1"), other.lines.readline()) == (2, "")
    other.close()


def test_what_a_server_leaves_behind_is_reaped(spy):
    spy.sees("orphans(5)")
    until(lambda: "Z" not in spy.sees("states()"), 10.0)


def test_what_escapes_from_a_server_ends_with_its_lease(leases, spy):
    assert spy.sees("escape()") is True
    until(lambda: len(leases.tree()) == 5, 10.0)
    before = leases.tree()
    leases.processes.end("lease-1")
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in before), 10.0)
    assert list(leases.run.iterdir()) == []


def test_a_gpu_whose_node_is_not_there_is_not_served(leases, capfd):
    leases.command.devices["GPU-c"] = (Path("/dev/not-there"),)
    leases.command.gpus["GPU-c"] = "GPU-c"
    with pytest.raises(ServiceUnavailableError, match="does not start"):
        leases.serve(gpu="GPU-c")
    assert "lease lease-1: /dev/not-there is not on this host.\n" in capfd.readouterr().err


@pytest.mark.parametrize("number", range(4))
def test_whichever_process_is_killed_all_of_the_lease_are_gone(leases, spy, number):
    before = leases.tree()
    spy.sees("escape()")
    os.kill(before[number], signal.SIGKILL)
    with pytest.raises(LeaseProcessGoneError):
        until(lambda: leases.processes.serve("lease-1", 1) and False, 10.0)
    assert processes_in(leases.run) == []
    again = leases.serve()
    assert again.sees("len(states())") == 3
    again.close()


def test_the_next_supervisor_finds_it_again_and_kills_it_where_it_hangs(leases, monkeypatch):
    """It did not start it: neither a child nor a number is known."""
    monkeypatch.setattr(processes, "_ANSWERS_S", 0.3)
    monkeypatch.setattr(processes, "_HANGS_S", 0.5)
    spy = leases.serve()
    before = leases.tree()
    parents = leases.processes._children
    leases.start()
    assert leases.serve().sees("1") == 1
    assert leases.tree() == before
    for pid in before[1:]:
        os.kill(pid, signal.SIGSTOP)
    with pytest.raises(ServiceUnavailableError, match="does not answer"):
        leases.processes.serve("lease-1", 1)
    time.sleep(0.5)
    with pytest.raises(LeaseProcessGoneError):
        leases.processes.serve("lease-1", 1)
    parents["lease-1"].wait(5.0)
    assert processes_in(leases.run) == []
    spy.close()


def test_a_process_that_is_late_does_not_run_beside_the_one_of_the_next_supervisor(leases):
    late = leases.processes._groups.make("lease-1")
    spy = leases.serve()
    control = leases.run / "lease-1.sock"
    line = [*leases.command(served(), control), "--group", str(late)]
    done = subprocess.run(line, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "No such file" in done.stderr
    assert (spy.sees("1"), len(leases.tree())) == (1, 4)
    line[-1] = str((leases.run / "lease-1.group").resolve())
    done = subprocess.run(line, cwd="/", capture_output=True, text=True, check=False)
    assert "Another process runs for it" in done.stderr, "were it in the right group"
    leases.processes.end("lease-1")
    done = subprocess.run(line, cwd="/", capture_output=True, text=True, check=False)
    assert (done.returncode, list(leases.run.iterdir())) == (1, [])
    spy.close()


def test_one_that_is_on_its_way_is_awaited_and_killed_where_it_does_not_come(leases, monkeypatch):
    group = leases.processes._groups.make("lease-1")
    program = f"echo 0 > {group}/cgroup.procs; exec sleep 600"
    with subprocess.Popen(["sh", "-c", program]) as late:
        until(lambda: leases.processes._groups.has_processes("lease-1"), 10.0)
        with pytest.raises(ServiceUnavailableError, match="is on its way"):
            leases.serve()
        monkeypatch.setattr(processes, "_HANGS_S", 0.0)
        spy = leases.serve()
        assert late.wait(5.0) == -signal.SIGKILL
    assert spy.sees("len(states())") == 3
    spy.close()


SUPERVISOR = """
import os, signal, sys
from pathlib import Path
from host_agent.remote_gpu.gpu_host import GpuHost
from host_agent.remote_gpu.groups import LeaseGroups, own_group
from host_agent.remote_gpu.processes import LeaseProcesses
from tests.functional.host_agent.test_lease_isolation import Leases, asked
folder, left, story = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
host = GpuHost(Leases(folder).processes, folder / "epochs.json")
steps = 0
def step(event, given):
    global steps
    touches = event == "open" and isinstance(given[0], str) and (
        given[0].startswith(str(folder)) or "cgroup." in given[0])
    if touches or event in STEPS:
        steps += 1
        if steps == left:
            os.kill(os.getpid(), signal.SIGKILL)
STEPS = {"subprocess.Popen", "os.mkdir", "os.symlink", "os.remove", "os.rename", "os.rmdir", "fcntl.flock",
         "socket.connect", "shutil.rmtree", "os.listdir"}
sys.addaudithook(step)
host.obey(asked(story))
print(steps)
"""


def asked(story):
    """The service's answer: a lease is to be served, or has ended."""
    if story == "serve":
        return LeaseAnswer(serves=(served(),))
    return LeaseAnswer(ends=(EndedLease("lease-1", 2),))


def supervise(leases, dies_at, story):
    """Run a supervisor in a process of its own until it has done its work, or dies; return its steps, if it lives."""
    words = [sys.executable, "-c", SUPERVISOR, str(leases.folder), str(dies_at), story]
    # The lease has its standard error, which would last as long as that.
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode == -signal.SIGKILL) != bool(done.stdout)
    return int(done.stdout or 0)


def two_rounds(leases, story):
    """Another supervisor's; return what it reports after them."""
    host = GpuHost(leases.processes, leases.folder / "epochs.json")
    host.obey(asked(story))
    if story == "serve":  # a turn comes two seconds later
        until(lambda: processes._listens(leases.run / "lease-1.sock"), 10.0)
    return host.obey(asked(story))


def killed_at(leases, step):
    """A supervisor dies at a step of serving, then one at that step of ending; return whether each had so many."""
    lives = supervise(leases, step, "serve")
    serves, ended = two_rounds(leases, "serve")
    assert (serves["lease-1"][0], ended) == (1, {})
    assert len(leases.tree()) == 4 == len(processes_in(leases.run))
    spy = Spy(serves["lease-1"][1])
    assert spy.sees("len(states())") == 3
    spy.close()
    lasts = supervise(leases, step, "end")
    assert two_rounds(leases, "end") == ({}, {"lease-1": 2})
    assert (list(leases.run.iterdir()), processes_in(leases.run)) == ([], [])
    assert list(own_group().glob("lease-lease-1-*")) == []
    return not lives, not lasts


@pytest.mark.parametrize("step", [8, 14])
def test_a_supervisor_that_is_killed_leaves_no_orphan_and_no_second_process(leases, step):
    assert any(killed_at(leases, step))


@pytest.mark.long
def test_at_whichever_step_it_is_killed(leases):
    step, more = 1, True
    while more:
        more = any(killed_at(leases, step))
        step += 1
    assert step > 20, "steps of a supervisor"


AS_A_USER = """
import os, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.functional.host_agent.test_lease_isolation import TASKS, Leases
status = Path("/proc/self/status").read_text()
assert "CapEff:\\t0000000000000000" in status and "CapBnd:\\t0000000000000000" in status
leases = Leases(Path(sys.argv[1]))
spy = leases.serve()
print(os.getuid(), spy.sees("os.getuid()"), spy.sees("status('CapEff')"))
forked = spy.sees("forks(5000)")
assert 50 < forked < TASKS, forked
other = leases.serve("lease-2", "GPU-b")
assert other.sees("forks(50)") == 50
for each in ("lease-1", "lease-2"):
    leases.processes.end(each)
print(list(leases.run.iterdir()))
"""


@pytest.mark.root
def test_it_takes_no_right_but_a_control_group_of_its_own(folder):
    """As the unit has it: a user without capabilities, who gets none by any program, and what systemd delegates.

    A lease that forks until it cannot leaves room to another lease of the same user: root is exempt from such a limit.
    """
    lease_groups(folder / "unused")
    user, own = 64123, own_group() / f"numa-ext-test-{os.getpid()}"
    own.mkdir()
    try:
        for each in (own, own / "cgroup.procs", folder):
            os.chown(each, user, user)
        (folder / "unused").rmdir()
        words = [
            "setpriv",
            f"--reuid={user}",
            f"--regid={user}",
            "--clear-groups",
            "--no-new-privs",
        ]
        words += ["--bounding-set=-all", "--inh-caps=-all", sys.executable, "-c"]
        words += [AS_A_USER.format(root=str(Path(__file__).parents[3])), str(folder)]
        enter = f'echo 0 > {own}/cgroup.procs; exec "$@"'
        done = subprocess.run(
            ["sh", "-c", enter, "sh", *words], cwd="/", capture_output=True, text=True, check=False
        )
        assert done.stdout == f"{user} 65534 0000000000000000\n[]\n", done.stderr
    finally:
        until(lambda: "populated 0" in (own / "cgroup.events").read_text(), 10.0)
        own.rmdir()


NOT_HERE = [
    ("echo 0 > /proc/sys/user/max_user_namespaces", "user namespaces are forbidden to this user"),
    ("mount --bind /dev/null /proc/cmdline", "covers a part of /proc"),
]


@pytest.mark.parametrize(("before", "why"), NOT_HERE)
def test_a_host_that_lets_nothing_be_kept_apart_is_refused_in_a_sentence(folder, before, why):
    lease_groups(folder)
    line = f'{before} && exec "$@"'
    words = [*("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", line, "sh")]
    words += [sys.executable, "-m", "host_agent.remote_gpu.isolation", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("The process of a lease cannot be kept apart")
    assert why in sentence


def test_without_control_groups_of_version_2_leases_are_refused_in_a_sentence(folder, monkeypatch):
    proc = folder / "proc"
    proc.mkdir()
    (proc / "cgroup").write_text("4:memory:/here\n")
    (proc / "mountinfo").write_text("1 2 0:1 / /sys/fs/cgroup rw - cgroup none rw,memory\n")
    with pytest.raises(CapabilityMissingError, match="and none is mounted here"):
        own_group(proc)
    (proc / "cgroup").write_text("4:memory:/here\n0::/unit/lower\n")
    (proc / "mountinfo").write_text("1 2 0:1 /unit /sys/fs/cgroup rw shared:1 - cgroup2 none rw\n")
    assert own_group(proc) == Path("/sys/fs/cgroup/lower")
    with pytest.raises(CapabilityMissingError, match="this kernel does not have"):
        LeaseGroups(folder / "run", folder)
    with pytest.raises(CapabilityMissingError, match="its unit needs Delegate=yes"):
        LeaseGroups(folder / "run", Path("/proc/self"))
    options = RemoteGpuOptions(("a=500",), "fake", trying_out=True, nics=("e=1",), fabrics=("f",))
    monkeypatch.setattr(isolation, "check", lambda: None)
    monkeypatch.setattr(command, "own_group", lambda: folder)
    with pytest.raises(ConfigurationError, match="this kernel does not have"):
        command.apart(options, folder / "run")
    assert command.apart(RemoteGpuOptions(), folder / "run") is None
