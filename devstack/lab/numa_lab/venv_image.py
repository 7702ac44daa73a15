# SPDX-License-Identifier: Apache-2.0
"""A read-only disk image of the virtual environment for emulated hosts, with the Python that runs it.

Python looks at tens of thousands of files before nova-compute serves. Each look is a message to QEMU over 9p, but a
cached block in a file system on a disk: importing nova takes half the time, and the image is made in ten seconds.

Everything has its outside path in it, of which ``folders`` names those of environment and standard library. The image
can be the root of a Python: ``guest/init`` starts one before the host has a file tree.
"""

import hashlib
import shutil
import subprocess
from pathlib import Path

from .errors import LabError
from .process import run_logged
from .settings import Settings
from .terminal import Progress

PACKAGES = ("busybox-static", "erofs-utils")

_MOUNT_POINTS = ("dev", "proc")
# Paths by which programs name files that lie in /usr.
_MERGED = ("bin", "lib", "lib64", "sbin")
# What the kernel starts an interpreter with; the linker's own name for it is another one.
_LOADER = Path("/lib64/ld-linux-x86-64.so.2")
_BUSYBOX = Path("/bin/busybox")
# os_brick runs it when it is imported.
_COMMANDS = ("grep",)
_BINDING = """\
folder=$1; image=$2; shift 2
for path; do mount --bind "$path" "$folder$path"; done
exec mkfs.erofs --quiet "$image" "$folder"
"""


def provide(settings: Settings, progress: Progress) -> Path:
    """The image of the virtual environment as it is now, made if need be; images of older states are removed.

    :raises LabError: it could not be made; the disk may be full.
    """
    folder = settings.lab / "images"
    image = folder / f"venv-{fingerprint(settings)}.erofs"
    if image.exists():
        return image
    folder.mkdir(parents=True, exist_ok=True)
    # A host that still uses an older one keeps it open.
    for older in folder.glob("venv-*.erofs"):
        older.unlink()
    log = settings.log / "venv-image.log"
    draft = image.with_suffix(".new")
    with progress.step("making the image of the virtual environment", log):
        tree = folder / "venv-tree"
        shutil.rmtree(tree, ignore_errors=True)
        folders = (settings.venv, _standard_library(settings))
        _lay_out(tree, settings, folders)
        script = ["unshare", "--mount", "sh", "-ec", _BINDING, "sh"]
        run_logged("mkfs.erofs", [*script, tree, draft, *folders], log)
        shutil.rmtree(tree)
        draft.replace(image)
    return image


def _fork_server(settings: Settings) -> Path:
    return settings.source / "guest" / "fork_server.py"


def _standard_library(settings: Settings) -> Path:
    asked: list[str | Path] = [
        settings.python,
        "-c",
        "import sysconfig; print(sysconfig.get_path('stdlib'))",
    ]
    return Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())


def _lay_out(tree: Path, settings: Settings, folders: tuple[Path, ...]) -> None:
    """Make mount points for what is not copied; copy the interpreter and the shared libraries that it loads."""
    for folder in (*_MOUNT_POINTS, *(str(path.relative_to("/")) for path in folders)):
        (tree / folder).mkdir(parents=True)
    for name in _MERGED:
        if Path("/", name).is_symlink():
            (tree / name).symlink_to(Path("/", name).readlink())
    (tree / "usr" / "bin").mkdir(parents=True, exist_ok=True)
    for command in _COMMANDS:
        shutil.copy2(_BUSYBOX, tree / "usr" / "bin" / command)
    (tree / "folders").write_text("".join(f"{folder}\n" for folder in folders))
    mapped = [
        file for file in _mapped_files(settings) if not any(map(file.is_relative_to, folders))
    ]
    names = {name for file in mapped for name in _names(file)}
    for file in names | {_LOADER, *_interpreters(settings.venv)}:
        copy = tree / file.parent.resolve().relative_to("/") / file.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, copy)


def _mapped_files(settings: Settings) -> list[Path]:
    """Files that a fork server has in its memory: interpreter, libraries, locale."""
    program: list[str | Path] = [settings.python, _fork_server(settings), "--mapped"]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabError(f"Python cannot import what emulated hosts need: {done.stderr[-500:]}")
    return [Path(line) for line in done.stdout.splitlines()]


def _interpreters(venv: Path) -> list[Path]:
    """What the environment's interpreter is a link to, and what that is a link to."""
    found, path = [], venv / "bin" / "python"
    while path.is_symlink():
        path = path.parent / path.readlink()
        if not path.is_relative_to(venv):
            found.append(path)
    return found


def _names(library: Path) -> set[Path]:
    """A file, and the links beside it by which others ask for it: libz.so.1 leads to libz.so.1.2.13."""
    links = library.parent.glob(f"{library.name.partition('.so')[0]}.so*")
    return {library, *(link for link in links if link.resolve() == library)}


def fingerprint(settings: Settings) -> str:
    """A hash that changes with what is installed, changed or removed, and with what the fork server imports."""
    venv = settings.venv
    digest = hashlib.sha256(str(venv).encode() + _fork_server(settings).read_bytes())
    watched = [*venv.glob("lib/python*/site-packages/*.dist-info/RECORD"), *venv.glob("bin/*")]
    for path in sorted(watched):
        digest.update(f"{path} {path.lstat().st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]
