# SPDX-License-Identifier: Apache-2.0
"""Periods of elastic groups from Prometheus (``/api/v1/query_range``).

What it keeps is asked for again by an engine that begins to lead, so nothing of it is stored. An answer that comes
late, is no JSON, is not whole by its own words, or names a member twice is no answer: nothing is decided of it.
"""

import json
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final
from urllib.parse import SplitResult, urlencode, urlsplit

from nova_numa_ext.policy.elastic.monitored import (
    READINGS,
    WINDOWS,
    MonitoredQueries,
    Values,
    check_period,
    ends_ms,
    periods,
)
from nova_numa_ext.policy.elastic.period import Period
from nova_numa_ext.policy.elastic.settings import ScalingSettings
from placement_traits.errors import ServiceUnavailableError, cut

SETTLES_S: Final = 30.0
"""So long after its end a period is asked for, or half a period: what is scraped by then counts."""

_MOST_BYTES: Final = 64 * 1024 * 1024
_MOST_AT_ONCE: Final = 50  # periods: others have their turn
_KEPT: Final = 288  # periods that are learnt from by who begins to lead
_OK: Final = 200


class PrometheusError(ServiceUnavailableError):
    """Prometheus does not answer, or its answer cannot be used; the sentence says why."""


class PrometheusSource:
    """Asks one Prometheus.

    :param url: such as ``http://127.0.0.1:9090``, without a user; '': there is none
    :param timeout_s: seconds that one answer may take as a whole
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        self._url, self._timeout_s = url, timeout_s

    def periods(
        self, queries: MonitoredQueries, settings: ScalingSettings, after_s: float, now_s: float
    ) -> tuple[Period, ...]:
        """Return the next periods after a time that have ended, oldest first; () where there is none yet.

        :param after_s: end of the last period that is known, seconds since 1970
        :raises PrometheusError: see there
        :raises InvalidValueError: see :func:`nova_numa_ext.policy.elastic.monitored.check_period`
        """
        check_period(settings)
        until_s = now_s - min(SETTLES_S, settings.period_s / 2.0)
        ends = ends_ms(max(after_s, until_s - _KEPT * settings.period_s), until_s, settings)
        while ends:
            some, ends = ends[:_MOST_AT_ONCE], ends[_MOST_AT_ONCE:]
            found = periods(some, self._asked(queries, settings, some), settings)
            if found:
                return found
        return ()

    def _asked(
        self, queries: MonitoredQueries, settings: ScalingSettings, ends: list[int]
    ) -> dict[str, Values]:
        asked = {name: text for name, text in asdict(queries).items() if text and name != "label"}
        found = {}
        for name, text in asked.items():
            parts = READINGS if name == "latency_ms" else 1
            step_s = settings.period_s / parts
            first_s = ends[0] / 1000.0 - step_s * (parts - 1)
            query = {
                "query": _filled(text, settings.period_s),
                "start": f"{first_s:.3f}",
                "end": f"{ends[-1] / 1000.0:.3f}",
                "step": f"{step_s:.3f}",
            }
            found[name] = _values(self._post(query), queries.label, text)
        return found

    def _post(self, query: Mapping[str, str]) -> Any:
        """Return the data of an answer.

        :raises PrometheusError: there is none
        """
        url = _checked(self._url)
        connection = self._connection(url)
        body, late = urlencode({**query, "timeout": f"{self._timeout_s:g}s"}), threading.Event()
        try:
            connection.connect()
            # The socket's own limit begins again with each byte.
            limit = threading.Timer(self._timeout_s, _cut_off, (connection.sock, late))
            limit.start()
            try:
                connection.request(
                    "POST",
                    f"{url.path.rstrip('/')}/api/v1/query_range",
                    body,
                    {"Content-Type": "application/x-www-form-urlencoded"},
                )
                answer = connection.getresponse()
                text = answer.read(_MOST_BYTES + 1)
            finally:
                limit.cancel()
                connection.close()
        except (OSError, HTTPException, UnicodeError) as error:
            why = cut(str(error) or type(error).__name__)
            raise PrometheusError(f"Prometheus at {url.hostname} does not answer: {why}") from error
        if late.is_set():
            why = f"no whole answer within {self._timeout_s:g} s"
            raise PrometheusError(f"Prometheus at {url.hostname} does not answer: {why}")
        return _data(answer.status, text)

    def _connection(self, url: SplitResult) -> HTTPConnection:
        assert url.hostname is not None, "the URL was checked"
        kind = HTTPSConnection if url.scheme == "https" else HTTPConnection
        return kind(url.hostname, url.port, timeout=self._timeout_s)


def _checked(text: str) -> SplitResult:
    """Return a URL that can be asked.

    :raises PrometheusError: there is none, or it cannot be
    """
    try:
        url = urlsplit(text)
        is_usable = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        is_usable = False
    if not is_usable or url.username or url.query or url.fragment:
        allowed = "http://HOST[:PORT][/PATH] or https://HOST[:PORT][/PATH], without a user"
        raise PrometheusError(f"[numa_ext_jobs]scaling_prometheus has to be {allowed}")
    return url


def _filled(text: str, period_s: float) -> str:
    for name, parts in WINDOWS.items():
        text = text.replace(name, f"{max(round(period_s * 1000.0 / parts), 1)}ms")
    return text


def _cut_off(sock: socket.socket, late: threading.Event) -> None:
    late.set()
    with suppress(OSError):  # it is closed already
        sock.shutdown(socket.SHUT_RDWR)


def _data(status: int, text: bytes) -> Any:
    if len(text) > _MOST_BYTES:
        raise PrometheusError(f"Prometheus answers with more than {_MOST_BYTES} bytes")
    try:
        answer = json.loads(text)
        said = str(answer.get("error", ""))
        warnings = answer.get("warnings") or ()
    except (ValueError, AttributeError) as error:
        raise PrometheusError(
            f"Prometheus answers {status}, and not as one: {cut(repr(text[:100]))}"
        ) from error
    if status != _OK or answer.get("status") != "success":
        raise PrometheusError(f"Prometheus answers {status}: {cut(said)}")
    if warnings:
        raise PrometheusError(f"Prometheus says that its answer is not whole: {cut(str(warnings))}")
    return answer.get("data")


def _values(data: Any, label: str, query: str) -> Values:
    """Return the values of an answer by member and time.

    :raises PrometheusError: it is no matrix, or has no member or one twice
    """
    found: dict[str, dict[int, float]] = {}
    try:
        if data["resultType"] != "matrix":
            raise PrometheusError(f"{cut(query)} is no range of values but {data['resultType']}")
        for series in data["result"]:
            name = str(series["metric"].get(label, ""))
            if not name:
                raise PrometheusError(f"{cut(query)}: a series has no label {label}")
            if name in found:
                raise PrometheusError(f"{cut(query)}: {label} {name} has two series; sum them")
            found[name] = {
                round(float(at) * 1000.0): float(value) for at, value in series["values"]
            }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PrometheusError(f"{cut(query)}: the answer is not Prometheus's: {error!r}") from error
    return found
