# SPDX-License-Identifier: Apache-2.0
"""An agent that an attacker has taken over asks the helper for anything: nothing outside our groups and libvirt's
domains is touched, and each request is answered in a sentence.

Calls are made of what a real agent sends, with parts replaced by what an attacker would try, while threads of domains
end and other processes get their ids. System calls and the resctrl tree are models; which process is a domain's is
tested with real ones in ``test_processes.py``. The seed is printed, and ``NUMA_EXT_SEED`` repeats it.
"""

import json
import logging
import os
import random
import socket
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from emulation import libvirt_state
from emulation.kernel.resctrl import ResctrlModel
from emulation.kernel.shape import Shape
from emulation.kernel.threads import ThreadTable
from host_agent.conf.paths import HostPaths
from host_agent.machine.privileged import client, frames, partitions, server, wire
from host_agent.machine.privileged.devices import Devices
from host_agent.machine.privileged.edition import Edition, Succession
from host_agent.machine.privileged.operations import OPERATIONS, HostOperations
from host_agent.machine.privileged.pmu import PerfEvent
from host_agent.machine.privileged.server import DONE, FAILED, REFUSED, answer
from host_agent.machine.rdt.files import OsFiles
from host_agent.machine.rdt.resctrl import Resctrl
from host_agent.machine.rdt.writer import GroupWriter
from host_agent.model.rdt import parse_schemata
from tests.support import hostile_input
from tests.support.booted import boot
from tests.support.hostile_input import CHUNK, LONGEST_S, MOST_GROWTH, seed

SHARE, ALL = 2_000, 1_000_000
A = "aaaaaaaa-0000-4000-8000-000000000000"
B = "bbbbbbbb-0000-4000-8000-000000000000"
NOBODYS = "cccccccc-0000-4000-8000-000000000000"
DOMAINS: Final = {A: 4711, B: 4721}
INNOCENT: Final = 4731  # a process that calls itself a domain, but libvirt's files do not
RAM: Final = (0x7F0000000000, 0x7F0000000000 + (8 << 20))
FOREIGN: Final = "operators"
HEAD: Final = 4
PATIENCE_S: Final = 60.0


def threads_of(pid: int) -> tuple[int, ...]:
    return pid, pid + 1, pid + 2


class WatchedTree(ResctrlModel):
    """The resctrl model, and all that was asked of it."""

    def __init__(self, threads: ThreadTable) -> None:
        super().__init__(Shape(domains=(0, 1)), threads=threads)
        self.writes: list[tuple[str, str]] = []
        self.moved: set[int] = set()
        self._one = threading.RLock()  # rdtgroup_mutex

    def read(self, path: str) -> str:
        with self._one:
            return super().read(path)

    def listdir(self, path: str) -> list[str]:
        with self._one:
            return super().listdir(path)

    def directories(self, path: str) -> list[str]:
        with self._one:
            return super().directories(path)

    def write(self, path: str, data: str) -> None:
        self.writes.append((path, data))
        if path.endswith("tasks"):
            self.moved.update(map(int, data.split(",")))
        with self._one:
            super().write(path, data)

    def mkdir(self, path: str) -> None:
        self.writes.append((path, ""))
        with self._one:
            super().mkdir(path)

    def rmdir(self, path: str) -> None:
        self.writes.append((path, ""))
        with self._one:
            super().rmdir(path)


class WatchedKernel:
    """System calls, and which processes and threads they were for.

    :param another: called between two affinities: threads end while some are set
    :ivar pause: it is not
    """

    def __init__(self, another: Callable[[], None]) -> None:
        self.touched: set[int] = set()
        self.pause = False
        self._another = another

    def locate(self, pid: int, addresses: "array[int]") -> "array[int]":
        self.touched.add(pid)
        return array("i", bytes(4 * len(addresses)))

    def move(self, pid: int, _addresses: "array[int]", _nodes: Sequence[int]) -> int:
        self.touched.add(pid)
        return 0

    def open(self, _event: PerfEvent, tid: int, _group: int, *, guest_only: bool) -> int:
        self.touched.add(tid)
        return 10**6

    def read(self, _descriptor: int, events: int) -> tuple[int, ...]:
        return tuple(range(2 + events))

    def close(self, _descriptor: int) -> None:
        pass

    def setaffinity(self, tid: int, _cpus: object) -> None:
        self.touched.add(tid)
        if not self.pause:
            self._another()


