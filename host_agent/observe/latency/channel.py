# SPDX-License-Identifier: Apache-2.0
"""Latencies that guests report through their ports: streams of bytes in, readings out.

The host's ends of the virtio-serial ports are UNIX sockets, watched by epoll. QEMU listens, one client at a time. A
socket that is gone or refuses is tried again after a second, so that the end of a guest, of libvirt or of another
reader costs nothing but silence. At most ``READ_BYTES`` are taken at a time, as many of each guest that has sent some:
what one floods stays in QEMU's buffer and delays that guest, not the control of all.

One :class:`SloFeed` per server joins the line protocol (:mod:`~host_agent.observe.latency.protocol`) to the sliding
window (:mod:`~host_agent.observe.latency.window`) and to what counts all requests
(:mod:`~host_agent.observe.latency.request_times`). A server that reports nothing has an unknown latency, never a good
one, and unknown requests, not none.
"""

import errno
import math
import select
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from host_agent.conf.latency import FeedOptions
from host_agent.model.latency import LatencyReading, LcServer, RequestHistogram
from host_agent.observe.latency.protocol import FeedCounts, Parser
from host_agent.observe.latency.request_times import RequestTimes
from host_agent.observe.latency.window import LatencyWindow
from placement_traits.names import SloSource

READ_BYTES: Final = 32768  # some 15 ms to understand
_LEAST_BYTES: Final = 1024
_RETRY_S: Final = 1.0

_DEFAULTS: Final = FeedOptions()


class PortSockets:
    """Connections by server.

    :param clock: monotonic seconds
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._epoll = select.epoll()
        self._paths: dict[str, str] = {}
        self._sockets: dict[str, socket.socket] = {}
        self._servers: dict[int, str] = {}
        self._retry: dict[str, float] = {}
        self._problems: dict[str, str] = {}

    def serve(self, paths: Mapping[str, str]) -> None:
        """Hold exactly the connections to these sockets: UUID -> path. A new path means a new process."""
        for uuid in list(self._sockets):
            if paths.get(uuid) != self._paths.get(uuid):
                self._drop(uuid)
        self._retry = {u: at for u, at in self._retry.items() if paths.get(u) == self._paths.get(u)}
        self._problems = {uuid: text for uuid, text in self._problems.items() if uuid in paths}
        self._paths = dict(paths)

    def adopt(self, uuid: str, connection: socket.socket) -> None:
        """Take a connection that is open already (a host model's, a test's)."""
        self._drop(uuid)
        connection.setblocking(False)
        self._sockets[uuid] = connection
        self._servers[connection.fileno()] = uuid
        self._paths.setdefault(uuid, "")
        self._epoll.register(connection.fileno(), select.EPOLLIN)

    def receive(self, timeout_s: float) -> list[tuple[str, bytes]]:
        """Wait for reports and return what has come: (UUID, bytes).

        :param timeout_s: longest wait, seconds
        """
        self._connect()
        found = []
        ready = self._epoll.poll(timeout_s)
        most = max(_LEAST_BYTES, READ_BYTES // max(1, len(ready)))
        for descriptor, _events in ready:
            uuid = self._servers.get(descriptor)
            if uuid is None:
                continue
            data = self._read(uuid, most)
            if data:
                found.append((uuid, data))
        return found

    @property
    def problems(self) -> Mapping[str, str]:
        """UUID -> why its socket cannot be opened now."""
        return dict(self._problems)

    @property
    def connected(self) -> frozenset[str]:
        """Servers whose socket is open."""
        return frozenset(self._sockets)

    def close(self) -> None:
        """Close all connections."""
        for uuid in list(self._sockets):
            self._drop(uuid)
        self._epoll.close()

    def _connect(self) -> None:
        now = self._clock()
        for uuid, path in self._paths.items():
            if not path or uuid in self._sockets or now < self._retry.get(uuid, now):
                continue
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.setblocking(False)
                connection.connect(path)
            except OSError as error:
                connection.close()
                self._retry[uuid] = now + _RETRY_S
                self._problems[uuid] = f"{path}: {error.strerror or error}"
                continue
            self._problems.pop(uuid, None)
            self.adopt(uuid, connection)

    def _read(self, uuid: str, most: int) -> bytes:
        try:
            data = self._sockets[uuid].recv(most)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EINTR):
                return b""
            data = b""
        if not data:  # the guest has ended, or QEMU prefers another reader
            self._drop(uuid)
            self._retry[uuid] = self._clock() + _RETRY_S
        return data

    def _drop(self, uuid: str) -> None:
        connection = self._sockets.pop(uuid, None)
        if connection is not None:
            descriptor = connection.fileno()
            self._servers.pop(descriptor, None)
            self._epoll.unregister(descriptor)
            connection.close()


class SloFeed:
    """What one server reports.

    :param slo_p99_us: its objective, microseconds
    :param options: window and limits
    """

    def __init__(self, slo_p99_us: float, options: FeedOptions = _DEFAULTS) -> None:
        self.slo_p99_us = slo_p99_us
        self._parser = Parser(options.limits)
        self._window = LatencyWindow(
            slo_p99_us, options.window_s, least_samples=options.least_samples
        )
        self._times = RequestTimes(slo_p99_us)
        self._heard_s = self._lost_s = -math.inf

    @property
    def counts(self) -> FeedCounts:
        """What came so far."""
        return self._parser.counts

    def received(self, data: bytes, now_s: float) -> None:
        """Take bytes from the server's port."""
        before = self._parser.counts
        latencies = self._parser.feed(data, now_s)
        now = self._parser.counts
        if now.lines > before.lines:
            self._heard_s = now_s
        if (now.implausible, now.dropped_bytes) != (before.implausible, before.dropped_bytes):
            self._lost_s = now_s
        self._window.add(latencies, now_s)
        self._times.add(latencies)

    def read(self, now_s: float, since_s: float = -math.inf) -> LatencyReading:
        """Return its latency now, without requests received before ``since_s``."""
        return self._window.read(now_s, since_s)

    def requests(self, since_s: float) -> RequestHistogram | None:
        """Return all its requests so far; None where it has reported nothing since a time, or more than was taken."""
        return self._times.read() if self._heard_s >= since_s > self._lost_s else None


