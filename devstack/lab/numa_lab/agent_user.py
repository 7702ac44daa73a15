# SPDX-License-Identifier: Apache-2.0
"""The user that runs our agent on the lab's compute hosts: no rights, as where it was installed from its package.

This machine's own files of users stay as they are. Compute hosts see others: emulated ones get a line at their boot
(``guest/init``), the local compute has copies with that line in its namespaces.
"""

import os
import pwd
import stat
from pathlib import Path
from typing import Final

from .configuration import write_if_changed

NAME: Final = "numa-host-agent"
_UNUSED_ID: Final = 59_990  # below what systemd and Debian give away, above what people get


def user_id() -> int:
    """Its id and its group's, the same on all hosts; this machine's where the package is installed here, too."""
    try:
        return pwd.getpwnam(NAME).pw_uid
    except KeyError:
        return _UNUSED_ID


def write_accounts(folder: Path) -> dict[Path, Path]:
    """Write this machine's users and groups with the agent's; return what stands for what."""
    number = user_id()
    lines = {
        "group": f"{NAME}:x:{number}:\n",
        "passwd": f"{NAME}:x:{number}:{number}::/nonexistent:/usr/sbin/nologin\n",
    }
    found = {}
    for name, line in lines.items():
        own, system = folder / name, Path("/etc", name)
        text = system.read_text()
        known = f"\n{NAME}:" in f"\n{text}"
        write_if_changed(own, text if known else f"{text.rstrip()}\n{line}", 0o644)
        found[own] = system
    return found


def write_configuration(path: Path, text: str) -> None:
    """Make ``path`` hold the agent's configuration: root writes it, its user reads it, for all others it is closed."""
    write_if_changed(path, text)
    os.chown(path, 0, user_id())
    path.chmod(0o640)


def give_folder(folder: Path, owner: int | None = None) -> None:
    """Make a folder that its user writes, with all that an agent has left there before.

    :param owner: who runs the agent instead
    """
    number = user_id() if owner is None else owner
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o750)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, number, number, follow_symlinks=False)


def gets_to(path: Path) -> bool:
    """Whether a user without rights gets to what is at ``path``, or in it; false where nothing is."""
    way = {path.absolute(), path.resolve()}
    way |= {folder for each in way for folder in each.parents}
    return all(each.exists() and each.stat().st_mode & stat.S_IXOTH for each in way)
