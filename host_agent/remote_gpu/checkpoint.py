# SPDX-License-Identifier: Apache-2.0
"""The server of a lease, written to images and made again from them on another host, by CRIU.

What is dumped is the server and its parent, which holds its clients' connections (``numa-ext-rgpu hold``), and nothing
of the namespaces that they are in: at the other host these are made as for any lease. So CRIU needs no right of the
host. It has all rights within the lease's user namespace: for a dump a process of the supervisor goes in there, which
may, as the supervisor's user has made that; a lease's process restores before it gives its rights up
(:mod:`.isolation`)::

    supervisor ── spaces, by the control socket ──< process of the lease
     └─ this module: setns, fork ─> criu dump --leave-running  ─> images
                                    tar of /lease, /tmp, /dev/shm

    images   *.img and logs of CRIU, folders.tar, lease.json (what the other host needs to know beside); begun, verdict

Afterwards the server goes on: what it still computes is heard by no client, as its clients' connections are held, and
either this one or the other one is ended. CRIU ends by itself, with success or without; so it does where the supervisor
dies.
Where CRIU was killed, no one knows what it has left in the server's memory: where a dump has begun and there is no
verdict, the server must not go on.
"""

import argparse
import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from host_agent.remote_gpu.isolation import FOLDER
from placement_traits.command_line import SAFE_FOLDER, module
from placement_traits.errors import InvalidValueError, ServiceUnavailableError

SPACES: Final = ("user", "mnt", "pid", "net", "ipc", "uts")
"""Namespaces that a dump goes into, in that order."""

HOLDER: Final = "@numa-ext-hold"
"""Socket of the server's parent, in the lease's own network."""

_LEASE: Final = "lease.json"
_FOLDERS: Final = "folders.tar"
_BEGUN, _VERDICT = "begun", "verdict"
_ENDS_S: Final = 120.0
_LOOK_S: Final = 0.05
_SILENT: Final = "no reason is reported"
_WRITTEN: Final = (FOLDER, Path("/tmp"), Path("/dev/shm"))
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 47, 2
_CAP_SETGID, _CAP_SETUID = 6, 7
_CAPABILITY_VERSION_3: Final = 0x20080522
_COMMON: Final = (
    *("--tcp-established", "--network-lock", "skip"),  # both ends of all connections are frozen
    *("--unprivileged", "--manage-cgroups=ignore", "-v2"),
)


