# SPDX-License-Identifier: Apache-2.0
"""The Linux that emulated hosts boot: Debian's own kernel image and a small initramfs of ours.

The kernel is downloaded and unpacked into the cache, never installed. The initramfs holds busybox, our ``guest/init``
and the few modules that are needed before a root file system is there, already decompressed, because decompressing
under emulation takes longer than loading.
"""

import hashlib
import lzma
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from . import debian_archive, packages
from .errors import LabError
from .process import run_logged
from .settings import Settings
from .terminal import Progress

DEFAULT_SERIES = "6.12"
PACKAGES = ("busybox-static", "kmod")

Files = dict[str, tuple[int, bytes]]
"""Path -> permissions, content."""

SMALL_LINUX: Final = "console=ttyS0 panic=1 quiet no_timer_check"
"""Command line of a small Linux."""

_BUSYBOX = Path("/bin/busybox")

# Each brings what it depends on; a module that this kernel has built in is left out. crc32c comes first, because
# nf_tables looks for it by the name of the algorithm, which modules.dep does not know.
BOOT_MODULES = (
    "crc32c_generic",
    "virtio_pci",
    "virtio_net",
    "virtio_rng",
    "virtio_blk",
    "erofs",
    "9p",
    "9pnet_virtio",
    "overlay",
    "nf_tables",
    "nft_chain_nat",
    "nft_nat",
    "msr",
    "qemu_fw_cfg",
    "irqbypass",
    "vfio_iommu_type1",
    "vfio_pci",
)


@dataclass(frozen=True, slots=True)
class Kernel:
    """An unpacked Debian kernel.

    :param release: what ``uname -r`` says in it ("6.12.117+deb12-amd64").
    :param folder: the unpacked package, with ``boot`` and ``lib/modules``.
    """

    release: str
    folder: Path

    @property
    def image(self) -> Path:
        return self.folder / "boot" / f"vmlinuz-{self.release}"

    @property
    def modules(self) -> Path:
        return self.folder / "lib" / "modules" / self.release


def provide(settings: Settings, progress: Progress, series: str = DEFAULT_SERIES) -> Kernel:
    """The newest kernel of a series ("6.12", "6.1") that the archive or the cache has.

    :raises LabError: neither has one, or it could not be downloaded.
    """
    packages.ensure(settings, progress, PACKAGES)
    log = settings.log / "kernel.log"
    name = newest_package(series)
    if name is None:
        debian_archive.update(log)
        name = newest_package(series)
    cached = _cached(settings.cache / "kernel", series)
    if name is None and not cached:
        raise LabError(f"the Debian archive has no package linux-image-{series}*-amd64", log)
    kept = settings.cache / "kernel" / (name or cached[-1])
    if not kept.exists():
        with progress.step(f"downloading {kept.name}", log):
            _unpack(kept, log)
    release = kept.name.removeprefix("linux-image-")
    return Kernel(release, kept)


def newest_package(series: str) -> str | None:
    """Name of the newest ordinary kernel package of a series; None if apt knows none."""
    versions = debian_archive.candidate_versions(package_pattern(series))
    if not versions:
        return None
    newest = debian_archive.newer(list(versions.values()))
    return next(name for name, version in versions.items() if version == newest)


def package_pattern(series: str) -> str:
    """Regular expression of the kernel packages of a series, without its cloud and real-time flavours."""
    return rf"linux-image-{re.escape(series)}\.[0-9]+(-[0-9]+|\+deb[0-9]+)-amd64"


def _cached(folder: Path, series: str) -> list[str]:
    if not folder.is_dir():
        return []
    pattern = re.compile(package_pattern(series))
    return sorted(entry.name for entry in folder.iterdir() if pattern.fullmatch(entry.name))


def _unpack(kept: Path, log: Path) -> None:
    draft = kept.with_name(kept.name + ".new")
    shutil.rmtree(draft, ignore_errors=True)
    debian_archive.unpack_package(kept.name, draft, log)
    release = kept.name.removeprefix("linux-image-")
    run_logged("depmod", ["depmod", "--basedir", draft, release], log)
    draft.rename(kept)


