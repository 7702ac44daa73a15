# SPDX-License-Identifier: Apache-2.0
"""Paths at which root writes for the agent: the agent, which may be an attacker's one day, must not have the way to
them, or it could put links there that root follows.
"""

import os
import pwd
import stat
from pathlib import Path
from typing import Final

from placement_traits.errors import InvalidValueError

ROOT: Final = 0


def agent_id(name: str) -> int:
    """Return the id of the agent's user, root's where there is none of that name."""
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return ROOT


def check_way(where: str, path: Path, agent: int) -> None:
    """Refuse a path that others could replace.

    Names in each folder above are changed by its owner alone, who is not the agent.

    :param where: the option that holds the path
    :param agent: id of the agent's user
    :raises InvalidValueError: names the folder
    """
    for folder in sorted({*path.parents, *path.resolve().parents}):
        try:
            found = folder.stat()
        except OSError as error:
            raise InvalidValueError(where, str(path), f"a path that is there: {error}") from error
        if found.st_uid == agent != ROOT or _is_open(found):
            allowed = f"a path below folders that only root writes, which {folder} is not"
            raise InvalidValueError(where, str(path), allowed)


def _is_open(found: os.stat_result) -> bool:
    """Others may rename what is in it."""
    others = stat.S_IWOTH | (stat.S_IWGRP if found.st_gid != ROOT else 0)
    return bool(found.st_mode & others) and not found.st_mode & stat.S_ISVTX
