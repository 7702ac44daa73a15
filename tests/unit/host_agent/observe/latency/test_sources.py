# SPDX-License-Identifier: Apache-2.0
"""Which latency-critical servers report: silence is no answer at all, not one that comes too early to judge by."""

import math

from host_agent.conf.latency import FeedOptions
from host_agent.model.latency import LatencyReading, LcServer
from host_agent.observe.latency.channel import ChannelFeed, PortSockets
from host_agent.observe.latency.sources import SILENCE_S, SloSources

LC = LcServer("lc", frozenset({0}), 1000.0)


class Slow:
    """Answers cover two minutes, so that an action can be judged two minutes later."""

    name, guess = "slow", False

    def __init__(self) -> None:
        self.answers = True

    def serve(self, lcs: object) -> None:
        pass

    def read(self, lc: LcServer, now_s: float, since_s: float = -math.inf) -> LatencyReading:
        known = self.answers and now_s - 2.0 * SILENCE_S >= since_s
        return LatencyReading(900.0 if known else None, 200, 0, since_s)

    def close(self) -> None:
        pass


def _sources(slow: Slow) -> SloSources:
    sources = SloSources(ChannelFeed(FeedOptions(), PortSockets()), (slow,))
    sources.serve((LC,), 0.0)
    return sources


def test_a_server_whose_answers_are_too_early_to_judge_by_reports() -> None:
    """H1: with a rate window of a minute every action was forgotten before it could be judged."""
    sources = _sources(Slow())
    for now in range(0, 119, 5):
        assert sources.read(float(now), 0.0)["lc"].p99_us is None
        assert sources.reporting == {"lc"}
    assert sources.read(120.0, 0.0)["lc"].p99_us == 900.0


def test_a_server_without_answers_is_silent_after_a_minute() -> None:
    slow = Slow()
    sources = _sources(slow)
    sources.read(0.0, -math.inf)
    slow.answers = False
    assert "lc" in sources.read(SILENCE_S, -math.inf)
    assert sources.read(SILENCE_S + 1.0, -math.inf) == {}
