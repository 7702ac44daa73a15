# SPDX-License-Identifier: Apache-2.0
"""A Debian 12 in a folder, in which packages are installed and commands run.

NUMA_EXT_DEBIAN names another mirror than Debian's.
"""

import os
import subprocess
from pathlib import Path
from typing import Any, Final

MIRROR: Final = os.environ.get("NUMA_EXT_DEBIAN", "http://deb.debian.org/debian")
TOOLS: Final = ("dh", "debootstrap")


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


class Debian:
    """The system.

    :param root: its root folder, which is made
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        run("debootstrap", "--variant=minbase", "bookworm", root, MIRROR)

    def install(self, *packages: str) -> None:
        """Install packages of Debian."""
        self.run("apt-get", "install", "-y", "--no-install-recommends", *packages)

    def run(self, *words: str) -> str:
        """Run a command in it, with its own /proc, below which nothing of this machine is seen."""
        environment = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "DEBIAN_FRONTEND": "teletype",  # it would ask; there is no one to answer
            "LC_ALL": "C.UTF-8",
        }
        return run(
            *("unshare", "--pid", "--fork", "--mount", f"--root={self.root}", "--mount-proc"),
            *words,
            env=environment,
            stdin=subprocess.DEVNULL,
        )
