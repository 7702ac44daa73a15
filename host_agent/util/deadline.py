# SPDX-License-Identifier: Apache-2.0
"""Calls into libraries that may never return: the caller waits no longer than a deadline.

Each call runs in a daemon thread of its own, for a thread that hangs in C can be neither interrupted nor ended: it
stays until the call returns, and it holds up neither its caller nor the end of the process. So that such threads do not
pile up, no call is begun while an earlier one like it is overdue.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

_Answer = TypeVar("_Answer")

WHOLE: Final = ""
"""Subject of calls that concern the other side as a whole: while one is overdue no other call is begun."""


class EndedError(TimeoutError):
    """No call is waited for any more: :meth:`Deadline.end` was called."""


class Deadline:
    """Waits for calls.

    :param seconds: longest wait for one
    :param name: of its threads
    :param most: so many overdue calls, whatever their subjects, are as one about the whole
    """

    def __init__(
        self, seconds: float, name: str, most: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds, self._name, self._most = seconds, name, most
        self._clock = clock
        self._lock = threading.Lock()
        self._pending: dict[Future[Any], tuple[str, float]] = {}
        self._over = False

    def call(self, function: Callable[[], _Answer], subject: str = WHOLE) -> _Answer:
        """Return what the function returns, or raise what it raises.

        :param subject: what the call is about
        :raises EndedError: :meth:`end` was called
        :raises TimeoutError: it has not returned in time, or was not begun: an earlier one has not returned, or the
            host gives no thread
        """
        future: Future[_Answer] = Future()
        with self._lock:
            self._check(subject)
            self._pending[future] = subject, self._clock()
        arguments = future, function
        thread = threading.Thread(target=self._run, args=arguments, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # it was not begun, so it is not waited for
            with self._lock:
                del self._pending[future]
            raise TimeoutError(str(error)) from error
        try:
            return future.result(self._seconds)
        except CancelledError as error:
            raise EndedError("the agent ends") from error
        except TimeoutError as error:
            raise TimeoutError(str(error) or f"no answer in {self._seconds:g} s") from error

    def end(self) -> None:
        """Wait for no call any more, begin no other."""
        with self._lock:
            self._over = True
            pending = list(self._pending)
        for future in pending:
            future.cancel()

    def _check(self, subject: str) -> None:
        if self._over:
            raise EndedError("the agent ends")
        now = self._clock()
        overdue = [
            (about, begun)
            for about, begun in self._pending.values()
            if now - begun >= self._seconds
        ]
        waited = [begun for about, begun in overdue if about in (WHOLE, subject)]
        if not waited and len(overdue) >= self._most:
            waited = [begun for _, begun in overdue]
        if waited:
            raise TimeoutError(f"no answer for {now - min(waited):.0f} s")

    def _run(self, future: "Future[_Answer]", function: Callable[[], _Answer]) -> None:
        try:
            answer = function()
            deliver = partial(future.set_result, answer)
        except Exception as error:  # noqa: BLE001 - raised again in the caller's thread
            deliver = partial(future.set_exception, error)
        with self._lock:
            del self._pending[future]
        with suppress(InvalidStateError):  # cancelled
            deliver()
