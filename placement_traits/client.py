# SPDX-License-Identifier: Apache-2.0
"""Placement over HTTP: one microversion, counted, with errors in our words; keystoneauth1 sends again what failed."""

import random as random_module
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import quote

from keystoneauth1 import exceptions as ksa

from placement_traits.answers import malformed
from placement_traits.errors import (
    LONGEST_TEXT,
    ConflictError,
    NumaExtError,
    ServiceUnavailableError,
    cut,
    shown,
)

# Lists of traits (in:) in queries; any newer Placement answers it too.
MICROVERSION: Final = "placement 1.39"
# What nova writes allocations with. Since 1.38 a write names a consumer type, which nova does not; so neither do we.
ALLOCATIONS_MICROVERSION: Final = "placement 1.36"
_PASSING: Final = (429, 500, 502, 503, 504)
_USUAL_ATTEMPT: Final = 2
_WRITES: Final = frozenset({"PUT", "POST", "DELETE"})

# `code` of Placement's error body (API reference, "Errors").
CODE_CONCURRENT: Final = "placement.concurrent_update"
CODE_DUPLICATE: Final = "placement.duplicate_name"


class HttpAdapter(Protocol):
    """The part of :class:`keystoneauth1.adapter.Adapter` that is used; authentication and endpoint are its business."""

    def request(self, url: str, method: str, **kwargs: Any) -> Any:
        """Send one request."""


class PlacementError(NumaExtError):
    """Placement refused a request.

    :param what: the request in words
    :param status: HTTP status
    :param code: Placement's own error code, "" when it gave none
    :param detail: Placement's reason
    """

    def __init__(self, what: str, status: int, code: str, detail: str) -> None:
        super().__init__(what, status, code, detail)
        self.what = what
        self.status = status
        self.code = code
        self.detail = detail

    def __str__(self) -> str:
        return f"Placement refused {self.what} with {self.status}: {self.detail}"


class NotFoundError(PlacementError):
    """What the request names is not there (any more)."""


class GenerationConflictError(PlacementError, ConflictError):
    """Another client changed the provider since it was read."""


# A session without a timeout would wait for ever for a Placement that accepts connections and never answers.
REQUEST_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """How long passing trouble (no connection, timeout, 429, 5xx) and writers who were faster are sat out.

    :param attempts: tries of one request, the first included
    :param first_s: upper bound of the first pause after a lost race; it doubles each time, the pause is a random part
    :param longest_s: largest upper bound
    """

    attempts: int = 5
    first_s: float = 0.2
    longest_s: float = 5.0

    def options(self, random: float) -> dict[str, Any]:
        """Return what keystoneauth1 gets with each request.

        Its own pauses are the same for everybody; one of random length for each request spreads a crowd out.

        :param random: uniform in [0, 1)
        """
        again, pause_s = self.attempts - 1, self.pause_s(_USUAL_ATTEMPT, random)
        return {
            "connect_retries": again,
            "connect_retry_delay": pause_s,
            "status_code_retries": again,
            "status_code_retry_delay": pause_s,
            "retriable_status_codes": _PASSING,
        }

    def pause_s(self, attempt: int, random: float) -> float:
        """Seconds to wait after try number ``attempt`` (from 0): full jitter, so that a crowd spreads out.

        :param random: uniform in [0, 1)
        """
        return random * min(self.longest_s, self.first_s * 2.0**attempt)


@dataclass(slots=True)
class Counters:
    """What the client did since it was made."""

    requests: int = 0
    writes: int = 0
    bytes_read: int = 0


