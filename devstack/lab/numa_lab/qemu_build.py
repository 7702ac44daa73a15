# SPDX-License-Identifier: Apache-2.0
"""The QEMU that emulated hosts run in: Debian's own source with our model of Intel RDT, built once.

The result lies in the cache under a hash of everything that shapes it: our patch, the configure options and Debian's
version. A build that was interrupted goes on where it was. Without it, emulated hosts run in Debian's binary: NUMA,
PCI devices and everything else are the same there, but the kernel inside finds no RDT.
"""

import hashlib
import json
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from . import debian_archive, packages
from .errors import LabError
from .exclusive import exclusive
from .process import run_logged
from .settings import Settings
from .terminal import Progress

DEBIAN_BINARY = Path("/usr/bin/qemu-system-x86_64")
PACKAGE = "qemu-system-x86"

BUILD_PACKAGES = (
    "bison",
    "dpkg-dev",
    "flex",
    "gcc",
    "libattr1-dev",
    "libc6-dev",
    "libcap-ng-dev",
    "libfdt-dev",
    "libglib2.0-dev",
    "libpixman-1-dev",
    "libslirp-dev",
    "meson",
    "ninja-build",
    "patch",
    "pkg-config",
    "zlib1g-dev",
)

CONFIGURE_OPTIONS = (
    "--target-list=x86_64-softmmu",
    "--without-default-features",
    "--enable-tcg",
    "--enable-system",
    "--enable-slirp",
    "--enable-attr",
    "--enable-cap-ng",
    "--enable-virtfs",
    "--enable-fdt=system",
    # The one only costs time to compile, the others are in the way of each access to a device.
    "--disable-debug-info",
    "--disable-qom-cast-debug",
    "--disable-stack-protector",
    "--disable-docs",
    "--disable-guest-agent",
    "--disable-tools",
    "--disable-werror",
    "--meson=/usr/bin/meson",
)

# Debian's tools only: a Python of the user (pyenv, a virtual environment) confuses meson.
_BUILD_ENVIRONMENT = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C.UTF-8"}
_TARGET = "qemu-system-x86_64"


@dataclass(frozen=True, slots=True)
class Qemu:
    """A QEMU binary for emulated hosts, and whether it has the RDT model."""

    binary: Path
    has_rdt: bool


def provide(settings: Settings, progress: Progress, with_rdt: bool = True) -> Qemu:
    """The QEMU to run emulated hosts in; Debian's own one if ours is not asked for or cannot be built."""
    if with_rdt:
        try:
            return build(settings, progress)
        except LabError as error:
            progress.note(f"QEMU with RDT is not to be had: {error}; see {error.log}")
    progress.note("emulated hosts come up without RDT")
    return Qemu(DEBIAN_BINARY, has_rdt=False)


def build(settings: Settings, progress: Progress) -> Qemu:
    """QEMU with RDT from the cache, built first if it is not there.

    :raises LabError: a package, the source or the build failed; the log tells more.
    """
    patches = sorted((settings.source / "qemu").glob("*.patch"))
    version = _debian_version()
    key = build_key([patch.read_bytes() for patch in patches], CONFIGURE_OPTIONS, version)
    built = settings.cache / "qemu" / key
    qemu = Qemu(built / _TARGET, has_rdt=True)
    if qemu.binary.exists():
        return qemu
    packages.ensure(settings, progress, BUILD_PACKAGES)
    with exclusive(settings.cache / "qemu" / f"{key}.lock"):
        if not qemu.binary.exists():
            _build(settings, progress, patches, version, built)
    return qemu


def build_key(patches: list[bytes], options: tuple[str, ...], version: str) -> str:
    """The name of a build: the same if and only if patches, configure options and Debian's version are."""
    content = json.dumps(
        [[hashlib.sha256(patch).hexdigest() for patch in patches], options, version]
    )
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _build(
    settings: Settings, progress: Progress, patches: list[Path], version: str, built: Path
) -> None:
    work = built.with_name(f"{built.name}.build")
    log = settings.log / "qemu-build.log"
    ready = work / "ready-to-build"
    if not ready.exists():
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        with progress.step("fetching and configuring QEMU's source", log):
            tree = _fetch(settings, version, work, log)
            for patch in patches:
                run_logged(
                    f"applying {patch.name}",
                    ["patch", "--batch", "-p1", "-i", patch],
                    log,
                    folder=tree,
                )
            (tree / "build").mkdir()
            run_logged(
                "configuring QEMU",
                ["../configure", *CONFIGURE_OPTIONS],
                log,
                environment=_BUILD_ENVIRONMENT,
                folder=tree / "build",
            )
        ready.touch()
    folder = work / "qemu" / "build"
    with progress.step("building QEMU with RDT (once)", log):
        _ninja(folder, log, progress)
        draft = work / "result"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        run_logged("stripping QEMU", ["strip", "-o", draft / _TARGET, folder / _TARGET], log)
        (draft / "source-version").write_text(version + "\n")
        shutil.rmtree(built, ignore_errors=True)
        draft.rename(built)
    shutil.rmtree(work)


def _fetch(settings: Settings, version: str, work: Path, log: Path) -> Path:
    archive = debian_archive.SourceArchive(settings.cache / "apt-sources")
    archive.update(log)
    offered = archive.versions("qemu")
    if version not in offered:
        raise LabError(
            f"the archive offers the source of QEMU {', '.join(offered) or '(none)'}, but {version} is "
            f"installed: update the package {PACKAGE}",
            log,
        )
    return archive.unpack("qemu", version, work, log)


def _debian_version() -> str:
    """Version of the source that the installed QEMU was built from."""
    shown = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${source:Version}", PACKAGE],
        capture_output=True,
        text=True,
        check=False,
    )
    if shown.returncode != 0 or not shown.stdout:
        raise LabError(f"the Debian package {PACKAGE} is not installed")
    return shown.stdout


def _ninja(folder: Path, log: Path, progress: Progress) -> None:
    """Build, with a note of what is left at each fifth of the way."""
    begun = time.monotonic()
    next_share = 0.2
    with (
        log.open("a") as stream,
        subprocess.Popen(
            ["ninja", _TARGET],
            cwd=folder,
            env=_BUILD_ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as ninja,
    ):
        assert ninja.stdout is not None
        for line in ninja.stdout:
            stream.write(line)
            share = share_done(line)
            if share is not None and next_share <= share < 1:
                left_s = (time.monotonic() - begun) * (1 - share) / share
                progress.note(f"         QEMU: {share:.0%} built, about {left_s:.0f} s left")
                next_share = share + 0.2
    if ninja.returncode != 0:
        raise LabError(f"building QEMU failed with status {ninja.returncode}", log)


def share_done(line: str) -> float | None:
    """How far a line of ninja's output says the build is, 0 to 1; None if it says nothing."""
    step = re.match(r"\[(\d+)/(\d+)\]", line)
    return int(step.group(1)) / int(step.group(2)) if step and int(step.group(2)) else None
