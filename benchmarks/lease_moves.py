# SPDX-License-Identifier: Apache-2.0
"""How long a program of OpenCL waits while its lease goes to another host, with all that its process has.

Two folders of one machine stand for two hosts that lend GPUs, Unix sockets for vsock, the processor for a GPU, and this
process for the job service, which answers at once; hosts ask it as often as they do while something moves
(:data:`~host_agent.remote_gpu.turns.HURRY_S`), each at times of its own. CRIU, namespaces, control groups, TLS and
``pocld`` are real ones.
"""

import json
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.link_certificates import write_certificates
from host_agent.remote_gpu.answer import (
    EndedLease,
    LeaseAnswer,
    ReceivedLease,
    SentLease,
    ServedLease,
)
from host_agent.remote_gpu.gpu_host import GpuHost
from host_agent.remote_gpu.groups import LeaseGroups, own_group
from host_agent.remote_gpu.lease_process import Ports
from host_agent.remote_gpu.link_files import LinkFiles, LinkPaths
from host_agent.remote_gpu.moves import HostMoves, MoveTools
from host_agent.remote_gpu.processes import LeaseCommand, LeaseProcesses
from host_agent.remote_gpu.turns import HURRY_S
from placement_traits.errors import NumaExtError

MIBS: Final = (4, 64, 256)
LEASE: Final = "00000000-0000-4000-8000-000000000019"
SLICE_MIB: Final = 600
CID: Final = 3
_COMPUTE, _GPUS = "compute1", ("gpu1", "gpu2")
_LONG_S: Final = 120.0
_WORKS_S: Final = 5.0  # and what so many MiB take
_MIB_PER_S: Final = 50.0
_START_FIELD: Final = 19  # of /proc/PID/stat, after the name

Program = Callable[..., subprocess.Popen[str]]
"""Port of the guest, words of ``numa-rgpu-bench`` -> it, started."""


class UnmovedError(NumaExtError):
    """A lease has not moved, so that there is nothing to time."""


def goal_s(mib: int) -> float:
    """Return how long a program that computes on so many MiB is to wait at most, seconds."""
    return 1.0 + 0.006 * mib


