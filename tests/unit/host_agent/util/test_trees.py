# SPDX-License-Identifier: Apache-2.0
"""Folders of processes that are not trusted are removed, whatever these have made in them."""

import os
from pathlib import Path

from host_agent.util.trees import remove_tree

LEVELS = 1500  # more than Python recurses, or a process may have open
NOBODY = 65534


def deep(folder: Path) -> None:
    """Make folders within folders, each with a file."""
    here = os.open(folder, os.O_RDONLY)
    for _level in range(LEVELS):
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        os.mkdir("folder", dir_fd=here)
        below = os.open("folder", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def test_a_tree_of_any_depth_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "lease.files"
    folder.mkdir()
    deep(folder)
    remove_tree(folder)
    assert list(tmp_path.iterdir()) == []


def test_links_lead_nowhere(tmp_path: Path) -> None:
    kept, folder = tmp_path / "kept", tmp_path / "lease.files"
    kept.mkdir()
    (kept / "file").write_text("x")
    (folder / "a/b").mkdir(parents=True)
    for link in (folder / "link", folder / "a/link", folder / "a/b/link"):
        link.symlink_to(kept)
    (folder / "a/gone").symlink_to(tmp_path / "nowhere")
    remove_tree(folder)
    assert [each.name for each in tmp_path.iterdir()] == ["kept"]
    assert (kept / "file").read_text() == "x"


def test_what_its_process_has_forbidden_is_removed(tmp_path: Path) -> None:
    """By another user than root, to whom nothing is forbidden."""
    folder = tmp_path / "lease.files"
    (folder / "a/b/c").mkdir(parents=True)
    for each in (folder / "a/b/c", folder / "a/b", folder / "a", folder, tmp_path):
        if os.geteuid() == 0:
            os.chown(each, NOBODY, NOBODY)
        each.chmod(0 if each != tmp_path else 0o700)
    process = os.fork()
    if not process:
        status = 1
        try:
            os.chdir(tmp_path)
            if os.geteuid() == 0:
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            remove_tree(Path(folder.name))
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(process, 0)[1] == 0
    assert list(tmp_path.iterdir()) == []


def test_one_that_is_not_there_is_removed(tmp_path: Path) -> None:
    remove_tree(tmp_path / "lease.files")
