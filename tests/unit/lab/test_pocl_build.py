# SPDX-License-Identifier: Apache-2.0
"""PoCL is built once per content, from Debian's source and our patches; all else goes on without it."""

from numa_lab import cli, pocl_build
from numa_lab.errors import LabError
from numa_lab.settings import Settings


def test_nothing_is_cached_before_it_is_built(settings):
    assert pocl_build.cached(settings) is None


def test_each_part_is_known_by_its_content(settings, monkeypatch, tmp_path):
    before = pocl_build._folders(settings)
    assert before == pocl_build._folders(settings)
    monkeypatch.setattr(pocl_build, "VERSION", "6.0-7")
    assert pocl_build._folders(settings).built != before.built
    assert pocl_build._folders(settings).own == before.own
    monkeypatch.undo()
    monkeypatch.setattr(pocl_build, "patches", lambda _settings: [])
    assert pocl_build._folders(settings).built != before.built
    monkeypatch.undo()
    (tmp_path / "slice.c").write_text("int changed;\n")
    monkeypatch.setattr(pocl_build, "programs", lambda _settings: tmp_path)
    assert pocl_build._folders(settings).own != before.own
    assert pocl_build._folders(settings).built == before.built


def test_a_build_that_fails_leaves_nothing_in_its_place(settings, monkeypatch, capsys):
    def fails(*_):
        raise LabError("no source", settings.log / "pocl-build.log")

    monkeypatch.setattr(pocl_build.packages, "ensure", lambda *_: None)
    monkeypatch.setattr(pocl_build, "_fetch", fails)
    monkeypatch.setattr(Settings, "from_environment", lambda *_: settings)
    assert cli.main(settings.checkout, ["pocl"]) == 1
    assert "no source" in capsys.readouterr().err
    assert pocl_build.cached(settings) is None


def test_the_patches_carry_pocls_licence_and_say_why(settings):
    patches = pocl_build.patches(settings)
    assert patches
    for number, patch in enumerate(patches, 1):
        text = patch.read_text()
        assert patch.name.startswith(f"{number:04}-")
        assert text.startswith("SPDX-License-Identifier: MIT\n")
        head = text.partition("\n---\n")[0]
        assert "Subject: [PATCH] " in head and len(head.splitlines()) > 6
        assert "--- /dev/null" not in text, "no file of others is carried here"
