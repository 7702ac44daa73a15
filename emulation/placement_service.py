# SPDX-License-Identifier: Apache-2.0
"""The real Placement application in process, on SQLite, reached through a real keystoneauth1 adapter.

Only the socket is missing: a transport of ``requests`` calls the WSGI application. Requests run one at a time (SQLite
in memory is one connection), so writers in threads interleave between requests, where Placement's generations count.
"""

import contextlib
import io
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

import fixtures
import requests
from keystoneauth1 import adapter, session, token_endpoint
from placement import db_api, deploy, policy
from placement.db.sqlalchemy import migration
from placement.tests.functional.fixtures.placement import PlacementFixture
from requests.adapters import BaseAdapter

from emulation.made_once import (
    AliasesMadeOnce,
    SchemasCheckedOnce,
    SignaturesReadOnce,
    StatementsCompiledOnce,
)

URL = "http://placement.test"

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class WsgiTransport(BaseAdapter):  # type: ignore[misc]
    """Answers HTTP requests by calling a WSGI application in the same thread."""

    def __init__(self, application: Application) -> None:
        super().__init__()
        self._application = application
        self._one_at_a_time = threading.Lock()

    def send(self, request: requests.PreparedRequest, **_kwargs: object) -> requests.Response:
        """Call the application and wrap its answer as requests would have read it from a socket."""
        parts = urlsplit(request.url)
        body = request.body or b""
        body = body.encode() if isinstance(body, str) else body
        environ = {
            "REQUEST_METHOD": request.method,
            "SCRIPT_NAME": "",
            "PATH_INFO": unquote(parts.path),
            "QUERY_STRING": parts.query,
            "SERVER_NAME": parts.hostname,
            "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "CONTENT_LENGTH": str(len(body)),
            "CONTENT_TYPE": request.headers.get("Content-Type", ""),
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(body),
            "wsgi.errors": io.StringIO(),
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
            **{
                f"HTTP_{name.upper().replace('-', '_')}": value
                for name, value in request.headers.items()
                if name not in ("Content-Type", "Content-Length")
            },
        }
        answer = requests.Response()

        def start_response(
            status: str, headers: Sequence[tuple[str, str]], _error: object = None
        ) -> None:
            answer.status_code = int(status.split(" ", 1)[0])
            answer.headers.update(headers)

        with self._one_at_a_time:
            chunks = self._application(environ, start_response)
            answer.raw = io.BytesIO(b"".join(chunks))
        answer.request, answer.url = request, request.url
        return answer

    def close(self) -> None:
        """Nothing to close."""


# The database with its tables and the names that Placement writes into them at its start.
_EMPTY: list[bytes] = []
_made_schema = migration.create_schema


def _create_schema(engine: Any) -> None:
    """Make Placement's tables, of which all but the first ones of a process are a copy."""
    if not _EMPTY:
        _made_schema(engine)
        return
    with contextlib.closing(engine.raw_connection()) as connection:
        connection.dbapi_connection.deserialize(_EMPTY[0])


def _goes_on(_connection: object, _record: object) -> None:
    """Do nothing when a connection goes back to its pool."""


def _as_they_are(_force_reload: bool = False) -> None:
    """Load no rules again."""


class PlacementInProcess(fixtures.Fixture):  # type: ignore[misc]
    """A fresh Placement, :attr:`application`, with an empty database; :attr:`adapter` talks to it as its admin.

    :attr:`conf` is its configuration.
    """

    def setUp(self) -> None:
        """Make the database and load the application."""
        super().setUp()
        self.useFixture(SchemasCheckedOnce())
        self.useFixture(AliasesMadeOnce())
        self.useFixture(SignaturesReadOnce())
        self.useFixture(StatementsCompiledOnce())
        # oslo.db gives up its turn after each statement for the sake of eventlet: a busy machine takes that turn away.
        self.useFixture(fixtures.MonkeyPatch("oslo_db.sqlalchemy.engines._thread_yield", _goes_on))
        place = "placement.db.sqlalchemy.migration.create_schema"
        self.useFixture(fixtures.MonkeyPatch(place, _create_schema))
        server = self.useFixture(PlacementFixture(use_intercept=False))
        if not _EMPTY:
            _EMPTY.append(self.image())
        self.conf = server.conf_fixture.conf
        http = requests.Session()
        http.trust_env = False  # looking for a proxy at each request takes time
        self.application = deploy.loadapp(self.conf)
        rules = policy.get_enforcer()
        rules.load_rules()
        rules.load_rules = _as_they_are  # looking for files of rules at each request takes time
        http.mount(URL, WsgiTransport(self.application))
        self.adapter = adapter.Adapter(
            session.Session(token_endpoint.Token(URL, "admin"), session=http),
            service_type="placement",
        )

    def image(self) -> bytes:
        """Return the whole database as it is now."""
        with contextlib.closing(db_api.get_placement_engine().raw_connection()) as connection:
            return bytes(connection.dbapi_connection.serialize())

    def restore(self, image: bytes) -> None:
        """Put a database in the place of this one; Placement keeps nothing of it between requests."""
        with contextlib.closing(db_api.get_placement_engine().raw_connection()) as connection:
            connection.dbapi_connection.deserialize(image)