def initramfs(settings: Settings, kernel: Kernel) -> Path:
    """The initramfs for ``kernel``, from the cache or made now (well under a second).

    :raises LabError: the kernel lacks a module that is needed.
    """
    guest = settings.source / "guest"
    busybox = _BUSYBOX.read_bytes()
    paths = load_order(
        (kernel.modules / "modules.dep").read_text(),
        (kernel.modules / "modules.builtin").read_text(),
        BOOT_MODULES,
    )
    files: Files = {
        "init": (0o755, (guest / "init").read_bytes()),
        "fork_server.py": (0o644, (guest / "fork_server.py").read_bytes()),
        "bin/busybox": (0o755, busybox),
        "modules/order": (0o644, "".join(f"{_module_file(p)}\n" for p in paths).encode()),
    }
    digest = hashlib.sha256(kernel.release.encode())
    for _, content in files.values():
        digest.update(content)
    made = settings.cache / "initramfs" / f"{kernel.release}-{digest.hexdigest()[:16]}.cpio"
    if made.exists():
        return made
    for path in paths:
        files[f"modules/{_module_file(path)}"] = (0o644, _decompressed(kernel.modules / path))
    made.parent.mkdir(parents=True, exist_ok=True)
    draft = made.with_suffix(".new")
    draft.write_bytes(cpio_archive(files))
    draft.replace(made)
    return made


def small_linux(
    found: Kernel, init: str, modules: Iterable[str], files: Mapping[str, tuple[int, bytes]]
) -> bytes:
    """An initramfs that is all of a small Linux: busybox of this machine, and modules.

    These are in ``/modules``, and ``/modules/order`` says which comes after which.

    :param init: what it does, a script for ``/bin/busybox sh``
    :param modules: their names, to which what they need is added
    :param files: more of them: path -> permissions, content
    """
    order = load_order(
        (found.modules / "modules.dep").read_text(),
        (found.modules / "modules.builtin").read_text(),
        modules,
    )
    every: Files = {
        "init": (0o755, init.encode()),
        "bin/busybox": (0o755, _BUSYBOX.read_bytes()),
        "modules/order": (0o644, "".join(f"{Path(path).stem}.ko\n" for path in order).encode()),
        **files,
    }
    for path in order:
        every[f"modules/{Path(path).stem}.ko"] = (0o644, _decompressed(found.modules / path))
    return cpio_archive(every)


def load_order(dependencies: str, builtin: str, required: Iterable[str]) -> list[str]:
    """Paths of modules so that each comes after what it needs.

    :param dependencies: text of ``modules.dep``: ``path: path path …`` per line.
    :param builtin: text of ``modules.builtin``: one path per line.
    :param required: names of modules.
    :raises LabError: a required module is neither in the one nor in the other.
    """
    needs: dict[str, list[str]] = {}
    for line in dependencies.splitlines():
        path, _, rest = line.partition(":")
        needs[path] = rest.split()
    by_name = {_module_name(path): path for path in needs}
    built_in = {_module_name(path) for path in builtin.split()}
    order: list[str] = []

    def add(path: str) -> None:
        if path not in order:
            for needed in needs[path]:
                add(needed)
            order.append(path)

    for name in map(_module_name, required):
        if name in by_name:
            add(by_name[name])
        elif name not in built_in:
            raise LabError(f"the kernel has no module {name}, which emulated hosts need")
    return order


def cpio_archive(files: Mapping[str, tuple[int, bytes]]) -> bytes:
    """A cpio archive of the kind the kernel unpacks ("newc").

    :param files: path -> (permissions, content); folders above them are added.
    """
    folders = sorted({str(parent) for path in files for parent in Path(path).parents} - {"."})
    entries = [
        _cpio_entry(number, folder, 0o040755, b"") for number, folder in enumerate(folders, 1)
    ]
    entries += [
        _cpio_entry(number, path, 0o100000 | mode, content)
        for number, (path, (mode, content)) in enumerate(files.items(), len(folders) + 1)
    ]
    entries.append(_cpio_entry(0, "TRAILER!!!", 0, b""))
    return b"".join(entries)


def _cpio_entry(inode: int, path: str, mode: int, content: bytes) -> bytes:
    """Documentation/driver-api/early-userspace/buffer-format.rst of the kernel."""
    name = path.encode() + b"\0"
    links = 2 if mode & 0o040000 else 1
    numbers = (inode, mode, 0, 0, links, 0, len(content), 0, 0, 0, 0, len(name), 0)
    head = b"070701" + b"".join(b"%08x" % number for number in numbers) + name
    return _padded(head) + _padded(content)


def _padded(content: bytes) -> bytes:
    return content + b"\0" * (-len(content) % 4)


def _module_file(path: str) -> str:
    return _module_name(path) + ".ko"


def _module_name(path: str) -> str:
    return Path(path).name.partition(".ko")[0].replace("-", "_")


def _decompressed(path: Path) -> bytes:
    content = path.read_bytes()
    return lzma.decompress(content) if path.suffix == ".xz" else content
