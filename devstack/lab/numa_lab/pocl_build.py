# SPDX-License-Identifier: Apache-2.0
"""PoCL-Remote, which carries OpenCL to another host: Debian's own source with our fixes, built once.

Debian builds it without its server, so it comes from Debian's source package. The results lie in the cache, each under
a hash of everything that shapes it: our patches, the options and Debian's version; our own programs::

    pocl/HASH/pocld                     the server of a lease
    pocl/HASH/libpocl.so                the client's library, which has no device but remote ones
    pocl/HASH/vendors/pocl.icd          names the client's library: for OCL_ICD_VENDORS
    opencl/HASH/libnuma-ext-slice.so    the layer that keeps a server to its slice of memory
    opencl/HASH/numa-rgpu-bench         the program that checks a device

It is built only when that is asked for (``lab pocl``); all else of the lab goes on without.
"""

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import debian_archive, packages
from .errors import LabError
from .exclusive import exclusive
from .link_build import build_key
from .process import run_logged
from .settings import Settings
from .terminal import Progress

VERSION = "6.0-6"
"""Of Debian's source package: the newest one whose files all are to be had, and that our patches fit."""

SUITE = "trixie"
PACKAGES = ("gcc", "ocl-icd-opencl-dev", "opencl-headers")
BUILD_PACKAGES = (
    *PACKAGES,
    *("cmake", "dpkg-dev", "g++", "libhwloc-dev", "ninja-build", "patch", "pkg-config"),
)
DEVICE_PACKAGES = ("pocl-opencl-icd",)
"""A device on the processor, for hosts without a GPU."""

