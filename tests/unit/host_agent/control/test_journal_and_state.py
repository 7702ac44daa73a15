# SPDX-License-Identifier: Apache-2.0
"""What survives a restart: the journal and the small state file."""

import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from host_agent.control import home_nodes_store
from host_agent.control.journal import BackgroundJournal, FileJournal, PrintedJournal
from host_agent.model.journal import Entry, Result
from placement_traits.errors import CapabilityMissingError
from placement_traits.journal import read

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def test_an_entry_is_read_back_with_its_time(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path / "j" / "journal.jsonl", clock=lambda: NOON)
    journal.write(Entry("pin", Result.DONE, "uuid", "web", {"4711": "3"}, ("why",)))
    journal.close()
    assert list(read(tmp_path / "j" / "journal.jsonl")) == [
        {
            "time": "2026-11-20T12:00:00.000+00:00",
            "action": "pin",
            "result": "done",
            "server": "uuid",
            "title": "web",
            "what": {"4711": "3"},
            "reasons": ["why"],
        }
    ]


def test_old_files_are_rotated_away_and_order_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = FileJournal(path, max_bytes=1000, keep=2, clock=lambda: NOON)
    for number in range(60):
        journal.write(Entry("pin", Result.DONE, str(number)))
    journal.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "journal.jsonl",
        "journal.jsonl.1",
        "journal.jsonl.2",
    ]
    numbers = [int(entry["server"]) for entry in read(path)]
    assert numbers == list(range(numbers[0], 60))


def test_a_folder_that_cannot_be_made_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CapabilityMissingError, match=r"\[agent\]state_dir"):
        FileJournal(tmp_path / "file" / "journal.jsonl")


class SlowDisk:
    """A file that takes entries only while it is let."""

    def __init__(self, path: Path) -> None:
        self.file = FileJournal(path)
        self.go = threading.Event()
        self.reached = threading.Event()

    def append(self, plain: Mapping[str, Any]) -> None:
        self.reached.set()
        self.go.wait(30)
        self.file.append(plain)

    def close(self) -> None:
        self.file.close()


def background(disk: SlowDisk, lost: list[str], **how: Any) -> BackgroundJournal:
    return BackgroundJournal(disk, lost.append, clock=lambda: NOON, **how)  # type: ignore[arg-type]


def test_a_disk_that_is_slow_holds_up_no_one_and_loses_nothing(tmp_path: Path) -> None:
    """L8: entries of a round were written on the loop's thread."""
    path, lost = tmp_path / "journal.jsonl", list[str]()
    disk = SlowDisk(path)
    journal = background(disk, lost)
    what: dict[str, int] = {"shares": 1}
    for number in range(200):
        journal.write(Entry("pin", Result.DONE, str(number), what=what))
    what["shares"] = 2
    assert list(read(path)) == []
    disk.go.set()
    journal.close()
    found = list(read(path))
    assert [entry["server"] for entry in found] == [str(number) for number in range(200)]
    assert {(entry["time"], entry["what"]["shares"]) for entry in found} == {
        ("2026-11-20T12:00:00.000+00:00", 1)
    }
    assert lost == []


def test_what_a_slow_disk_does_not_take_in_time_is_dropped_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, lost = tmp_path / "journal.jsonl", list[str]()
    disk = SlowDisk(path)
    journal = background(disk, lost, most=10)
    journal.write(Entry("pin", Result.DONE, "first"))
    assert disk.reached.wait(30)
    for number in range(15):
        journal.write(Entry("pin", Result.DONE, str(number)))
    assert lost == ["journal"] * 5
    disk.go.set()
    journal.close()
    assert [entry["server"] for entry in read(path)] == ["first", *map(str, range(10))]
    assert [record.message for record in caplog.records] == [
        "journal: a task is left out, 10 wait already"
    ]


def test_a_disk_that_hangs_does_not_hold_up_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lost: list[str] = []
    disk = SlowDisk(tmp_path / "journal.jsonl")
    journal = background(disk, lost, most=10, patience_s=0.1)
    journal.write(Entry("pin", Result.DONE, "first"))
    assert disk.reached.wait(30)
    for number in range(3):
        journal.write(Entry("pin", Result.DONE, str(number)))
    journal.close()
    assert lost == ["journal"] * 3
    assert "3 entries are not in the journal: its disk does not answer" in caplog.text
    disk.go.set()


def test_the_dry_twin_prints(capsys: pytest.CaptureFixture[str]) -> None:
    PrintedJournal(print, clock=lambda: NOON).write(Entry("pin", Result.WOULD))
    assert '"result": "would"' in capsys.readouterr().out


@given(st.dictionaries(st.uuids().map(str), st.lists(st.integers(0, 63), max_size=4).map(tuple)))
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20, deadline=None
)
def test_home_nodes_are_read_back(tmp_path: Path, home_nodes: dict[str, tuple[int, ...]]) -> None:
    home_nodes_store.store(tmp_path / "state.json").save(home_nodes)
    assert home_nodes_store.store(tmp_path / "state.json").load() == home_nodes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"version": 9, "home_nodes": {}}',
        '{"version": 2, "home_nodes": {"a": 3}}',
        '{"version": 2, "home_nodes": {"a": [Infinity]}}',
        '{"version": 1, "homes": {"a": [-1]}}',
        '{"version": 2, "home_nodes": ' + "[" * 100_000,
    ],
)
def test_a_broken_state_file_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    assert home_nodes_store.store(tmp_path / "state.json").load() is None