class PlacementClient:
    """Placement's API, for the reporter, the view and the tools.

    :param adapter: a keystoneauth1 adapter for service type ``placement``; its session renews tokens and times out
    :param retry: how passing trouble is sat out
    :param sleep: waits; injected by tests
    :param random: uniform in [0, 1); injected by tests
    :param microversion: of all requests
    """

    def __init__(
        self,
        adapter: HttpAdapter,
        retry: RetrySettings | None = None,
        sleep: Callable[[float], None] = time.sleep,
        random: Callable[[], float] = random_module.random,
        microversion: str = MICROVERSION,
    ) -> None:
        self._microversion = microversion
        self._adapter = adapter
        self._retry = retry or RetrySettings()
        self._sleep = sleep
        self._random = random
        self.counters = Counters()

    def get(self, path: str) -> Any:
        """Return the decoded body of a GET."""
        return self.call("GET", path)

    def provider_named(self, name: str) -> Mapping[str, Any] | None:
        """Return the resource provider of a name, as Placement lists it; None where there is none."""
        found = self.get(f"/resource_providers?name={quote(name)}")["resource_providers"]
        return found[0] if found else None

    def has_provider(self, name: str, uuid: str) -> bool:
        """Return whether a provider has both: one of another's that has the name alone is not meant."""
        found = self.provider_named(name)
        return found is not None and found["uuid"] == uuid

    def put(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a PUT and return the decoded body."""
        return self.call("PUT", path, body)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send a POST and return the decoded body."""
        return self.call("POST", path, body)

    def delete(self, path: str) -> None:
        """Send a DELETE."""
        self.call("DELETE", path)

    def discard(self, path: str) -> bool:
        """Send a DELETE of what may be gone already; tell whether it was there."""
        try:
            self.delete(path)
        except NotFoundError:
            return False
        return True

    def pause(self, attempt: int) -> None:
        """Wait before another try of something that other writers disturbed."""
        self._sleep(self._retry.pause_s(attempt, self._random()))

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send one request, again while the trouble is of the passing kind.

        A write may be sent twice after a timeout; it then fails with a conflict, because each write carries the
        generation of what it changes or the uuid of what it creates.

        :raises ServiceUnavailableError: Placement or Keystone did not answer usefully in the given tries; also what is
            looked for in the body and is not there, or has another form
        :raises GenerationConflictError: another client was faster
        :raises NotFoundError: the thing is not there
        :raises PlacementError: any other refusal
        """
        try:
            response = self._send(method, path, body)
        except (ksa.ConnectionError, ksa.RetriableConnectionFailure) as error:
            raise self._silent(method, path, str(error)) from error
        except ksa.ClientException as error:  # no catalog, no endpoint, refused by Keystone
            raise ServiceUnavailableError(
                f"Placement cannot be reached for {method} {path}: {cut(str(error), LONGEST_TEXT)}"
            ) from error
        if response.status_code in _PASSING:
            raise self._silent(method, path, f"{response.status_code} {cut(response.text)}")
        return _decoded(method, path, response)

    def _silent(self, method: str, path: str, trouble: str) -> ServiceUnavailableError:
        tries = self._retry.attempts
        return ServiceUnavailableError(
            f"Placement did not answer {method} {path} in {tries} tries: {cut(trouble, LONGEST_TEXT)}"
        )

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        self.counters.requests += 1
        self.counters.writes += method in _WRITES
        response = self._adapter.request(
            path,
            method,
            json=body,
            headers={"OpenStack-API-Version": self._microversion, "Accept": "application/json"},
            raise_exc=False,
            **self._retry.options(self._random()),
        )
        self.counters.bytes_read += len(response.content)
        return response


class _Body(dict[str, Any]):
    """A decoded body, of which what is not there is a fault of who answered."""

    def __init__(self, request: str, found: Mapping[str, Any]) -> None:
        super().__init__(found)
        self._request = request

    def __missing__(self, key: str) -> Any:
        raise ServiceUnavailableError(
            f"Placement's answer to {self._request} has no {key}: {shown(dict(self))}"
        )


def _decoded(method: str, path: str, response: Any) -> Any:
    request = f"{method} {path}"
    if response.status_code < 400:
        if response.content or method == "GET":
            return _body(request, response)
        return _Body(request, {})
    try:
        error = dict(response.json()["errors"][0])
    except (ValueError, KeyError, IndexError, TypeError):
        error = {"detail": response.text}
    kind = PlacementError
    if response.status_code == 404:
        kind = NotFoundError
    elif error.get("code") == CODE_CONCURRENT:
        kind = GenerationConflictError
    detail = " ".join(str(error.get("detail", "")).split())
    code = str(error.get("code", ""))
    raise kind(request, response.status_code, code, cut(detail, LONGEST_TEXT))


def _body(request: str, response: Any) -> _Body:
    """Return what was answered; a proxy in between may answer with a page of its own."""
    try:
        found = response.json()
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ServiceUnavailableError(
            f"The answer to {request} is not Placement's: {shown(response.text)}"
        )
    if name := malformed(found, of_project=request.startswith("GET /usages?")):
        raise ServiceUnavailableError(
            f"Placement's answer to {request} has {name} of another form: {shown(found[name])}"
        )
    return _Body(request, found)