class WatchedDevices(Devices):
    """libvirt, and which domains it was asked to plug a port into; it knows those that there are."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[str] = set()

    def plug_latency_port(self, uuid: str) -> None:
        self.asked.add(uuid)

    def plug_vsock(self, uuid: str) -> None:
        self.asked.add(uuid)

    def unplug_vsock(self, uuid: str) -> None:
        self.asked.add(uuid)


class Host:
    """Two domains, a process that is none, groups of ours and of others, and the helper's operations over them."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths = HostPaths(
            proc=root / "proc",
            sys=root / "sys",
            resctrl=root / "resctrl",
            pid_dir=root / "pids",
            state=root / "state",
            helper_state=root / "helper",
        )
        boot(self.paths.proc)
        (self.paths.proc / "cpuinfo").write_text("vendor_id : GenuineIntel\n")
        self.paths.helper_state.mkdir()
        for uuid, pid in DOMAINS.items():
            libvirt_state.write(self.paths.pid_dir, f"instance-{pid}", uuid, pid)
            self._process(pid, uuid)
        self._process(INNOCENT, A)
        every = [tid for pid in (*DOMAINS.values(), INNOCENT) for tid in threads_of(pid)]
        self.threads = ThreadTable(every)
        self.tree = WatchedTree(self.threads)
        self.tree.mkdir(FOREIGN)
        self.tree.mkdir(f"{FOREIGN}/mon_groups/theirs")
        self.tree.write(f"{FOREIGN}/schemata", "L3:0=f;1=f\nMB:0=40;1=40\n")
        self.tree.write(f"{FOREIGN}/tasks", str(INNOCENT))
        self.before = self._foreign()
        self.tree.writes.clear()
        self.tree.moved.clear()
        self.kernel = WatchedKernel(self.another_thread)
        self.changed_hands: set[int] = (
            set()
        )  # ids of threads that have ended, and are another process' now
        self._turns = 0
        monkeypatch.setattr(partitions, "tree", lambda _paths: Resctrl(self.tree))
        monkeypatch.setattr(
            partitions,
            "_writer",
            lambda paths, resctrl: GroupWriter(resctrl, proc=str(paths.proc), limbo_wait_s=0),
        )
        monkeypatch.setattr(os, "pidfd_open", lambda _pid: os.eventfd(0))
        monkeypatch.setattr(os, "sched_setaffinity", self.kernel.setaffinity)
        self.devices = WatchedDevices()
        self.operations = HostOperations(
            self.paths, self.kernel, release_after_s=3600, devices=self.devices
        )
        self.operations._counters.kernel = self.kernel
        self.untouchable = self._files()

    def _process(self, pid: int, uuid: str) -> None:
        base = self.paths.proc / str(pid)
        for tid, comm in zip(threads_of(pid), ("qemu", "CPU 0/KVM", "CPU 1/KVM"), strict=True):
            task = base / "task" / str(tid)
            task.mkdir(parents=True)
            (task / "status").write_text(f"Name:\t{comm}\nCpus_allowed_list:\t0\n")
            (task / "stat").write_text(f"{tid} ({comm}) S " + " ".join(["7"] * 40))
            group = f"/machine.slice/qemu-{pid}/libvirt/vcpu{tid}"
            (task / "cgroup").write_text(f"0::{group}\n")
            folder = self.paths.sys / "fs/cgroup" / group.lstrip("/")
            folder.mkdir(parents=True)
            (folder / "cpu.max").write_text("max 100000\n")
        (base / "status").write_text("Mems_allowed_list:\t0-1\n")
        (base / "stat").write_text(f"{pid} (qemu) S " + " ".join(["7"] * 40))
        (base / "cmdline").write_bytes(f"qemu\0-uuid\0{uuid}\0-m\0008\0".encode())
        (base / "maps").write_text(f"{RAM[0]:x}-{RAM[1]:x} rw-p 00000000 00:00 0 \n")
        (base / "smaps").write_text((base / "maps").read_text() + "AnonHugePages:  8192 kB\n")
        (base / "numa_maps").write_text(f"{RAM[0]:x} default anon=2048 N0=2048\n")

    def another_thread(self) -> None:
        """Now and then the last vCPU of a domain ends, and a process that is none gets its id; or it begins again."""
        self._turns += 1
        pid = list(DOMAINS.values())[self._turns % len(DOMAINS)]
        tid = threads_of(pid)[-1]
        inside, outside = self.paths.proc / f"{pid}/task/{tid}", self.paths.proc / str(tid)
        self._nothing_of_others_touched()
        if tid in self.changed_hands:
            self.changed_hands.remove(tid)
            outside.rename(inside)
            self._began(inside, 7)
        else:
            self.changed_hands.add(tid)
            inside.rename(outside)
            self._began(outside, 8)
        self.threads.end(tid)
        self.tree.read("tasks")
        self.threads.spawn(tid, 0 if tid in self.changed_hands else pid)
        self.kernel.touched.clear()
        self.tree.moved.clear()

    def _began(self, folder: Path, ticks: int) -> None:
        head = (folder / "stat").read_text().rpartition(")")[0]
        (folder / "stat").write_text(f"{head}) S " + " ".join([str(ticks)] * 40))

    def _nothing_of_others_touched(self) -> None:
        ours = {tid for pid in DOMAINS.values() for tid in threads_of(pid)} - self.changed_hands
        assert self.kernel.touched <= ours
        assert self.tree.moved <= ours

    def _foreign(self) -> tuple[object, ...]:
        return (
            self.tree.read(f"{FOREIGN}/schemata"),
            self.tree.read(f"{FOREIGN}/tasks"),
            self.tree.listdir(f"{FOREIGN}/mon_groups"),
            parse_schemata(self.tree.read("schemata"))["MB"],
        )

    def _files(self) -> dict[Path, str]:
        """All files but the helper's own and the quotas of domains' vCPUs."""
        quotas = {f"qemu-{pid}" for pid in DOMAINS.values()}
        return {
            file: file.read_text()
            for file in self.paths.proc.parent.rglob("*")
            if file.is_file()
            and self.paths.helper_state not in file.parents
            and not quotas.intersection(file.parts)
        }

    def check(self) -> None:
        """Nothing was touched but what is ours."""
        self._nothing_of_others_touched()
        while self.changed_hands:
            self.another_thread()
        ours = {tid for pid in DOMAINS.values() for tid in threads_of(pid)}
        assert self.devices.asked <= {*DOMAINS, NOBODYS}  # of the last libvirt knows nothing
        for path, data in self.tree.writes:
            first, *rest = path.split("/")
            if path == "schemata":
                assert not any(line.startswith("MB") for line in data.splitlines())
            elif path == "tasks":
                assert set(map(int, data.split(","))) <= ours
            elif first == "mon_groups":
                assert rest[0].startswith("numa_ext-")
            else:
                assert first.startswith("numa_ext-")
            assert ".." not in path.split("/")
        self.tree.writes.clear()
        assert self._foreign() == self.before
        assert self._files() == self.untouchable
        assert {file.name for file in self.paths.helper_state.iterdir()} <= {
            "in-control",
            "rdt-root.json",
            "throttled.json",
        }


