# SPDX-License-Identifier: Apache-2.0
"""Serve the resctrl model as a file tree: ``python -m emulation.kernel.fuse MOUNTPOINT``.

Programs that know nothing of the model (libvirt, pqos, the agent as installed) can be pointed at it, best in a mount
namespace of their own. It runs in the foreground until it is unmounted, and serves the threads of this host. What FUSE
cannot do: a write of zero bytes never reaches the server (the kernel's resctrl answers EINVAL).
"""

import argparse
import errno
import os
import stat
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from emulation.kernel.profiles import LINUX_6_12, PROFILES
from emulation.kernel.resctrl import ResctrlModel
from emulation.kernel.shape import AMD, INTEL
from emulation.kernel.threads import ProcThreads, cpu_time_demand

# mfusepy prefers libfuse 2 where both are installed; its struct layouts are checked against 3 here.
os.environ.setdefault("FUSE_LIBRARY_NAME", "fuse3")
import mfusepy

FAULT: Final = "user.fault"  # extended attribute of a group's folder: what its counters read instead of numbers


class ResctrlTree(mfusepy.Operations):  # type: ignore[misc]
    """The model as FUSE operations; one thread, so the model sees one command at a time."""

    use_ns = True

    def __init__(self, model: ResctrlModel) -> None:
        self._model = model
        self._texts: dict[int, bytes] = {}
        self._opened = 0

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        """Directories are 0755, files 0644 or 0444, all of size 0 as in kernfs."""
        if _answer(self._model.is_directory, path):
            return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2, "st_size": 0}
        mode = 0o644 if self._model.writable(path) else 0o444
        return {"st_mode": stat.S_IFREG | mode, "st_nlink": 1, "st_size": 0}

    def readdir(self, path: str, fh: int) -> list[str]:
        """List a directory."""
        return [".", "..", *_answer(self._model.listdir, path)]

    def mkdir(self, path: str, mode: int) -> int:
        """Create a group."""
        _answer(self._model.mkdir, path)
        return 0

    def rmdir(self, path: str) -> int:
        """Remove a group."""
        _answer(self._model.rmdir, path)
        return 0

    def open(self, path: str, fi: Any) -> int:
        """Open a file; ``direct_io`` because its size is 0."""
        if fi.flags & os.O_ACCMODE != os.O_RDONLY and not self._model.writable(path):
            raise mfusepy.FuseOSError(errno.EACCES)
        self._opened += 1
        fi.fh, fi.direct_io = self._opened, 1
        return 0

    def read(self, path: str, size: int, offset: int, fi: Any) -> bytes:
        """Read; the text is made at the first read, so that longer ones stay consistent."""
        if offset == 0:
            self._texts[fi.fh] = _answer(self._model.read, path).encode()
        return self._texts.get(fi.fh, b"")[offset : offset + size]

    def write(self, path: str, data: bytes, offset: int, fi: Any) -> int:
        """Take one command."""
        writer = mfusepy.fuse_get_context()[2]
        _answer(self._model.write, path, data.decode(), writer)
        return len(data)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        """Let ``>`` of a shell pass."""
        return 0

    def release(self, path: str, fi: Any) -> int:
        """Forget what was read."""
        self._texts.pop(fi.fh, None)
        return 0

    def setxattr(self, path: str, name: str, value: bytes, options: int, position: int = 0) -> int:
        """Make the counters of a group unreadable: attribute :data:`FAULT` of its folder, "" heals them."""
        if name != FAULT:
            raise mfusepy.FuseOSError(errno.EOPNOTSUPP)
        before, monitors, last = path.strip("/").rpartition("mon_groups/")
        group, monitor = (before.rstrip("/"), last) if monitors else (last, "")
        try:
            self._model.set_fault(group, monitor, value.decode())
        except KeyError as error:
            raise mfusepy.FuseOSError(errno.ENOENT) from error
        return 0

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        """No files can be made here."""
        raise mfusepy.FuseOSError(errno.EPERM)


def _answer(operation: Any, *arguments: Any) -> Any:
    try:
        return operation(*arguments)
    except OSError as error:
        raise mfusepy.FuseOSError(error.errno) from error


def serve(model: ResctrlModel, mountpoint: str) -> None:
    """Mount the model and serve it until it is unmounted."""
    mfusepy.FUSE(
        ResctrlTree(model),
        mountpoint,
        foreground=True,
        raw_fi=True,
        nothreads=True,
        fsname="resctrl",
        subtype="resctrl",
        allow_other=True,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Mount and serve until unmounted."""
    parser = argparse.ArgumentParser(
        prog="resctrl_fuse", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("mountpoint")
    parser.add_argument("--profile", choices=sorted(PROFILES), default=LINUX_6_12.version)
    parser.add_argument("--domains", default="0", help="comma-separated L3 domain ids")
    parser.add_argument("--cpus", type=int, default=os.cpu_count(), help="number of CPUs")
    parser.add_argument("--closids", type=int, default=8)
    parser.add_argument("--rmids", type=int, default=32)
    parser.add_argument("--cbm-len", type=int, default=12)
    parser.add_argument(
        "--shareable", type=lambda text: int(text, 16), default=0xC00, help="hexadecimal"
    )
    parser.add_argument("--no-mba", action="store_true")
    parser.add_argument("--cdp", action="store_true")
    parser.add_argument("--cdpl2", action="store_true")
    parser.add_argument("--mba-mbps", action="store_true")
    parser.add_argument(
        "--l2-len", type=int, default=0, help="ways of an L2 cache per CPU; 0: none"
    )
    parser.add_argument("--amd", action="store_true", help="masks with holes, absolute bandwidth")
    parser.add_argument("--limbo", type=float, default=0.0, help="seconds an RMID stays in limbo")
    parser.add_argument("--demand", type=float, default=4e9, help="bytes per second of CPU time")
    parser.add_argument("--local", type=float, default=0.8, help="share of local traffic")
    given = parser.parse_args(arguments)
    domains = tuple(int(domain) for domain in given.domains.split(","))
    shape = replace(
        AMD if given.amd else INTEL,
        domains=domains,
        cbm_len=given.cbm_len,
        shareable=given.shareable,
        closids=given.closids,
        rmids=given.rmids,
        cpus=frozenset(range(given.cpus)),
        mba=not given.no_mba,
        cdp=given.cdp,
        cdpl2=given.cdpl2,
        mba_mbps=given.mba_mbps,
        l2_len=given.l2_len,
        l2_domains=tuple(range(given.cpus)) if given.l2_len else (),
    )
    model = ResctrlModel(
        shape,
        PROFILES[given.profile],
        threads=ProcThreads(),
        demand=cpu_time_demand(given.demand, given.local, len(domains)),
        limbo_s=given.limbo,
    )
    serve(model, given.mountpoint)
    return 0


if __name__ == "__main__":
    sys.exit(main())
