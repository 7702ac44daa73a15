#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""numa-ext-slo: tell the host how long this guest's requests take.

One file, standard library only: copy it into the image. It takes latencies in microseconds, one or more per line, from
standard input or from a UNIX datagram socket that any number of processes may send to, and writes a histogram every
tenth of a second to the virtio-serial port that the host agent has plugged in::

    my-server --log-latencies | numa-ext-slo
    numa-ext-slo --socket /run/numa-ext-slo.sock        # echo 812 | socat - UNIX-SENDTO:/run/numa-ext-slo.sock

The port may be absent, vanish and come back (live migration, restart of the agent): reports are dropped meanwhile and
the measured program never waits. The protocol is described in the reference of nova-numa-ext, "latency objectives".
"""

import argparse
import math
import os
import select
import socket
import sys
import time
from collections.abc import Callable

PORT = "/dev/virtio-ports/org.numa_ext.slo.0"
GREETING = b"numa-ext-slo 1\n"
INTERVAL_S = 0.1
HEARTBEAT_S = 10.0
HEARTBEAT = b"# no requests\n"
STEP = math.log(1.01)
LONGEST_US = 60_000_000.0
FIELDS_PER_LINE = 150


class Histogram:
    """Requests per bucket; buckets grow by 1 %, so there are never more than about 1800."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def add(self, latency_us: float) -> None:
        """Count one request."""
        if 0.0 < latency_us <= LONGEST_US:
            bucket = max(0, math.ceil(math.log(latency_us) / STEP - 1e-9))
            self._counts[bucket] = self._counts.get(bucket, 0) + 1

    def take(self) -> list[bytes]:
        """Return the lines of the protocol for what was counted since the last time."""
        fields = [
            f"{min(LONGEST_US, math.exp(bucket * STEP)):.3f}:{count}"
            for bucket, count in sorted(self._counts.items())
        ]
        self._counts = {}
        return [
            f"h {' '.join(fields[start : start + FIELDS_PER_LINE])}\n".encode("ascii")
            for start in range(0, len(fields), FIELDS_PER_LINE)
        ]


class Port:
    """The way to the host: opened when it is there, forgotten when it fails; never waited for."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = -1
        self._unsent = b""

    def send(self, lines: list[bytes]) -> bool:
        """Write whole lines; return whether the host takes them."""
        if self._file < 0:
            try:
                self._file = os.open(self._path, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                return False
            self._unsent = GREETING + b"".join(lines)
        self._unsent = self._unsent or b"".join(lines)  # a full port: newest reports are dropped
        try:
            sent = os.write(self._file, self._unsent)
        except BlockingIOError:
            return False
        except OSError:
            self.close()
            return False
        self._unsent = self._unsent[sent:]
        return not self._unsent

    def close(self) -> None:
        """Let go of the port."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1
        self._unsent = b""


class LatencyReporter:
    """Collect latencies and report them at intervals.

    ``send`` takes the lines of a report, ``clock`` tells monotonic seconds.
    """

    def __init__(
        self, send: Callable[[list[bytes]], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._send = send
        self._clock = clock
        self._due = clock() + INTERVAL_S
        self._heartbeat_due = clock() + HEARTBEAT_S
        self._histogram = Histogram()
        self._half = b""

    def take(self, text: bytes) -> None:
        """Take text as it came: numbers parted by white space; anything else is skipped."""
        words = (self._half + text).split()
        ended = not text or text[-1:].isspace()
        self._half = b"" if ended or not words else words.pop()[:64]
        for word in words:
            try:
                self._histogram.add(float(word))
            except ValueError:
                continue

    def wait_s(self) -> float:
        """Seconds until the next report."""
        return max(0.0, self._due - self._clock())

    def report(self, *, last: bool = False) -> None:
        """Send what there is, if it is time or the end; now and then also that there is nothing."""
        now = self._clock()
        if now < self._due and not last:
            return
        self._due = now + INTERVAL_S
        lines = self._histogram.take()
        if not lines and now >= self._heartbeat_due:
            lines = [HEARTBEAT]
        if lines:
            self._heartbeat_due = now + HEARTBEAT_S
            self._send(lines)


def serve(file: int, reporter: LatencyReporter, *, datagrams: bool) -> None:
    """Report what comes from ``file`` until it ends; datagrams never do, and each is complete."""
    while True:
        ready, _, _ = select.select([file], [], [], reporter.wait_s())
        if ready:
            text = os.read(file, 65536)
            if not text and not datagrams:
                reporter.take(b"\n")
                reporter.report(last=True)
                return
            reporter.take(text + b"\n" if datagrams else text)
        reporter.report()


def main() -> int:
    """Run until standard input ends or the guest does."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", default=PORT, help="virtio-serial port (%(default)s)")
    parser.add_argument("--socket", help="UNIX datagram socket to make and read; default: stdin")
    options = parser.parse_args()
    port = Port(options.port)
    reporter = LatencyReporter(port.send)
    try:
        if options.socket is None:
            serve(sys.stdin.fileno(), reporter, datagrams=False)
            return 0
        if os.path.exists(options.socket):
            os.unlink(options.socket)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
            listener.bind(options.socket)
            serve(listener.fileno(), reporter, datagrams=True)
    except KeyboardInterrupt:
        return 0
    finally:
        port.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
