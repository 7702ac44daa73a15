# SPDX-License-Identifier: Apache-2.0
"""Options of the sources of latencies: parts of section ``[slo]``."""

import string
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from placement_traits.errors import InvalidValueError
from placement_traits.options import Section, option

EVERY_FLAVOR: Final = "any"

_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "'": r"\'", "\n": r"\n"})
"""Within the quotes of PromQL: a server's name is its tenant's to choose, and must not ask for another's latency."""


@dataclass(frozen=True, slots=True)
class FeedLimits:
    """How much a guest may send.

    :param bytes_per_s: bytes that are looked at per second
    :param burst_bytes: bytes that are looked at in one go after a silence
    :param requests_per_s: requests a server can plausibly have finished per second; more are a lie
    """

    bytes_per_s: float = 65536.0
    burst_bytes: float = 131072.0
    requests_per_s: float = 5_000_000.0


@dataclass(frozen=True, slots=True)
class FeedOptions(Section):
    """How latencies are made of what servers report, in ``[slo]``: n and m of the source."""

    window_s: float = option(
        3.0,
        "Length of the sliding window of requests, seconds. Longer ones see rare slow requests and react later.",
        minimum=0.5,
        maximum=60.0,
        change="requests are rare, so that a window holds too few (raise)",
        leave="objectives must be met within seconds",
    )
    poll_s: float = option(
        0.02,
        "Shortest time between two decisions, seconds. Reports wake the controller at once.",
        minimum=0.005,
        maximum=1.0,
        change="the agent uses too much CPU time (raise)",
        leave="reports must be acted on within 100 ms",
    )
    least_samples: int = option(
        200,
        "Requests that make a 99th percentile; with fewer the latency is unknown.",
        minimum=100,
        change="requests are rare and a rough percentile is better than none (lower)",
        leave="a handful of slow requests must not throttle any server",
    )
    limits: FeedLimits = field(default_factory=FeedLimits)


def _secret(text: str, *, change: str, leave: str) -> Any:
    """Return an option without a default that is shown nowhere; see :func:`placement_traits.options.option`."""
    return option(None, text, secret=True, change=change, leave=leave)


@dataclass(frozen=True, slots=True)
class PrometheusOptions(Section):
    """Where and what a Prometheus server is asked, in ``[slo]``; it is asked nothing as long as it has no URL."""

    url: str | None = option(
        None,
        "Base URL of a Prometheus server, for servers with numa_ext:slo_source=prometheus, or auto while their "
        "port is silent or missing.",
        change="latencies are measured outside of the guests",
        leave="guests report through their port",
    )
    query: tuple[str, ...] = option(
        (),
        "FLAVOR=PROMQL, or any=PROMQL for all others; may be given several times. The query returns one number, "
        "the 99th percentile in seconds. $uuid and $name stand for the server. Tenants choose names: keep $name "
        "within double quotes (it is escaped for them) and behind = rather than =~.",
        repeated=True,
        change="prometheus_url is set",
        leave="prometheus_url is not set",
    )
    window_s: float = option(
        15.0,
        "Time range that the queries look back, seconds: an action is judged by answers that are so much younger.",
        minimum=1.0,
        change="the query's own range is longer",
        leave="actions must be judged soon",
    )
    interval_s: float = option(
        5.0,
        "Seconds between two queries per server.",
        minimum=0.5,
        change="many servers are asked about (raise)",
        leave="the scrape interval is longer anyway",
    )
    cafile: Path | None = option(
        None,
        "File with the certificates (PEM) of the authority that signed the server's, for a URL with https.",
        change="an authority of your own signed it, which the host does not know",
        leave="the host's certificates know it",
    )
    username: str | None = option(
        None,
        "User name that the server, or a proxy before it, asks for (HTTP basic authentication).",
        change="it asks for one",
        leave="it asks for none, or for a token",
    )
    password: str | None = _secret(
        "Password of prometheus_username.",
        change="prometheus_username is set",
        leave="prometheus_username is not set",
    )
    token: str | None = _secret(
        "Token that the server, or a proxy before it, asks for (Authorization: Bearer).",
        change="it asks for one",
        leave="it asks for none, or for a user name",
    )
    timeout_s: float = option(
        3.0,
        "Longest time that a query may take.",
        minimum=0.1,
        change="Prometheus is far away",
        leave="an answer must not be old when it comes",
    )

    @property
    def base_url(self) -> str:
        """What ``/api/v1/query`` is appended to; empty without a server."""
        return (self.url or "").rstrip("/")

    @property
    def queries(self) -> dict[str, str]:
        """Flavor name, or ``any`` -> PromQL with ``$uuid`` and, within quotes, ``$name``."""
        parts = (text.partition("=") for text in self.query)
        return {flavor.strip(): query.strip() for flavor, _, query in parts}

    def promql(self, flavor: str, uuid: str, name: str) -> str | None:
        """Return the query for a server, None when its flavor has none."""
        queries = self.queries
        text = queries.get(flavor) or queries.get(EVERY_FLAVOR)
        if text is None:
            return None
        return string.Template(text).safe_substitute(uuid=uuid, name=name.translate(_ESCAPES))

    def check(self) -> None:
        """See :meth:`~placement_traits.options.Section.check`."""
        if self.token is not None and self.username is not None:
            allowed = "one of prometheus_username and prometheus_token"
            raise InvalidValueError("[slo]prometheus_username", self.username, allowed)
        if (self.username is None) != (self.password is None):
            allowed = "a name together with prometheus_password, or neither"
            raise InvalidValueError("[slo]prometheus_username", self.username, allowed)
        for text in self.query:
            flavor, equals, query = text.partition("=")
            if not equals or not flavor.strip() or not query.strip():
                raise InvalidValueError(
                    "[slo]prometheus_query", text, "FLAVOR=PROMQL or any=PROMQL"
                )
