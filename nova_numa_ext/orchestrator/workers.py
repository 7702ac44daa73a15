# SPDX-License-Identifier: Apache-2.0
"""A bounded number of threads, for what waits for other services."""

import threading
from collections.abc import Callable


class Workers:
    """Do tasks, the first that was given first; any thread may give some.

    The threads are daemons: a service that never answers holds up its own task, never the end of the process. They
    start with the first task.

    :param name: of the threads
    :param count: of the threads; 0: who gives a task does it
    """

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._count = count
        self._changed = threading.Condition()
        self._tasks: dict[str, Callable[[], None]] = {}
        self._busy = 0
        self._started = False
        self._closed = False

    def give(self, what: str, task: Callable[[], None]) -> None:
        """Have a task done, unless all is finished.

        :param what: of two tasks with the same name that wait, the later one is done, in the place of the first
        :param task: raises nothing
        """
        if not self._count:
            task()
            return
        with self._changed:
            if self._closed:
                return
            self._tasks[what] = task
            self._changed.notify_all()
            if self._started:
                return
            self._started = True
        for number in range(self._count):
            name = f"{self._name}-{number}"
            threading.Thread(target=self._run, name=name, daemon=True).start()

    def finish(self, seconds: float) -> bool:
        """Take no more tasks, forget those that were not begun; return whether the others end within some seconds."""
        with self._changed:
            self._closed = True
            self._tasks.clear()
            return self._changed.wait_for(lambda: not self._busy, seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._tasks)
                task = self._tasks.pop(next(iter(self._tasks)))
                self._busy += 1
            try:
                task()
            finally:
                with self._changed:
                    self._busy -= 1
                    self._changed.notify_all()
