# SPDX-License-Identifier: Apache-2.0
"""A real Placement on a loopback port, for processes that ask it; it can be down."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from keystoneauth1 import adapter, session, token_endpoint

from emulation.placement_service import PlacementInProcess
from tests.support.filled_placement import FilledPlacement


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_arguments: object) -> None:
        """Log nothing."""


class PlacementOverHttp:
    """The application behind a socket; requests run one at a time.

    :ivar down: it answers 503 to everything, as a proxy without a backend does
    :ivar refused: how many requests it has answered so
    :ivar root: nova's root provider, where a fixture makes one
    """

    root: str

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application
        self.down = False
        self.refused = 0
        self._server = make_server("127.0.0.1", 0, self._answer, handler_class=_Quiet)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.cloud = FilledPlacement(
            adapter.Adapter(
                session.Session(token_endpoint.Token(self.url, "admin")), service_type="placement"
            )
        )

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if self.down:
            self.refused += 1
            start_response("503 Service Unavailable", [("Content-Type", "text/plain")])
            return [b"down"]
        return self._application(environ, start_response)

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._thread.join(10)
        self._server.server_close()

    @property
    def options(self) -> dict[str, object]:
        """The agent's options for it, as :meth:`ComputeHost.config` takes them."""
        return {
            "placement__enabled": True,
            "placement__auth_type": "admin_token",
            "placement__endpoint": self.url,
            "placement__token": "admin",
            "placement__interval_s": 1,
            "placement__backoff_max_s": 1,
        }


@contextmanager
def placement_over_http() -> Iterator[PlacementOverHttp]:
    """Serve an empty Placement."""
    with PlacementInProcess() as placement:
        found = PlacementOverHttp(placement.application)
        try:
            yield found
        finally:
            found.close()
