# SPDX-License-Identifier: Apache-2.0
"""Background tasks: what may take long, one after the other in a thread of its own.

The thread is a daemon: a message bus or a libvirt that never answers holds up its own tasks, never the end of the
agent. A task that fails unexpectedly is logged with its trace.
"""

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, Final

LOG = logging.getLogger(__name__)

_MOST_WAITING: Final = 64


class BackgroundTasks:
    """Runs tasks in the order given.

    :param name: of the thread; it starts with the first task
    :param most: tasks that may wait; one more is left out, and that is logged
    """

    def __init__(self, name: str, most: int = _MOST_WAITING) -> None:
        self._name = name
        self._queue: queue.Queue[tuple[Callable[..., object], tuple[Any, ...]]] = queue.Queue(most)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def submit(self, function: Callable[..., object], *arguments: Any) -> None:
        """Take a task; does not wait."""
        try:
            self._queue.put_nowait((function, arguments))
        except queue.Full:
            LOG.warning("%s: a task is left out, %d wait already", self._name, self._queue.maxsize)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            function, arguments = self._queue.get()
            try:
                function(*arguments)
            except Exception:  # the outermost guard: logged, and the next task is run
                LOG.exception("%s: a task failed", self._name)
