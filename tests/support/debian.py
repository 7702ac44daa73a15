# SPDX-License-Identifier: Apache-2.0
"""A Debian 12 in a folder, in which packages are installed and commands run.

NUMA_EXT_DEBIAN names another mirror than Debian's. The smallest system is kept in the lab's cache folder, for it takes
minutes to make.
"""

import hashlib
import os
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from numa_lab.settings import Settings

CHECKOUT = Path(__file__).parents[2]
MIRROR: Final = os.environ.get("NUMA_EXT_DEBIAN", "http://deb.debian.org/debian")

# What dpkg, apt and the tools that edit users keep of what has been, what stevedore keeps in the home of who calls a
# command, which no package may touch, and what is this machine's.
_KEPT: Final = (
    *("var/lib/dpkg", "var/log", "var/cache", "var/lib/apt", "run/lock"),
    "root/.cache",
    *("tmp", "proc", "sys", "dev"),
)
_BACKUPS: Final = ("etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-", "etc/.pwd.lock")
_ENTER: Final = """\
root=$1; shift
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
exec chroot "$root" "$@"
"""


def run(*words: object, **options: Any) -> str:
    """Run a command that must succeed; return what it prints."""
    ran = subprocess.run(
        [*map(str, words)],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )
    assert ran.returncode == 0, f"{words}: {ran.stdout[-6000:]}"
    return str(ran.stdout)


def smallest() -> Path:
    """Return an archive of a Debian with what every Debian has; made once."""
    cache = Settings.from_environment(CHECKOUT, os.environ).cache
    name = f"debian-bookworm-{hashlib.sha256(MIRROR.encode()).hexdigest()[:8]}.tar"
    if not (cache / name).exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="debian-") as folder:
            root, made = Path(folder) / "root", Path(folder) / name
            run("debootstrap", "--variant=minbase", "bookworm", root, MIRROR)
            run("chroot", root, "apt-get", "clean")
            run("tar", "--create", "--directory", root, "--file", made, ".")
            made.rename(cache / name)
    return cache / name


class Debian:
    """The system.

    :param root: its root folder, which is made
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        run("tar", "--extract", "--directory", root, "--file", smallest())

    def install(self, *packages: str) -> None:
        """Install packages of Debian."""
        self.run("apt-get", "update")
        self.run("apt-get", "install", "-y", "--no-install-recommends", *packages)

    def run(self, *words: str) -> str:
        """Run a command in it: with processes of its own, and this machine's hardware, read only."""
        environment = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "DEBIAN_FRONTEND": "teletype",  # it would ask; there is no one to answer
            "LC_ALL": "C.UTF-8",
        }
        return run(
            *("unshare", "--pid", "--fork", "--mount", "sh", "-ec", _ENTER, "sh", self.root),
            *words,
            env=environment,
            stdin=subprocess.DEVNULL,
        )

    def files(self) -> Mapping[str, tuple[str, str]]:
        """Everything that is there: mode and owner, and a hash of what is in it."""
        found = {}
        for folder, _, names in os.walk(self.root):
            for path in (Path(folder), *(Path(folder) / name for name in names)):
                name = str(path.relative_to(self.root))
                if name.startswith(_KEPT) or name in _BACKUPS or "__pycache__" in name:
                    continue
                status = path.lstat()
                what = f"{stat.filemode(status.st_mode)} {status.st_uid}:{status.st_gid}"
                regular = stat.S_ISREG(status.st_mode)
                found[name] = what, hashlib.sha256(path.read_bytes()).hexdigest() if regular else ""
        return found
