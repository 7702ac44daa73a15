# SPDX-License-Identifier: Apache-2.0
"""F-004-38: a violation that nothing on the host fixes goes to a higher layer, and to nova where that is allowed."""

import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from oslo_config import cfg

from host_agent.control.escalation import PAUSE_PER_SERVER_S, PAUSE_S, Escalation, bus, nova
from host_agent.decide.slo.shapes import CannotFixSloViolation, ShouldLeave
from host_agent.model.journal import Entry
from host_agent.util.background import BackgroundTasks
from placement_traits.errors import CapabilityMissingError
from placement_traits.reason import Reason

EVENT = CannotFixSloViolation(("L",), (0,), ("B", "L"), (Reason("traffic_mbps", 9000, "B"),))
LEAVE = ShouldLeave(("L",), ("B",))


class Inline:
    """Runs tasks at once."""

    def submit(self, function: Any, *arguments: Any) -> None:
        function(*arguments)


class Answer:
    def __init__(self, status_code: int) -> None:
        self.status_code = status_code


class Compute:
    """Takes requests as nova does."""

    def __init__(self, status: int = 202) -> None:
        self.status = status
        self.asked: list[tuple[str, str, dict[str, Any]]] = []

    def request(self, url: str, method: str, **kwargs: Any) -> Answer:
        self.asked.append((method, url, kwargs))
        return Answer(self.status)


class Journal:
    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def write(self, entry: Entry) -> None:
        self.entries.append(entry)


def test_f_004_38_the_notification_names_who_is_violated_and_who_should_leave() -> None:
    sent: list[Mapping[str, Any]] = []
    escalation = Escalation(Inline(), Journal(), "compute1", notify=sent.append)  # type: ignore[arg-type]
    escalation(EVENT, {"B": "batch", "L": "web"})
    (payload,) = sent
    assert payload["host"] == "compute1"
    assert payload["violated"] == [{"uuid": "L", "name": "web"}]
    assert payload["leave"][0] == {"uuid": "B", "name": "batch"}
    assert "9000" in payload["reasons"][0]


def test_f_004_38_nova_is_asked_to_move_the_first_and_not_the_next_for_a_while() -> None:
    compute, journal = Compute(), Journal()
    now = [1000.0]
    escalation = Escalation(
        Inline(),  # type: ignore[arg-type]
        journal,
        "compute1",
        migrate=nova(compute),
        clock=lambda: now[0],
    )
    escalation(LEAVE, {})
    escalation(ShouldLeave(("other",), ("C",)), {})
    ((method, url, asked),) = compute.asked
    assert (method, url) == ("POST", "/servers/B/action")
    assert asked["json"] == {"os-migrateLive": {"host": None, "block_migration": "auto"}}
    assert asked["headers"] == {"OpenStack-API-Version": "compute 2.30"}
    now[0] += PAUSE_S
    escalation(ShouldLeave(("other",), ("C",)), {})
    assert len(compute.asked) == 2
    assert [str(entry.result) for entry in journal.entries] == ["done", "done"]


def test_nobody_is_moved_because_a_guest_says_that_it_is_violated_whatever_is_done() -> None:
    compute = Compute()
    escalation = Escalation(Inline(), Journal(), "compute1", migrate=nova(compute))  # type: ignore[arg-type]
    escalation(EVENT, {})
    assert compute.asked == []


def test_for_one_server_others_are_moved_away_seldom() -> None:
    """A guest that pretends to be helped by throttling does not empty its host."""
    compute, now = Compute(), [1000.0]
    escalation = Escalation(
        Inline(),  # type: ignore[arg-type]
        Journal(),
        "compute1",
        migrate=nova(compute),
        clock=lambda: now[0],
    )
    escalation(LEAVE, {})
    now[0] += PAUSE_S
    escalation(LEAVE, {})
    assert len(compute.asked) == 1
    now[0] += PAUSE_PER_SERVER_S
    escalation(LEAVE, {})
    assert len(compute.asked) == 2


def test_a_nova_that_refuses_and_a_bus_that_is_down_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    journal = Journal()

    def down(_payload: Mapping[str, Any]) -> None:
        raise OSError("no bus")

    escalation = Escalation(
        Inline(),  # type: ignore[arg-type]
        journal,
        "compute1",
        notify=down,
        migrate=nova(Compute(409)),
    )
    escalation(EVENT, {})
    escalation(LEAVE, {})
    assert "no bus" in caplog.text
    (entry,) = journal.entries
    assert (str(entry.result), "409" in entry.problem) == ("failed", True)


def test_by_default_nothing_leaves_the_host() -> None:
    journal = Journal()
    escalation = Escalation(Inline(), journal, "compute1")  # type: ignore[arg-type]
    escalation(EVENT, {})
    escalation(LEAVE, {})
    assert journal.entries == []


def test_a_refusal_names_the_status() -> None:
    with pytest.raises(CapabilityMissingError, match="403"):
        nova(Compute(403))("B")


def test_a_bus_that_is_down_is_given_up() -> None:
    """By default oslo.messaging tries for ever, and the thread never sent anything again."""
    pytest.importorskip("oslo_messaging")
    send = bus(cfg.ConfigOpts(), "rabbit://nobody:x@127.0.0.1:1/", "compute1")
    thread = threading.Thread(target=send, args=({"host": "compute1"},), daemon=True)
    thread.start()
    thread.join(120)
    assert not thread.is_alive()


def test_an_errand_that_never_ends_does_not_hold_up_the_end_of_the_process() -> None:
    code = (
        "import threading; from host_agent.util.background import BackgroundTasks; begun = threading.Event(); "
        "BackgroundTasks('e').submit(lambda: (begun.set(), threading.Event().wait())); begun.wait()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_an_errand_that_fails_is_logged_and_the_next_one_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done = threading.Event()

    def fail() -> None:
        raise AttributeError("None has no isAlive")

    tasks = BackgroundTasks("test")
    tasks.submit(fail)
    tasks.submit(done.set)
    assert done.wait(30)
    assert "None has no isAlive" in caplog.text


def test_tasks_that_cannot_wait_are_left_out_and_told(caplog: pytest.LogCaptureFixture) -> None:
    begun, end, done = threading.Event(), threading.Event(), threading.Event()
    tasks = BackgroundTasks("test", most=1)
    tasks.submit(lambda: (begun.set(), end.wait()))
    assert begun.wait(30)
    tasks.submit(done.set)
    tasks.submit(pytest.fail)
    assert "left out" in caplog.text
    end.set()
    assert done.wait(30)
