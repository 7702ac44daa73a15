# SPDX-License-Identifier: Apache-2.0
"""What the SLO controller keeps: written when something has changed, by whichever thread, newest last."""

import json
import math
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from host_agent.control.slo_store import Kept, SloStore, load
from host_agent.decide.slo.floor import LevelHour
from host_agent.decide.slo.shapes import BeTarget, Taken


def test_nothing_is_written_when_only_the_time_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "slo.json"
    store = SloStore(file)
    store.save(lambda: Kept(report={"time": "1", "phase": "watch"}))
    store.save(lambda: Kept(report={"time": "2", "phase": "watch"}))
    assert json.loads(file.read_text())["report"]["time"] == "1"
    store.save(lambda: Kept(report={"time": "3", "phase": "heal"}))
    assert json.loads(file.read_text())["report"]["time"] == "3"


def test_a_thread_that_was_held_up_does_not_write_what_has_grown_old(tmp_path: Path) -> None:
    """It looks at what there is when its turn to write has come."""
    store = SloStore(tmp_path / "slo.json")
    begun, go_on = threading.Event(), threading.Event()
    level = 50

    def slow() -> Kept:
        begun.set()
        go_on.wait(30)
        return Kept({"be": BeTarget(40)})

    first = threading.Thread(target=store.save, args=(slow,))
    second = threading.Thread(target=store.save, args=(lambda: Kept({"be": BeTarget(level)}),))
    first.start()
    assert begun.wait(30)
    second.start()
    level = 10
    go_on.set()
    first.join()
    second.join()
    assert load(tmp_path / "slo.json").targets == {"be": BeTarget(10)}


TAKEN = {"full_s": {}, "overdrawn": [], "causes": {}, "hours": {}, "spared": []}
GOOD = {
    "version": 2,
    "targets": {"be": {"level": 40, "shares": {"0": 0.25, "1": 0.75}}},
    "reporting": ["lc"],
    "report": {"lcs": {"lc": {"state": "ample"}}, "bes": {}, "actions": [], "time": "1"},
}


def test_a_good_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "slo.json").write_text(json.dumps(GOOD))
    assert load(tmp_path / "slo.json").targets == {"be": BeTarget(40, {0: 0.25, 1: 0.75})}


def test_what_was_taken_survives_a_restart(tmp_path: Path) -> None:
    """To the minute and two of them: what changes by the second would be written by the second."""
    hour = LevelHour(((7, 5400.4), (8, 10.0)), 5410.4)
    taken = Taken(
        {"lc": 1230.0}, frozenset({"lc"}), {"be": frozenset("z")}, {"be": hour}, frozenset("s")
    )
    SloStore(tmp_path / "slo.json").save(lambda: Kept(taken=taken))
    found = load(tmp_path / "slo.json").taken
    assert found.hours == {"be": LevelHour(((7, 5400.0),), 5400.0)}
    assert replace(found, hours=taken.hours) == replace(taken, full_s={"lc": 1200.0})


def test_what_is_of_the_boot_before_does_not_count() -> None:
    hour = LevelHour(((7, 60.0), (900, 5400.0)), 5460.0)
    taken = Taken(full_s={"now": 4000.0, "before": 90_000.0}, hours={"be": hour}).since_boot(600.0)
    assert taken.hours["be"].total == 60.0
    assert taken.full_s == {"now": 4000.0}


@pytest.mark.parametrize(
    "wrong",
    [
        {"taken": {}},
        {"taken": {**TAKEN, "full_s": {"lc": -1}}},
        {"taken": {**TAKEN, "hours": {"be": {"now": 1}}}},
        {"taken": {**TAKEN, "causes": {"be": [1]}}},
        {"targets": {"be": {"level": 40, "shares": {"0": 0.25, "1": 0.25}}}},
        {"targets": {"be": {"level": 400, "shares": None}}},
        {"targets": {"be": {"level": math.inf, "shares": None}}},
        {"reporting": [["lc"]]},
        {"report": []},
        {"report": {"lcs": {"lc": 3}}},
        {"report": {"actions": 7}},
        {"report": {"actions": [{"time": "1"}]}},
    ],
)
def test_a_file_with_one_wrong_value_is_not_used(tmp_path: Path, wrong: dict[str, object]) -> None:
    (tmp_path / "slo.json").write_text(json.dumps(GOOD | wrong))
    assert load(tmp_path / "slo.json") == Kept()


def test_what_json_does_not_know_is_text_for_the_console(tmp_path: Path) -> None:
    store = SloStore(tmp_path / "slo.json")
    store.save(lambda: Kept({"be": BeTarget(40)}, report={"ratio": math.inf, "file": tmp_path}))
    kept = load(tmp_path / "slo.json")
    assert (kept.targets, kept.report) == (
        {"be": BeTarget(40)},
        {"ratio": "Infinity", "file": str(tmp_path)},
    )
