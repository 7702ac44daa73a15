# SPDX-License-Identifier: Apache-2.0
"""The server processes of leases, one each: they outlive the supervisor, which finds them again by their sockets.

::

    FOLDER/LEASE.sock       a process that serves the lease listens here
    FOLDER/LEASE.group      the control group of all that it started
    FOLDER/LEASE.lock       locked by it, and by its server where it is not kept apart
    FOLDER/LEASE.files      where its root is made; what its server writes where it is not kept apart

A socket on which nothing answers is of a process that is gone, or not there yet. One that listens and does not answer
is given a while, then it is killed. A lease has ended, and can be served again, when its group is empty and its lock
free, be it that a server hangs in its driver and cannot be killed. No file holds the number of a process: the kernel
says who listens, and who is in a group.
"""

import fcntl
import json
import logging
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from host_agent.remote_gpu import groups
from host_agent.remote_gpu.answer import ServedLease
from host_agent.remote_gpu.checkpoint import NOTHING_AROUND, SPACES, Around, Frozen, restore_trouble
from host_agent.remote_gpu.groups import LeaseGroups
from host_agent.remote_gpu.hung import kill_listener
from host_agent.remote_gpu.lease_process import IMAGES_ARE_THERE, STARTS_S
from host_agent.remote_gpu.link_files import LinkFiles
from host_agent.remote_gpu.use import UseMeter
from host_agent.util.trees import remove_tree
from placement_traits.command_line import SAFE_FOLDER, module
from placement_traits.errors import ServiceUnavailableError

_LOG: Final = logging.getLogger(__name__)
_ANSWERS_S: Final = 5.0
_HANGS_S: Final = 15.0  # without an answer
_STARTS_S: Final = STARTS_S + 5.0  # its server, and itself
_RESTORES_S: Final = 120.0  # so much memory
_LOOK_S: Final = 0.02
_BYTES_PER_MB: Final = 1_000_000
_BYTES_PER_MIB: Final = 1 << 20
_SUFFIX: Final = ".sock"
_OF_PROCESSES: Final = frozenset({_SUFFIX, groups.SUFFIX})

CommandOf = Callable[[ServedLease, Path], list[str]]
"""Lease, control socket -> command line of its process."""


@dataclass(frozen=True, slots=True)
class LeaseBounds:
    """What one lease that is kept apart may take of its host beside its GPU.

    :param tasks: processes and threads
    :param folder_mb: of its folder, MiB
    """

    tasks: int = 1024
    folder_mb: int = 64


@dataclass(frozen=True, slots=True)
class LeaseCommand:
    """The command line of leases' processes.

    :param transport: its name
    :param transports: folder of those that files declare
    :param address: of this host, on which clients are served
    :param gpus: provider of each lent GPU -> its name
    :param devices: name of a GPU -> its nodes in /dev
    :param link: program by whose gateways clients come; None: they come by plain TCP
    :param bounds: of each lease
    :param criu: program by which leases that are kept apart move with all that they have; None: they do not
    :param around: what is run beside that
    :param enforced: this host publishes that leases are kept to their memory: none is served where that is so no more
    """

    transport: str
    transports: Path
    address: str
    gpus: Mapping[str, str]
    devices: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    link: Path | None = None
    bounds: LeaseBounds = field(default_factory=LeaseBounds)
    criu: Path | None = None
    around: Around = NOTHING_AROUND
    enforced: bool = False

    def __call__(self, lease: ServedLease, control: Path) -> list[str]:
        """Return it for one lease.

        :raises ServiceUnavailableError: its GPU is not lent any more
        """
        if lease.gpu not in self.gpus:
            raise ServiceUnavailableError(f"This host does not lend GPU {lease.gpu}.")
        gpu = self.gpus[lease.gpu]
        return [
            *module("host_agent.remote_gpu.lease_process", str(control)),
            *("--host", self.address, "--transport", self.transport),
            *("--transports", str(self.transports.absolute()), "--gpu", gpu),
            *("--memory-mb", str(lease.memory_mb), "--tasks", str(self.bounds.tasks)),
            *("--folder-mb", str(self.bounds.folder_mb)),
            *(f"--device={each}" for each in self.devices.get(gpu, ())),
            *(() if self.link is None else ("--link", str(self.link.absolute()))),
            *(() if self.criu is None else ("--criu", str(self.criu.absolute()))),
            *(f"--around={each}" for each in self.around.programs),
            *(("--resume", json.dumps(self.around.resume)) if self.around.resume else ()),
            *(("--enforced",) if self.enforced else ()),
        ]


