# SPDX-License-Identifier: Apache-2.0
"""A read-only disk image of the virtual environment for emulated hosts.

Python looks at tens of thousands of files before nova-compute serves. Each look is a message to QEMU over 9p, but a
cached block in a file system on a disk: importing nova takes half the time, and the image is made in ten seconds.
"""

import hashlib
from pathlib import Path

from .process import run_logged
from .settings import Settings
from .terminal import Progress

PACKAGES = ("erofs-utils",)


def provide(settings: Settings, progress: Progress) -> Path:
    """The image of the virtual environment as it is now, made if need be; images of older states are removed.

    :raises LabError: it could not be made; the disk may be full.
    """
    folder = settings.lab / "images"
    image = folder / f"venv-{fingerprint(settings.venv)}.erofs"
    if image.exists():
        return image
    folder.mkdir(parents=True, exist_ok=True)
    # A host that still uses an older one keeps it open.
    for older in folder.glob("venv-*"):
        older.unlink()
    log = settings.log / "venv-image.log"
    draft = image.with_suffix(".new")
    with progress.step("making the image of the virtual environment", log):
        run_logged("mkfs.erofs", ["mkfs.erofs", "--quiet", draft, settings.venv], log)
        draft.replace(image)
    return image


def fingerprint(venv: Path) -> str:
    """A hash that changes when a distribution or a script is installed, changed or removed."""
    digest = hashlib.sha256(str(venv).encode())
    watched = [*venv.glob("lib/python*/site-packages/*.dist-info/RECORD"), *venv.glob("bin/*")]
    for path in sorted(watched):
        digest.update(f"{path} {path.lstat().st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]
