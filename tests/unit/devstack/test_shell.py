# SPDX-License-Identifier: Apache-2.0
"""shellcheck and bashate find nothing in the DevStack plug-in, nor in what runs it in tests."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.devstack import CHECKOUT

FILES = [
    *(CHECKOUT / "devstack" / name for name in ("plugin.sh", "settings", "override-defaults")),
    CHECKOUT / "tests/support/devstack/programs.sh",
]


def _findings(program: str, *words: str | Path) -> str:
    found = shutil.which(program, path=str(Path(sys.executable).parent)) or shutil.which(program)
    if not found:
        pytest.skip(f"needs {program}, of the extra test")
    done = subprocess.run([found, *words], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_shellcheck_finds_nothing() -> None:
    """One by one: with several it takes what one sets for known in the others."""
    assert [_findings("shellcheck", "--shell=bash", file) for file in FILES] == [""] * len(FILES)


def test_bashate_finds_nothing() -> None:
    """DevStack's style; lines are as long as in other files here, and DevStack's own names of files say no language."""
    assert _findings("bashate", "--max-line-length=120", "--ignore=E005", *FILES) == ""


def test_shellcheck_finds_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "wrong.sh").write_text("rm -rf $1/*\n")
    assert "SC2086" in _findings("shellcheck", "--shell=bash", tmp_path / "wrong.sh")
