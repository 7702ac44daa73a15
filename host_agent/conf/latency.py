# SPDX-License-Identifier: Apache-2.0
"""What the operator decides about the sources of latencies, apart from them: reading a configuration loads no more."""

import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

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
class FeedSettings:
    """Options of the feed through ports.

    :param window_s: n of the source: length of the sliding window, seconds
    :param poll_s: m of the source: seconds between two looks
    :param least_samples: fewer requests make no percentile
    :param limits: how much one guest may send
    """

    window_s: float = 3.0
    poll_s: float = 0.02
    least_samples: int = 200
    limits: FeedLimits = field(default_factory=FeedLimits)


@dataclass(frozen=True, slots=True)
class PrometheusSettings:
    """Where and what to ask.

    :param url: of the server, without ``/api/v1/query``
    :param queries: flavor name, or ``any`` -> PromQL with ``$uuid`` and, within quotes, ``$name``
    :param window_s: time range that the queries look back
    :param interval_s: between two queries of one server
    :param timeout_s: for one query
    """

    url: str
    queries: Mapping[str, str] = field(default_factory=dict)
    window_s: float = 15.0
    interval_s: float = 5.0
    timeout_s: float = 3.0

    def query(self, flavor: str, uuid: str, name: str) -> str | None:
        """Return the PromQL for a server, None when its flavor has none."""
        text = self.queries.get(flavor) or self.queries.get(EVERY_FLAVOR)
        if text is None:
            return None
        return string.Template(text).safe_substitute(uuid=uuid, name=name.translate(_ESCAPES))
