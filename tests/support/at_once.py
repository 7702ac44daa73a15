"""The same call from several threads at one moment."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def at_once(count: int, call: Callable[[int], T]) -> list[T]:
    """Call with 0 to count - 1, each in a thread of its own, none before all are there; errors are raised.

    Returns what the calls return, in their order.
    """
    start = threading.Barrier(count)

    def one(number: int) -> T:
        start.wait()
        return call(number)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(one, range(count)))
