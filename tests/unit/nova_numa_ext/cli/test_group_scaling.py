# SPDX-License-Identifier: Apache-2.0
"""``openstack numa group scaling replay``, with models of numpy alone."""

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from nova_numa_ext.cli.group_scaling import ReplayScaling, ShowScaling
from nova_numa_ext.learning import models
from placement_traits.errors import CapabilityMissingError, InvalidValueError
from tests.support.elastic import SimpleModels


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three members that are trained from 450 to 1,550 reads per second, then get 1,200 each."""
    monkeypatch.setattr(models, "check_installed", lambda: None)
    monkeypatch.setattr(models, "Models", lambda pool: SimpleModels())
    lines = ["time_s,member,reads_per_s,latencies_ms"]
    for at in range(14):
        reads = 450.0 + 100.0 * at if at < 12 else 1200.0
        lines += [f"{300 * at},m{one},{reads},{0.035 * reads}" for one in range(3)]
    file = tmp_path / "trace.csv"
    file.write_text("\n".join(lines) + "\n")
    return file


def rows(*words: object) -> list[dict[str, object]]:
    """Run the command; return its rows."""
    app = SimpleNamespace(client_manager=None, stdout=io.StringIO())
    command = ReplayScaling(app, None)
    parser = command.get_parser("openstack numa group scaling replay")
    parsed = parser.parse_args([*map(str, words), "--objective-ms", "35", "-f", "json"])
    assert command.run(parsed) == 0
    found: list[dict[str, object]] = json.loads(app.stdout.getvalue())
    return found


CELLS = ("--granularity", "100,100,5")


def test_a_row_says_what_would_have_been_decided_and_why(trace: Path) -> None:
    found = rows(trace, *CELLS, "--head-room", "1.0", "--lead-periods", "1")
    assert len(found) == 14
    assert found[0] == {
        "Time": "0",
        "Members": 3,
        "Reads/s": "1350",
        "Expected": "1350",
        "Lead": 1,
        "By": "last value",
        "Load/capacity": "-",
        "Change": "-",
        "Why": "the model cannot say yet what m0 can carry",
    }
    assert found[12]["Change"] == "+1"
    assert str(found[12]["Why"]).startswith("load beyond capacity: ")
    assert not ReplayScaling.auth_required


def test_options_are_what_is_decided_by(trace: Path) -> None:
    assert rows(trace, *CELLS, "--head-room", "2.0")[12]["Change"] == "+3"
    found = rows(trace, *CELLS, "--literal", "--most", "3")
    assert found[12]["Why"] == "would need 4 members, 3 is the most"


def test_a_log_and_a_drawing_are_written(trace: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    log, drawing = tmp_path / "log.jsonl", tmp_path / "replay.svg"
    found = rows(trace, *CELLS, "--decision-log", log, "--plot", drawing)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["why"] for line in lines] == [row["Why"] for row in found]
    assert "<svg" in drawing.read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("none.csv",), r"trace: 'none.csv' is not allowed; allowed: a CSV file \(No such file"),
        (("trace.csv", "--granularity", "1,2"), "--granularity: '1,2'"),
        (("trace.csv", "--granularity", "1,2,0"), "granularity: 0.0"),
        (
            ("trace.csv", "--head-room", "0.5"),
            "head_room: 0.5 is not allowed; allowed: a number >= 1",
        ),
        (
            ("trace.csv", "--decision-log", "no/such/place"),
            "--decision-log, --plot: 'no/such/place'",
        ),
    ],
)
def test_what_is_not_allowed_is_said_in_a_sentence(
    trace: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], sentence: str
) -> None:
    monkeypatch.chdir(trace.parent)
    with pytest.raises(InvalidValueError, match=sentence):
        rows(*words)


def test_without_its_libraries_it_says_what_to_install(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(CapabilityMissingError, match=r"install nova-numa-ext\[elastic\]"):
        rows(trace)


def test_a_group_of_an_api_of_the_release_before_is_shown() -> None:
    """It has neither what members are made of nor members."""
    group = {
        "id": "group-1",
        "settings": {"objective_ms": 35.0},
        "source": {"csv": "web.csv"},
        "last_decision": None,
        "created_at": 0.0,
        "changed_at": 0.0,
    }
    client = SimpleNamespace(scaling=lambda _group: group)
    manager = SimpleNamespace(numa=SimpleNamespace(jobs=lambda: client))
    app = SimpleNamespace(client_manager=manager, stdout=io.StringIO())
    command = ShowScaling(app, None)
    parser = command.get_parser("openstack numa group scaling show")
    assert command.run(parser.parse_args(["group-1", "-f", "json"])) == 0
    shown = json.loads(app.stdout.getvalue())
    assert (shown["id"], shown["enforce"], shown["members"]) == ("group-1", None, "")
