# SPDX-License-Identifier: Apache-2.0
"""What latency-critical servers say about themselves: percentiles, and guests that cannot be trusted."""

import math
import random
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host_agent.conf.latency import FeedLimits, FeedOptions
from host_agent.model.latency import LcServer
from host_agent.observe.latency.channel import READ_BYTES, ChannelFeed, PortSockets, SloFeed
from host_agent.observe.latency.protocol import MAX_LINE, Parser
from host_agent.observe.latency.window import BUCKETS, HIGHEST_US, LatencyWindow

SLO_US = 1000.0


def _exact_p99(latencies: list[float]) -> float:
    """The smallest latency that 99 % of the requests do not exceed."""
    ordered = sorted(latencies)
    return ordered[len(ordered) - 1 - math.floor(0.01 * len(ordered) + 1e-9)]


def test_f_004_21_samples_leave_the_window_after_three_seconds() -> None:
    window = LatencyWindow(SLO_US)
    window.add([(5000.0, 1000)], now_s=0.02)
    for poll in range(2, 150):
        window.add([(500.0, 100)], now_s=0.02 * poll)
        assert window.read(0.02 * poll).p99_us == pytest.approx(5000.0, rel=0.01)
    window.add([(500.0, 100)], now_s=3.01)
    assert window.read(3.01).p99_us == pytest.approx(500.0, rel=0.01)


def test_f_004_21_samples_after_an_action_are_told_from_those_before() -> None:
    window = LatencyWindow(SLO_US)
    window.add([(5000.0, 10_000)], now_s=1.0)
    window.add([(700.0, 150)], now_s=1.52)
    early = window.read(1.55, since_s=1.45)
    assert (early.p99_us, early.samples) == (None, 150), "too few samples: unknown, not good"
    window.add([(700.0, 50)], now_s=1.63)
    after = window.read(1.65, since_s=1.45)
    assert after.p99_us == pytest.approx(700.0, rel=0.01)
    assert after.samples == 200
    assert window.read(1.65).p99_us == pytest.approx(5000.0, rel=0.01)


def test_a_moment_inside_a_slot_starts_at_the_next_slot() -> None:
    window = LatencyWindow(SLO_US, least_samples=1)
    window.add([(5000.0, 100)], now_s=1.01)
    assert window.read(1.09, since_s=1.05).samples == 0
    window.add([(700.0, 1)], now_s=1.11)
    assert window.read(1.11, since_s=1.05).samples == 1


def test_silence_is_unknown() -> None:
    window = LatencyWindow(SLO_US)
    window.add([(500.0, 10_000)], now_s=0.0)
    assert window.read(1.0).p99_us is not None
    assert window.read(10.0).p99_us is None


def test_slow_requests_beyond_chance_are_a_sure_violation() -> None:
    window = LatencyWindow(SLO_US)
    window.add([(500.0, 196), (3000.0, 4)], now_s=0.0)
    assert not window.read(0.0).surely_violated, "4 of 200 happen by chance where 2 are allowed"
    window.add([(3000.0, 6)], now_s=0.0)
    assert window.read(0.0).surely_violated


@given(st.lists(st.tuples(st.floats(0.0, 2.0), st.floats(1.0, 1e6)), min_size=200, max_size=400))
def test_the_percentile_is_that_of_the_samples_still_in_the_window(
    arrivals: list[tuple[float, float]],
) -> None:
    """Adding and subtracting histograms must not drift from counting anew."""
    window = LatencyWindow(HIGHEST_US, window_s=1.0, least_samples=1)  # nothing is violated
    arrivals = sorted(arrivals)
    for at, latency in arrivals:
        window.add([(latency, 1)], at)
    now = arrivals[-1][0]
    oldest = math.floor(now / 0.1 + 1e-6) - 10
    kept = [latency for at, latency in arrivals if math.floor(at / 0.1 + 1e-6) > oldest]
    assert window.read(now).samples == len(kept)
    assert window.read(now).p99_us == pytest.approx(_exact_p99(kept), rel=0.0102)
    since = now - 0.5
    first = math.ceil(since / 0.1 - 1e-6)
    fresh = [latency for at, latency in arrivals if math.floor(at / 0.1 + 1e-6) >= first]
    assert window.read(now, since).samples == len(fresh)


