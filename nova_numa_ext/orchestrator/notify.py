# SPDX-License-Identifier: Apache-2.0
"""Tells others of each job that comes to another state, or is acted on: on the message bus, and to a webhook.

What is sent is for convenience: it may be lost when a process ends, a receiver is slow or away. What happened to a job
is in its events. Neither engine nor API waits for it: each way has a thread and a queue of its own, and what does not
fit into the queue is left out.

========  ===========================================================================================
the bus   by oslo.messaging, as ``[oslo_messaging_notifications]`` says: event ``numa_ext.job.<state>``, or
          ``numa_ext.job.<action>`` of what its user does with it
webhook   POST of the same as JSON; only to addresses of the networks that are allowed, whatever a name
          server says, and a redirect is not followed
========  ===========================================================================================
"""

import ipaddress
import json
import logging
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final, Protocol
from urllib.parse import SplitResult, urlsplit

import oslo_messaging
from oslo_config import cfg
from oslo_messaging import opts as messaging_opts

from nova_numa_ext.orchestrator.conf import GROUP, NotifyOptions
from nova_numa_ext.orchestrator.store.stored_job import StoredJob
from nova_numa_ext.policy.jobs.job import JobKind
from nova_numa_ext.policy.jobs.terms import sentence
from nova_numa_ext.policy.remote_gpu.lease_terms import OF_LEASES, lease_sentence
from placement_traits.errors import LONGEST_TEXT, NumaExtError, ServiceUnavailableError, cut
from placement_traits.oslo_options import ConfigurationError
from placement_traits.reason import Reason

_LOG: Final = logging.getLogger(__name__)

EVENT: Final = "numa_ext.job"
VERSION: Final = "1.1"
"""Of the payload: the second number grows where something is added, the first one where something changes or goes."""

_BUS: Final = "oslo_messaging_notifications"
_MOST: Final = 1000
_RETRIES: Final = 3  # by default oslo.messaging tries for ever, and what it sends then is old
_ACCEPTED: Final = range(200, 300)

Message = Mapping[str, Any]
Send = Callable[[str, Message], None]
"""Sends an event of a type; raises :class:`placement_traits.errors.NumaExtError` where it cannot."""


class Tell(Protocol):
    """Takes what happens to jobs; waits for nothing."""

    def __call__(self, job: StoredJob, reasons: Sequence[Reason], action: str = "", /) -> None:
        """Tell of a job as it is since it has come to its state, with the reasons.

        :param action: what its user has done with it meanwhile; '': it has come to the state
        """


def no_receiver(_job: StoredJob, _reasons: Sequence[Reason], _action: str = "") -> None:
    """Send nothing."""


_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def message(job: StoredJob, reasons: Sequence[Reason], at: float) -> Message:
    """Return what is sent of a job: as the API shows it to an administrator, and no secret.

    :param at: when it came to its state, seconds since 1970
    """
    return {
        "payload_version": VERSION,
        "at": at,
        "job": job.uuid,
        "job_version": job.version,
        "kind": str(job.kind),
        "name": job.name,
        "project_id": job.project,
        "user_id": job.user,
        "state": job.state.value,
        "parts": [
            {"name": each.name, "servers": sorted(filter(None, each.servers.values()))}
            for each in job.parts
        ],
        "reasons": [{**asdict(each), "sentence": _sentence(job, each)} for each in reasons],
    }


def _sentence(job: StoredJob, reason: Reason) -> str:
    of_leases = job.kind is JobKind.ATTACH and reason.where == OF_LEASES
    return lease_sentence(reason) if of_leases else sentence(reason)


class Outbox:
    """One way on which messages go, from a thread of its own; any thread may put some in.

    :param name: of the way, for the log
    :param send: may take its time
    :param clock: seconds since 1970; injected by tests
    """

    def __init__(self, name: str, send: Send, clock: Callable[[], float] = time.time) -> None:
        self._name = name
        self._send = send
        self._clock = clock
        self._queue: queue.Queue[tuple[str, StoredJob, Sequence[Reason], float]] = queue.Queue(
            _MOST
        )
        self._lock = threading.Lock()
        self._started = False
        self._trouble = ""
        self._full = False

    def put(self, job: StoredJob, reasons: Sequence[Reason], action: str = "") -> None:
        """Have a message sent, unless too many wait; never waits. The first one starts the thread.

        :param action: as of :class:`Tell`
        """
        with self._lock:
            try:
                event = f"{EVENT}.{action or job.state}"
                self._queue.put_nowait((event, job, reasons, self._clock()))
                self._full = False
            except queue.Full:
                if not self._full:
                    _LOG.warning("%s: %d messages wait, others are left out", self._name, _MOST)
                self._full = True
            if not self._started:
                self._started = True
                name = f"notify-{self._name}"
                threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while True:
            event, job, reasons, at = self._queue.get()
            trouble = ""
            try:
                self._send(event, message(job, reasons, at))
            except NumaExtError as error:
                trouble = str(error)
            except Exception as error:  # noqa: BLE001 - the outermost guard: logged, and others are sent
                trouble = f"{type(error).__name__}: {cut(str(error), LONGEST_TEXT)}"
            if trouble and trouble != self._trouble:
                _LOG.warning("%s: messages are lost: %s", self._name, trouble)
            self._trouble = trouble


