# SPDX-License-Identifier: Apache-2.0
"""Background tasks: what may take long, one after the other in a thread of its own.

The thread is a daemon: a message bus or a libvirt that never answers holds up its own tasks, never the end of the
agent. A task that fails unexpectedly is logged with its trace.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Final

LOG = logging.getLogger(__name__)

_MOST_WAITING: Final = 64


class BackgroundTasks:
    """Runs tasks in the order given.

    :param name: of the thread; it starts with the first task
    :param most: tasks that may wait; one more is left out
    """

    def __init__(self, name: str, most: int = _MOST_WAITING) -> None:
        self._name = name
        self._queue: queue.Queue[tuple[Callable[..., object], tuple[Any, ...]]] = queue.Queue(most)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._full = False

    def submit(self, function: Callable[..., object], *arguments: Any) -> bool:
        """Take a task; does not wait.

        :returns: it was taken; that one is left out is logged, once until another is taken
        """
        try:
            self._queue.put_nowait((function, arguments))
        except queue.Full:
            if not self._full:
                most = self._queue.maxsize
                LOG.warning("%s: a task is left out, %d wait already", self._name, most)
            self._full = True
            return False
        self._full = False
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        return True

    def finish(self, seconds: float) -> int:
        """Wait until all tasks that were taken are done.

        :param seconds: no longer than that
        :returns: how many of them have not been begun
        """
        end_s = time.monotonic() + seconds
        done = threading.Event()
        try:
            self._queue.put((done.set, ()), timeout=seconds)
        except queue.Full:
            return self._queue.qsize()
        if self._thread is None or done.wait(max(0.0, end_s - time.monotonic())):
            return 0
        return max(0, self._queue.qsize() - 1)

    def _run(self) -> None:
        while True:
            function, arguments = self._queue.get()
            try:
                function(*arguments)
            except Exception:  # the outermost guard: logged, and the next task is run
                LOG.exception("%s: a task failed", self._name)
