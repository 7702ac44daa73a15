# SPDX-License-Identifier: Apache-2.0
"""Where a conformance run takes place: a resctrl tree and processes to move about in it."""

import errno
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from emulation.kernel.profiles import KernelProfile
from emulation.kernel.resctrl import ResctrlModel
from emulation.kernel.shape import INTEL, Shape
from emulation.kernel.threads import ThreadTable
from host_agent.machine.rdt.files import OsFiles, ResctrlFiles
from host_agent.machine.rdt.pqos import PqosFiles
from host_agent.model.rdt import parse_schemata


class Process(Protocol):
    """A process that does nothing, with threads to count."""

    pid: int

    def threads(self) -> set[int]:
        """Return all its thread ids."""

    def add_thread(self) -> int:
        """Let its main thread start another one; return its id."""

    def fork(self) -> int:
        """Let it fork; return the child's id."""

    def end_thread(self) -> int:
        """Let the newest thread end; return the id that is no more."""


class World(Protocol):
    """A tree with a kernel's behaviour, and processes; not all backends tell the kernel's reasons."""

    files: ResctrlFiles
    proc: str
    profile: KernelProfile
    own_tid: int | None
    kernel_speaks: bool

    def process(self) -> Process:
        """Start a process of one thread, in root."""

    def close(self) -> None:
        """End all processes."""


class TableProcess:
    """A process that is only told to the model."""

    def __init__(self, table: ThreadTable, proc: Path, pid: int) -> None:
        self._table = table
        self._tasks = proc / str(pid) / "task"
        self._proc = proc
        self.pid = pid
        self._tasks.mkdir(parents=True)
        self._born(table.spawn(pid))

    def _born(self, tid: int) -> int:
        (self._tasks / str(tid)).touch()
        return tid

    def threads(self) -> set[int]:
        return {int(entry.name) for entry in self._tasks.iterdir()}

    def add_thread(self) -> int:
        return self._born(self._table.spawn(max(self._table.all()) + 1, self.pid))

    def fork(self) -> int:
        return self._table.spawn(max(self._table.all()) + 1, self.pid)

    def end_thread(self) -> int:
        tid = max(self.threads())
        self._table.end(tid)
        (self._tasks / str(tid)).unlink()
        return tid


class ModelWorld:
    """The in-process model, with a table of threads and a small /proc."""

    own_tid: int | None = None
    kernel_speaks = True

    def __init__(self, profile: KernelProfile, shape: Shape = INTEL, limbo_s: float = 0.0) -> None:
        self._table = ThreadTable([1000])
        # Goes with the object.
        self._directory = tempfile.TemporaryDirectory(prefix="numa-ext-proc-")
        self.proc = self._directory.name
        self.profile = profile
        self.model = ResctrlModel(shape, profile, threads=self._table, limbo_s=limbo_s)
        self.files: ResctrlFiles = self.model

    def process(self) -> Process:
        return TableProcess(self._table, Path(self.proc), max(self._table.all()) + 1)

    def close(self) -> None:
        for process in Path(self.proc).iterdir():
            for tid in (process / "task").iterdir():
                self._table.end(int(tid.name))
            shutil.rmtree(process)


class ModelLibrary:
    """What libpqos does to a tree, on the model: at its start it takes every class of service."""

    def __init__(self, model: ResctrlModel) -> None:
        self._model = model
        for number in range(1, model.shape.usable_closids):
            if f"COS{number}" not in model.directories(""):
                model.mkdir(f"COS{number}")

    def domains(self, resource: str) -> frozenset[int]:
        found = parse_schemata(self._model.read("schemata"))
        return frozenset().union(*(found[name] for name in found if name.startswith(resource)))

    def _write(self, number: int, file: str, data: str) -> None:
        self._model.write(f"COS{number}/{file}" if number else file, data)

    def set_masks(self, resource: str, domain: int, number: int, masks: tuple[int, ...]) -> None:
        kinds = ("CODE", "DATA") if len(masks) > 1 else ("",)
        lines = (f"{resource}{kind}:{domain}={m:x}\n" for kind, m in zip(kinds, masks, strict=True))
        self._write(number, "schemata", "".join(lines).rstrip("\n") + "\n")

    def set_bandwidth(self, domain: int, number: int, value: int) -> None:
        self._write(number, "schemata", f"MB:{domain}={value}\n")

    def move(self, tid: int, number: int) -> None:
        self._write(number, "tasks", f"{tid}\n")

    def number(self, tid: int) -> int:
        if not self._model.threads.exists(tid):
            raise ProcessLookupError(errno.ESRCH, "No such process")
        numbers = range(self._model.shape.usable_closids)
        return next(number for number in numbers if tid in self.threads(number))

    def threads(self, number: int) -> set[int]:
        path = f"COS{number}/tasks" if number else "tasks"
        return set(map(int, self._model.read(path).split()))