class MovingLease:
    """A lease that goes from one of two hosts to the other, and back.

    :param folder: short, as sockets are in it
    :param link: program
    :param criu: program
    :param files: of the transport ``pocl``: ``program`` and ``layer``
    :ivar port: in the guest
    """

    def __init__(self, folder: Path, link: Path, criu: Path, files: Mapping[str, Path]) -> None:
        self._folder, self._link, self._criu = folder, link, criu
        self._epoch, self._at = 1, 0
        # Debian's device on the processor asks there how much memory there is.
        lines = [f"{name} = {json.dumps(str(path))}" for name, path in files.items()]
        (folder / "pocl.toml").write_text("\n".join([*lines, 'paths = ["/sys/devices/system"]']))
        self._options, _ = write_certificates(folder, _COMPUTE, *_GPUS)
        self._hosts = [self._host(name) for name in _GPUS]
        self.port = 0

    def _host(self, name: str) -> GpuHost:
        run = self._folder / name
        files = (f"{name}.pem", f"{name}.key", "ca.pem", "none")
        paths = LinkPaths(*(self._folder / each for each in files))
        command = LeaseCommand(
            *("pocl", self._folder, "127.0.0.1", {"gpu": "gpu"}), link=self._link, criu=self._criu
        )
        groups = LeaseGroups(run, own_group())
        processes = LeaseProcesses(run, command, groups, LinkFiles(paths))
        tools = MoveTools(self._criu, self._link, paths, "127.0.0.1")
        return GpuHost(processes, run / "epochs.json", HostMoves(processes, run, tools))

    @contextmanager
    def served(self, running: Callable[..., Any]) -> Iterator[None]:
        """Have it served until the end of the block, and the guest reach it.

        :param running: program and words -> context in which it runs
        """
        program, door = self._link, self._folder / "door"
        with ExitStack() as open_:
            self.port = open_.enter_context(Ports(2))[0]
            open_.callback(self._end)
            self._serve()
            words = ("-listen", f"unix:{door}", "-attachments", self._folder / "attachments.json")
            open_.enter_context(running(program, "doorman", *words, *self._options))
            open_.enter_context(running(program, "guest", "-doorman", f"unix:{door}#{CID}"))
            yield

    def move(self) -> None:
        """Have it go to the other host, and the guest reach it there.

        :raises UnmovedError: it does not
        """
        source, destination = self._hosts[self._at], self._hosts[1 - self._at]
        self._epoch += 1
        comes = LeaseAnswer(receives=(ReceivedLease(self._asked(""), _GPUS[self._at]),))
        address, until_s = "", time.monotonic() + _LONG_S
        ended: Mapping[str, int] = {}
        while LEASE not in ended:
            destination.obey(comes)
            come = destination.moving.get(LEASE)
            address = address or (come.address if come else "")
            goes = SentLease(LEASE, self._epoch, _GPUS[1 - self._at], address)
            ended = source.obey(LeaseAnswer(sends=(goes,)))[1]
            gone = source.moving.get(LEASE)
            why = next((each.why for each in (come, gone) if each and each.why), "")
            if time.monotonic() > until_s or (why and LEASE not in ended):
                raise UnmovedError(f"The lease does not move: {why or 'it lasts too long'}")
            if LEASE not in ended:
                time.sleep(HURRY_S)
        self._epoch += 1
        self._at = 1 - self._at
        time.sleep(random.uniform(0, HURRY_S))  # until the other host asks
        self._serve()
        source.obey(LeaseAnswer())

    def _asked(self, client: str) -> ServedLease:
        return ServedLease(LEASE, self._epoch, "gpu", SLICE_MIB, "silver", "opencl", 0, client)

    def _serve(self) -> None:
        """Have the host that it is at serve it, and the doorman know of that."""
        asked, host = LeaseAnswer(serves=(self._asked(_COMPUTE),)), self._hosts[self._at]
        until_s = time.monotonic() + _LONG_S
        serves, _ended = host.obey(asked)
        while LEASE not in serves:
            if time.monotonic() > until_s:
                raise UnmovedError(f"{_GPUS[self._at]} does not serve the lease.")
            time.sleep(HURRY_S)
            serves, _ended = host.obey(asked)
        time.sleep(random.uniform(0, HURRY_S))  # until the compute host asks
        stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        attachment = {
            "lease": LEASE,
            "epoch": self._epoch,
            "cid": CID,
            "pid": os.getpid(),
            "started": int(stat[_START_FIELD]),
            "host": _GPUS[self._at],
            "address": serves[LEASE][1],
            "mbps": 0,
            "port": self.port,
            "ports": 2,
        }
        file = self._folder / "attachments.json"
        file.with_suffix(".draft").write_text(json.dumps({"attachments": [attachment]}))
        file.with_suffix(".draft").replace(file)

    def _end(self) -> None:
        for host in self._hosts:
            host.obey(LeaseAnswer(ends=(EndedLease(LEASE, self._epoch + 1),)))


@contextmanager
def a_moving_lease(
    link: Path, criu: Path, files: Mapping[str, Path], running: Callable[..., Any]
) -> Iterator[MovingLease]:
    """Yield a lease that is served, until the end of the block.

    :raises CapabilityMissingError: this machine gives no control groups
    """
    with tempfile.TemporaryDirectory() as name:
        made = MovingLease(Path(name), link, criu, files)
        with made.served(running):
            yield made


def waited_s(lease: MovingLease, start: Program, mib: int) -> tuple[float, int]:
    """Return the longest round of a program while its lease moves once, seconds, and how the program has ended.

    :param mib: that it computes on; a round of it without a move is part of that time
    :raises UnmovedError: the lease does not move
    """
    program = start(lease.port, "-t", _WORKS_S + mib / _MIB_PER_S, "-m", mib)
    assert program.stdout is not None
    program.stdout.readline()  # its first round is done
    lease.move()
    moved_within = program.poll() is None
    said, _ = program.communicate(timeout=_LONG_S)
    if program.returncode == 0 and not moved_within:
        raise UnmovedError("The program had ended before its lease had moved.")
    return (json.loads(said)["worst_s"] if said else float("inf")), program.returncode