class Attacker:
    """Makes requests: what an agent sends, with parts replaced."""

    def __init__(self, seed: int, host: Host) -> None:
        self._chance = random.Random(seed)
        self._host = host
        self._makers: dict[str, Callable[[], list[Any]]] = {
            "process": lambda: [self.uuid()],
            "guest_ram": lambda: [self.uuid()],
            "look": lambda: [
                self.many(lambda: [self.uuid(), self.many(self.range)]),
                self.number(16),
            ],
            "pin": lambda: [self.uuid(), self.pins()],
            "move_memory": lambda: [
                self.uuid(),
                self.many(lambda: [*self.range(), self.many(lambda: [self.number(1), 1.0])]),
                [self.number(1 << 20), 0, self.either(0.001, 0.0, -1.0, 1e9), 0.0],
            ],
            "count": lambda: [
                self.many(lambda: [self.uuid(), self.many(self.tid)]),
                self.either(True, False),
            ],
            "plug_latency_port": lambda: [self.uuid()],
            "plug_vsock": lambda: [self.uuid()],
            "unplug_vsock": lambda: [self.uuid()],
            "apply_partitions": lambda: [self.change(), self.either(True, True, False)],
            "throttle": lambda: [self.many(lambda: [self.group(), self.many(self.level)])],
            "limit_cpu_time": lambda: [
                self.many(lambda: [self.uuid(), self.number(50)]),
                self.either(True, False),
            ],
            "release_throttles": lambda: [self.either(True, False)],
            "reset_partitions": lambda: [self.either(True, False)],
        }

    def either(self, *values: Any) -> Any:
        return self._chance.choice(values)

    def many(self, make: Callable[[], Any]) -> list[Any]:
        return [make() for _ in range(self._chance.choice((0, 1, 1, 1, 2, 3)))]

    def number(self, usual: int) -> int:
        odd = (0, -1, 1, 100, 101, 4096, 1 << 31, 1 << 63, 1 << 64, -(1 << 63), 10**30)
        return usual if self._chance.random() < 0.7 else self._chance.choice(odd)

    def uuid(self) -> str:
        odd = (NOBODYS, A.upper(), "", "../../../etc", f"{A}\n", f"{A}/..", "instance-4711", "*")
        return self.either(A, B) if self._chance.random() < 0.8 else self._chance.choice(odd)

    def tid(self) -> int:
        odd = (1, 0, -1, INNOCENT, INNOCENT + 1, os.getpid())
        known = [tid for pid in DOMAINS.values() for tid in threads_of(pid)]
        return self._chance.choice(known if self._chance.random() < 0.7 else odd)

    def pins(self) -> list[Any]:
        if self._chance.random() < 0.02:  # as long as a message may be
            tid, count = self.tid(), self.either(100, 600, 16_385, 50_000)
            return [
                [tid, "0-8191"] for _ in range(count)
            ]  # each its own: junk in one is in no other
        return self.many(lambda: [self.tid(), self.cpus()])

    def cpus(self) -> str:
        if self._chance.random() < 0.02:
            return str(self.either("0-65535," * 300_000, "0," * 8192 + "^1", "0,^0," * 9000 + "0"))
        return str(self.either("0", "0-1", "", "0-99999999999", "^0", "a", "0,0-8191", "1-0"))

    def range(self) -> list[int]:
        odd = ([0, 1 << 64], [0, 0], [RAM[0] - 4096, RAM[1]], [RAM[0] + 1, RAM[1]], [-1, 4096])
        return list(RAM) if self._chance.random() < 0.8 else list(self._chance.choice(odd))

    def level(self) -> list[int]:
        return [self.number(0), self.number(self.either(10, 50, 100))]

    def group(self) -> str:
        odd = (
            *("", ".", "..", "info", FOREIGN, f"../{FOREIGN}", f"numa_ext-be-0/../{FOREIGN}"),
            *(
                "numa_ext-",
                "numa_ext-..",
                "numa_ext-/..",
                "numa_ext-be-0\0",
                "/etc",
                "numa_ext-x\n",
            ),
            *("numa_ext-be-0/mon_groups/x", f"{FOREIGN}/mon_groups/theirs", "x" * 5000),
        )
        usual = ("numa_ext-be-0", "numa_ext-be-1", "numa_ext-lc-a")
        return self._chance.choice(usual if self._chance.random() < 0.7 else odd)

    def schemata(self) -> list[Any]:
        value = self.either(0xF, 0xFF, 0xFFF, 0x1, 50, 10, 100, 0, -1, 1 << 70)
        return [[self.either("L3", "L3", "MB", "L2", "../x"), [[self.number(0), value]]]]

    def write(self) -> list[Any]:
        kind = self.either(
            *("move threads", "remove group", "remove monitor", "create group", "create monitor"),
            *("schemata", "schemata", "format disk"),
        )
        monitor = self.either("", "", "numa_ext-vm-a", "theirs", "../../schemata")
        group = self.either(self.group(), "")
        return [
            *(kind, group, monitor),
            *(self.schemata() if kind == "schemata" else [], []),
            self.group() if kind == "move threads" else "",
        ]

    def change(self) -> list[Any]:
        seen = wire.encode(Resctrl(self._host.tree).actual())
        members = self.many(lambda: [self.uuid(), self.group(), self.either("", "numa_ext-vm-a")])
        found = self.either([], [], [["L3", [[0, 0xFFF]]]], self.schemata())
        return [seen, self.many(self.write), members, found]

    def junk(self) -> Any:
        return self.either(
            *(None, True, 0, -1, 1.5, 1e308, "", "x" * 3000, [], [[]], {}, {"a": 1}, [None] * 50),
            *(A, [A], "\ud800", "\0", [[[[[[1]]]]]], 10**40, [[0, 1]] * 300),
        )

    def request(self) -> bytes:
        """The next message; of a longer one than may be the helper reads the length only."""
        while len(request := self._request()) > frames.MOST_BYTES:
            pass
        return request

    def _request(self) -> bytes:
        name = self._chance.choice(list(OPERATIONS))
        arguments = self._makers.get(name, list)()
        odd = self._chance.random()
        if odd < 0.05:
            return self._chance.randbytes(self._chance.randrange(64))
        if odd < 0.1:
            return json.dumps(self.junk()).encode()
        if odd < 0.15:
            name = self.either(
                "__init__", "_limit", "switch", "eval", "", "process.__class__", None
            )
        if odd < 0.2:
            return b"[" * self._chance.choice((10, 3000, 100_000))
        if odd < 0.45 and arguments:
            self._replace(arguments)
        if odd > 0.97:
            arguments.append(self.junk())
        return json.dumps([name, *arguments]).encode()

    def _replace(self, values: list[Any]) -> None:
        """Put junk in some place of a nested list."""
        place = self._chance.randrange(len(values))
        inner = values[place]
        if isinstance(inner, list) and inner and self._chance.random() < 0.7:
            self._replace(inner)
        else:
            values[place] = self.junk()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    yield Host(tmp_path, monkeypatch)


