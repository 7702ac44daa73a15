# SPDX-License-Identifier: Apache-2.0
"""The list of servers that are never touched: what may stand in it, and what a slip costs."""

import logging
from pathlib import Path

import pytest

from host_agent.observe.denied import DenyList
from placement_traits.oslo_options import ConfigurationError

A = "aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa"
B = "bbbbbbbb-bbbb-4bbb-8bbb-bbbbbbbbbbbb"


def test_servers_come_and_go_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "deny-servers"
    listed = DenyList(path)
    assert listed.servers() == frozenset()
    path.write_text(f"# the database\n{A.upper()}  # of customer 7\n\n")
    assert listed.servers() == {A}
    path.write_text(f"{A}\n{B}\n")
    assert listed.servers() == {A, B}
    path.write_text("")
    assert listed.servers() == frozenset()
    path.unlink()
    assert listed.servers() == frozenset()
    listed.check()


def test_a_file_that_is_taken_away_frees_no_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As an editor does between the old file and the new one."""
    path = tmp_path / "deny-servers"
    path.write_text(A)
    listed = DenyList(path)
    assert listed.servers() == {A}
    path.unlink()
    assert listed.servers() == {A}
    assert "is gone: leave an empty file" in caplog.text
    path.write_text(B)
    assert listed.servers() == {B}


def test_an_unchanged_file_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "deny-servers"
    path.write_text(A)
    listed = DenyList(path)
    assert listed.servers() == {A}
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_text", None)
        assert listed.servers() == {A}


@pytest.mark.parametrize("slip", ["instance-00000001", f"{A}, {A}", "x" * 5000, "\x00"])
def test_a_slip_is_one_sentence_and_gives_no_server_free(
    slip: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "deny-servers"
    path.write_text(f"{A}\n")
    listed = DenyList(path)
    assert listed.servers() == {A}
    path.write_text(f"{B}\n{slip}\n")
    with caplog.at_level(logging.WARNING):
        assert listed.servers() == {A, B}
        assert listed.servers() == {A, B}
    (record,) = caplog.records
    assert f"{path}, line 2: " in record.message
    assert len(record.message) < 400
    with pytest.raises(ConfigurationError, match="allowed: the UUID of a server"):
        DenyList(path).check()


def test_a_file_that_cannot_be_read_stops_the_start_and_frees_no_server(tmp_path: Path) -> None:
    path = tmp_path / "deny-servers"
    path.write_text(A)
    listed = DenyList(path)
    assert listed.servers() == {A}
    path.unlink()
    path.mkdir()
    assert listed.servers() == {A}
    with pytest.raises(ConfigurationError, match="cannot be read"):
        DenyList(path).check()
