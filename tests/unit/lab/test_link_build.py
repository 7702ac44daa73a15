# SPDX-License-Identifier: Apache-2.0
"""The link of remote GPUs is built once per content."""

import re

from numa_lab import link_build
from numa_lab.link_build import build_key


def test_a_build_is_known_by_files_their_names_and_the_compiler():
    keys = {
        build_key([("a.go", b"1")], "go1.19"),
        build_key([("a.go", b"2")], "go1.19"),
        build_key([("b.go", b"1")], "go1.19"),
        build_key([("a.go", b"1"), ("b.go", b"")], "go1.19"),
        build_key([("a.go", b"1")], "go1.20"),
    }
    assert len(keys) == 5
    again = build_key([("a.go", b"1")], "go1.19")
    assert again in keys and re.fullmatch("[0-9a-f]{16}", again)


def test_without_go_nothing_is_cached(settings, monkeypatch, tmp_path):
    monkeypatch.setattr(link_build, "GO", tmp_path / "go")
    assert link_build.cached(settings) is None