class LeaseProcessGoneError(ServiceUnavailableError):
    """The process of a lease is gone.

    :param lease: its uuid
    :param epoch: that it may have served
    """

    def __init__(self, lease: str, epoch: int) -> None:
        super().__init__(lease, epoch)
        self.lease, self.epoch = lease, epoch

    def __str__(self) -> str:
        return f"The process of lease {self.lease} is gone; no other one serves epoch {self.epoch}."


class LeaseProcesses:
    """The processes of one host; for one supervisor at a time, and of each lease for one thread.

    :param folder: of their sockets, for their owner alone
    :param command: how one is started
    :param groups: of those that are kept apart; None: they are not
    :param certificates: by which their gateways know doormen; None: they have no gateways
    :param meter: of what they use
    """

    def __init__(
        self,
        folder: Path,
        command: CommandOf,
        groups: LeaseGroups | None = None,
        certificates: LinkFiles | None = None,
        meter: UseMeter | None = None,
    ) -> None:
        self._folder = folder = folder.absolute()
        self._command = command
        self._groups = groups
        self._certificates = certificates
        self._meter = meter or UseMeter()
        self._link_meter = self._meter.of_link()
        self._memory_mb: dict[str, float] = {}
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._silent_since_s: dict[str, float] = {}
        self._reported: dict[str, tuple[str, str]] = {}
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def running(self) -> frozenset[str]:
        """Return the leases of which a process may run."""
        found = (each for each in self._folder.iterdir() if each.suffix in _OF_PROCESSES)
        return frozenset(each.stem for each in found)

    def used(self) -> dict[str, float]:
        """Return the part of the time in which leases kept their GPUs busy, of those of which it is known."""
        return self._meter.shares()

    def link_mbps(self) -> dict[str, float]:
        """Return what has gone over the link for leases, megabytes a second, of those of which it is known."""
        return self._link_meter.shares()

    def memory_mb(self) -> dict[str, float]:
        """Return the memory that leases have in use of their GPUs, MiB to the byte, of those of which it is known."""
        return self._memory_mb.copy()

    def start(self, asked: ServedLease) -> None:
        """Start a process for a lease where none runs; it serves no epoch yet.

        :raises ServiceUnavailableError: it does not start, or there is one that does not answer
        """
        if self._ask(asked.id, {}) is None:
            self._start(asked)

    @contextmanager
    def restoring(self, asked: ServedLease, folder: Path) -> Iterator[Callable[[], None]]:
        """Start a process for a lease where none runs, which waits for images; yield what has it go on from them.

        It serves no epoch afterwards. A lease that moves waits for what is done once its images are there, so all that
        can be is done before. Where it has not gone on it is ended with the block, or with this process.

        :param folder: of the images
        :raises ServiceUnavailableError: it cannot be started; what is yielded: it cannot go on from the images
        """
        images = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            child = self._begin(asked, images)
        finally:
            os.close(images)
        goes_on = False

        def go_on() -> None:
            nonlocal goes_on
            if child.stdin is not None:
                with suppress(BrokenPipeError), child.stdin:  # what is wrong is known by its end
                    child.stdin.write(IMAGES_ARE_THERE)
            try:
                self._await(asked.id, child, _RESTORES_S)
            except ServiceUnavailableError as error:
                raise ServiceUnavailableError(restore_trouble(folder) or str(error)) from error
            goes_on = True

        try:
            yield go_on
        finally:
            if not goes_on:
                self.end(asked.id)

    def freeze(self, lease: str) -> Frozen:
        """Cut all clients of a lease, and keep what they need to go on elsewhere, or here by :meth:`thaw`.

        :raises LeaseProcessGoneError: no process runs
        :raises ServiceUnavailableError: it does not answer, or cannot move
        """
        answer = self._ask(lease, {"freeze": True})
        if answer is None:
            self._end_rest(lease)
            raise LeaseProcessGoneError(lease, 0)
        if "moves" not in answer:
            raise ServiceUnavailableError(
                f"Lease {lease} was started without CRIU, or without a link."
            )
        found = answer["moves"]
        return Frozen(found["tree"], found["server"], tuple(found["ports"]), found["session"])

    def is_frozen(self, lease: str) -> bool:
        """Whether a lease waits for :meth:`thaw`, or for its end.

        :raises ServiceUnavailableError: its process does not answer
        """
        answer = self._ask(lease, {})
        return answer is not None and bool(answer.get("frozen"))

    def thaw(self, lease: str) -> None:
        """Let a lease that is frozen go on; another one does.

        :raises ServiceUnavailableError: its process does not answer
        """
        self._ask(lease, {"thaw": True})

    @contextmanager
    def spaces(self, lease: str) -> Iterator[Sequence[int]]:
        """Yield open files of the namespaces of a lease, as of :data:`.checkpoint.SPACES`.

        :raises ServiceUnavailableError: no process runs, or it does not answer
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
            asked.settimeout(_ANSWERS_S)
            try:
                asked.connect(str(self._control(lease)))
                asked.sendall(b'{"spaces": true}\n')
                _byte, found, _flags, _address = socket.recv_fds(asked, 1, len(SPACES))
            except OSError as error:
                raise ServiceUnavailableError(
                    f"The process of lease {lease} does not answer: {error}"
                ) from error
        try:
            if len(found) != len(SPACES):
                raise ServiceUnavailableError(f"The process of lease {lease} has no namespaces.")
            yield found
        finally:
            for each in found:
                os.close(each)

    def serve(
        self, lease: str, epoch: int, client_host: str = "", network_mbps: int = 0
    ) -> tuple[int, str]:
        """Have a lease served at an epoch by the process that there is; return epoch and address.

        :param client_host: that may connect, by the name in its certificate; '': none. Plain TCP does not ask
        :param network_mbps: promised, megabytes a second; 0: no limit
        :raises LeaseProcessGoneError: there is none any more, nor anything that it started
        :raises ServiceUnavailableError: it does not answer, takes no certificates, or something that it started has
            not ended
        """
        terms = {"epoch": epoch, "client": client_host, "mbps": network_mbps}
        found = self._ask(lease, terms)
        if found is not None and self._certificates is not None:
            found = self._handed(self._certificates, lease, found)
        if found is None:
            self._end_rest(lease)
            raise LeaseProcessGoneError(lease, epoch)
        self._meter.note(lease, found.get("busy_s"))
        held = found.get("held_bytes")
        if held is None:
            self._memory_mb.pop(lease, None)
        else:
            self._memory_mb[lease] = held / _BYTES_PER_MIB
        moved = found.get("bytes")
        self._link_meter.note(lease, None if moved is None else moved / _BYTES_PER_MB)
        return int(found["epoch"]), str(found["address"])

    def _handed(
        self, certificates: LinkFiles, lease: str, found: Mapping[str, Any]
    ) -> Mapping[str, Any] | None:
        """See that the gateway of a lease has the certificates that count; return what its process says, None for none.

        :param found: what it answered last
        :raises ServiceUnavailableError: it has none that it can use
        """
        texts, expected = certificates.read()
        if found.get("pki") == expected:
            return found
        answer = self._ask(lease, {"pki": texts})
        if answer is None:
            return None
        trouble = answer.get("trouble", "it has no gateway, it was started without certificates")
        if not answer.get("pki"):
            raise ServiceUnavailableError(f"No doorman can reach lease {lease}: {trouble}.")
        if answer["pki"] == expected:
            self._reported.pop(lease, None)
        elif self._reported.get(lease) != (expected, trouble):
            self._reported[lease] = expected, trouble
            _LOG.warning("lease %s: certificates of before stay: %s", lease, trouble)
        return answer

    def end(self, lease: str) -> None:
        """End the process of a lease; afterwards none serves it.

        :raises ServiceUnavailableError: it does not answer, or something that it started has not ended
        """
        self._ask(lease, {"end": True})
        self._end_rest(lease)
        self._reported.pop(lease, None)
        if self._groups is not None:
            self._groups.remove(lease)
        try:
            remove_tree(self._kept(lease, ".files"))
        except OSError as error:
            _LOG.warning("what lease %s has written stays: %s", lease, error)
        for suffix in (".lock", ".moved", groups.SUFFIX, _SUFFIX):
            self._kept(lease, suffix).unlink(missing_ok=True)

    def _start(self, asked: ServedLease) -> None:
        self._await(asked.id, self._begin(asked), _STARTS_S)

    def _begin(self, asked: ServedLease, images: int | None = None) -> subprocess.Popen[bytes]:
        lease = asked.id
        self._wait(lease)
        command = self._command(asked, self._control(lease))
        if images is not None:
            command += ["--images", str(images)]
        if self._groups is not None:
            self._await_straggler(self._groups, lease)
            command += ["--group", str(self._groups.make(lease))]
        _LOG.info("lease %s: a process is started", lease)
        self._children[lease] = child = subprocess.Popen(
            command,
            cwd=SAFE_FOLDER,
            stdin=subprocess.DEVNULL if images is None else subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=() if images is None else (images,),
            start_new_session=True,
        )
        return child

    def _await(self, lease: str, child: subprocess.Popen[bytes], limit_s: float) -> None:
        """Wait until the process of a lease serves."""
        until_s = time.monotonic() + limit_s
        while not _listens(self._control(lease)):
            if child.poll() is not None or time.monotonic() > until_s:
                child.kill()
                self._end_rest(lease)
                raise ServiceUnavailableError(f"The process of lease {lease} does not start.")
            time.sleep(_LOOK_S)

    def _await_straggler(self, groups: LeaseGroups, lease: str) -> None:
        """See that no process of an earlier supervisor is on its way, and that none can come any more.

        :raises ServiceUnavailableError: there is one; it has a while to get there
        """
        if not groups.has_processes(lease):
            groups.remove(lease)
        elif self._hangs(lease, time.monotonic()):
            self._kill(lease)
            groups.remove(lease)
        else:
            raise ServiceUnavailableError(f"A process of lease {lease} is on its way.")

    def _wait(self, lease: str) -> None:
        """Take a child's exit status, which it has or is about to have."""
        child = self._children.pop(lease, None)
        if child is None:
            return
        try:
            child.wait(_ANSWERS_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def _ask(self, lease: str, question: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return what a process answers, None where there is none, or none any more: it hung and was killed.

        :raises ServiceUnavailableError: there is one, and it does not answer
        """
        asked_s = time.monotonic()
        try:
            found = _answer(self._control(lease), question)
        except (TimeoutError, BlockingIOError) as error:
            if not self._hangs(lease, asked_s):
                raise ServiceUnavailableError(
                    f"The process of lease {lease} does not answer."
                ) from error
            self._kill(lease)
            found = None
        if found is not None:
            self._silent_since_s.pop(lease, None)
        return found

    def _hangs(self, lease: str, since_s: float) -> bool:
        """Whether a process has been silent for too long, of which that is known since then."""
        return time.monotonic() - self._silent_since_s.setdefault(lease, since_s) >= _HANGS_S

    def _kill(self, lease: str) -> None:
        """Kill a process that hangs, and with it its server.

        :raises ServiceUnavailableError: it does not end
        """
        _LOG.error("the process of lease %s hangs, it is killed with its server", lease)
        in_group = self._groups is not None and self._groups.has_processes(lease)
        if not in_group and not kill_listener(self._control(lease), _ANSWERS_S):
            raise ServiceUnavailableError(
                f"The process of lease {lease} hangs and cannot be killed."
            )
        self._end_rest(lease)

    def _end_rest(self, lease: str) -> None:
        """Kill all that the process of a lease has started, where it is known; wait until it is gone.

        :raises ServiceUnavailableError: something has not ended
        """
        if self._groups is not None and not self._groups.kill(lease, _ANSWERS_S):
            raise ServiceUnavailableError(
                f"A process that served lease {lease} has not ended: "
                f"{self._kept(lease, groups.SUFFIX)}/cgroup.procs names it."
            )
        self._wait(lease)
        self._await_lock(lease)
        self._silent_since_s.pop(lease, None)
        self._meter.forget(lease)
        self._link_meter.forget(lease)
        self._memory_mb.pop(lease, None)

    def _await_lock(self, lease: str) -> None:
        lock = self._kept(lease, ".lock")
        try:
            found = os.open(lock, os.O_RDWR)
        except FileNotFoundError:
            return
        until_s = time.monotonic() + _ANSWERS_S
        try:
            while True:
                with suppress(BlockingIOError):
                    fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                if time.monotonic() > until_s:
                    raise ServiceUnavailableError(
                        f"A process that served lease {lease} has not ended: fuser {lock} names it."
                    )
                time.sleep(_LOOK_S)
        finally:
            os.close(found)

    def _kept(self, lease: str, suffix: str) -> Path:
        return self._folder / f"{lease}{suffix}"

    def _control(self, lease: str) -> Path:
        return self._kept(lease, _SUFFIX)


def _listens(control: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
        asked.settimeout(_ANSWERS_S)
        try:
            asked.connect(str(control))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True


def _answer(control: Path, question: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what the process behind a socket answers, None where there is none.

    :raises TimeoutError: there is one, and it does not answer
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
        asked.settimeout(_ANSWERS_S)
        try:
            asked.connect(str(control))
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        with suppress(ConnectionError):  # it ends between two requests
            asked.sendall(json.dumps(question).encode() + b"\n")
            with asked.makefile("rb") as answers:
                line = answers.readline()
            if line:
                found: Mapping[str, Any] = json.loads(line)
                return found
    return None
