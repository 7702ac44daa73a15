# SPDX-License-Identifier: Apache-2.0
"""The guest's reporter and the host's parser speak the same protocol."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from host_agent.guest import numa_ext_slo
from host_agent.observe.latency.channel import SloFeed
from host_agent.observe.latency.protocol import MAX_LINE, Parser


class Clock:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_the_reporter_counts_arrives_at_the_host() -> None:
    clock, feed = Clock(), SloFeed(1000.0)

    def send(lines: list[bytes]) -> None:
        assert all(len(line) <= MAX_LINE for line in lines)
        feed.received(b"".join(lines), clock.now)

    reporter = numa_ext_slo.LatencyReporter(send, clock)
    reporter.take(b"500 500.5\nrubbish -1 inf nan\n" + b"700 " * 990 + b"2000\n" * 20)
    reporter.report()
    assert feed.read(0.0).samples == 0, "only once per interval"
    clock.now = 0.1
    reporter.report()
    reading = feed.read(0.1)
    assert reading.samples == 1012
    assert reading.p99_us == pytest.approx(2000.0, rel=0.02)
    assert (feed.counts.malformed, feed.counts.implausible) == (0, 0)


def test_every_latency_fits_into_lines_that_the_host_takes() -> None:
    histogram, parser = numa_ext_slo.Histogram(), Parser()
    for exponent in range(1900):
        histogram.add(0.5 * 1.01**exponent)
    lines = histogram.take()
    got = parser.feed(b"".join(lines), 0.0)
    assert (parser.counts.malformed, parser.counts.implausible) == (0, 0)
    assert max(latency for latency, _ in got) == 60_000_000.0
    assert histogram.take() == []


def test_a_number_cut_in_two_is_one_number() -> None:
    clock, got = Clock(), list[bytes]()
    reporter = numa_ext_slo.LatencyReporter(got.extend, clock)
    reporter.take(b"12")
    reporter.take(b"34\n")
    clock.now = 1.0
    reporter.report()
    assert Parser().feed(got[0], 0.0)[0] == (pytest.approx(1234.0, rel=0.011), 1)


def test_a_guest_without_requests_says_so_now_and_then() -> None:
    clock, got = Clock(), list[bytes]()
    reporter = numa_ext_slo.LatencyReporter(got.extend, clock)
    parser = Parser()
    for second in range(1, 26):
        clock.now = float(second)
        if second == 5:
            reporter.take(b"500\n")
        reporter.report()
    assert [line.partition(b" ")[0] for line in got] == [b"h", b"#", b"#"]
    assert parser.feed(b"".join(got), 0.0) == ((pytest.approx(500.0, rel=0.011), 1),)
    assert parser.counts.lines == 3


def test_the_port_may_come_late_go_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "port"
    port = numa_ext_slo.Port(str(path))
    assert not port.send([b"s 1\n"]), "not there yet"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    assert port.send([b"s 2\n"])
    assert os.read(reader, 100) == b"numa-ext-slo 1\ns 2\n"
    os.close(reader)
    assert not port.send([b"s 3\n"]), "the host has gone"
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    assert port.send([b"s 4\n"])
    assert os.read(reader, 100) == b"numa-ext-slo 1\ns 4\n"
    port.close()
    os.close(reader)


def test_a_full_port_never_blocks_and_lines_stay_whole(tmp_path: Path) -> None:
    path = tmp_path / "port"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    port = numa_ext_slo.Port(str(path))
    line = b"s " + b"5 " * 1000 + b"\n"
    while port.send([line]):
        pass
    received = b""
    for _ in range(3):
        try:
            while chunk := os.read(reader, 65536):
                received += chunk
        except BlockingIOError:
            port.send([b"s 6\n"])
    assert set(received.splitlines()) <= {b"numa-ext-slo 1", line.strip(b"\n"), b"s 6"}
    os.close(reader)
    port.close()


def test_the_script_runs_alone_and_ends_with_its_input(tmp_path: Path) -> None:
    path = tmp_path / "port"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    script = [sys.executable, "-I", numa_ext_slo.__file__, "--port", str(path)]
    done = subprocess.run(script, input=b"812\n640\n", timeout=30, check=True)
    assert done.returncode == 0
    assert sum(count for _, count in Parser().feed(os.read(reader, 4096), 0.0)) == 2
    os.close(reader)


def test_any_process_may_send_datagrams() -> None:
    class EnoughError(Exception):
        """Ends the endless service."""

    got: list[bytes] = []

    def send(lines: list[bytes]) -> None:
        got.extend(lines)
        raise EnoughError

    reporter = numa_ext_slo.LatencyReporter(send)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        theirs.send(b"812")
        theirs.send(b"640")
        with pytest.raises(EnoughError):
            numa_ext_slo.serve(ours.fileno(), reporter, datagrams=True)
    assert sum(count for _, count in Parser().feed(got[0], 0.0)) == 2
