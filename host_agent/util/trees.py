# SPDX-License-Identifier: Apache-2.0
"""Removal of folders that a process has filled which is not trusted, and which has ended.

It may have made folders within folders until no recursion, path or number of open files gets to the end of them, and
have forbidden them to everybody. So what a folder holds is moved up before the folder is removed: two are open at a
time, and no name is longer than one.
"""

import os
import secrets
import stat
from pathlib import Path
from typing import Final

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MODE: Final = 0o700


def remove_tree(folder: Path) -> None:
    """Remove a folder with all that is in it; links are removed, not followed. One that is not there is removed.

    :param folder: no process that is not trusted writes to it or to the folder that it is in any more
    :raises OSError: something in it cannot be removed
    """
    try:
        folder.chmod(_MODE)
        top = os.open(folder, _FOLDER)
    except FileNotFoundError:
        return
    try:
        while names := os.listdir(top):
            for name in names:
                if _is_folder(top, name):
                    _unpack(top, name)
                else:
                    os.unlink(name, dir_fd=top)
    finally:
        os.close(top)
    folder.rmdir()


def _unpack(top: int, name: str) -> None:
    """Remove one folder; the folders in it get other names beside it."""
    os.chmod(name, _MODE, dir_fd=top)
    here = os.open(name, _FOLDER, dir_fd=top)
    try:
        for each in os.listdir(here):
            if _is_folder(here, each):
                # Who moves a folder has to be able to write to it.
                os.chmod(each, _MODE, dir_fd=here)
                os.rename(each, secrets.token_hex(16), src_dir_fd=here, dst_dir_fd=top)
            else:
                os.unlink(each, dir_fd=here)
    finally:
        os.close(here)
    os.rmdir(name, dir_fd=top)


def _is_folder(folder: int, name: str) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