@dataclass(frozen=True, slots=True)
class Frozen:
    """What another host needs to know beside CRIU's images.

    :param tree: number of the server's parent, in its namespace
    :param server: number of the server
    :param ports: that it listens on
    :param session: of the gateway, as that handed it over
    """

    tree: int
    server: int
    ports: tuple[int, ...]
    session: Mapping[str, Any]

    def write(self, folder: Path) -> None:
        """Write it beside the images."""
        (folder / _LEASE).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> "Frozen":
        """Return what was written.

        :raises InvalidValueError: it has another form
        """
        try:
            found = json.loads((folder / _LEASE).read_text())
            ports = tuple(found["ports"])
            made = cls(found["tree"], found["server"], ports, found["session"])
            numbers = (made.tree, made.server, *ports)
            if not ports or not all(type(each) is int and each > 0 for each in numbers):
                raise ValueError(numbers)
            made.session["gateway"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            allowed = "a lease that was frozen"
            raise InvalidValueError(f"images of a lease: {_LEASE}", str(error), allowed) from error
        return made


@dataclass(frozen=True, slots=True)
class Around:
    """What is run beside CRIU, in the lease's namespaces, where a GPU keeps memory that CRIU does not see.

    ``cuda-checkpoint`` of NVIDIA's driver is such a program. In the command lines {pid} is the server.

    :param suspend: before a dump; empty: nothing
    :param resume: after a restore, and where a lease goes on that was dumped; empty: nothing
    """

    suspend: tuple[str, ...] = ()
    resume: tuple[str, ...] = ()

    def of(self, server: int) -> "Around":
        """Return it for a server."""

        def filled(words: Sequence[str]) -> tuple[str, ...]:
            return tuple(each.replace("{pid}", str(server)) for each in words)

        return Around(filled(self.suspend), filled(self.resume))

    @property
    def programs(self) -> tuple[Path, ...]:
        """What has to be seen in a lease's root."""
        return tuple({Path(words[0]): None for words in (self.suspend, self.resume) if words})


NOTHING_AROUND: Final = Around()


def dump(criu: Path, spaces: Sequence[int], frozen: Frozen, folder: Path, around: Around) -> None:
    """Dump a lease into a folder; it goes on.

    :param spaces: open files of its namespaces, as of :data:`SPACES`
    :param frozen: what it is
    :raises ServiceUnavailableError: it was not dumped; :func:`goes_on` says whether it may go on
    """
    images = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    own = around.of(frozen.server)
    words = ("--images", str(images), "--criu", str(criu), "--tree", str(frozen.tree))
    try:
        fcntl.flock(images, fcntl.LOCK_EX)  # held by all that has it open
        (folder / _BEGUN).touch()
        done = _inside(
            spaces,
            (images,),
            *(*words, "--suspend", json.dumps(own.suspend), "--resume", json.dumps(own.resume)),
        )
    finally:
        os.close(images)
    if done.returncode:
        raise ServiceUnavailableError(
            f"It cannot be dumped: {_why(folder, 'dump.log', done.stderr)}"
        )


def resume(spaces: Sequence[int], frozen: Frozen, around: Around) -> None:
    """Let the GPU of a lease go on that was dumped, and goes on where it was.

    :raises ServiceUnavailableError: it does not
    """
    if not around.resume:
        return
    done = _inside(spaces, (), "--resume", json.dumps(around.of(frozen.server).resume))
    if done.returncode:
        raise ServiceUnavailableError(f"Its GPU does not go on: {done.stderr.strip()}")


def _inside(
    spaces: Sequence[int], passed: Sequence[int], *words: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        module(__name__, "--spaces", ",".join(map(str, spaces)), *words),
        cwd=SAFE_FOLDER,
        pass_fds=(*passed, *spaces),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def goes_on(folder: Path) -> bool:
    """Whether what was dumped into a folder, or was to be, may go on where it was; a dump that lasts is waited for."""
    try:
        images = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return True
    try:
        until_s = time.monotonic() + _ENDS_S
        while time.monotonic() < until_s:
            with suppress(BlockingIOError):
                fcntl.flock(images, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return not (folder / _BEGUN).exists() or (folder / _VERDICT).exists()
            time.sleep(_LOOK_S)
        return False
    finally:
        os.close(images)


def was_dumped(folder: Path) -> bool:
    """Whether a folder has all of a lease."""
    return (folder / _FOLDERS).exists()


def restore(criu: Path, images: int, command: Sequence[str]) -> None:
    """Make a server and its parent again, as children of this process; with all rights, in a lease's namespaces.

    :param images: open folder
    :param command: after that, of :class:`Around`
    :raises ServiceUnavailableError: they cannot be made
    """
    with ExitStack() as files:
        file = files.enter_context(os.fdopen(os.open(_FOLDERS, os.O_RDONLY, dir_fd=images), "rb"))
        packed = files.enter_context(tarfile.open(fileobj=file))
        for each in packed:
            if _is_written(each):
                packed.extract(each, "/")
    _raise_ambient()
    argv = [str(criu), "restore", *_COMMON, "--restore-detached", "--restore-sibling"]
    done = subprocess.run(
        [*argv, "-D", f"/proc/self/fd/{images}", "-o", "restore.log"],
        pass_fds=(images,),
        env={},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        where = Path(f"/proc/self/fd/{images}")
        raise ServiceUnavailableError(
            f"It cannot be restored: {_why(where, 'restore.log', done.stderr)}"
        )
    if command and _ran(command):
        raise ServiceUnavailableError(f"Its GPU does not go on: {command[0]} has failed.")


def _is_written(found: tarfile.TarInfo) -> bool:
    """Whether that is a file, a folder or a link below one of the folders that a server writes."""
    path = Path("/", found.name)
    plain = (found.isfile() or found.isdir() or found.issym()) and ".." not in path.parts
    return plain and any(above in path.parents for above in _WRITTEN)


def restore_trouble(folder: Path) -> str:
    """Return why what is in a folder could not be restored, '' where CRIU has reported none."""
    found = _why(folder, "restore.log", "")
    return "" if found == _SILENT else f"It cannot be restored: {found}"


def _why(folder: Path, log: str, reported: str) -> str:
    """Return the last error of CRIU's log, or what it printed."""
    try:
        lines = (folder / log).read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    errors = [each for each in lines if "Error" in each and "RLIMIT_NOFILE" not in each]
    return (errors or reported.strip().splitlines() or [_SILENT])[0].strip()


def _raise_ambient() -> None:
    """Let programs that this process runs have its rights, though they run as a user without any.

    But for that to be another user: with it CRIU would become the root of the namespace, and there is none.
    """
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    raised = [each for each in range(last + 1) if each not in (_CAP_SETGID, _CAP_SETUID)]
    every = sum(1 << each for each in raised)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    low, high = every & 0xFFFFFFFF, every >> 32
    sets = (ctypes.c_uint32 * 6)(low, low, low, high, high, high)
    _called("capset", _LIBC.capset(header, sets))
    for capability in raised:
        done = _LIBC.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, capability, 0, 0)
        _called("prctl", done)


def _called(what: str, done: int) -> None:
    if done < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def _ran(command: Sequence[str]) -> int:
    """Run a command in the lease's namespaces; return its exit status."""
    return subprocess.run(command, env={}, stdin=subprocess.DEVNULL, check=False).returncode


def _dumped(given: argparse.Namespace) -> int:
    """Dump, in the lease's namespaces; return the exit status."""
    _raise_ambient()
    if not given.images:
        return _ran(given.resume)
    status = _ran(given.suspend) if given.suspend else 0
    if not status:
        argv = [str(given.criu), "dump", *_COMMON, "--leave-running", "-t", str(given.tree)]
        status = subprocess.run(
            [*argv, "-D", f"/proc/self/fd/{given.images}", "-o", "dump.log"],
            pass_fds=(given.images,),
            env={},
            stdin=subprocess.DEVNULL,
            check=False,
        ).returncode
        if status < 0:
            # No verdict. Children of CRIU may be left, and stay as long as the namespace.
            os.kill(-1, signal.SIGKILL)
            return 1
        try:
            if not status:
                _pack(given.images)
        except OSError as error:
            sys.stderr.write(f"{error}\n")
            status = 1
    if status and given.resume:
        _ran(given.resume)
    os.close(_created(_VERDICT, given.images))
    return status


def _pack(images: int) -> None:
    with ExitStack() as files:
        file = files.enter_context(os.fdopen(_created(_FOLDERS, images), "wb"))
        packed = files.enter_context(tarfile.open(fileobj=file, mode="w"))
        for top in _WRITTEN:
            for each in _below(top, top.stat().st_dev):
                packed.add(each, str(each), recursive=False)


def _below(folder: Path, device: int) -> Iterator[Path]:
    """Return what is in a folder, without what is mounted there."""
    for each in sorted(folder.iterdir()):
        if each.lstat().st_dev == device:
            yield each
            if each.is_dir() and not each.is_symlink():
                yield from _below(each, device)


def _created(name: str, folder: int) -> int:
    return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600, dir_fd=folder)


def main() -> int:
    """Go into the namespaces of a lease and dump it, or let its GPU go on; return the exit status."""
    parser = argparse.ArgumentParser(prog="checkpoint")
    parser.add_argument("--spaces", required=True)
    parser.add_argument("--images", type=int)
    parser.add_argument("--criu", type=Path)
    parser.add_argument("--tree", type=int)
    parser.add_argument("--suspend", type=json.loads, default=())
    parser.add_argument("--resume", type=json.loads, default=())
    given = parser.parse_args()
    for each in given.spaces.split(","):
        _called("setns", _LIBC.setns(int(each), 0))
        os.close(int(each))
    os.chdir("/")
    child = os.fork()
    if not child:
        os._exit(1 if _dumped(given) else 0)
    _process, status = os.waitpid(child, 0)
    return 1 if os.waitstatus_to_exitcode(status) else 0


if __name__ == "__main__":
    sys.exit(main())
