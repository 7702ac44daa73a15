# SPDX-License-Identifier: Apache-2.0
"""CRIU is built once per content; without it the lab goes on."""

import hashlib
import io
import re

from numa_lab import criu_build, debian_archive
from numa_lab.criu_build import build_key
from numa_lab.debian_archive import SourceArchive
from numa_lab.errors import LabError
from numa_lab.terminal import Progress


def test_a_build_is_known_by_version_options_and_compiler():
    keys = {
        build_key("4.2.1", ("NO_GNUTLS=1",), "12.2.0"),
        build_key("4.2.2", ("NO_GNUTLS=1",), "12.2.0"),
        build_key("4.2.1", (), "12.2.0"),
        build_key("4.2.1", ("NO_GNUTLS=1",), "13.1.0"),
    }
    assert len(keys) == 4
    again = build_key("4.2.1", ("NO_GNUTLS=1",), "12.2.0")
    assert again in keys and re.fullmatch("[0-9a-f]{16}", again)


def test_without_a_build_leases_move_empty_and_it_is_said(settings, monkeypatch):
    def fails(*_):
        raise LabError("no source", settings.log / "criu-build.log")

    monkeypatch.setattr(criu_build, "build", fails)
    said = io.StringIO()
    assert criu_build.provide(settings, Progress(said)) is None
    assert "no source" in said.getvalue() and "with empty memory" in said.getvalue()
    assert criu_build.cached(settings) is None


def test_newer_suites_are_taken_from_the_archive_that_the_machine_uses(tmp_path, monkeypatch):
    lines = "Debian http://security.example/debian-security bookworm-security main\n"
    lines += "Debian http://mirror.example/debian bookworm main\n"
    monkeypatch.setattr(debian_archive, "_output", lambda *_argv: lines)
    monkeypatch.setattr(debian_archive, "run_logged", lambda *_argv, **_more: None)
    SourceArchive(tmp_path / "own").update(tmp_path / "log")
    assert "sid" not in (tmp_path / "own/sources.list").read_text()
    SourceArchive(tmp_path, ("bookworm", "sid")).update(tmp_path / "log")
    found = [each.split("] ")[1] for each in (tmp_path / "sources.list").read_text().splitlines()]
    assert found[-1] == "http://mirror.example/debian sid main"
    assert len(found) == len(set(found)) == 3


def test_an_original_is_fetched_by_the_digest_of_the_index(tmp_path, monkeypatch):
    digest = f"SHA256:{hashlib.sha256(b'x').hexdigest()}"
    listed = f"'http://mirror.example/c_1.orig.tar.xz' c_1.orig.tar.xz 1 {digest}\n"
    listed = f"'http://mirror.example/c_1-1.dsc' c_1-1.dsc 2 SHA256:00\n{listed}"
    monkeypatch.setattr(debian_archive, "_output", lambda *_argv: listed)
    ran = []
    monkeypatch.setattr(debian_archive, "run_logged", lambda _what, argv, _log: ran.append(argv))
    found = SourceArchive(tmp_path).original("c", "1-1", tmp_path, tmp_path / "log")
    assert found == tmp_path / "c_1.orig.tar.xz"
    assert ran[0][2:] == ["http://mirror.example/c_1.orig.tar.xz", found, digest]
