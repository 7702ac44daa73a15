# SPDX-License-Identifier: Apache-2.0
"""What may take long is asked in a thread of its own."""

import threading
import time
from collections.abc import Callable

import pytest

from host_agent.util.last_answer import LastAnswer
from placement_traits.errors import ServiceUnavailableError


def until(holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.001)


def test_who_asks_does_not_wait_and_asks_one_at_a_time() -> None:
    asked: list[int] = []
    goes_on = threading.Event()

    def ask() -> int:
        asked.append(len(asked))
        assert goes_on.wait(10)
        return asked[-1]

    last = LastAnswer("test", ask)
    assert last.answer is None
    for _ in range(3):
        last.ask()
    assert last.is_asking
    assert last.answer is None
    goes_on.set()
    until(lambda: not last.is_asking)
    assert (last.answer, asked) == (0, [0])
    last.ask()
    until(lambda: last.answer == 1)


@pytest.mark.parametrize("error", [ServiceUnavailableError("it is silent"), KeyError("a fault")])
def test_an_answer_stands_until_another_comes(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[int | Exception] = [1, error, 2]

    def ask() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    last = LastAnswer("test", ask)
    for expected in (1, 1, 2):
        last.ask()
        until(lambda: not last.is_asking)
        assert last.answer == expected
    assert str(error) in caplog.text
