# SPDX-License-Identifier: Apache-2.0
"""The code of an earlier release, beside this one's: its programs run as processes of their own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
OLD: Final = "50fd750"
"""The release before this one: the last commit that published hosts in the first format."""

_PACKAGES: Final = ("placement_traits", "nova_numa_ext", "host_agent")


class OldRelease:
    """A tree of the old code.

    :param folder: where it is unpacked
    """

    def __init__(self, folder: Path) -> None:
        archive = subprocess.run(
            ["git", "-C", str(ROOT), "archive", OLD, *_PACKAGES], check=False, capture_output=True
        )
        if archive.returncode:
            pytest.skip(f"git has no commit {OLD} here: {archive.stderr.decode().strip()}")
        subprocess.run(["tar", "-x", "-C", str(folder)], check=True, input=archive.stdout)
        self.folder = folder

    @property
    def environment(self) -> dict[str, str]:
        """Environment of a process that imports this code."""
        return {**os.environ, "PYTHONPATH": str(self.folder)}

    def run(self, program: str, *arguments: str) -> str:
        """Run a program over this code; return what it prints."""
        ran = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            env=self.environment,
            cwd=self.folder,
            check=False,
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout
