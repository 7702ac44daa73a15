# SPDX-License-Identifier: Apache-2.0
"""The show's line about remote GPUs says what was seen, and nothing where nothing was built or it did not work."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from numa_lab import link_build, pocl_build, remote_gpu_line
from numa_lab.pocl_build import Pocl
from numa_lab.settings import Settings

from tests.support import built_link, built_pocl

Program = Callable[[str], Settings]


@pytest.fixture
def running(settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Program:
    """Settings whose lease is a script of the test."""
    monkeypatch.setattr(pocl_build, "cached", lambda _settings: Pocl(tmp_path, tmp_path))
    monkeypatch.setattr(link_build, "cached", lambda _settings: tmp_path)
    settings.python.parent.mkdir(parents=True)

    def made(script: str) -> Settings:
        settings.python.write_text(f"#!/bin/sh\n{script}\n")
        settings.python.chmod(0o755)
        return settings

    return made


def test_what_is_not_built_is_named_with_what_builds_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(link_build, "cached", lambda _settings: tmp_path)
    show = f"{settings.command} show."
    assert remote_gpu_line.line(settings) == (
        f"Remote GPU: not used, for it is not built: {settings.command} pocl (minutes, once), then {show}"
    )
    monkeypatch.setattr(link_build, "cached", lambda _settings: None)
    both = f"{settings.command} pocl and {settings.command} link"
    assert f"{both} (minutes, once)" in remote_gpu_line.line(settings)


def test_what_was_computed_is_said(running: Program) -> None:
    settings = running("""echo '{"rounds": 77, "attached_s": 1.5}'""")
    found = remote_gpu_line.line(settings)
    assert "has computed 77 rounds" in found and "1.5 s after" in found


def test_what_did_not_work_is_said_with_its_last_words(running: Program) -> None:
    settings = running("echo first >&2; echo no namespaces here >&2; exit 1")
    assert remote_gpu_line.line(settings).startswith(
        "Remote GPU: did not work: no namespaces here (log: "
    )
    assert (settings.log / "remote-gpu.log").read_text() == "first\nno namespaces here\n"


@pytest.mark.long
@pytest.mark.root
def test_a_lease_of_this_machine_is_used(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    pocl, link = built_pocl.cached_pocl(), built_link.cached_link()
    monkeypatch.setattr(pocl_build, "cached", lambda _settings: pocl)
    monkeypatch.setattr(link_build, "cached", lambda _settings: link)
    own = replace(settings, venv=Path(sys.prefix))
    assert "all numbers right" in remote_gpu_line.line(own)
