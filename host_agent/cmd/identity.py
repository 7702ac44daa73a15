# SPDX-License-Identifier: Apache-2.0
"""Root's commands go on as the agent's user before they write to its folder.

What root made there the agent could not write afterwards, and who has taken over the agent could have root follow a
link of his.
"""

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from placement_traits.errors import InvalidValueError

_ROOT: Final = 0


def other_owner(folder: Path) -> pwd.struct_passwd | None:
    """Return the user whom root has to be to write to a folder; None where nothing has to change.

    :raises InvalidValueError: no user has the id that the folder belongs to
    """
    if os.geteuid() != _ROOT:
        return None
    try:
        owner = folder.stat().st_uid
    except OSError:
        return None  # what is wrong with the folder is reported where it is used
    if owner == _ROOT:
        return None
    try:
        return pwd.getpwuid(owner)
    except KeyError:
        raise InvalidValueError(
            "[agent]state_dir", str(folder), f"the agent's folder; there is no user {owner}"
        ) from None


@contextmanager
def owner_for_now(folder: Path) -> Iterator[None]:
    """Be the owner of a folder while the context lasts, where root is: for what needs root's rights before and after.

    :raises InvalidValueError: no user has the id that the folder belongs to
    """
    user = other_owner(folder)
    if user is None:
        yield
        return
    groups = os.getgroups()
    os.initgroups(user.pw_name, user.pw_gid)
    os.setegid(user.pw_gid)
    os.seteuid(user.pw_uid)
    try:
        yield
    finally:
        os.seteuid(_ROOT)
        os.setegid(_ROOT)
        os.setgroups(groups)


def act_as_owner(folder: Path) -> None:
    """Give up root's rights for good where a folder belongs to another user, and be that user.

    Rights that are needed all the same are the helper's. Without a folder, or without root's rights, nothing changes.

    :raises InvalidValueError: no user has the id that the folder belongs to
    """
    user = other_owner(folder)
    if user is None:
        return
    os.initgroups(user.pw_name, user.pw_gid)
    os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
    os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
    os.environ.update(HOME=user.pw_dir, USER=user.pw_name)
