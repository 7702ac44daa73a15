# SPDX-License-Identifier: Apache-2.0
"""A state file is the old one or the new one, and whatever stands in it never disturbs."""

import errno
import json
import logging
import math
import os
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from placement_traits.errors import InvalidValueError
from placement_traits.json_store import MAX_BYTES, MAX_DEPTH, JsonStore, remove_drafts
from placement_traits.plain import Value

PID_MAX_LIMIT = (
    2**22
)  # of Linux: no thread has a number above; those of ended threads are soon others'


def numbers(path: Path, **more: Path) -> JsonStore[dict[str, float]]:
    """A store of numbers by name."""
    return JsonStore(
        path,
        3,
        lambda found: {n: v.number() for n, v in found.member("numbers").members().items()},
        lambda content: {"numbers": content},
        **more,
    )


@given(st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
def test_content_comes_back(tmp_path: Path, content: dict[str, float]) -> None:
    numbers(tmp_path / "s.json").save(content)
    assert numbers(tmp_path / "s.json").load() == content


def test_the_file_has_a_version_a_mode_and_no_draft_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "s.json"
    before = os.umask(0o077)
    try:
        numbers(path).save({"a": 1})
    finally:
        os.umask(before)
    assert json.loads(path.read_text()) == {"version": 3, "numbers": {"a": 1}}
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [file.name for file in path.parent.iterdir()] == ["s.json"]


def test_file_and_folder_are_on_the_disk_in_this_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Content before the name: after a power failure the name never leads to an empty file."""
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        fsync(descriptor)
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        done.append(kind)

    def renamed(path: Path, target: Path) -> Path:
        done.append("rename")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    numbers(tmp_path / "s.json").save({"a": 1})
    assert done == ["file", "rename", "folder"]


@pytest.mark.parametrize("call", ["fsync", "fchmod"])
def test_a_full_disk_leaves_the_old_file_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "s.json"
    numbers(path).save({"a": 1})

    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os, call, full)
        with pytest.raises(OSError, match="No space"):
            numbers(path).save({"a": 2})
    assert numbers(path).load() == {"a": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["s.json"]


def test_many_writers_never_show_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    numbers(path).save({})
    stop = threading.Event()
    seen: list[object] = []

    def write(writer: int) -> None:
        while not stop.is_set():
            numbers(path).save(dict.fromkeys(map(str, range(writer * 50)), 1.0))

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(1, 4)]
    for thread in threads:
        thread.start()
    for _look in range(200):
        seen.append(numbers(path).load())
    stop.set()
    for thread in threads:
        thread.join()
    assert None not in seen


DEEP = '{"version": 3, "x": %s' % ("[" * 100_000)
NESTED = '{"version": 3, "numbers": {}, "x": %s}' % ("[" * MAX_DEPTH + "]" * MAX_DEPTH)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff",
        b'{"numbers": {}}',
        b'{"version": 4, "numbers": {}}',
        b'{"version": true, "numbers": {}}',
        b'{"version": 3}',
        b'{"version": 3, "numbers": {"a": NaN}}',
        b'{"version": 3, "numbers": {"a": -Infinity}}',
        b'{"version": 3, "numbers": {"a": 1e999}}',
        b'{"version": 3, "numbers": {"a": 1}, "of nobody": Infinity}',
        b'{"version": 3, "numbers": {"a": 1}, "of nobody": -1e999}',
        b'{"version": 3, "numbers": {"a": 1%s}}' % (b"0" * 400),
        b'{"version": 3, "numbers": {"a": 1%s}}' % (b"0" * 5000),
        b'{"version": 3, "numbers": {"a": true}}',
        b'{"version": 3, "numbers": [1]}',
        DEEP.encode(),
        NESTED.encode(),
        b'{"version": 3, "numbers": {}}' + b" " * MAX_BYTES,
    ],
    ids=lambda text: text[:50].decode(errors="replace"),
)
def test_a_file_that_cannot_be_used_is_logged_once_and_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: bytes
) -> None:
    path = tmp_path / "s.json"
    path.write_bytes(text)
    store = numbers(path)
    for _round in range(3):
        assert store.load() is None
    assert numbers(path).load() is None, "the next reader"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "\n" not in caplog.messages[0]
    assert len(caplog.messages[0]) < 400
    assert path.read_bytes() == text, "reading changes nothing"
    store.save({"a": 1})
    assert numbers(path).load() == {"a": 1}
    assert path.with_name("s.json.bad").read_bytes() == text


def test_a_file_that_cannot_be_read_is_as_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "s.json").mkdir()
    assert numbers(tmp_path / "s.json").load() is None
    assert "is not used" in caplog.text


def test_no_file_is_no_news(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    assert numbers(tmp_path / "s.json").load() is None
    assert caplog.records == []


def test_content_without_bounds_is_refused_and_the_old_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    numbers(path).save({"a": 1})
    with pytest.raises(InvalidValueError, match="finite numbers"):
        numbers(path).save({"a": math.inf})
    assert numbers(path).load() == {"a": 1}


def test_content_of_another_boot_is_not_known_any_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    boot = tmp_path / "boot_id"
    boot.write_text("one\n")
    store = numbers(tmp_path / "s.json", boot_id=boot)
    store.save({"a": 1})
    assert store.load() == {"a": 1}
    boot.write_text("two\n")
    assert store.load() is None
    store.save({"a": 2})
    assert store.load() == {"a": 2}
    assert caplog.records == []
    assert not (tmp_path / "s.json.bad").exists()


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(PLAIN)
def test_values_are_read_or_refused_in_a_sentence(raw: object) -> None:
    value = Value(raw, "file")
    for read in (
        value.members,
        value.numbered,
        value.items,
        value.text,
        value.flag,
        value.integer,
        value.number,
        value.shares,
        lambda: value.member("a"),
    ):
        try:
            read()
        except InvalidValueError as error:
            assert str(error).startswith("file")


def test_shares_are_of_one_whole() -> None:
    assert Value({"0": 0.25, "12": 0.75}, "file").shares() == {0: 0.25, 12: 0.75}
    for wrong in ({}, {"0": 0.5}, {"0": 1.5, "1": -0.5}, {"x": 1.0}, {"-1": 1.0}):
        with pytest.raises(InvalidValueError):
            Value(wrong, "file").shares()


def test_drafts_of_writers_that_were_killed_go_and_all_else_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash at each write left one for ever."""
    folder = tmp_path / "state"

    def killed(_file: Path, _target: Path) -> None:
        raise SystemExit

    def write() -> None:
        with pytest.raises(SystemExit):
            numbers(folder / "s.json").save({"a": 1})

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        write()  # by a thread that lives
        for ended in range(PID_MAX_LIMIT + 1, PID_MAX_LIMIT + 4):
            patch.setattr(threading, "get_native_id", lambda ended=ended: ended)
            write()
    own = f"s.json.{threading.get_native_id()}.new"
    others = {"s.json.bad", "s.json.new", "s.json.x.new", "notes.7.new", "json.7.new", own}
    for name in others - {own}:
        (folder / name).write_text("")
    assert len(list(folder.iterdir())) > len(others)
    remove_drafts(folder)
    assert {file.name for file in folder.iterdir()} == others
    remove_drafts(tmp_path / "nowhere")
