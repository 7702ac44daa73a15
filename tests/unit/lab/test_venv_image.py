# SPDX-License-Identifier: Apache-2.0
"""The disk with the virtual environment has all that a Python needs whose root it is."""

from pathlib import Path

import pytest
from numa_lab import venv_image
from numa_lab.errors import LabError


@pytest.fixture
def system(tmp_path) -> Path:
    """A folder with an interpreter that has two names, and a library that is asked for by another one."""
    folder = tmp_path / "system"
    folder.mkdir()
    (folder / "python3.11").write_text("interpreter")
    (folder / "python3").symlink_to("python3.11")
    (folder / "libz.so.1.2.13").write_text("library")
    (folder / "libz.so.1").symlink_to("libz.so.1.2.13")
    (folder / "libzip.so.5").write_text("another library")
    return folder


def test_interpreter_and_libraries_are_there_by_all_their_names(
    settings, system, monkeypatch, tmp_path
):
    (settings.venv / "bin").mkdir(parents=True)
    (settings.venv / "bin" / "python3").symlink_to(system / "python3")
    (settings.venv / "bin" / "python").symlink_to("python3")
    inside = settings.venv / "lib" / "module.so"
    mapped = [system / "python3.11", system / "libz.so.1.2.13", inside]
    monkeypatch.setattr(venv_image, "_mapped_files", lambda _: mapped)
    tree, library = tmp_path / "tree", tmp_path / "lib/python3.11"
    venv_image._lay_out(tree, settings, (settings.venv, library))
    copied = tree / system.relative_to("/")
    assert {file.name for file in copied.iterdir()} == {
        "python3",
        "python3.11",
        "libz.so.1",
        "libz.so.1.2.13",
    }
    assert (copied / "libz.so.1").read_text() == "library"
    assert (tree / "folders").read_text() == f"{settings.venv}\n{library}\n"
    for mount_point in (settings.venv, library, Path("/dev"), Path("/proc")):
        assert list((tree / mount_point.relative_to("/")).iterdir()) == []
    assert (tree / "lib64/ld-linux-x86-64.so.2").exists()


def test_an_image_is_known_by_what_is_installed_and_by_what_is_imported(
    settings, monkeypatch, tmp_path
):
    record = settings.venv / "lib/python3.11/site-packages/nova-34.dist-info/RECORD"
    record.parent.mkdir(parents=True)
    record.touch()
    server = tmp_path / "fork_server.py"
    server.write_text("one")
    monkeypatch.setattr(venv_image, "_fork_server", lambda _: server)
    first = venv_image.fingerprint(settings)
    assert venv_image.fingerprint(settings) == first
    server.write_text("two")
    second = venv_image.fingerprint(settings)
    record.unlink()
    assert len({first, second, venv_image.fingerprint(settings)}) == 3


def test_modules_that_cannot_be_imported_are_named(settings):
    (settings.venv / "bin").mkdir(parents=True)
    settings.python.write_text("#!/bin/sh\necho ModuleNotFoundError: nova >&2\nexit 1\n")
    settings.python.chmod(0o755)
    with pytest.raises(LabError, match="ModuleNotFoundError: nova"):
        venv_image._mapped_files(settings)
