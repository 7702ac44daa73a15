# SPDX-License-Identifier: Apache-2.0
"""What the bandwidth controller keeps: written when something has changed, by whichever thread, newest last."""

import json
import threading
from pathlib import Path

from host_agent.control.slo_store import Kept, QosStore, load
from host_agent.decide.slo.shapes import BeTarget


def test_nothing_is_written_when_only_the_time_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "slo.json"
    store = QosStore(file)
    store.save(lambda: Kept(told={"time": "1", "phase": "watch"}))
    store.save(lambda: Kept(told={"time": "2", "phase": "watch"}))
    assert json.loads(file.read_text())["told"]["time"] == "1"
    store.save(lambda: Kept(told={"time": "3", "phase": "heal"}))
    assert json.loads(file.read_text())["told"]["time"] == "3"


def test_a_thread_that_was_held_up_does_not_write_what_has_grown_old(tmp_path: Path) -> None:
    """It looks at what there is when its turn to write has come."""
    store = QosStore(tmp_path / "slo.json")
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
    assert load(tmp_path / "slo.json").wanted == {"be": BeTarget(10)}