def configured(
    conf: cfg.ConfigOpts, options: NotifyOptions, host: str, process: str = "engine"
) -> Tell:
    """Return what tells others, as a configuration says: neither way unless it is configured.

    :param host: of this process
    :param process: what it is: ``engine`` or ``api``
    :raises ConfigurationError: something in it cannot be used
    """
    ways: list[Outbox] = []
    send = bus(conf, host, process)
    if send:
        ways.append(Outbox("the message bus", send))
    if options.webhook_url:
        ways.append(Outbox("the webhook", webhook(options)))

    def tell(job: StoredJob, reasons: Sequence[Reason], action: str = "") -> None:
        for way in ways:
            way.put(job, reasons, action)

    return tell


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register oslo.messaging's options of notifications; registering twice is harmless."""
    for group, options in messaging_opts.list_opts():
        if group == _BUS:
            conf.register_opts(options, _BUS)
    conf.set_default("retry", _RETRIES, _BUS)


def bus(conf: cfg.ConfigOpts, host: str, process: str = "engine") -> Send | None:
    """Return what sends to the message bus; None: no driver is configured. Parameters as of :func:`configured`.

    :raises ConfigurationError: its options cannot be used
    """
    register_opts(conf)
    if not conf[_BUS].driver:
        return None
    try:
        transport = oslo_messaging.get_notification_transport(conf)
        notifier = oslo_messaging.Notifier(transport, publisher_id=f"numa-ext-{process}.{host}")
    except (oslo_messaging.InvalidTransportURL, oslo_messaging.DriverLoadFailure) as error:
        raise ConfigurationError(
            f"[{_BUS}]transport_url cannot be used: {cut(str(error), LONGEST_TEXT)}"
        ) from error

    def send(event: str, content: Message) -> None:
        notifier.info({}, event, dict(content))

    return send


def webhook(options: NotifyOptions) -> Send:
    """Return what posts to the webhook.

    :raises ConfigurationError: its URL or networks cannot be used
    """
    url = urlsplit(options.webhook_url)
    try:
        usable = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        usable = False
    if not usable or url.username or url.fragment:
        shown = "" if url.username else f" = {cut(options.webhook_url)}"  # a password is not shown
        raise ConfigurationError(
            f"[{GROUP}]webhook_url{shown} cannot be used; allowed: "
            "http://HOST[:PORT]/PATH or https://HOST[:PORT]/PATH, without a user"
        )
    if not options.webhook_networks:
        raise ConfigurationError(
            f"[{GROUP}]webhook_url is set and webhook_networks is not: name the networks of the receiver, such as "
            "203.0.113.0/24"
        )
    networks = [_network(each) for each in options.webhook_networks]
    return partial(_post, url, networks, options.webhook_timeout_s)


def _network(text: str) -> _Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise ConfigurationError(f"[{GROUP}]webhook_networks: {cut(str(error))}") from error


def _post(
    url: SplitResult, networks: Sequence[_Network], timeout_s: float, event: str, content: Message
) -> None:
    """Post a message; what the receiver answers beside its status is not read.

    :raises ServiceUnavailableError: it does not take the message
    """
    assert url.hostname is not None, "the URL was checked"
    port = url.port or (443 if url.scheme == "https" else 80)
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    body = json.dumps({"event_type": event, "payload": content}).encode()
    try:
        address = _allowed(url.hostname, port, networks)
        connection = _connection(url, port, address, timeout_s)
        # The socket's own limit begins again with each byte.
        limit = threading.Timer(timeout_s, _cut_off, (connection.sock,))
        limit.start()
        try:
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            status = connection.getresponse().status
        finally:
            limit.cancel()
            connection.close()
    except (OSError, HTTPException, UnicodeError) as error:
        raise ServiceUnavailableError(
            f"{url.hostname} does not answer: {cut(str(error) or type(error).__name__)}"
        ) from error
    if status not in _ACCEPTED:
        raise ServiceUnavailableError(f"{url.hostname} answers with {status}")


def _cut_off(sock: socket.socket) -> None:
    with suppress(OSError):  # it is closed already
        sock.shutdown(socket.SHUT_RDWR)


def _allowed(host: str, port: int, networks: Sequence[_Network]) -> str:
    """Return an address of a host; it is the one that is connected to, so that no second look can differ.

    :raises ServiceUnavailableError: none of its addresses is allowed
    :raises OSError: the name is not known
    """
    found = [info[4][0] for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    for address in map(str, found):
        if any(ipaddress.ip_address(address) in network for network in networks):
            return address
    raise ServiceUnavailableError(
        f"{host} is at {', '.join(map(str, found))}: not in [{GROUP}]webhook_networks"
    )


def _connection(url: SplitResult, port: int, address: str, timeout_s: float) -> HTTPConnection:
    """Return a connection to an address; certificates and headers are those of the name."""
    assert url.hostname is not None, "the URL was checked"
    sock = socket.create_connection((address, port), timeout_s)
    if url.scheme == "http":
        connection = HTTPConnection(url.hostname, port, timeout=timeout_s)
        connection.sock = sock
        return connection
    context = ssl.create_default_context()
    try:
        secured = HTTPSConnection(url.hostname, port, timeout=timeout_s, context=context)
        secured.sock = context.wrap_socket(sock, server_hostname=url.hostname)
    except OSError:
        sock.close()
        raise
    return secured
