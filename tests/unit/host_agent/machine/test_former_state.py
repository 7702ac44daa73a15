# SPDX-License-Identifier: Apache-2.0
"""An upgrade: the helper takes over what the agent before has kept in its own folder, and trusts nothing there."""

import json
import os
from pathlib import Path

import pytest

from host_agent.conf.paths import HostPaths
from host_agent.machine.privileged import former_state, vcpu_quota
from host_agent.machine.rdt.pqos import ClassNames
from host_agent.machine.rdt.root_masks import RootMemory
from tests.support.booted import boot

A = "aaaaaaaa-0000-4000-8000-000000000000"
FOUND = {"L3": {0: 2047, 1: 2047}}
FILES = {
    "rdt-root.json": {"root": {"L3": {"0": 2047, "1": 2047}}},
    "throttled.json": {"servers": [A]},
    "pqos-classes.json": {"lives": 4, "names": {"numa_ext-be-0": [1, 4]}},
}


@pytest.fixture
def paths(tmp_path: Path) -> HostPaths:
    boot(tmp_path / "proc")
    for folder in ("state", "helper"):
        (tmp_path / folder).mkdir()
    return HostPaths(
        proc=tmp_path / "proc", state=tmp_path / "state", helper_state=tmp_path / "helper"
    )


def leave(paths: HostPaths, boot: str = "one") -> None:
    """An agent of the version before was here."""
    for name, content in FILES.items():
        (paths.state / name).write_text(json.dumps({"version": 1, "boot": boot, **content}))


def taken(paths: HostPaths) -> set[str]:
    return {file.name for file in paths.helper_state.iterdir()}


def test_what_the_agent_before_has_remembered_is_known(paths: HostPaths) -> None:
    leave(paths)
    former_state.take_over(paths)
    assert RootMemory(paths.helper_state, paths.proc).recall() == FOUND
    assert vcpu_quota.throttled_servers(paths).load() == {A}
    assert ClassNames(paths.helper_state, paths.proc).recall() == {"numa_ext-be-0": (1, 4)}
    assert taken(paths) == set(FILES)


def test_the_agents_side_can_read_what_was_taken_over(paths: HostPaths) -> None:
    """The helper's unit has a umask of its own."""
    leave(paths)
    before = os.umask(0o077)
    try:
        former_state.take_over(paths)
    finally:
        os.umask(before)
    modes = {file.stat().st_mode & 0o777 for file in paths.helper_state.iterdir()}
    assert modes == {0o644}


def test_what_was_taken_over_is_on_the_disk(
    paths: HostPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that loses power right after an upgrade still knows whom it throttles."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    leave(paths)
    former_state.take_over(paths)
    files = {file.stat().st_ino for file in paths.helper_state.iterdir()}
    assert {*files, paths.helper_state.stat().st_ino} == set(synced)


def test_what_the_helper_knows_itself_counts(paths: HostPaths) -> None:
    """Root was given its ways back since: it is not shrunk any more."""
    RootMemory(paths.helper_state, paths.proc).keep({})
    leave(paths)
    former_state.take_over(paths)
    assert RootMemory(paths.helper_state, paths.proc).recall() == {}


def test_without_an_agent_before_there_is_nothing_to_say(
    paths: HostPaths, caplog: pytest.LogCaptureFixture
) -> None:
    former_state.take_over(paths)
    assert (taken(paths), caplog.messages) == (set(), [])


def test_another_boots_files_are_left(paths: HostPaths) -> None:
    leave(paths, boot="before")
    former_state.take_over(paths)
    assert taken(paths) == set()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("trap", ["link", "pipe", "folder", "large", "garbage", "cut"])
def test_nothing_in_the_agents_folder_is_trusted(
    paths: HostPaths, caplog: pytest.LogCaptureFixture, name: str, trap: str
) -> None:
    leave(paths)
    file = paths.state / name
    good = file.read_bytes()
    file.unlink()
    if trap == "link":
        file.with_name("elsewhere").write_bytes(good)
        file.symlink_to("elsewhere")
    elif trap == "pipe":
        os.mkfifo(file)
    elif trap == "folder":
        file.mkdir()
    elif trap == "large":
        file.write_bytes(good + b" " * former_state._BYTES_MAX)
    else:
        file.write_bytes(b"\0\xff" if trap == "garbage" else good[: len(good) // 2])
    former_state.take_over(paths)
    assert taken(paths) == set(FILES) - {name}, "one never takes the others with it"
    assert name in caplog.text


def test_what_names_no_server_is_not_a_list_of_servers(paths: HostPaths) -> None:
    leave(paths)
    text = json.dumps({"version": 1, "boot": "one", "servers": [A, "../../etc"]})
    (paths.state / "throttled.json").write_text(text)
    former_state.take_over(paths)
    assert "throttled.json" not in taken(paths)
