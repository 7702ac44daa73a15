# SPDX-License-Identifier: Apache-2.0
"""An adapter that stands before another one and makes requests fail on purpose."""

from collections.abc import Callable, Iterator
from typing import Any

import requests
from keystoneauth1 import exceptions as ksa


def answer(status: int, text: str = "made up by the test") -> requests.Response:
    """Return an HTTP answer that Placement did not give."""
    response = requests.Response()
    response.status_code = status
    response._content = text.encode()
    return response


def refuse(status: int) -> Callable[..., Any]:
    """A fault: the request never arrives, the answer is ``status``."""
    return lambda _send: answer(status)


def lose_request(_send: Callable[[], Any]) -> Any:
    """A fault: no connection."""
    raise ksa.ConnectFailure("no route to Placement")


def lose_answer(send: Callable[[], Any]) -> Any:
    """A fault: the request arrives and is done, its answer gets lost."""
    send()
    raise ksa.ConnectTimeout("timed out")


class FaultyAdapter:
    """Passes requests on; before each one it asks ``faults`` for a fault, None = none.

    :param adapter: the adapter behind
    :param faults: called with (method, url)
    """

    def __init__(
        self, adapter: Any, faults: Callable[[str, str], Callable[..., Any] | None]
    ) -> None:
        self._adapter = adapter
        self._faults = faults
        self.log: list[tuple[str, str]] = []

    def request(self, url: str, method: str, **kwargs: Any) -> Any:
        """Send one request, or let it fail."""
        self.log.append((method, url))
        fault = self._faults(method, url)
        if fault is None:
            return self._adapter.request(url, method, **kwargs)
        return fault(lambda: self._adapter.request(url, method, **kwargs))


def every(faults: Iterator[Callable[..., Any] | None]) -> Callable[[str, str], Any]:
    """Take the fault of each request from an iterator; none when it is exhausted."""
    return lambda _method, _url: next(faults, None)
