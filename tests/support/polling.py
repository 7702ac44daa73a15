# SPDX-License-Identifier: Apache-2.0
"""Waiting for what threads and other processes do."""

import time
from collections.abc import Callable

_PAUSE_S = 0.02


def until(reached: Callable[[], object], seconds: float = 60.0) -> None:
    """Ask until something is so.

    :raises AssertionError: it is not, so long after
    """
    end_s = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end_s, f"not so after {seconds} s"
        time.sleep(_PAUSE_S)
