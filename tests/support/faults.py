# SPDX-License-Identifier: Apache-2.0
"""An adapter whose requests fail on purpose, below keystoneauth1, so that its retries are those of production."""

from collections.abc import Callable, Iterator
from typing import Any

import requests
from keystoneauth1.adapter import Adapter
from keystoneauth1.session import Session
from requests.adapters import BaseAdapter


def answer(status: int, text: str = "made up by the test") -> requests.Response:
    """Return an HTTP answer that the service did not give."""
    response = requests.Response()
    response.status_code = status
    response._content = text.encode()
    return response


def refuse(status: int) -> Callable[..., Any]:
    """A fault: the request never arrives, the answer is ``status``."""
    return lambda _send: answer(status)


def lose_request(_send: Callable[[], Any]) -> Any:
    """A fault: no connection."""
    raise requests.exceptions.ConnectionError("no route to Placement")


def lose_answer(send: Callable[[], Any]) -> Any:
    """A fault: the request arrives and is done, its answer gets lost."""
    send()
    raise requests.exceptions.ReadTimeout("timed out")


Faults = Callable[[str, str], Callable[..., Any] | None]


class _FaultyTransport(BaseAdapter):
    def __init__(self, transport: BaseAdapter | None, faults: Faults) -> None:
        super().__init__()
        self._transport = transport
        self._faults = faults
        self.log: list[tuple[str, str]] = []

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> Any:
        """Send one request, or let it fail."""
        self.log.append((request.method, request.path_url))
        fault = self._faults(request.method, request.path_url)
        if fault is None:
            return self._transport.send(request, **kwargs)
        return fault(lambda: self._transport.send(request, **kwargs))

    def close(self) -> None:
        """Nothing to close."""


class FaultyAdapter(Adapter):
    """An adapter of the same service; before each request ``faults`` is asked for a fault, None = none.

    :param adapter: of a Placement in process
    :param faults: called with (method, path and query)
    """

    def __init__(self, adapter: Adapter, faults: Faults) -> None:
        url = adapter.get_endpoint()
        transport = _FaultyTransport(adapter.session.session.get_adapter(url), faults)
        http = requests.Session()
        http.mount(url, transport)
        super().__init__(
            Session(adapter.session.auth, session=http), service_type=adapter.service_type
        )
        self.log = transport.log


def every(faults: Iterator[Callable[..., Any] | None]) -> Callable[[str, str], Any]:
    """Take the fault of each request from an iterator; none when it is exhausted."""
    return lambda _method, _path: next(faults, None)
