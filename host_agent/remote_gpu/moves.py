# SPDX-License-Identifier: Apache-2.0
"""Moves of leases with all that their processes have, from one host to another; each in a thread of its own.

::

    host that it leaves                           host that it comes to
                                                  starts a process that waits for images, and takes these at an
                                                  address, which the service passes on
    gateway and server are frozen and dumped
    images  ── TLS 1.3, both certificates ──>     the process goes on from them, and serves no epoch
                                           <──    "it runs here", or why it does not
    its process is ended, which acknowledges
    the move; or it goes on, and that is reported

The process that was left is the only one that counts until it is ended: what has come to the other host is served when
the service says so, at the epoch after that of the move, and is ended where it says something else. So the supervisor
of either host may die at each moment. Where that of the left host has died, its next one lets a frozen lease go on.
"""

import json
import logging
import shutil
import subprocess
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from host_agent.remote_gpu import checkpoint
from host_agent.remote_gpu.answer import LeaseMoveReport, ReceivedLease, SentLease, ServedLease
from host_agent.remote_gpu.link_files import LinkPaths
from host_agent.remote_gpu.processes import LeaseProcesses, LeaseProcessGoneError
from placement_traits.command_line import SAFE_FOLDER
from placement_traits.errors import LONGEST_TEXT, NumaExtError, ServiceUnavailableError, cut
from placement_traits.names import RemoteGpuApi, ServiceLevel

_LOG: Final = logging.getLogger(__name__)
_IMAGES: Final = ".images"
_MOVED: Final = ".moved"
_TRIED: Final = "tried-out"
_MIB: Final = 1 << 20
_MOST_IMAGES_MB: Final = 4096
"""Of a lease, beside the memory of its GPU: what its process has of its own."""


@dataclass(frozen=True, slots=True)
class MoveTools:
    """By what leases of this host move.

    :param criu: program
    :param link: program
    :param certificates: of this host
    :param address: of this host, at which images are taken
    :param around: what is run beside CRIU for the memory of a GPU
    """

    criu: Path
    link: Path
    certificates: LinkPaths
    address: str
    around: checkpoint.Around = checkpoint.NOTHING_AROUND

    def command(self, name: str, *words: str) -> list[str]:
        """Return a command line of the link, with the certificates."""
        files = self.certificates
        return [
            *(str(self.link), name, "-ca", str(files.ca), "-certificate", str(files.certificate)),
            *("-key", str(files.key), "-crl", str(files.crl), *words),
        ]


def try_out(
    processes: LeaseProcesses, folder: Path, tools: MoveTools, gpu: str, memory_mb: int
) -> None:
    """See that a lease of this host can be dumped and made again.

    :param processes: of leases, in a folder where nothing else is
    :param folder: that
    :param gpu: provider of one that is lent
    :param memory_mb: of the lease that is made for it, MiB
    :raises ServiceUnavailableError: it cannot
    """
    level, api = ServiceLevel.SCAVENGER.value, RemoteGpuApi.OPENCL.value
    lease = ServedLease(_TRIED, 1, gpu, memory_mb, level, api, 0)
    images = folder / f"{_TRIED}{_IMAGES}"
    try:
        processes.end(_TRIED)  # an earlier supervisor may have died while it tried
        remove_images(folder, _TRIED)
        images.mkdir(mode=0o700)
        processes.start(lease)
        frozen = processes.freeze(_TRIED)
        frozen.write(images)
        with processes.spaces(_TRIED) as spaces:
            checkpoint.dump(tools.criu, spaces, frozen, images, tools.around)
        processes.end(_TRIED)
        with processes.restoring(lease, images) as go_on:
            go_on()
        processes.serve(_TRIED, 1)
    finally:
        with suppress(ServiceUnavailableError):
            processes.end(_TRIED)
        remove_images(folder, _TRIED)


class _Move:
    """One move at this host. What it reports is written by its own thread."""

    def __init__(self, epoch: int, do: Callable[["_Move"], None]) -> None:
        self.report = LeaseMoveReport(epoch)
        self.ended = False
        self.child: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=do, args=(self,), name="move", daemon=True)

    def start(self) -> "_Move":
        """Begin."""
        self._thread.start()
        return self

    def runs(self) -> bool:
        """Whether it still does something."""
        return self._thread.is_alive()

    def tell(self, **what: Any) -> None:
        """Let it be reported."""
        self.report = replace(self.report, **what)

    def fail(self, why: object) -> None:
        """Let it be reported that it does not move."""
        self.tell(address="", why=cut(str(why) or type(why).__name__, LONGEST_TEXT))

    def stop(self) -> None:
        """Have it end as a failure: the one that it talks to has gone."""
        if self.child is not None:
            self.child.kill()