def test_a_sudden_violation_is_not_hidden_by_the_good_requests_before_it() -> None:
    """Three seconds of good requests would hold the 99th percentile down for most of a second."""
    window = LatencyWindow(SLO_US)
    for step in range(30):
        window.add([(500.0, 1000)], step * 0.1)
    window.add([(500.0, 980), (1500.0, 20)], 3.0)
    assert window.read(3.0).p99_us == pytest.approx(500.0, rel=0.01), "chance explains it"
    window.add([(500.0, 900), (1500.0, 100)], 3.1)
    reading = window.read(3.1)
    assert reading.p99_us == pytest.approx(1500.0, rel=0.01)
    assert reading.surely_violated
    assert reading.samples < 6000, "more than the newest half second"


# -- the line protocol -------------------------------------------------------------------------------------------------


def test_lines_of_samples_and_histograms() -> None:
    parser = Parser()
    stream = b"numa-ext-slo 1\n# alive\ns 812 640.5\nh 500:120 1000:3\n\n"
    assert parser.feed(stream, 0.0) == ((812.0, 1), (640.5, 1), (500.0, 120), (1000.0, 3))
    assert (parser.counts.lines, parser.counts.malformed) == (5, 0)


def test_lines_may_come_in_pieces() -> None:
    parser = Parser()
    got = [latency for byte in b"s 812\nh 500:2\n" for latency in parser.feed(bytes([byte]), 0.0)]
    assert got == [(812.0, 1), (500.0, 2)]


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe\n",
        b"s\n",
        b"s -5\n",
        b"s 1e9\n",
        b"s nan\n",
        b"s 5 x\n",
        b"h 5\n",
        b"h 5:-1\n",
        b"h 5:1:1\n",
        b"s " + "٣".encode() + b"\n",
        b"numa-ext-slo 2\n",
        b"GET / HTTP/1.1\r\n",
    ],
)
def test_a_malformed_line_is_counted_and_skipped(line: bytes) -> None:
    parser = Parser()
    assert parser.feed(line + b"s 5\n", 0.0) == ((5.0, 1),)
    assert parser.counts.malformed == 1


@pytest.mark.parametrize("line", [b"s 0\n", b"s 99999999\n", b"h 5:9999999\n", b"h 0:1 5:1\n"])
def test_values_that_cannot_be_are_not_used(line: bytes) -> None:
    parser = Parser()
    assert parser.feed(line, 0.0) == ()
    assert parser.counts.implausible == 1


def test_more_requests_than_any_server_can_serve_are_not_used() -> None:
    parser = Parser(FeedLimits(requests_per_s=1000.0))
    assert parser.feed(b"h 5:800\nh 9:800\n", 0.0) == ((5.0, 800),)
    assert parser.feed(b"h 9:800\n", 1.0) == ((9.0, 800),), "the allowance comes back with time"


def test_an_over_long_line_is_skipped_to_its_end() -> None:
    parser = Parser()
    parser.feed(b"s " + b"5 " * MAX_LINE, 0.0)
    assert parser.feed(b"6\ns 7\n", 0.0) == ((7.0, 1),)
    assert parser.counts.malformed == 1


def test_a_flood_is_cut_off_and_the_next_line_is_whole() -> None:
    parser = Parser(FeedLimits(bytes_per_s=100.0, burst_bytes=20.0))
    assert len(parser.feed(b"s 1\n" * 100, 0.0)) == 5
    assert parser.counts.dropped_bytes == 380
    assert parser.feed(b"s 2\n", 0.001) == ()
    assert parser.feed(b"s 3\n", 1.0) == ((3.0, 1),)


@given(st.lists(st.binary(max_size=3 * MAX_LINE), max_size=20))
def test_no_bytes_upset_the_feed_and_memory_is_bounded(pieces: list[bytes]) -> None:
    feed = SloFeed(SLO_US)
    for number, piece in enumerate(pieces):
        feed.received(piece, number * 0.01)
    feed.received(b"\n" + b"s 500\n" * 200, 1e6)
    assert feed.read(1e6).samples == 200
    assert len(feed._parser._rest) <= MAX_LINE
    assert sum(len(slot.counts) for slot in feed._window._slots) <= 30 * BUCKETS


