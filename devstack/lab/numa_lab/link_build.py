# SPDX-License-Identifier: Apache-2.0
"""The link of remote GPUs (``host_agent/remote_gpu/link``), built by Debian's Go, once for each content.

The result lies in the cache under a hash of the sources and of the compiler's version: the program, without a shared
library, and its tests. Nothing but Go's own library goes into it, so nothing is downloaded but the package of Go.
"""

import hashlib
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from . import packages
from .exclusive import exclusive
from .process import run_logged
from .settings import Settings
from .terminal import Progress

GO = Path("/usr/bin/go")
BUILD_PACKAGES = ("golang-go",)
PROGRAM = "numa-ext-rgpu"
TESTS = "link.test"


def source(settings: Settings) -> Path:
    """The folder of the module."""
    return settings.checkout / "host_agent/remote_gpu/link"


def environment(settings: Settings) -> dict[str, str]:
    """What Go is run with: no network, no other compiler, no C, and a cache of its own."""
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": os.environ.get("HOME", "/root"),
        "CGO_ENABLED": "0",
        "GOCACHE": f"{settings.cache}/go-build",
        "GOFLAGS": "-buildvcs=false",
        "GOPROXY": "off",
        "GOTOOLCHAIN": "local",
    }


def cached(settings: Settings) -> Path | None:
    """The folder with the program and its tests; None where they are still to be built."""
    folder = _folder(settings) if GO.exists() else None
    return folder if folder is not None and folder.exists() else None


def build(settings: Settings, progress: Progress) -> Path:
    """The folder with the program and its tests, built first if it is not there.

    :raises LabError: the package of Go is not to be had, or the build failed; the log tells more.
    """
    packages.ensure(settings, progress, BUILD_PACKAGES)
    folder = _folder(settings)
    with exclusive(folder.with_name(f"{folder.name}.lock")):
        if not folder.exists():
            _build(settings, progress, folder)
    return folder


def build_key(files: Iterable[tuple[str, bytes]], compiler: str) -> str:
    """The name of a build: the same if and only if the files, their names and the compiler are."""
    digest = hashlib.sha256(compiler.encode())
    for name, content in sorted(files):
        digest.update(f"\0{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def _folder(settings: Settings) -> Path:
    top = source(settings)
    files = [
        (str(file.relative_to(top)), file.read_bytes())
        for file in top.rglob("*")
        if file.suffix == ".go" or file.name == "go.mod"
    ]
    compiler = subprocess.run([GO, "version"], capture_output=True, text=True, check=True).stdout
    return settings.cache / "link" / build_key(files, compiler)


def _build(settings: Settings, progress: Progress, folder: Path) -> None:
    log = settings.log / "link-build.log"
    draft = folder.with_name(f"{folder.name}.draft")
    folder_of_source, values = source(settings), environment(settings)
    program: list[str | Path] = [
        GO,
        "build",
        "-trimpath",
        "-ldflags=-s -w",
        "-o",
        f"{draft}/",
        "./...",
    ]
    tests: list[str | Path] = [GO, "test", "-c", "-o", draft / TESTS, "."]
    with progress.step("building the link of remote GPUs (once)", log):
        for what, argv in (("the link", program), ("the link's tests", tests)):
            run_logged(f"building {what}", argv, log, environment=values, folder=folder_of_source)
        draft.rename(folder)
