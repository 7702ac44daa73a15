# SPDX-License-Identifier: Apache-2.0
"""The privileged operations on real processes of this machine, in process and over the helper.

A stand-in for QEMU has what counts: ``-uuid`` and ``-m`` on its command line, a thread named like a vCPU, guest memory
with a guard page behind, libvirt's two files, and another user than the helper's: where all is root's, no capability is
asked for.
"""

import json
import os
import subprocess
import sys
import tempfile
import uuid as uuids
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from emulation import libvirt_state, unix_sockets
from host_agent.apply.partitions import Partitions
from host_agent.conf.paths import HostPaths
from host_agent.conf.rdt import RdtOptions
from host_agent.machine.privileged import guest_ram
from host_agent.machine.privileged.operations import HostOperations
from host_agent.machine.privileged.processes import ProcessGoneError
from host_agent.model.partition import PartitionRequest
from host_agent.model.process import MoveLimits, Pin, Role, Target
from placement_traits.errors import CapabilityMissingError, InvalidValueError
from placement_traits.names import Tier
from tests.functional.host_agent.conftest import wait_for

MB = 1 << 20
OTHER = "99999999-0000-4000-8000-000000000000"
GUEST_USER = "daemon"  # of QEMU processes; neither root nor the agent
LIMITS = MoveLimits(1 << 40, 0, 60.0)

_STAND_IN = """
import ctypes, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
size = 8 << 20
place = libc.mmap(None, size + 2 * (2 << 20), 0, 0x22, -1, 0)
start = (place + (2 << 20) - 1) & ~((2 << 20) - 1)
assert libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(size), 3) == 0
ctypes.memset(start, 1, size)
def vcpu():
    libc.prctl(15, b"CPU 0/TCG", 0, 0, 0)
    print("ready", flush=True)
    time.sleep(600)
threading.Thread(target=vcpu, daemon=True).start()
time.sleep(600)
"""


@dataclass
class StandIn:
    """A process like QEMU's, and the operations that know its pid folder."""

    uuid: str
    process: "subprocess.Popen[bytes]"
    paths: HostPaths
    operations: HostOperations


@pytest.fixture
def stand_in(tmp_path: Path) -> Iterator[StandIn]:
    uuid = str(uuids.uuid4())
    command = [sys.executable, "-c", _STAND_IN, "-uuid", uuid, "-m", "8"]
    user = GUEST_USER if os.geteuid() == 0 else None
    process = subprocess.Popen(command, stdout=subprocess.PIPE, user=user, cwd="/")
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    pids = tmp_path / "pids"
    libvirt_state.write(pids, "instance-1", uuid, process.pid)
    libvirt_state.write(pids, "instance-2", uuid, process.pid)
    (pids / "instance-2.pid").write_text("not a pid")
    libvirt_state.write(pids, "instance-3", OTHER, os.getpid())
    paths = HostPaths(pid_dir=pids, resctrl=tmp_path / "nothing", helper_state=tmp_path / "helper")
    yield StandIn(uuid, process, paths, HostOperations(paths))
    process.kill()
    process.wait(10)


def test_a_process_is_found_with_its_threads(stand_in: StandIn) -> None:
    found = stand_in.operations.process(stand_in.uuid)
    assert found.pid == stand_in.process.pid
    (vcpu,) = [thread for thread in found.threads if thread.role == Role.VCPU]
    assert (vcpu.vcpu, vcpu.name) == (0, "CPU 0/TCG")
    assert found.mems


def test_a_process_that_carries_another_uuid_is_not_taken(stand_in: StandIn) -> None:
    with pytest.raises(ProcessGoneError):
        stand_in.operations.process(str(uuids.uuid4()))
    with pytest.raises(ProcessGoneError):
        stand_in.operations.process(OTHER)  # libvirt's files name a process that does not carry it
    with pytest.raises(InvalidValueError):
        stand_in.operations.process("../../etc")


