# SPDX-License-Identifier: Apache-2.0
"""CRIU, by which leases of remote GPUs move: built once from the original source that Debian's newest suites have.

Debian 12's own one fails on kernels of 6.12 and newer. The result lies in the cache under a hash of version, options
and the compiler's version. Nothing is patched. Operators use the CRIU of their distribution; without one the lab goes
on, and leases move with empty memory.
"""

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

from . import debian_archive, packages
from .errors import LabError
from .exclusive import exclusive
from .process import run_logged
from .settings import Settings
from .terminal import Progress

VERSION = "4.2.1"
SUITES = ("trixie", "forky", "sid")
PROGRAM = "criu"
BUILD_PACKAGES = (
    "gcc",
    "libbsd-dev",
    "libc6-dev",
    "libcap-dev",
    "libnet1-dev",
    "libnl-3-dev",
    "libprotobuf-c-dev",
    "libprotobuf-dev",
    "make",
    "pkg-config",
    "protobuf-c-compiler",
    "protobuf-compiler",
    "uuid-dev",
    "xz-utils",
)
OPTIONS = ("NO_GNUTLS=1",)

_ENVIRONMENT = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C.UTF-8"}


def cached(settings: Settings) -> Path | None:
    """The program; None where it is still to be built."""
    found = _folder(settings) / PROGRAM
    return found if found.exists() else None


def provide(settings: Settings, progress: Progress) -> Path | None:
    """The program, built first if it is not there; None where it is not to be had, which is said."""
    try:
        return build(settings, progress)
    except LabError as error:
        progress.note(f"CRIU is not to be had: {error}; see {error.log}")
        progress.note("leases of remote GPUs move with empty memory")
        return None


def build(settings: Settings, progress: Progress) -> Path:
    """The program, built first if it is not there.

    :raises LabError: a package, the source or the build failed; the log tells more.
    """
    packages.ensure(settings, progress, BUILD_PACKAGES)
    folder = _folder(settings)
    with exclusive(folder.with_name(f"{folder.name}.lock")):
        if not folder.exists():
            _build(settings, progress, folder)
    return folder / PROGRAM


def build_key(version: str, options: tuple[str, ...], compiler: str) -> str:
    """The name of a build: the same if and only if version, options and compiler are."""
    return hashlib.sha256(json.dumps([version, options, compiler]).encode()).hexdigest()[:16]


def _folder(settings: Settings) -> Path:
    shown = subprocess.run(["gcc", "-dumpfullversion"], capture_output=True, text=True, check=False)
    return settings.cache / "criu" / build_key(VERSION, OPTIONS, shown.stdout)


def _build(settings: Settings, progress: Progress, folder: Path) -> None:
    log = settings.log / "criu-build.log"
    work = folder.with_name(f"{folder.name}.build")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    with progress.step("fetching CRIU's source", log):
        source = _fetch(settings, work, log)
    with progress.step("building CRIU (once)", log):
        run_logged("unpacking CRIU", ["tar", "-xf", source, "-C", work], log)
        (tree,) = (each for each in work.iterdir() if each.is_dir())
        jobs = f"-j{os.cpu_count() or 1}"
        run_logged(
            "building CRIU",
            ["make", jobs, *OPTIONS, PROGRAM],
            log,
            environment=_ENVIRONMENT,
            folder=tree,
        )
        draft = work / "result"
        draft.mkdir()
        run_logged("stripping CRIU", ["strip", "-o", draft / PROGRAM, tree / "criu/criu"], log)
        draft.chmod(0o755)
        draft.rename(folder)
    shutil.rmtree(work)


def _fetch(settings: Settings, work: Path, log: Path) -> Path:
    archive = debian_archive.SourceArchive(settings.cache / "apt-sources-newer", SUITES)
    archive.update(log)
    offered = [each for each in archive.versions("criu") if each.rpartition("-")[0] == VERSION]
    if not offered:
        raise LabError(f"the archive offers no source of CRIU {VERSION}", log)
    return archive.original("criu", debian_archive.newer(offered), work, log)
