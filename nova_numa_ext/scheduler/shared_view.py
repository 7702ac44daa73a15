# SPDX-License-Identifier: Apache-2.0
"""One view of Placement for all workers of nova-scheduler on a controller.

One process reads, :mod:`nova_numa_ext.view_reader`, and keeps a file that all workers map. It holds a lock on a file
beside it, from its start to its end, and it ends with the worker that started it. Each worker looks once a second
whether the lock is free; the first that finds it so starts the next reader::

    worker 1 ── starts, holds its stdin ──> reader ── GET ──> Placement
    worker 2                                 │ holds view-….lock
    worker 3                                 └─ writes view-….fleet
       └─ all map view-….fleet, look at its inode at each request

The names hold the format of the file, and a hash of the endpoint, the region and the settings: two releases or two
clouds on one host do not meet. Workers that do not share the folder, such as containers without a common volume, have
a reader each.

Nothing runs before the first snapshot is asked for: nova-scheduler forks its workers before that.
"""

import fcntl
import hashlib
import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

from oslo_config import cfg

from nova_numa_ext import endpoints, metrics
from placement_traits.boot_clock import boot_time_s
from placement_traits.command_line import module
from placement_traits.errors import NumaExtError
from placement_traits.fleet_arrays import FleetArrays
from placement_traits.snapshot import FleetSnapshot
from placement_traits.snapshot_file import FORMAT, MappedSnapshot, inode_of
from placement_traits.view import Freshness, ViewSettings

LOG = logging.getLogger(__name__)

_LOOK_S: Final = 1.0
_WAIT_STEP_S: Final = 0.02
_UNUSED_AFTER_S: Final = 3600.0
_LONGEST_PAUSE_S: Final = 60.0
# While it imports, or takes a large fleet apart, a reader beats late.
_LOOKS_WITHOUT_BEAT: Final = 30
_READER: Final = "nova_numa_ext.view_reader"
_ENDPOINT: Final = (
    "auth_url",
    "endpoint",
    "endpoint_override",
    "region_name",
    "service_type",
    "valid_interfaces",
)
_NO_HOSTS: Final = FleetArrays.of(())

Readers: TypeAlias = Callable[[int], "subprocess.Popen[bytes]"]


class SharedView:
    """What one worker knows of the controller's view.

    :param stem: path of the files without ``.lock`` and ``.fleet``; the folder is there
    :param settings: how the view is kept
    :param readers: starts a reader that inherits the locked file, has a pipe as its standard input, and beats into the
        one that is its standard output, if it has one
    :param clock: seconds since the boot; injected by tests
    """

    def __init__(
        self,
        stem: Path,
        settings: ViewSettings,
        readers: Readers,
        clock: Callable[[], float] = boot_time_s,
    ) -> None:
        self._lock_path, self._path = lock_path(stem), snapshot_path(stem)
        self._settings = settings
        self._readers = readers
        self._clock = clock
        self._freshness = Freshness(settings.max_age_s)
        self._inode: tuple[int, int] | None = None
        self._mapped: MappedSnapshot | None = None
        self._mapping = threading.Lock()
        self._beginning = threading.Lock()
        self._guard: threading.Thread | None = None
        self._stopping = threading.Event()
        self._reader: subprocess.Popen[bytes] | None = None
        self._failures = 0
        self._not_before_s = 0.0
        self._led_at_s = 0.0
        self._silent_looks = 0
        self._wait_until_s = 0.0

    # For decisions --------------------------------------------------------------------------------------------------

    def snapshot(self) -> FleetSnapshot:
        """Return the fleet as last read on this controller.

        Waits only while there is nothing to show, and only in the first ``wait_s`` seconds.
        """
        self.start()
        mapped = self._newest()
        if mapped is None:
            mapped = self._wait()
        if mapped is None:
            state = self._freshness.state(float("inf"), None, self._whose_error)
            return FleetSnapshot(_NO_HOSTS, float("inf"), state)
        age_s = self._clock() - mapped.read_at_s
        state = self._freshness.state(age_s, len(mapped.arrays.hosts), self._whose_error)
        return FleetSnapshot(mapped.arrays, age_s, state, mapped.version)

    @property
    def _whose_error(self) -> str:
        return "the reader writes it to nova-scheduler's standard error"

    def _wait(self) -> MappedSnapshot | None:
        while time.monotonic() < self._wait_until_s:
            time.sleep(_WAIT_STEP_S)
            mapped = self._newest()
            if mapped is not None:
                return mapped
        return None

    def _newest(self) -> MappedSnapshot | None:
        """Map the file again where it is another one; None where there is none that can be used."""
        try:
            inode = inode_of(self._path.stat())
        except OSError:
            return self._mapped
        if inode != self._inode:
            with self._mapping:
                if inode != self._inode:
                    self._map(inode)
        return self._mapped

    def _map(self, inode: tuple[int, int]) -> None:
        try:
            mapped = MappedSnapshot(self._path)
        except FileNotFoundError:
            return
        except (OSError, NumaExtError) as error:
            LOG.warning("The view of Placement is empty: %s", error)
            self._mapped, self._inode = None, inode
            return
        self._mapped, self._inode = mapped, mapped.inode

    # Leading --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start to look after the lock, in this process; does nothing when that runs already."""
        if self._guard is not None and self._guard.is_alive():
            return
        with self._beginning:
            if self._stopping.is_set() or (self._guard is not None and self._guard.is_alive()):
                return
            self._wait_until_s = time.monotonic() + self._settings.wait_s
            self._lead()
            self._guard = threading.Thread(target=self._watch, name="numa-ext-view", daemon=True)
            self._guard.start()

    def _watch(self) -> None:
        while not self._stopping.wait(_LOOK_S):
            self._lead()

    def _lead(self) -> None:
        """Start a reader where none holds the lock."""
        if self._reader is not None:
            if self._reader.poll() is None and not self._hangs(self._reader):
                return
            self._ended(self._reader)
        if self._clock() < self._not_before_s:
            return
        try:
            self._take_over()
        except OSError as error:
            self._later("No reader of Placement can be started on this controller: %s", error)

    def _hangs(self, reader: "subprocess.Popen[bytes]") -> bool:
        """Return whether the reader has not beaten for so many looks; then it is killed, stopped as it may be."""
        if reader.stdout is None or _has_output(reader.stdout.fileno()):
            self._silent_looks = 0
            return False
        self._silent_looks += 1
        if self._silent_looks <= _LOOKS_WITHOUT_BEAT:
            return False
        LOG.error("The reader of Placement, process %d, hangs and is killed.", reader.pid)
        reader.kill()
        return True

    def _take_over(self) -> None:
        lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if inode_of(os.fstat(lock)) != inode_of(self._lock_path.stat()):
                return  # removed meanwhile, as not used: the next look makes another one
            self._reader = self._readers(lock)
            self._led_at_s, self._silent_looks = self._clock(), 0
            _remove_unused(self._path.parent)
            metrics.remove_ended(self._path.parent)
            LOG.info("This worker's reader %d reads Placement for all here.", self._reader.pid)
        except BlockingIOError:
            self._failures = 0  # another worker's reader reads
        finally:
            os.close(lock)  # the reader has its own

    def _ended(self, reader: "subprocess.Popen[bytes]") -> None:
        self._reader = None
        self._close(reader)
        if self._clock() - self._led_at_s > _LONGEST_PAUSE_S:
            self._failures = 0
        self._later(
            "The reader of Placement on this controller has ended with %s", reader.returncode
        )

    def _later(self, sentence: str, detail: object) -> None:
        """Wait longer from failure to failure: what keeps a reader from living is not mended in a second."""
        self._not_before_s = self._clock() + min(_LONGEST_PAUSE_S, _LOOK_S * 2.0**self._failures)
        self._failures += 1
        LOG.error(sentence, detail)

    def stop(self) -> None:
        """End the looking, and the reader where it is this worker's."""
        self._stopping.set()
        if self._guard is not None:
            self._guard.join()
        if self._reader is not None:
            self._close(self._reader)

    @staticmethod
    def _close(reader: "subprocess.Popen[bytes]") -> None:
        if reader.stdin is not None:
            reader.stdin.close()
        reader.wait()
        if reader.stdout is not None:
            reader.stdout.close()