def test_a_process_without_a_pid_file_of_libvirt_is_not_taken(stand_in: StandIn) -> None:
    """Anybody can write a UUID on a command line; only libvirt writes pid files."""
    (stand_in.paths.pid_dir / "instance-1.pid").unlink()
    with pytest.raises(CapabilityMissingError, match=r"instance-2\.pid: 'not a pid'"):
        stand_in.operations.process(stand_in.uuid)  # whether it runs is not known
    (stand_in.paths.pid_dir / "instance-2.pid").unlink()
    with pytest.raises(ProcessGoneError):
        stand_in.operations.process(stand_in.uuid)


def test_a_dead_process_is_told(stand_in: StandIn) -> None:
    stand_in.operations.process(stand_in.uuid)
    stand_in.process.kill()
    stand_in.process.wait(10)
    with pytest.raises(ProcessGoneError):
        stand_in.operations.process(stand_in.uuid)


def test_guest_memory_is_found_and_counted(stand_in: StandIn) -> None:
    (found,) = stand_in.operations.guest_ram(stand_in.uuid)
    assert found.end - found.start == 8 * MB
    assert sum(kib for _, kib in found.resident_kb) == 8 * 1024
    ((_, sampled, _),) = stand_in.operations.look([(stand_in.uuid, [(found.start, found.end)])], 64)
    assert sampled == ((0, 64),) or {node for node, _ in sampled} == {
        n for n, _ in found.resident_kb
    }


def test_only_threads_of_the_process_are_pinned(stand_in: StandIn) -> None:
    cpu = min(os.sched_getaffinity(stand_in.process.pid))
    tid = stand_in.operations.process(stand_in.uuid).threads[-1].tid
    pins = [Pin(tid, str(cpu)), Pin(os.getpid(), str(cpu)), Pin(tid + 10**6, "0")]
    before = os.sched_getaffinity(0)
    failures = stand_in.operations.pin(stand_in.uuid, pins)
    assert os.sched_getaffinity(tid) == {cpu}
    assert os.sched_getaffinity(0) == before
    assert [failure.tid for failure in failures] == [os.getpid(), tid + 10**6]


def test_a_cpu_that_does_not_exist_is_told(stand_in: StandIn) -> None:
    tid = stand_in.operations.process(stand_in.uuid).threads[0].tid
    ((_, problem),) = stand_in.operations.pin(stand_in.uuid, [Pin(tid, "4000")])
    assert problem == "Invalid argument"


def test_memory_that_is_in_its_place_is_not_moved(stand_in: StandIn) -> None:
    (found,) = stand_in.operations.guest_ram(stand_in.uuid)
    node = found.resident_kb[0][0]
    target = Target(found.start, found.end, ((node, 1.0),))
    report = stand_in.operations.move_memory(stand_in.uuid, [target], LIMITS)
    assert report._replace(seconds=0.0, ram=()) == (0, 0, 0, 0, 0.0, "", 0.0, ())
    assert [left.resident_kb for left in report.ram] == [found.resident_kb]


def test_a_node_that_is_not_there_is_told(stand_in: StandIn) -> None:
    (found,) = stand_in.operations.guest_ram(stand_in.uuid)
    target = Target(found.start, found.end, ((900, 1.0),))
    report = stand_in.operations.move_memory(stand_in.uuid, [target], LIMITS)
    assert report.problem
    assert report.moved_kb == 0


def test_memory_beside_the_guests_is_never_touched(stand_in: StandIn) -> None:
    (found,) = stand_in.operations.guest_ram(stand_in.uuid)
    target = Target(found.start - 4096, found.end, ((0, 1.0),))
    report = stand_in.operations.move_memory(stand_in.uuid, [target], LIMITS)
    assert "is not guest memory" in report.problem


def test_without_resctrl_the_answer_is_a_sentence(stand_in: StandIn) -> None:
    request = PartitionRequest(stand_in.uuid, Tier.BE, (0,), mba_percent={0: 50})
    partitions = Partitions(stand_in.operations, RdtOptions())
    report = partitions.partition([request], write=True)
    assert "no resctrl file system is mounted" in report.problem
    assert partitions.partition([], write=True).problem == ""
    assert stand_in.operations.reset_partitions(True) == ()


