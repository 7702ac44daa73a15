# SPDX-License-Identifier: Apache-2.0
"""Users without rights reach a checkout in a folder of root's, and the folder stays closed to others on the machine."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import reachable

USER = 64123
LOOK = f"""
import os, sys
os.setuid({USER})
print(sorted(os.listdir(sys.argv[1])), open(sys.argv[1] + "/own/text").read(), os.getcwd())
"""


@pytest.fixture
def private() -> Iterator[Path]:
    """A checkout in folders that others may not enter::

    closed/            700
      beside           a file
      link -> beside
      deeper/          750
        checkout/      755   tests/reachable.py
          own/text     "ours"
    """
    with tempfile.TemporaryDirectory() as top:
        Path(top).chmod(0o755)
        yield _checkout(Path(top) / "closed/deeper/checkout")


def _checkout(checkout: Path) -> Path:
    (checkout / "tests").mkdir(parents=True)
    (checkout / "own").mkdir()
    (checkout / "own/text").write_text("ours")
    (checkout / "tests/__init__.py").touch()
    shutil.copy(reachable.__file__, checkout / "tests")
    closed = checkout.parents[1]
    (closed / "beside").write_text("beside")
    (closed / "link").symlink_to("beside")
    checkout.parent.chmod(0o750)
    closed.chmod(0o700)
    return checkout


def run(checkout: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, "-m", "tests.reachable", *command]
    return subprocess.run(words, cwd=checkout, capture_output=True, text=True, check=False)


@pytest.mark.root
def test_another_user_finds_the_checkout_and_the_folders_stay_closed(private: Path) -> None:
    look = ("/usr/bin/python3", "-c", LOOK, str(private))
    done = run(private, *look)
    assert done.stdout == f"['own', 'tests'] ours {private}\n", done.stderr
    assert [oct(each.stat().st_mode)[-3:] for each in list(private.parents)[:2]] == ["750", "700"]
    alone = subprocess.run(look, capture_output=True, text=True, check=False)
    assert "Permission denied" in alone.stderr


@pytest.mark.root
def test_what_lies_beside_is_there_too_and_what_is_written_below_stays(private: Path) -> None:
    closed = private.parents[1]
    done = run(private, "sh", "-c", f"cat {closed}/link && echo more >> {private}/own/text")
    assert done.stdout == "beside", done.stderr
    assert (private / "own/text").read_text() == "oursmore\n"


def test_a_checkout_that_all_reach_is_used_as_it_is(private: Path) -> None:
    for each in list(private.parents)[:2]:
        each.chmod(0o711)
    assert reachable.closed(private) == []
    done = run(private, "readlink", "/proc/self/ns/mnt")
    assert done.stdout.strip() == str(Path("/proc/self/ns/mnt").readlink())


def test_the_exit_status_is_the_commands(private: Path) -> None:
    assert run(private, "sh", "-c", "exit 3").returncode == 3