class HostMoves:
    """The moves of one host's leases; for one thread at a time.

    :param processes: of leases
    :param folder: of what is kept of them
    :param tools: None: leases move with nothing
    """

    def __init__(self, processes: LeaseProcesses, folder: Path, tools: MoveTools | None) -> None:
        self._processes, self._folder, self._tools = processes, folder, tools
        self._out: dict[tuple[str, int], _Move] = {}
        self._in: dict[tuple[str, int], _Move] = {}

    @property
    def possible(self) -> bool:
        """Leases can move with all that they have."""
        return self._tools is not None

    def obey(
        self,
        sends: Sequence[SentLease],
        receives: Sequence[ReceivedLease],
        served: Collection[str] = (),
    ) -> tuple[dict[str, LeaseMoveReport], dict[str, int]]:
        """Do what the service says; return what is done for each lease, and which have ended here, at which epoch.

        :param served: leases that this host is to serve: what is kept of others is removed
        """
        leaving = {(each.id, each.epoch): each for each in sends}
        coming = {(each.lease.id, each.lease.epoch): each for each in receives}
        for kept, asked in ((self._out, leaving), (self._in, coming)):
            for key in kept.keys() - asked.keys():
                kept[key].stop()
                if not kept[key].runs():
                    del kept[key]
        moving = {lease for lease, _epoch in (*leaving, *coming, *self._out, *self._in)}
        self._sweep({*moving, *served})
        for key, sent in leaving.items():
            self._leave(key, sent)
        for key, received in coming.items():
            self._come(key, received)
        moves = {**self._out, **self._in}
        asked_for = leaving.keys() | coming.keys()
        reports = {key[0]: each.report for key, each in moves.items() if key in asked_for}
        ended = {lease: epoch for (lease, epoch), each in self._out.items() if each.ended}
        for lease in ended:
            reports.pop(lease, None)
        return reports, ended

    def in_hand(self) -> frozenset[str]:
        """Return the leases that come or go: nothing else may start or end their processes."""
        return frozenset(
            lease for (lease, _), each in (*self._out.items(), *self._in.items()) if each.runs()
        )

    def settle(self, lease: str, epoch: int) -> bool:
        """Look whether what has come of a lease is what is to be served at an epoch; return whether it is to be ended.

        It is, where it came by a move after which the lease has had another epoch: the lease may have gone on
        elsewhere since.
        """
        try:
            came = json.loads((self._folder / f"{lease}{_MOVED}").read_text())
        except FileNotFoundError:
            return False
        return bool(came + 1 != epoch)

    def settled(self, lease: str) -> None:
        """Take note that what has come is served: from now on it is a process like others."""
        (self._folder / f"{lease}{_MOVED}").unlink(missing_ok=True)
        remove_images(self._folder, lease)

    def _sweep(self, known: Collection[str]) -> None:
        """Remove what an earlier supervisor has left of leases that are not of this host any more."""
        for suffix in (_IMAGES, _MOVED):
            for each in self._folder.glob(f"*{suffix}"):
                if each.stem not in known and each.stem not in self._processes.running():
                    remove_images(self._folder, each.stem)
                    (self._folder / f"{each.stem}{_MOVED}").unlink(missing_ok=True)

    # -- the host that it leaves ---------------------------------------------------------------------------------------

    def _leave(self, key: tuple[str, int], asked: SentLease) -> None:
        found = self._out.get(key)
        if found is not None:
            if asked.cancelled and found.runs():
                found.stop()
            return
        if asked.cancelled or asked.address:
            self._out[key] = _Move(asked.epoch, lambda move: self._sent(move, asked)).start()

    def _sent(self, move: _Move, asked: SentLease) -> None:
        lease = asked.id
        try:
            if self._recovered(lease):
                raise ServiceUnavailableError("The supervisor has ended while it moved.")
            if asked.cancelled:
                raise ServiceUnavailableError("It was cancelled.")
            if self._tools is None:
                raise ServiceUnavailableError("This host has no CRIU.")
            frozen = self._processes.freeze(lease)
            try:
                self._send(move, asked, frozen, self._tools)
            except (NumaExtError, OSError):
                self._goes_on(lease)
                raise
            self._processes.end(lease)
            remove_images(self._folder, lease)
            move.ended = True
        except LeaseProcessGoneError:
            move.ended = True
        except (NumaExtError, OSError) as error:
            _LOG.warning("lease %s does not move: %s", lease, error)
            move.fail(error)

    def _recovered(self, lease: str) -> bool:
        """Let a lease go on that an earlier supervisor has frozen; return whether there was one.

        :raises LeaseProcessGoneError: it could not go on, and was ended
        """
        if not self._processes.is_frozen(lease):
            return False
        self._goes_on(lease)
        return True

    def _send(
        self, move: _Move, asked: SentLease, frozen: checkpoint.Frozen, tools: MoveTools
    ) -> None:
        lease = asked.id
        folder = self._folder / f"{lease}{_IMAGES}"
        remove_images(self._folder, lease)
        folder.mkdir(mode=0o700)
        frozen.write(folder)
        with self._processes.spaces(lease) as spaces:
            checkpoint.dump(tools.criu, spaces, frozen, folder, tools.around)
        of_bytes = sum(each.stat().st_size for each in folder.iterdir())
        move.tell(of_mb=-(-of_bytes // _MIB))
        words = ("-lease", lease, "-epoch", str(asked.epoch), "-host", asked.to)
        rest = ("-folder", str(folder), "-to", asked.address, "-mbps", str(asked.network_mbps))
        with self._child(move, tools.command("send", *words, *rest)) as child:
            for line in child.stdout or ():
                move.tell(sent_mb=json.loads(line)["sent"] // _MIB)
            reported = _last_words(child)
        if child.returncode:
            raise ServiceUnavailableError(reported)

    def _goes_on(self, lease: str) -> None:
        """Let a lease go on here, or end it where that could be wrong.

        :raises LeaseProcessGoneError: it was ended
        """
        folder = self._folder / f"{lease}{_IMAGES}"
        if not checkpoint.goes_on(folder):
            _LOG.error("lease %s: CRIU was killed while it dumped it; the lease is ended", lease)
            self._processes.end(lease)
            remove_images(self._folder, lease)
            raise LeaseProcessGoneError(lease, 0)
        self._processes.thaw(lease)
        if self._tools is not None and checkpoint.was_dumped(folder):
            with self._processes.spaces(lease) as spaces:
                checkpoint.resume(spaces, checkpoint.Frozen.read(folder), self._tools.around)
        remove_images(self._folder, lease)

    # -- the host that it comes to -------------------------------------------------------------------------------------

    def _come(self, key: tuple[str, int], asked: ReceivedLease) -> None:
        if key not in self._in:
            self._in[key] = _Move(key[1], lambda move: self._received(move, asked)).start()

    def _received(self, move: _Move, asked: ReceivedLease) -> None:
        lease, epoch = asked.lease.id, asked.lease.epoch
        try:
            if self._tools is None:
                raise ServiceUnavailableError("This host has no CRIU.")
            if lease in self._processes.running():
                if self._has_come(lease) and not self.settle(lease, epoch + 1):
                    move.tell(address=self._tools.address)
                    return  # it has come, and an earlier supervisor has reported it
                self._processes.end(lease)
            folder = self._folder / f"{lease}{_IMAGES}"
            remove_images(self._folder, lease)
            (self._folder / f"{lease}{_MOVED}").unlink(missing_ok=True)
            folder.mkdir(mode=0o700)
            self._receive(move, asked, folder, self._tools)
        except (NumaExtError, OSError) as error:
            _LOG.warning("lease %s does not come here: %s", lease, error)
            remove_images(self._folder, lease)
            move.fail(error)

    def _receive(self, move: _Move, asked: ReceivedLease, folder: Path, tools: MoveTools) -> None:
        lease, epoch = asked.lease.id, asked.lease.epoch
        most = (_MOST_IMAGES_MB + asked.lease.memory_mb) * _MIB
        words = ("-lease", lease, "-epoch", str(epoch), "-host", asked.source)
        rest = ("-folder", str(folder), "-listen", f"{tools.address}:0", "-most-bytes", str(most))
        with (
            self._processes.restoring(asked.lease, folder) as go_on,
            self._child(move, tools.command("receive", *words, *rest)) as child,
        ):
            if child.stdout is None or child.stdin is None:
                raise ServiceUnavailableError("The link has no end.")
            for line in child.stdout:
                reported = json.loads(line)
                if "address" in reported:
                    move.tell(address=reported["address"])
                elif reported.get("received"):
                    why = self._restored(asked, go_on)
                    child.stdin.write(json.dumps(why) + "\n")
                    child.stdin.flush()
            reported = _last_words(child)
        if child.returncode and not self._has_come(lease):
            raise ServiceUnavailableError(reported)
        # Where it has come, and the link broke then, only the other host knows whether it has heard of that.

    def _has_come(self, lease: str) -> bool:
        return (self._folder / f"{lease}{_MOVED}").exists()

    def _restored(self, asked: ReceivedLease, go_on: Callable[[], None]) -> str:
        """Have a lease go on from its images; return why it does not, '' where it does."""
        try:
            go_on()
            (self._folder / f"{asked.lease.id}{_MOVED}").write_text(json.dumps(asked.lease.epoch))
        except (NumaExtError, OSError) as error:
            with suppress(ServiceUnavailableError):
                self._processes.end(asked.lease.id)
            return cut(str(error), LONGEST_TEXT)
        remove_images(self._folder, asked.lease.id)
        return ""

    def _child(self, move: _Move, command: Sequence[str]) -> subprocess.Popen[str]:
        move.child = child = subprocess.Popen(
            command,
            cwd=SAFE_FOLDER,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return child


def _last_words(child: subprocess.Popen[str]) -> str:
    """Return what a child that has closed its output says why, when it has ended."""
    reported = "" if child.stderr is None else child.stderr.read().strip()
    child.wait()
    return reported or "The link has ended."


def remove_images(folder: Path, lease: str) -> None:
    """Remove the images of a lease, if there are some."""
    with suppress(FileNotFoundError):
        shutil.rmtree(folder / f"{lease}{_IMAGES}")