class Served:
    """A helper under a supervisor's activation, and what an agent that is no root gets from it."""

    def __init__(self, stand_in: StandIn, folder: Path, rights: Collection[str]) -> None:
        folder.chmod(0o755)
        self.socket = folder / "helper.sock"
        self.config = folder / "agent.conf"
        self.config.write_text(
            f"[libvirt_host]\npid_dir = {stand_in.paths.pid_dir}\n"
            f"[host]\nresctrl = {folder}/nothing\n[agent]\nstate_dir = {folder}/state\n"
            f"[helper]\nagent_user = nobody\nsocket = {self.socket}\nstate_dir = {folder}/helper\n"
        )
        self.log = folder / "helper.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*with_rights(rights), *HELPER, f"--config-file={self.config}"], stderr=log
            )
        wait_for(lambda: unix_sockets.listens(self.socket), "the helper")

    def ask(self, script: str, *arguments: str, user: str = "nobody") -> Any:
        """Run a script as a user; return what it prints."""
        command = [sys.executable, "-c", script, str(self.socket), *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=60, user=user
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        assert self.process.wait(10) == 0


HELPER = (sys.executable, "-m", "host_agent.cmd.helper")
# What the unit leaves it: uid 0 with these capabilities, of which the last is optional. CAP_DAC_OVERRIDE is not there.
NEEDED = ("sys_nice", "sys_ptrace")
RIGHTS = (*NEEDED, "perfmon")


def with_rights(names: Collection[str]) -> tuple[str, ...]:
    """Return what starts a process of root's with these capabilities and no others."""
    kept = ",".join(("-all", *(f"+{name}" for name in names)))
    return ("setpriv", "--bounding-set", kept, "--inh-caps", "-all", "--no-new-privs")


@contextmanager
def helper(stand_in: StandIn, rights: Collection[str]) -> Iterator[Served]:
    if os.geteuid() != 0:
        pytest.skip("needs root: the helper is root with some capabilities")
    with tempfile.TemporaryDirectory() as folder:  # pytest closes its own to other users
        found = Served(stand_in, Path(folder), rights)
        yield found
        found.stop()


@pytest.fixture
def served(stand_in: StandIn) -> Iterator[Served]:
    with helper(stand_in, NEEDED) as found:
        yield found


_AGENT = """
import json, os, sys
from pathlib import Path
from host_agent.machine.privileged.client import over_socket
from host_agent.model.process import *
from host_agent.apply.partitions import Partitions
from host_agent.conf.rdt import RdtOptions
from host_agent.model.partition import PartitionRequest
from placement_traits.names import Tier
seam, uuid = over_socket(Path(sys.argv[1])), sys.argv[2]
found = seam.process(uuid)
(ram,) = seam.guest_ram(uuid)
sample = seam.look([(uuid, [(ram.start, ram.end)])], 16)[0].pages
failures = seam.pin(uuid, [Pin(found.threads[-1].tid, "0"), Pin(1, "0")])
target = Target(ram.start, ram.end, ((sample[0][0], 1.0),))
report = seam.move_memory(uuid, [target], MoveLimits(1 << 30, 0, 10.0))
request = PartitionRequest(uuid, Tier.BE, (0,), mba_percent={0: 50})
partition = Partitions(seam, RdtOptions()).partition([request], write=True)
seam.in_control()
counted = seam.count([(uuid, (found.threads[-1].tid,))], False)
quota = seam.limit_cpu_time([(uuid, 50)], False)
released = seam.release_throttles(False)
seam.graceful_shutdown()
try:
    seam.process("00000000-0000-0000-0000-000000000000")
    error = ""
except Exception as raised:
    error = f"{type(raised).__name__}: {raised}"
print(json.dumps([os.geteuid(), found.pid, found.threads[-1].role, ram.end - ram.start, sample,
    [f.tid for f in failures], report.problem, partition.places[0].problem, seam.reset_partitions(True), error,
    [u for u, _ in quota.problems], released, [[c.uuid for c in counted.counts], counted.problem]]))
"""


@pytest.mark.root
def test_an_agent_without_any_right_works_through_a_helper_with_two_capabilities(
    stand_in: StandIn, served: Served
) -> None:
    """Named tuples and our errors arrive whole; the helper needs no CAP_DAC_OVERRIDE."""
    answer = served.ask(_AGENT, stand_in.uuid)
    user, pid, role, size, sample, failed, moved, placed, reset, error, *answer = answer
    unlimited, released, (counted, uncounted) = answer
    assert user != 0
    assert (pid, role, size) == (stand_in.process.pid, "vcpu", 8 * MB)
    assert sum(count for _, count in sample) == 16
    assert (failed, moved, reset) == ([1], "", [])
    assert (unlimited, released) == ([stand_in.uuid], []), (
        "the stand-in has no control group of its own"
    )
    assert counted == [stand_in.uuid] or "hardware performance counters" in uncounted
    assert "no resctrl file system is mounted" in placed
    assert error.startswith("ProcessGoneError: no process under")


_EACH = """
import json, sys
from pathlib import Path
from host_agent.machine.privileged.client import over_socket
from host_agent.model.process import MoveLimits, Pin, Target
from placement_traits.errors import NumaExtError
seam, uuid = over_socket(Path(sys.argv[1])), sys.argv[2]
start, end, node, tid = map(int, sys.argv[3:])
target = Target(start, end, ((node, 1.0),))
def problem(call):
    try:
        return call()
    except (NumaExtError, OSError) as error:
        return str(error)
print(json.dumps({
    "process": problem(lambda: "" if tid in {t.tid for t in seam.process(uuid).threads} else "another"),
    "pin": problem(lambda: ", ".join(failed.problem for failed in seam.pin(uuid, [Pin(tid, "0")]))),
    "guest_ram": problem(lambda: "" if seam.guest_ram(uuid) else "no guest memory"),
    "look": problem(lambda: "" if sum(n for _, n in seam.look([(uuid, [(start, end)])], 16)[0].pages) else "no page"),
    "move_memory": problem(lambda: seam.move_memory(uuid, [target], MoveLimits(1 << 30, 0, 10.0)).problem),
    "count": problem(lambda: "" if (found := seam.count([(uuid, (tid,))], False)).counts else found.problem or "none"),
}))
"""


@pytest.mark.parametrize(
    ("missing", "fails"),
    [
        ((), set()),
        (("sys_nice",), {"pin"}),
        (("sys_ptrace",), {"look", "move_memory"}),
        (("sys_ptrace", "perfmon"), {"guest_ram", "look", "move_memory", "count"}),
    ],
    ids=["none", "sys_nice", "sys_ptrace", "sys_ptrace-perfmon"],
)
@pytest.mark.root
def test_each_capability_is_what_its_operations_need(
    stand_in: StandIn, missing: tuple[str, ...], fails: set[str]
) -> None:
    """QEMU is another user's, as on every host.

    CAP_PERFMON alone is missed by vCPUs on KVM only: with CAP_SYS_PTRACE and perf_event_paranoid below 3 the kernel
    lets user code be counted, as a translated vCPU is. In turn it lets page tables be read since Linux 6.13 or so.
    """
    (ram,) = stand_in.operations.guest_ram(stand_in.uuid)
    vcpu = stand_in.operations.process(stand_in.uuid).threads[-1].tid
    places = (ram.start, ram.end, ram.resident_kb[0][0], vcpu)
    counted = stand_in.operations.count([(stand_in.uuid, (vcpu,))], False).counts
    with helper(stand_in, [name for name in RIGHTS if name not in missing]) as found:
        problems = found.ask(_EACH, stand_in.uuid, *map(str, places))
    if not counted:  # by root with all capabilities: this machine has no counters
        fails = fails | {"count"}
    if missing == ("sys_ptrace",):  # the kernel's version decides
        problems.pop("guest_ram")
    assert {name for name, problem in problems.items() if problem} == fails, problems


_COUNTED = """
import errno, sys
from host_agent.machine.privileged.perf import PerfEvents
from host_agent.machine.privileged.pmu import PerfEvent
try:
    PerfEvents().open(PerfEvent(1, 1), int(sys.argv[1]), -1, guest_only=sys.argv[2] == "KVM")
except OSError as error:
    print(errno.errorcode[error.errno])
else:
    print("counted")
"""
PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")


@pytest.mark.parametrize(
    ("rights", "vcpu", "answer"),
    [
        (RIGHTS, "KVM", "counted"),
        (NEEDED, "KVM", "EACCES"),
        (NEEDED, "TCG", "counted"),
        (("sys_nice", "perfmon"), "KVM", "counted"),
        (("sys_nice", "perfmon"), "TCG", "counted"),
        (("sys_nice",), "TCG", "EACCES"),
    ],
)
@pytest.mark.root
def test_vcpus_on_kvm_are_counted_with_cap_perfmon_only(
    stand_in: StandIn, rights: tuple[str, ...], vcpu: str, answer: str
) -> None:
    """Their counters leave the host out, not the kernel: that is CAP_PERFMON's, whoever runs the thread.

    A clock of the thread stands for hardware counters, which not each machine has; the kernel asks for rights first.
    """
    if os.geteuid() != 0:
        pytest.skip("needs root: processes of several users")
    if PARANOID.read_text().strip() != "2":
        pytest.skip("needs the kernel's default: perf_event_paranoid 2")
    tid = stand_in.operations.process(stand_in.uuid).threads[-1].tid
    command = [*with_rights(rights), sys.executable, "-c", _COUNTED, str(tid), vcpu]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == answer


_ONE = """
import json, sys
from pathlib import Path
from host_agent.machine.privileged.client import over_socket
from placement_traits.errors import NumaExtError
try:
    answer = over_socket(Path(sys.argv[1])).process(sys.argv[2]).pid
except NumaExtError as error:
    answer = f"{type(error).__name__}: {error}"
print(json.dumps(answer))
"""


@pytest.mark.root
def test_root_is_served_and_other_users_are_not(stand_in: StandIn, served: Served) -> None:
    assert served.ask(_ONE, stand_in.uuid, user="root") == stand_in.process.pid
    assert "does not answer" in served.ask(_ONE, stand_in.uuid, user="bin")
    assert "of user 2 was refused" in served.log.read_text()


@pytest.mark.root
def test_a_folder_of_the_agents_is_not_taken_for_the_helpers(
    stand_in: StandIn, tmp_path: Path
) -> None:
    """Its owner could have root write through a link of his."""
    if os.geteuid() != 0:
        pytest.skip("needs root: folders of several users")
    config = tmp_path / "agent.conf"
    for folder, owner in (("agents", 65534), ("link", 0)):
        config.write_text(f"[helper]\nsocket = {tmp_path}/s\nstate_dir = {tmp_path}/{folder}\n")
        if folder == "link":
            (tmp_path / folder).symlink_to(tmp_path / "agents")
        else:
            (tmp_path / folder).mkdir()
            os.chown(tmp_path / folder, owner, 0)
        done = subprocess.run(
            [*HELPER, f"--config-file={config}"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == os.EX_CONFIG
        assert "a folder of root's that only root can write" in done.stderr


@pytest.mark.parametrize(
    ("option", "mode", "owner"),
    [("state_dir", 0o755, 65534), ("socket", 0o755, 65534), ("socket", 0o777, 0)],
)
@pytest.mark.root
def test_a_folder_that_the_agent_could_replace_is_not_taken(
    tmp_path: Path, option: str, mode: int, owner: int
) -> None:
    """Renamed by the agent, with a link of his in its place, it would have root write elsewhere."""
    if os.geteuid() != 0:
        pytest.skip("needs root: folders of several users")
    theirs = tmp_path / "theirs"
    (theirs / "inner").mkdir(parents=True)
    theirs.chmod(mode)
    os.chown(theirs, owner, 0)
    paths = {"state_dir": tmp_path / "helper", "socket": tmp_path / "s"}
    paths[option] = theirs / "inner" / "x"
    lines = "".join(f"{name} = {path}\n" for name, path in paths.items())
    config = tmp_path / "agent.conf"
    config.write_text(f"[helper]\nagent_user = nobody\n{lines}")
    command = [*HELPER, f"--config-file={config}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == os.EX_CONFIG
    assert f"[helper]{option}: " in done.stderr
    assert f"only root writes, which {theirs} is not" in done.stderr


def test_memory_backends_of_this_machines_own_qemu_are_understood() -> None:
    """What libvirt 9 writes on the command line."""
    line = json.dumps({"qom-type": "memory-backend-ram", "id": "pc.ram", "size": 134217728})
    assert guest_ram.backend_sizes(["qemu", "-object", line]) == (134217728,)