def attack(host: Host, calls: int, wanted: Set[str] = frozenset()) -> Counter[str]:
    """Make so many calls; count the kinds of answers, and those that were carried out by operation.

    Chance may carry out none of a ``wanted`` operation in so many calls: then up to five times as many are made.
    """
    attacker = Attacker(seed(), host)
    found: Counter[str] = Counter()
    with hostile_input.watched() as (logged, grown):
        for call in range(5 * calls):
            if call >= calls and wanted <= set(found):
                break
            request = attacker.request()
            begun = time.thread_time()
            message = answer(host.operations, request)
            took_s = time.thread_time() - begun
            assert took_s <= LONGEST_S, (took_s, request[:2000])
            found.update(judged(request, message, logged))
            if call % 10 == 9:
                host.another_thread()
            if call % 100 == 99:
                host.check()
            if call % CHUNK == CHUNK - 1:
                assert grown() <= MOST_GROWTH, f"{grown()} octets more"
    host.check()
    return found


def judged(request: bytes, message: bytes, logged: list[logging.LogRecord]) -> list[str]:
    """Check an answer, which is one sentence unless it is a result; return its kind, and the operation if done."""
    kind, *rest = json.loads(message[HEAD:])
    assert kind in (DONE, REFUSED, FAILED)
    assert "the helper failed" not in str(rest), (rest, request[:2000])
    if kind == REFUSED:
        name, values = rest
        told = [str(client._error(name, values))]
    else:
        told = [rest[1]] if kind == FAILED else []
    try:
        hostile_input.check(told, logged)
    except AssertionError as error:
        error.add_note(repr(request[:2000]))
        raise
    return [kind, json.loads(request)[0]] if kind == DONE else [kind]