CONFIGURE_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DCMAKE_POSITION_INDEPENDENT_CODE=ON",
    "-DENABLE_EXAMPLES=0",
    "-DENABLE_HOST_CPU_DEVICES=0",
    "-DENABLE_ICD=1",
    "-DENABLE_LLVM=0",
    "-DENABLE_LOADABLE_DRIVERS=0",
    "-DENABLE_POCLCC=0",
    "-DENABLE_REMOTE_CLIENT=1",
    "-DENABLE_REMOTE_SERVER=1",
    "-DENABLE_TESTS=0",
    "-DENABLE_VSOCK=1",
)
COMPILER_OPTIONS = ("-O2", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE")

_BENCH = ("numa-rgpu-bench", "year-loss", "device")

# Debian's tools only: a Python of the user (pyenv, a virtual environment) confuses CMake.
_BUILD_ENVIRONMENT = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C.UTF-8"}


def patches(settings: Settings) -> list[Path]:
    """Our fixes, in the order in which they are applied."""
    return sorted((settings.source / "pocl").glob("*.patch"))


def programs(settings: Settings) -> Path:
    """The folder of our own programs and libraries of OpenCL."""
    return settings.checkout / "host_agent/remote_gpu/opencl"


@dataclass(frozen=True, slots=True)
class Pocl:
    """What was built.

    :param built: PoCL
    :param own: our own programs of OpenCL
    """

    built: Path
    own: Path

    @property
    def server(self) -> Path:
        """``pocld``."""
        return self.built / "pocld"

    @property
    def client(self) -> Path:
        """The client's library."""
        return self.built / "libpocl.so"

    @property
    def vendors(self) -> Path:
        """The folder that names the client's library."""
        return self.built / "vendors"

    @property
    def layer(self) -> Path:
        """The layer that keeps a server to its slice."""
        return self.own / "libnuma-ext-slice.so"

    @property
    def bench(self) -> Path:
        """``numa-rgpu-bench``."""
        return self.own / "numa-rgpu-bench"


def cached(settings: Settings) -> Pocl | None:
    """What was built; None where it is still to be built."""
    found = _folders(settings)
    return found if found.built.exists() and found.own.exists() else None


def build(settings: Settings, progress: Progress) -> Pocl:
    """What was built, built first if it is not there.

    :raises LabError: a package, the source or the build failed; the log tells more.
    """
    made = _folders(settings)
    packages.ensure(settings, progress, PACKAGES if made.built.exists() else BUILD_PACKAGES)
    log = settings.log / "pocl-build.log"
    for folder, what, do in (
        (made.built, "building PoCL with our fixes (once)", _build),
        (made.own, "building our programs of OpenCL (once)", _build_own),
    ):
        with exclusive(folder.with_name(f"{folder.name}.lock")):
            if not folder.exists():
                with progress.step(what, log):
                    do(settings, folder, log)
    return made


def _folders(settings: Settings) -> Pocl:
    options = " ".join((VERSION, *CONFIGURE_OPTIONS))
    built = build_key([(each.name, each.read_bytes()) for each in patches(settings)], options)
    sources = [(each.name, each.read_bytes()) for each in programs(settings).glob("*.[ch]")]
    own = build_key(sources, " ".join(COMPILER_OPTIONS))
    return Pocl(settings.cache / "pocl" / built, settings.cache / "opencl" / own)


def _build(settings: Settings, folder: Path, log: Path) -> None:
    work, draft = _emptied(folder, "build"), _emptied(folder, "draft")
    tree = _fetch(settings, work, log)
    apply(patches(settings), tree, log)
    _compile(tree, log)
    (draft / "vendors").mkdir()
    shutil.copy2(tree / "build/pocld/pocld", draft)
    shutil.copy2((tree / "build/lib/CL/libpocl.so").resolve(), draft / "libpocl.so")
    (draft / "vendors/pocl.icd").write_text(f"{folder}/libpocl.so\n")
    draft.rename(folder)
    shutil.rmtree(work)


def _build_own(settings: Settings, folder: Path, log: Path) -> None:
    draft = _emptied(folder, "draft")
    compile_own(programs(settings), draft, log)
    draft.rename(folder)


def _emptied(folder: Path, kind: str) -> Path:
    found = folder.with_name(f"{folder.name}.{kind}")
    shutil.rmtree(found, ignore_errors=True)
    found.mkdir(parents=True)
    return found


def apply(files: Iterable[Path], tree: Path, log: Path) -> None:
    """Change a source by patches.

    :raises LabError: one does not fit
    """
    for file in files:
        run_logged(
            f"applying {file.name}",
            ["patch", "--batch", "--fuzz=0", "-p1", "-i", file],
            log,
            folder=tree,
        )


def compile_own(source: Path, folder: Path, log: Path) -> None:
    """Compile our own programs and libraries of OpenCL.

    :param source: their folder
    :param folder: into which they go
    :raises LabError: a compiler or headers are not there, or there is a fault in them
    """
    layer: Sequence[str | Path] = [
        *("-fPIC", "-shared", "-o", folder / "libnuma-ext-slice.so"),
        source / "slice.c",
    ]
    bench: Sequence[str | Path] = [
        *("-o", folder / "numa-rgpu-bench"),
        *(source / f"{name}.c" for name in _BENCH),
        "-lOpenCL",
    ]
    for what, words in (("the layer of slices", layer), ("numa-rgpu-bench", bench)):
        argv = ["gcc", *COMPILER_OPTIONS, *words]
        run_logged(f"compiling {what}", argv, log, environment=_BUILD_ENVIRONMENT)


def _fetch(settings: Settings, work: Path, log: Path) -> Path:
    archive = debian_archive.SourceArchive(settings.cache / "apt-sources-pocl", (SUITE,))
    archive.update(log)
    offered = archive.versions("pocl")
    if VERSION not in offered:
        raise LabError(
            f"the archive offers the source of PoCL {', '.join(offered) or '(none)'}, not {VERSION}",
            log,
        )
    return archive.unpack("pocl", VERSION, work, log)


def _compile(tree: Path, log: Path) -> None:
    configure = ["cmake", "-G", "Ninja", *CONFIGURE_OPTIONS, "-B", "build", "."]
    # Two things at a time at most, as others use the machine, too.
    jobs = f"-j{min(os.cpu_count() or 1, 2)}"
    for what, argv in (
        ("configuring PoCL", configure),
        ("building PoCL", ["ninja", "-C", "build", jobs, "pocld", "libpocl.so"]),
    ):
        run_logged(what, argv, log, environment=_BUILD_ENVIRONMENT, folder=tree)