class PqosModelWorld(ModelWorld):
    """The model behind the pqos backend."""

    kernel_speaks = False

    def __init__(self, profile: KernelProfile, shape: Shape, state: Path) -> None:
        super().__init__(profile, shape)
        model = self.model
        self.files = PqosFiles(state, Path("/proc"), lambda _taken: ModelLibrary(model), model)


@dataclass(slots=True)
class _Pipe:
    """Commands to a forked process, one byte each, answered by a line with a number."""

    commands: int
    answers: int

    def ask(self, command: bytes) -> int:
        os.write(self.commands, command)
        line = b""
        while not line.endswith(b"\n"):
            line += os.read(self.answers, 1)
        return int(line)


class ForkedProcess:
    """A real process: forked from this one, so that it costs no start of an interpreter."""

    def __init__(self) -> None:
        command_out, command_in = os.pipe()
        answer_out, answer_in = os.pipe()
        sys.stdout.flush()  # or the child would write it a second time
        self.pid = os.fork()
        if self.pid == 0:
            os.close(command_in)
            os.close(answer_out)
            try:
                _obey(command_out, answer_in)
            finally:
                os._exit(0)
        os.close(command_out)
        os.close(answer_in)
        self._pipe = _Pipe(command_in, answer_out)
        self._children: list[int] = []

    def threads(self) -> set[int]:
        return {int(name) for name in os.listdir(f"/proc/{self.pid}/task")}

    def add_thread(self) -> int:
        return self._pipe.ask(b"t")

    def fork(self) -> int:
        self._children.append(self._pipe.ask(b"f"))
        return self._children[-1]

    def end_thread(self) -> int:
        return self._pipe.ask(b"e")

    def close(self) -> None:
        for child in self._children:
            os.kill(child, signal.SIGKILL)
        # Closing is not enough: later children hold this end too.
        os.write(self._pipe.commands, b"q")
        os.close(self._pipe.commands)
        os.waitpid(self.pid, 0)
        os.close(self._pipe.answers)


def _obey(commands: int, answers: int) -> None:
    """Carry out commands until q: t start a thread, e end the newest, f fork."""
    threads: list[tuple[threading.Thread, threading.Event, int]] = []
    while (command := os.read(commands, 1)) not in (b"", b"q"):
        match command:
            case b"t":
                threads.append(_start_thread())
                answer = threads[-1][2]
            case b"e":
                thread, stop, answer = threads.pop()
                stop.set()
                thread.join()
                while os.path.exists(f"/proc/self/task/{answer}"):  # joined is not yet gone
                    os.sched_yield()
            case _:
                answer = os.fork()
                if answer == 0:
                    signal.pause()
        os.write(answers, b"%d\n" % answer)


def _start_thread() -> tuple[threading.Thread, threading.Event, int]:
    born, stop = threading.Event(), threading.Event()
    tids: list[int] = []

    def live() -> None:
        tids.append(threading.get_native_id())
        born.set()
        stop.wait()

    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    born.wait()
    return thread, stop, tids[0]


class OsWorld:
    """A mounted tree, a kernel's or one served by FUSE, and real processes."""

    def __init__(
        self, root: str, profile: KernelProfile, files: ResctrlFiles | None = None
    ) -> None:
        self.files: ResctrlFiles = files or OsFiles(root)
        self.kernel_speaks = files is None
        self.proc = "/proc"
        self.profile = profile
        self.own_tid: int | None = threading.get_native_id()
        self._processes: list[ForkedProcess] = []

    def process(self) -> Process:
        process = ForkedProcess()
        self._processes.append(process)
        return process

    def close(self) -> None:
        for process in self._processes:
            process.close()
        self._processes.clear()


@contextmanager
def closing_world(world: World) -> Iterator[World]:
    """Close a world whatever happens."""
    try:
        yield world
    finally:
        world.close()
