# SPDX-License-Identifier: Apache-2.0
"""Calls that may never return hold up neither their caller nor one another."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from host_agent.util.deadline import Deadline, EndedError

SOON_S = 0.05


class Clock:
    """Seconds, as the test says."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def deadline(clock: Clock) -> Deadline:
    return Deadline(SOON_S, "test-call", most=2, clock=clock)


@pytest.fixture
def returns() -> Iterator[threading.Event]:
    """Set: calls that hang return."""
    event = threading.Event()
    yield event
    event.set()


def hang(deadline: Deadline, clock: Clock, returns: threading.Event, subject: str) -> None:
    """Make a call that does not return."""
    with pytest.raises(TimeoutError, match=r"no answer in 0\.05 s"):
        deadline.call(lambda: returns.wait(30), subject)
    clock.now_s += SOON_S


def pending() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "test-call"]


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_an_answer_and_an_error_come_through(deadline: Deadline) -> None:
    assert deadline.call(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        deadline.call(lambda: 1 // 0)


def test_while_one_about_the_whole_is_overdue_no_other_is_begun(
    deadline: Deadline, clock: Clock, returns: threading.Event
) -> None:
    hang(deadline, clock, returns, "")
    clock.now_s += 40
    begun: list[str] = []
    for subject in ("", "a"):
        with pytest.raises(TimeoutError, match="no answer for 40 s"):
            deadline.call(lambda: begun.append("it"), subject)
    assert (begun, pending()) == ([], ["test-call"])


def test_when_it_returns_others_are_begun_again(
    deadline: Deadline, clock: Clock, returns: threading.Event
) -> None:
    hang(deadline, clock, returns, "")
    returns.set()
    wait_until(lambda: not pending())
    assert deadline.call(lambda: 7) == 7


def test_one_subject_that_is_overdue_keeps_no_other_waiting(
    deadline: Deadline, clock: Clock, returns: threading.Event
) -> None:
    hang(deadline, clock, returns, "a")
    with pytest.raises(TimeoutError):
        deadline.call(lambda: 7, "a")
    assert deadline.call(lambda: 7, "b") == 7
    assert deadline.call(lambda: 7) == 7


def test_many_subjects_that_are_overdue_are_as_the_whole(
    deadline: Deadline, clock: Clock, returns: threading.Event
) -> None:
    """With a hundred servers the caller waits for two of them, not for each."""
    hang(deadline, clock, returns, "a")
    hang(deadline, clock, returns, "b")
    for subject in ("c", ""):
        with pytest.raises(TimeoutError):
            deadline.call(lambda: 7, subject)


def test_at_the_end_nobody_waits(clock: Clock, returns: threading.Event) -> None:
    deadline = Deadline(30, "test-call", most=2, clock=clock)
    problems: list[str] = []

    def wait() -> None:
        try:
            deadline.call(lambda: returns.wait(30))
        except EndedError as error:
            problems.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    wait_until(lambda: bool(pending()))
    deadline.end()
    waiting.join(10)
    assert problems == ["the agent ends"]
    with pytest.raises(EndedError, match="the agent ends"):
        deadline.call(lambda: 7)
    returns.set()
    wait_until(lambda: not pending())


def test_a_call_for_which_there_was_no_thread_is_not_waited_for(
    deadline: Deadline, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        with pytest.raises(TimeoutError, match="can't start new thread"):
            deadline.call(lambda: 7)
    clock.now_s += 40
    assert deadline.call(lambda: 7) == 7
