# SPDX-License-Identifier: Apache-2.0
"""Runs a command where users without rights reach this checkout, whatever folder it lies in.

Tests start agent and helper from the checkout as users of their own. Below a folder that is closed to others, such as
``/root``, they would find nothing. The command then runs in a mount namespace in which such folders may be passed
through; on the machine nothing changes. What the command writes right into such a folder, and not below a folder in it,
is gone when it ends.

Only the standard library: parts of ``make test`` begin with it.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
_INSIDE = "--inside"
_PASS_THROUGH = 0o001


def closed(path: Path) -> list[Path]:
    """Return the folders above ``path``, and it, that other users may not pass through, the topmost first."""
    return [
        each for each in reversed((path, *path.parents)) if not each.stat().st_mode & _PASS_THROUGH
    ]


def open_up(folder: Path) -> None:
    """Lay a folder that may be passed through over ``folder``, with all that is in it; for this mount namespace.

    :raises subprocess.CalledProcessError: a mount was refused
    """
    kept = Path(tempfile.mkdtemp(prefix="reachable-"))
    _mount("--rbind", folder, kept)
    _mount("-t", "tmpfs", "-o", "mode=711", "tmpfs", folder)
    for entry in sorted(kept.iterdir()):
        place = folder / entry.name
        if entry.is_symlink():
            place.symlink_to(entry.readlink())
            continue
        if entry.is_dir():
            place.mkdir()
        else:
            place.touch()
        _mount("--rbind", entry, place)


def _mount(*words: str | Path) -> None:
    subprocess.run(["mount", *words], check=True)


def main(arguments: Sequence[str]) -> None:
    """``python -m tests.reachable COMMAND ARGUMENT...``: this process becomes the command."""
    command = list(arguments)
    if command[:1] == [_INSIDE]:
        del command[0]
        here = Path.cwd()
        while still := closed(CHECKOUT):
            open_up(still[0])
        os.chdir(here)
    elif os.geteuid() == 0 and closed(CHECKOUT):
        module = [sys.executable, "-m", "tests.reachable", _INSIDE]
        command = ["unshare", "--mount", "--propagation=slave", *module, *command]
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