@pytest.mark.parametrize("guests", [1, 10])
def test_guests_that_flood_take_turns_and_hold_control_up_for_milliseconds(guests: int) -> None:
    """L6: what is taken at a time does not grow with what has come, nor with how many send it."""
    ports, sent = PortSockets(), b"s 500\n" * 10_000
    ends = [socket.socketpair() for _guest in range(guests)]
    for number, (guest, host) in enumerate(ends):
        guest.send(sent)
        ports.adopt(str(number), host)
    came = dict(ports.receive(0.0))
    assert len(came) == guests
    assert sum(map(len, came.values())) <= READ_BYTES
    for _turn in range(60_000 // 1024):
        for uuid, data in ports.receive(0.0):
            came[uuid] += data
    assert set(came.values()) == {sent}, "nothing is lost"
    ports.close()
    for guest, _host in ends:
        guest.close()


class Ports(PortSockets):
    """Sockets on which these bytes have come."""

    def __init__(self) -> None:
        super().__init__()
        self.came: list[tuple[str, bytes]] = []

    def receive(self, timeout_s: float) -> list[tuple[str, bytes]]:
        came, self.came = self.came, []
        return came


def _lcs(**objectives: float) -> list[LcServer]:
    return [LcServer(uuid, frozenset({0}), slo) for uuid, slo in objectives.items()]


def test_feeds_follow_the_servers_of_the_host() -> None:
    ports = Ports()
    feeds = ChannelFeed(FeedOptions(least_samples=1), ports)
    feeds.serve(_lcs(a=1000.0, b=5000.0))
    ports.came = [("a", b"s 900\n"), ("stranger", b"s 900\n")]
    feeds.receive(0.0, lambda: 0.0)
    feeds.serve(_lcs(a=1000.0, c=5000.0))
    readings = feeds.read(0.0)
    assert {uuid: reading.samples for uuid, reading in readings.items()} == {"a": 1, "c": 0}
    feeds.serve(_lcs(a=800.0))
    assert feeds.read(0.0)["a"].samples == 0, "slow means something else now"
    assert feeds.counts["a"].lines == 0
    feeds.close()


def test_requests_of_a_server_that_says_nothing_are_unknown_and_not_none() -> None:
    """A member of an elastic group whose reporter has died must not look idle."""
    ports = Ports()
    feeds = ChannelFeed(FeedOptions(), ports)
    feeds.serve(_lcs(a=1000.0, b=1000.0))
    assert feeds.requests(-60.0) == {}
    ports.came = [("a", b"malformed\n"), ("b", b"# no requests\n")]
    feeds.receive(0.0, lambda: 0.0)
    assert {uuid: found.buckets[-1][1] for uuid, found in feeds.requests(-60.0).items()} == {"b": 0}
    ports.came = [("a", b"h 500:20 3000:2\n")]
    feeds.receive(0.0, lambda: 10.0)
    found = feeds.requests(5.0)
    assert found.keys() == {"a"}
    assert found["a"].buckets[-1] == (math.inf, 22)
    assert found["a"].total_s == pytest.approx(0.016)
    feeds.serve(_lcs(a=800.0))
    assert feeds.requests(5.0) == {}, "counted anew"
    feeds.close()


@pytest.mark.parametrize("more", [b"h 500:6000000\n", b"h 500:1000001\n", b"s " * 70_000])
def test_requests_of_a_server_that_reports_more_than_is_taken_are_unknown(more: bytes) -> None:
    """What is left of them would say that the busiest member has less to do than it has."""
    ports = Ports()
    feeds = ChannelFeed(FeedOptions(), ports)
    feeds.serve(_lcs(a=1000.0))
    ports.came = [("a", b"h 500:20\n")]
    feeds.receive(0.0, lambda: 0.0)
    assert feeds.requests(-25.0).keys() == {"a"}
    ports.came = [("a", more)]
    feeds.receive(0.0, lambda: 1.0)
    ports.came = [("a", b"\nh 500:20\n")]
    feeds.receive(0.0, lambda: 20.0)
    assert feeds.requests(-5.0) == {}
    assert feeds.requests(1.5)["a"].buckets[-1] == (math.inf, 40)
    feeds.close()


def test_a_percentile_of_many_requests_is_close() -> None:
    chance = random.Random(1)
    latencies = [chance.expovariate(1 / 200.0) for _ in range(20_000)]
    window = LatencyWindow(SLO_US)
    window.add([(latency, 1) for latency in latencies], 0.0)
    assert window.read(0.0).p99_us == pytest.approx(_exact_p99(latencies), rel=0.006)
