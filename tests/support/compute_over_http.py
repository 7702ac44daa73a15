# SPDX-License-Identifier: Apache-2.0
"""The fake of nova behind a port, for engines that are processes."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import requests

from tests.support.compute_api import ComputeApi

_ENGINE = "X-Engine"


@dataclass(frozen=True)
class Asked:
    """A request, and which engine sent it."""

    engine: str
    method: str
    path: str


class ComputeByHttp:
    """The adapter of an engine's process.

    :param url: where the fake is served
    :param engine: its name
    """

    def __init__(self, url: str, engine: str) -> None:
        self._url = url
        self._headers = {_ENGINE: engine}

    def request(self, path, method, *, json=None, raise_exc, microversion):
        assert not raise_exc
        return requests.request(
            method, self._url + path, json=json, headers=self._headers, timeout=60
        )

    def host_of(self, _server):
        """Placement is not served."""

    def settle(self):
        """Nova does that where it is served."""


@contextmanager
def served(api: ComputeApi, arrives: Callable[[Asked], None]) -> Iterator[str]:
    """Serve a fake of nova; give its address.

    Nova builds and deletes after each request.

    :param arrives: called with each request before it is done; may take its time
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _do(self):
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            arrives(Asked(self.headers[_ENGINE], self.command, self.path))
            found = api.request(
                self.path, self.command, json=body, raise_exc=False, microversion=""
            )
            api.settle()
            self.send_response(found.status_code)
            self.send_header("Content-Length", str(len(found.content)))
            self.end_headers()
            self.wfile.write(found.content)

        do_GET = do_POST = do_DELETE = _do  # noqa: N815 - as http.server calls them

        def log_message(self, *_what):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
