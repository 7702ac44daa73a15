# SPDX-License-Identifier: Apache-2.0
"""Writes that control does not depend on: a full or read-only disk is logged once, counted, and survived."""

import logging
from collections.abc import Callable

from placement_traits.errors import InvalidValueError

LOG = logging.getLogger(__name__)


def ignore_loss(_file: str) -> None:
    """Count nothing."""


class BestEffortWriter:
    """Tries the writes of one file.

    :param file: what it is called in the log and in the metrics
    :param lost: called with the file's name for each write that failed
    """

    def __init__(self, file: str, lost: Callable[[str], None] = ignore_loss) -> None:
        self._file = file
        self._lost = lost
        self._problem = ""

    def attempt(self, write: Callable[[], None]) -> bool:
        """Write; tell whether it worked. A warning is logged when trouble begins or changes, a line when it ends."""
        problem = ""
        try:
            write()
        except OSError as error:
            problem = error.strerror or str(error)
        except InvalidValueError as error:  # content that its file cannot hold
            problem = str(error)
        if problem:
            self._lost(self._file)
        if problem and problem != self._problem:
            LOG.warning("the %s cannot be written, going on without: %s", self._file, problem)
        if self._problem and not problem:
            LOG.info("the %s is written again", self._file)
        self._problem = problem
        return not problem
