# SPDX-License-Identifier: Apache-2.0
"""Latencies of servers from a Prometheus server: for guests whose operator measures them anyway.

Each server's query returns one number, its 99th percentile in seconds over a time range. Queries run in a thread of
their own and never keep the controller waiting. An answer covers the whole range before it, so it says nothing about an
action that is younger than the range: then the latency is unknown, as it is when answers stop.
"""

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from host_agent.conf.latency import PrometheusOptions
from host_agent.conf.slo import SloOptions
from host_agent.model.latency import LatencyReading, LcServer
from host_agent.observe.latency.window import HIGHEST_US
from placement_traits.errors import cut
from placement_traits.names import SloSource

LOG = logging.getLogger(__name__)

_MICRO: Final = 1e6
_ANSWER_BYTES: Final = 1 << 20
_PART_BYTES: Final = 1 << 16
_REFUSED: Final = (401, 403)
_CREDENTIALS: Final = " (see [slo]prometheus_username and prometheus_token)"


def ask(options: PrometheusOptions, query: str) -> float | None:
    """Return the answer to an instant query; None when it has no value now.

    :raises OSError: the server does not answer, refuses, or answers not what was asked
    """
    try:
        found: Any = json.loads(_fetch(options, query))
        result = found["data"]["result"]
        if found["data"]["resultType"] == "scalar":
            return float(result[1])
        if len(result) > 1:
            raise OSError(f"the query {query!r} returns {len(result)} series instead of one")
        return float(result[0]["value"][1]) if result else None
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise OSError(
            f"{options.base_url} does not answer as Prometheus does: {cut(repr(error))}"
        ) from error


def _fetch(options: PrometheusOptions, query: str) -> bytes:
    """Return the body of an answer, of a large one the beginning.

    :raises OSError: there is none, or it is a refusal
    """
    # Loaded when it is needed: most hosts ask no Prometheus server, and every command reads its options.
    import requests

    def sign(request: Any) -> Any:
        """As an object of its own it wins over what ~/.netrc says about the server."""
        if options.token is not None:
            request.headers["Authorization"] = f"Bearer {options.token}"
        return request

    user = (options.username, options.password)
    with requests.get(
        f"{options.base_url}/api/v1/query",
        {"query": query},
        auth=sign if options.username is None else user,
        headers={"Accept-Encoding": "identity"},
        verify=True if options.cafile is None else str(options.cafile),
        timeout=options.timeout_s,
        stream=True,
    ) as answer:
        body = b""
        for part in answer.iter_content(_PART_BYTES):
            body += part
            if len(body) > _ANSWER_BYTES:
                break
    if answer.ok:
        return body
    advice = _CREDENTIALS if answer.status_code in _REFUSED else ""
    detail = cut(body.decode(errors="replace").strip())
    raise OSError(
        f"{options.base_url} answers {answer.status_code} {answer.reason}{advice}: {detail}"
    )


@dataclass(frozen=True, slots=True)
class _Answer:
    at: float
    p99_us: float | None


def build(options: SloOptions) -> "PrometheusFeed | None":
    """Return the feed, None where no server is configured."""
    if not options.prometheus.url:
        return None
    return PrometheusFeed(options.prometheus, options.feed.least_samples)


class PrometheusFeed:
    """A :class:`~host_agent.observe.latency.feeds.LatencyFeed`: asks in the background.

    :param options: where and what
    :param least_samples: stands for the number of requests behind an answer: it is a percentile already
    :param fetch: asks one query
    """

    name: Final = SloSource.PROMETHEUS.value
    guess: Final = False

    def __init__(
        self,
        options: PrometheusOptions,
        least_samples: int,
        fetch: Callable[[PrometheusOptions, str], float | None] = ask,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._samples = least_samples
        self._fetch = fetch
        self._clock = clock
        self._queries: Mapping[str, str] = {}
        self._answers: dict[str, _Answer] = {}
        self._problem = ""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def serve(self, lcs: Iterable[LcServer]) -> None:
        """Ask for exactly these servers, as far as they may be asked for and their flavors have a query."""
        texts = {
            lc.uuid: self._options.promql(lc.flavor, lc.uuid, lc.title)
            for lc in lcs
            if lc.reads(SloSource.PROMETHEUS)
        }
        self._queries = {uuid: text for uuid, text in texts.items() if text is not None}
        if self._queries and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="slo-prometheus", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._stop.set()

    def read(self, lc: LcServer, now_s: float, since_s: float = -math.inf) -> LatencyReading:
        """Return a server's latency; unknown when the last answer is old, or covers time before ``since_s``."""
        answer = self._answers.get(lc.uuid)
        options = self._options
        fresh = (
            answer is not None
            and now_s - answer.at <= 3.0 * options.interval_s + options.timeout_s
            and answer.at - options.window_s >= since_s
        )
        if answer is None or answer.p99_us is None or not fresh:
            return LatencyReading(None, 0, 0, since_s)
        return LatencyReading(answer.p99_us, self._samples, 0, since_s)

    def ask_all(self) -> None:
        """Ask once for every server."""
        queries = self._queries
        problem = ""
        for uuid, query in queries.items():
            try:
                seconds = self._fetch(self._options, query)
            except OSError as error:
                problem = str(error)
                continue
            known = seconds is not None and 0.0 < seconds * _MICRO <= HIGHEST_US
            p99_us = seconds * _MICRO if seconds is not None and known else None
            self._answers[uuid] = _Answer(self._clock(), p99_us)
        self._answers = {uuid: a for uuid, a in self._answers.items() if uuid in queries}
        if problem and problem != self._problem:
            LOG.warning("latencies from Prometheus are unknown: %s", problem)
        if self._problem and not problem:
            LOG.info("Prometheus answers again")
        self._problem = problem

    def _run(self) -> None:
        while not self._stop.wait(self._options.interval_s):
            try:
                self.ask_all()
            except Exception:  # the outermost guard: logged, and the next round comes
                LOG.exception("asking Prometheus failed")