class ChannelFeed:
    """The ports of all latency-critical servers of a host.

    :param options: window and limits, for each of them
    :param sockets: the host's ends
    """

    def __init__(self, options: FeedOptions, sockets: PortSockets) -> None:
        self._options = options
        self._sockets = sockets
        self._feeds: dict[str, SloFeed] = {}

    def serve(self, lcs: Iterable[LcServer]) -> None:
        """Keep exactly the feeds of these servers; a changed objective starts a new window."""
        watched = {lc.uuid: lc for lc in lcs if lc.slo_p99_us}
        self._feeds = {
            uuid: self._feed(uuid, float(lc.slo_p99_us))
            for uuid, lc in watched.items()
            if lc.slo_p99_us
        }
        self._sockets.serve({uuid: lc.socket for uuid, lc in watched.items() if has_port(lc)})

    def _feed(self, uuid: str, slo_p99_us: float) -> SloFeed:
        found = self._feeds.get(uuid)
        if found is not None and found.slo_p99_us == slo_p99_us:
            return found
        return SloFeed(slo_p99_us, self._options)

    def receive(self, timeout_s: float, clock: Callable[[], float]) -> None:
        """Wait for reports at most so long, and take them.

        :param clock: tells when they came: the wait may have been long
        """
        got = self._sockets.receive(timeout_s)
        now_s = clock()
        for uuid, data in got:
            feed = self._feeds.get(uuid)
            if feed is not None:
                feed.received(data, now_s)

    def read(self, now_s: float, since_s: float = -math.inf) -> dict[str, LatencyReading]:
        """Return UUID -> latency of every server, also of those that report nothing."""
        return {uuid: feed.read(now_s, since_s) for uuid, feed in self._feeds.items()}

    def requests(self, since_s: float) -> dict[str, RequestHistogram]:
        """Return UUID -> all requests so far, of servers of which all is known; see :meth:`SloFeed.requests`."""
        found = {uuid: feed.requests(since_s) for uuid, feed in self._feeds.items()}
        return {uuid: requests for uuid, requests in found.items() if requests is not None}

    @property
    def counts(self) -> dict[str, FeedCounts]:
        """UUID -> what came through its port so far."""
        return {uuid: feed.counts for uuid, feed in self._feeds.items()}

    @property
    def problems(self) -> Mapping[str, str]:
        """UUID -> why its port's socket cannot be opened."""
        return self._sockets.problems

    def close(self) -> None:
        """Close all sockets."""
        self._sockets.close()


def has_port(lc: LcServer) -> bool:
    """Tell whether a server's latency may come through a port, and there is one."""
    return bool(lc.reads(SloSource.CHANNEL) and lc.socket)
