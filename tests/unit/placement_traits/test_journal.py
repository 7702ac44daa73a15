# SPDX-License-Identifier: Apache-2.0
"""The journal keeps whole lines, rotates, and never disturbs."""

import logging
import threading

from placement_traits.journal import Journal, backup, read


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


def test_a_torn_line_is_passed_over(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_text('{"number": 1}\n{"numb')
    assert list(read(path)) == [{"number": 1}]


def test_a_journal_that_can_not_be_written_is_said_once(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    journal = Journal(tmp_path / "file" / "journal.jsonl", 1, 1)
    with caplog.at_level(logging.WARNING):
        journal.append({})
        journal.append({})
    assert len(caplog.records) == 1


def test_many_writers_lose_no_line(tmp_path):
    path = tmp_path / "journal.jsonl"

    def write(writer):
        journal = Journal(path, 2000, 100)
        for number in range(50):
            journal.append({"writer": writer, "number": number})

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [(entry["writer"], entry["number"]) for entry in read(path)]
    assert sorted(found) == [(writer, number) for writer in range(4) for number in range(50)]
