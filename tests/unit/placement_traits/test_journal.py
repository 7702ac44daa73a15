# SPDX-License-Identifier: Apache-2.0
"""The journal keeps whole lines, rotates, and never disturbs."""

import errno
import json
import logging
import os

import pytest

from placement_traits.journal import Journal, backup, read
from tests.support.at_once import at_once


def test_entries_come_back_in_order(tmp_path):
    path = tmp_path / "new" / "journal.jsonl"
    journal = Journal(path, 2**20, 2)
    for number in range(3):
        journal.append({"number": number})
    assert [entry["number"] for entry in read(path)] == [0, 1, 2]


def test_a_full_journal_is_rotated_and_the_oldest_file_goes(tmp_path):
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, max_bytes=1, backups=2)
    for number in range(5):
        journal.append({"number": number})
    assert [entry["number"] for entry in read(path)] == [2, 3, 4]
    assert not backup(path, 3).exists()


def test_without_backups_a_full_journal_starts_anew(tmp_path):
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, max_bytes=1, backups=0)
    journal.append({"number": 0})
    journal.append({"number": 1})
    assert [entry["number"] for entry in read(path)] == [1]


def test_what_unicode_calls_a_line_separator_does_not_cut_a_line(tmp_path):
    path = tmp_path / "journal.jsonl"
    title = "a\u2028b\u2029c\u0085d\x0b\x0c\x1c"
    Journal(path, 2**20, 1).append({"title": title})
    path.write_bytes(path.read_bytes() + f'{{"title": "{title[:6]}"}}\n'.encode())
    assert [entry["title"] for entry in read(path)] == [title, title[:6]]


@pytest.mark.parametrize(
    "bad", [b'{"title": "\xff"}', b"[" * 100_000, b'{"number": 1' + b"0" * 5000 + b"}", b"7", b""]
)
def test_a_bad_line_costs_one_line(tmp_path, bad):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"number": 1}\n' + bad + b'\n{"number": 2}\n')
    assert [entry["number"] for entry in read(path)] == [1, 2]


def test_a_name_that_is_no_utf_8_comes_back(tmp_path):
    path = tmp_path / "journal.jsonl"
    name = os.fsdecode(b"caf\xe9")
    Journal(path, 2**20, 1).append({"name": name})
    assert [entry["name"] for entry in read(path)] == [name]


def test_what_json_does_not_know_is_written_as_text(tmp_path):
    path = tmp_path / "journal.jsonl"
    Journal(path, 2**20, 1).append({"file": path})
    assert [entry["file"] for entry in read(path)] == [str(path)]


def test_a_line_is_one_system_call(tmp_path, monkeypatch):
    written = []
    write = os.write

    def one(descriptor, data):
        written.append(data)
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", one)
    journal = Journal(tmp_path / "journal.jsonl", 2**20, 1)
    for number in range(3):
        journal.append({"number": number})
    assert [json.loads(line)["number"] for line in written] == [0, 1, 2]


def test_the_half_line_of_a_killed_process_is_closed_by_the_next(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_text('{"number": 1}\n{"numb')
    Journal(path, 2**20, 2).append({"number": 2})
    assert [entry["number"] for entry in read(path)] == [1, 2]


def test_a_full_disk_loses_lines_and_no_more(tmp_path, monkeypatch, caplog):
    """The second line is torn by the end of the disk, the third does not fit at all."""
    lost = []
    journal = Journal(tmp_path / "journal.jsonl", 2**20, 2, lost=lost.append)
    room = [1000, 5, 0, 1000, 1000]
    write = os.write

    def full(descriptor, data):
        left = room.pop(0)
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:left])

    with monkeypatch.context() as broken:
        broken.setattr(os, "write", full)
        for number in range(5):
            journal.append({"number": number})
    assert [entry["number"] for entry in read(tmp_path / "journal.jsonl")] == [0, 3, 4]
    assert lost == ["journal", "journal"]
    assert [record.levelname for record in caplog.records] == ["WARNING"], "logged once"


def test_a_folder_that_refuses_rotation_keeps_the_old_file(tmp_path, monkeypatch):
    lost = []
    journal = Journal(tmp_path / "journal.jsonl", 30, 2, lost=lost.append)
    journal.append({"text": "0" * 30})

    def refuse(_self, _target):
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as broken:
        broken.setattr(type(tmp_path), "replace", refuse)
        journal.append({"text": "kept"})
    journal.append({"text": "after"})
    assert [entry["text"][:5] for entry in read(tmp_path / "journal.jsonl")] == [
        "00000",
        "kept",
        "after",
    ]
    assert lost == ["rotated journal"]


def test_a_writer_follows_the_rotation_of_another_process(tmp_path):
    path = tmp_path / "journal.jsonl"
    one, other = Journal(path, 60, 9), Journal(path, 60, 9)
    for number in range(12):
        (one, other)[number % 2].append({"number": number})
    assert [entry["number"] for entry in read(path)] == list(range(12))
    assert all(backup(path, number).stat().st_size <= 60 for number in range(3))


def test_a_rotation_between_two_files_hides_nothing_from_a_reader(tmp_path, monkeypatch):
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, max_bytes=1, backups=9)
    for number in range(3):
        journal.append({"number": number})
    glob = type(tmp_path).glob

    def rotated_meanwhile(folder, pattern):
        journal.append({"number": 3})
        return glob(folder, pattern)

    monkeypatch.setattr(type(tmp_path), "glob", rotated_meanwhile)
    assert [entry["number"] for entry in read(path)] == [0, 1, 2]


def test_a_torn_line_is_passed_over(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_text('{"number": 1}\n{"numb')
    assert list(read(path)) == [{"number": 1}]


def test_a_journal_that_can_not_be_written_is_said_once(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    journal = Journal(tmp_path / "file" / "journal.jsonl", 1, 1, name="decisions")
    with caplog.at_level(logging.WARNING):
        journal.append({})
        journal.append({})
    assert len(caplog.records) == 1
    assert "the decisions cannot be written" in caplog.text


def test_many_writers_lose_no_line(tmp_path):
    path = tmp_path / "journal.jsonl"

    def write(writer):
        journal = Journal(path, 2000, 100)
        for number in range(50):
            journal.append({"writer": writer, "number": number})

    at_once(4, write)
    found = [(entry["writer"], entry["number"]) for entry in read(path)]
    assert sorted(found) == [(writer, number) for writer in range(4) for number in range(50)]