def _has_output(pipe: int) -> bool:
    """Return whether something was written into a pipe since the last time."""
    os.set_blocking(pipe, False)
    try:
        return bool(os.read(pipe, 4096))
    except BlockingIOError:
        return False


def _remove_unused(folder: Path) -> None:
    """Remove files of other clouds, settings and releases that no reader has kept for a while."""
    for lock_file in folder.glob("view-*.lock"):
        snapshots = [*folder.glob(f"{lock_file.stem}.fleet*")]
        with suppress(OSError):  # in use, or not ours to remove
            descriptor = os.open(lock_file, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                youngest_s = max(path.stat().st_mtime for path in (lock_file, *snapshots))
                if time.time() - youngest_s > _UNUSED_AFTER_S:
                    for path in (*snapshots, lock_file):
                        path.unlink()
            finally:
                os.close(descriptor)


def stem(conf: cfg.ConfigOpts, folder: Path, settings: ViewSettings) -> Path:
    """Return the path of the files of this cloud, release and configuration, without their endings.

    :param conf: nova's, with the options of the authentication plug-in, as
        :func:`nova_numa_ext.endpoints.placement` leaves it
    """
    section = conf[endpoints.SECTION]
    what: list[Any] = [settings]
    for name in _ENDPOINT:
        try:
            what.append(section[name])
        except cfg.NoSuchOptError:  # of another authentication plug-in than this one's
            what.append(None)
    digest = hashlib.sha256(repr(what).encode()).hexdigest()
    return folder / f"view-{FORMAT:08x}-{digest[:12]}"


def lock_path(stem: Path) -> Path:
    """Return the file whose lock the reader holds."""
    return stem.with_name(f"{stem.name}.lock")


def snapshot_path(stem: Path) -> Path:
    """Return the file that the reader keeps."""
    return stem.with_name(f"{stem.name}.fleet")


def start_reader(conf: cfg.ConfigOpts, stem: Path, lock: int) -> "subprocess.Popen[bytes]":
    """Start a reader that reads the same configuration files.

    :param stem: of :func:`stem`
    :param lock: descriptor of the locked file
    :raises OSError: it cannot be started
    """
    files = [word for file in conf.config_file or () for word in ("--config-file", str(file))]
    folders = [word for each in conf.config_dir or () for word in ("--config-dir", str(each))]
    return subprocess.Popen(
        module(_READER, *files, *folders, str(snapshot_path(stem))),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=(lock,),
    )
