# SPDX-License-Identifier: Apache-2.0
"""The last answer of something that may take long, for a loop that must not wait for it."""

import logging
from collections.abc import Callable
from typing import Generic, TypeVar

from host_agent.util.background import BackgroundTasks
from placement_traits.errors import NumaExtError

LOG = logging.getLogger(__name__)

Answer = TypeVar("Answer")


class LastAnswer(Generic[Answer]):
    """Asks in a thread of its own, and keeps the last answer.

    :param name: of the thread
    :param ask: returns an answer; a NumaExtError of it is logged, and the answer before it stands
    """

    def __init__(self, name: str, ask: Callable[[], Answer]) -> None:
        self._name = name
        self._asks = ask
        self._tasks = BackgroundTasks(name, 1)
        self._is_asking = False
        self._answer: Answer | None = None

    @property
    def answer(self) -> Answer | None:
        """The last one; None: none has come yet."""
        return self._answer

    @property
    def is_asking(self) -> bool:
        """One is waited for."""
        return self._is_asking

    def ask(self) -> None:
        """Ask again, unless an answer is waited for; does not wait."""
        if not self._is_asking:
            self._is_asking = True
            self._tasks.submit(self._run)

    def _run(self) -> None:
        try:
            self._answer = self._asks()
        except NumaExtError as error:
            LOG.warning("%s: the last answer stands: %s", self._name, error)
        finally:
            self._is_asking = False