def test_nothing_is_touched_but_our_groups_and_libvirts_domains(host: Host) -> None:
    found = attack(host, SHARE, set(OPERATIONS))
    assert set(OPERATIONS) <= set(found), "each operation was carried out, too"
    assert found[REFUSED] > SHARE / 4


def test_no_name_leads_out_of_the_folder_of_groups(host: Host, tmp_path: Path) -> None:
    """The files that the model stands for, over a folder with links that resctrl itself cannot have."""
    attacker = Attacker(seed(), host)
    root, outside = tmp_path / "tree", tmp_path / "outside"
    (outside / "kept").mkdir(parents=True)
    (outside / "schemata").write_text("as it was")
    (root / "numa_ext-be-0/mon_groups").mkdir(parents=True)
    for name in ("numa_ext-be-1", "numa_ext-be-0/schemata", "numa_ext-be-0/mon_groups/x", FOREIGN):
        (root / name).symlink_to(outside)
    files = OsFiles(str(root))
    refused = 0
    for _name in range(SHARE):
        name = "/".join(attacker.group() for _ in range(attacker.either(1, 1, 2)))
        name += attacker.either("", "/schemata", "/tasks", "/kept", "/../outside/schemata")
        change = attacker.either(
            lambda path: files.write(path, "L3:0=1\n"), files.mkdir, files.rmdir
        )
        try:
            change(name)
        except (OSError, ValueError):
            refused += 1
    assert {path.relative_to(outside).as_posix() for path in outside.rglob("*")} == {
        "kept",
        "schemata",
    }
    assert (outside / "schemata").read_text() == "as it was"
    assert SHARE / 4 < refused < SHARE, "some were carried out, inside"


