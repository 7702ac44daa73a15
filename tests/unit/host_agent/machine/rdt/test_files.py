# SPDX-License-Identifier: Apache-2.0
"""Changes of the tree stay in the tree."""

from collections.abc import Callable
from pathlib import Path

import pytest

from host_agent.machine.rdt.files import OsFiles


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder that stands for the mount point, with links that lead out of it."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/schemata").write_text("as it was")
    root = tmp_path / "tree"
    (root / "numa_ext-be-0").mkdir(parents=True)
    (root / "numa_ext-be-0/schemata").write_text("old")
    (root / "numa_ext-be-0/tasks").symlink_to(tmp_path / "elsewhere/schemata")
    (root / "numa_ext-link").symlink_to(tmp_path / "elsewhere")
    return root


def test_a_file_of_a_group_is_written(tree: Path) -> None:
    files = OsFiles(str(tree))
    files.write("numa_ext-be-0/schemata", "new")
    assert (tree / "numa_ext-be-0/schemata").read_text() == "new"
    files.mkdir("numa_ext-be-1")
    files.rmdir("numa_ext-be-1")


def test_a_link_is_not_read(tree: Path) -> None:
    files = OsFiles(str(tree))
    assert files.read("numa_ext-be-0/schemata") == "old"
    with pytest.raises(OSError):
        files.read("numa_ext-be-0/tasks")


@pytest.mark.parametrize(
    "change",
    [
        lambda files: files.write("numa_ext-link/schemata", "new"),
        lambda files: files.write("numa_ext-be-0/tasks", "new"),
        lambda files: files.write("../elsewhere/schemata", "new"),
        lambda files: files.write("numa_ext-be-0/../../elsewhere/schemata", "new"),
        lambda files: files.mkdir("numa_ext-link/group"),
        lambda files: files.mkdir("../group"),
        lambda files: files.rmdir("../elsewhere"),
        lambda files: files.rmdir(""),
    ],
)
def test_no_change_leads_out_of_the_tree(tree: Path, change: Callable[[OsFiles], None]) -> None:
    with pytest.raises(OSError):
        change(OsFiles(str(tree)))
    assert [entry.name for entry in (tree.parent / "elsewhere").iterdir()] == ["schemata"]
    assert (tree.parent / "elsewhere/schemata").read_text() == "as it was"
    assert {entry.name for entry in tree.parent.iterdir()} == {"elsewhere", "tree"}
