# SPDX-License-Identifier: Apache-2.0
"""What survives a restart: the journal and the small state file."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from host_agent.control import home_nodes_store
from host_agent.control.journal import FileJournal, PrintedJournal
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