class Served:
    """A helper's end of a real socket, in threads of this process."""

    def __init__(self, host: Host, folder: Path) -> None:
        self.path = folder / "helper.sock"
        self._listening = server.listen(self.path)
        self._woken, self._wake = os.pipe()
        self._stopped = threading.Event()
        serving = server.Server(
            self._listening, host.operations, {os.geteuid()}, Succession(Edition("1", ""))
        )
        self._thread = threading.Thread(target=serving.run, args=(self._woken, self._stopped))
        self._thread.start()

    def answers(self, requests: Iterator[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """Yield each request with its answer; who sent what cannot be understood connects again."""
        connection: socket.socket | None = None
        try:
            for request in requests:
                if connection is None:
                    connection = socket.socket(socket.AF_UNIX)
                    connection.settimeout(PATIENCE_S)
                    connection.connect(str(self.path))
                connection.sendall(len(request).to_bytes(HEAD, "big") + request)
                message = frames.receive(connection)
                assert message is not None, request[:2000]
                yield request, bytes(HEAD) + message
        finally:
            if connection is not None:
                connection.close()

    def stop(self) -> None:
        self._stopped.set()
        os.write(self._wake, b"x")
        self._thread.join(PATIENCE_S)
        self._listening.close()
        for end in (self._woken, self._wake):
            os.close(end)


def test_two_threads_at_once_touch_nothing_of_others_either(host: Host, tmp_path: Path) -> None:
    """Over the socket, as the agent throttles while it moves pages; no ids change hands meanwhile."""
    host.kernel.pause = True
    served = Served(host, tmp_path)
    first = seed()
    found: Counter[str] = Counter()

    def ask(number: int) -> Counter[str]:
        attacker = Attacker(first + number, host)
        requests = (attacker.request() for _call in range(SHARE // 4))
        kinds: Counter[str] = Counter()
        for request, message in served.answers(requests):
            kinds.update(judged(request, message, []))
        return kinds

    with hostile_input.watched() as (logged, grown):
        try:
            with ThreadPoolExecutor(2) as threads:
                for kinds in threads.map(ask, range(2)):
                    found.update(kinds)
        finally:
            served.stop()
        hostile_input.check((), logged)
        assert grown() <= MOST_GROWTH
    host.check()
    assert found[DONE] > SHARE / 16
    assert found[REFUSED] > SHARE / 8


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_nothing_is_touched_in_a_million_calls(host: Host) -> None:
    attack(host, ALL)
