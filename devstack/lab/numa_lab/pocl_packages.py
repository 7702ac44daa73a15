# SPDX-License-Identifier: Apache-2.0
"""Debian packages of the PoCL that was built, as no archive has it with our fixes.

::

    numa-ext-pocl-remote   for images of servers: the client's library, and the file that names it to OpenCL's loader
    numa-ext-pocld         for hosts of GPUs: the server of a lease

They depend on what the files need of the Debian that has built them.
"""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import LabError
from .pocl_build import VERSION, Pocl
from .process import run_logged

LIBRARY = "/usr/lib/numa-ext-rgpu/libpocl.so"
VENDORS = "/etc/OpenCL/numa-ext-rgpu"
_COPYRIGHT = """\
PoCL (https://portablecl.org), from Debian's source package, with patches of nova-numa-ext.

Copyright: 2010-2024 PoCL developers
License: Expat
 Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
 documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
 rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
 persons to whom the Software is furnished to do so, subject to the following conditions:
 .
 The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
 Software.
 .
 THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
 WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
 COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
 OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""
_CONTROL = """\
Package: {name}
Version: {version}
Section: misc
Priority: optional
Architecture: {architecture}
Maintainer: nova-numa-ext developers <nova-numa-ext@localhost.localdomain>
Depends: {depends}
Suggests: {suggests}
Description: {summary}
 {text}
"""


@dataclass(frozen=True, slots=True)
class _Package:
    """What a package is made of.

    :param built: the file of PoCL that it holds
    :param path: where that goes
    :param depends: what it needs beside that file's libraries
    """

    name: str
    built: Path
    path: str
    mode: int
    depends: str
    suggests: str
    summary: str
    text: str


def write(made: Pocl, folder: Path, log: Path) -> list[Path]:
    """Write the packages into a folder; return their files.

    :raises LabError: one cannot be made; the log tells more
    """
    client = _Package(
        "numa-ext-pocl-remote",
        made.client,
        LIBRARY,
        0o644,
        "ocl-icd-libopencl1 | libopencl1",
        "numa-ext-rgpu-guest, numa-rgpu-bench",
        "remote GPUs in servers by OpenCL (PoCL)",
        "The library by which programs of OpenCL use GPUs that numa-ext-rgpu-guest\n finds.",
    )
    server = _Package(
        "numa-ext-pocld",
        made.server,
        "/usr/bin/pocld",
        0o755,
        "",
        "numa-ext-rgpu-slice, numa-host-agent",
        "server of leases of remote GPUs by OpenCL (PoCL)",
        "It is started for each lease, by numa-host-agent-leases.",
    )
    folder.mkdir(parents=True, exist_ok=True)
    return [_written(each, made.built.name, folder, log) for each in (client, server)]


def _written(package: _Package, built: str, folder: Path, log: Path) -> Path:
    architecture = _said(["dpkg", "--print-architecture"], log, folder).strip()
    # What has built it stands in its version: another build is another package, if none that comes after it.
    version = f"{VERSION}+{built}"
    with tempfile.TemporaryDirectory(dir=folder) as name:
        root = Path(name, "root")
        _put(root, package.path, package.built.read_bytes(), package.mode)
        _put(root, f"/usr/share/doc/{package.name}/copyright", _COPYRIGHT.encode())
        if package.path == LIBRARY:
            _put(root, f"{VENDORS}/pocl.icd", f"{LIBRARY}\n".encode())
            _put(root, "/DEBIAN/conffiles", f"{VENDORS}/pocl.icd\n".encode())
        needs = _libraries(package.built, Path(name), log)
        control = _CONTROL.format(
            name=package.name,
            version=version,
            architecture=architecture,
            depends=", ".join(filter(None, (package.depends, needs))),
            suggests=package.suggests,
            summary=package.summary,
            text=package.text,
        )
        _put(root, "/DEBIAN/control", control.encode())
        found = folder / f"{package.name}_{version}_{architecture}.deb"
        argv: list[str | Path] = ["dpkg-deb", "--root-owner-group", "--build", root, found]
        run_logged(f"making {found.name}", argv, log)
    return found


def _said(argv: Sequence[str | Path], log: Path, folder: Path) -> str:
    """Return what a command prints.

    :raises LabError: it cannot be executed or ends with another status than 0
    """
    try:
        done = subprocess.run(
            [*map(str, argv)], capture_output=True, text=True, cwd=folder, check=False
        )
    except OSError as error:
        raise LabError(f"{argv[0]}: {error}", log) from error
    if done.returncode != 0:
        raise LabError(f"{argv[0]} failed: {done.stderr.strip()}", log)
    return done.stdout


def _put(root: Path, path: str, content: bytes, mode: int = 0o644) -> None:
    file = root / path.removeprefix("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    file.chmod(mode)


def _libraries(file: Path, folder: Path, log: Path) -> str:
    """Return the packages whose libraries a file is linked with."""
    (folder / "debian").mkdir()
    (folder / "debian/control").write_text("Source: pocl\n\nPackage: pocl\nArchitecture: any\n")
    copy = folder / file.name
    shutil.copy2(file, copy)
    text = _said(["dpkg-shlibdeps", "-O", copy], log, folder)
    return re.sub(r"^shlibs:Depends=", "", text, flags=re.M).strip()
