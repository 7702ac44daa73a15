# SPDX-License-Identifier: Apache-2.0
"""How the agent and the unit of lanes speak: datagrams over a socket in the agent's folder.

The agent sends how best-effort servers are to be held on each uplink, the unit answers each order with what it has in
its hands. What is missing, as in an order of an earlier release, is not held. Neither waits for the other: an order
without a receiver is lost, an answer is read when it has come. Both have one user, and the folder lets no other one in.
"""

import json
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from host_agent.model.lanes import LaneOrder, UplinkReport
from host_agent.model.levels import FULL
from placement_traits.errors import InvalidValueError
from placement_traits.names import Tier
from placement_traits.plain import Value

_LOG: Final = logging.getLogger(__name__)
_LARGEST: Final = 1 << 17
_MOST_MBPS: Final = 10_000_000
_MOST_AT_ONCE: Final = 64
"""Orders between two looks at the clock: a flood of them keeps no other one from lapsing."""
_KIND: Final = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC

TakeOrder = Callable[[LaneOrder], UplinkReport]
"""Returns what is effective then."""


class LaneDoor:
    """The unit's side; a context.

    :param path: of the socket; what an earlier start has left there is removed
    :raises OSError: it cannot be made
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, _KIND)
        try:
            self._socket.bind(str(path))
            path.chmod(0o600)
        except OSError:
            self._socket.close()
            raise

    def __enter__(self) -> "LaneDoor":
        return self

    def __exit__(self, *_error: object) -> None:
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def fileno(self) -> int:
        """Return the descriptor, for select."""
        return self._socket.fileno()

    def serve(self, take: TakeOrder) -> None:
        """Carry out orders that have come, the last one of each sender, and answer them.

        One that cannot be answered, as its socket has no name, is not taken. What is left of many is for the next call.
        """
        orders: dict[Any, LaneOrder] = {}
        with suppress(BlockingIOError):
            for _ in range(_MOST_AT_ONCE):
                data, sender = self._socket.recvfrom(_LARGEST)
                if not sender:
                    _LOG.warning("an order is not taken: its sender has no name")
                    continue
                try:
                    orders[sender] = _order(data)
                except InvalidValueError as error:
                    _LOG.warning("an order is not taken: %s", error)
        for sender, order in orders.items():
            answer = _encoded(take(order))
            with suppress(OSError):  # it has gone meanwhile
                self._socket.sendto(answer, sender)


class LaneDoorCaller:
    """The agent's side; not for several threads.

    :param path: of the socket
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket: socket.socket | None = None

    def order(self, order: LaneOrder) -> None:
        """Say how best-effort servers are to be held; without a unit nothing happens."""
        try:
            self._connected().send(json.dumps(_plain(order)).encode())
        except BlockingIOError:
            return  # it is behind with orders, and this one comes again
        except OSError:
            self.close()

    def answer(self) -> UplinkReport | None:
        """Return the newest answer that has come since the last call; None: none has."""
        found: UplinkReport | None = None
        try:
            while self._socket is not None:
                found = _report(self._socket.recv(_LARGEST))
        except BlockingIOError:
            pass
        except InvalidValueError as error:
            _LOG.warning("an answer of the unit of lanes is not used: %s", error)
        except OSError:
            self.close()
        return found

    def close(self) -> None:
        """Let go of the socket; the next order makes another one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connected(self) -> socket.socket:
        """Return a socket with a name of the kernel's choice, to which the unit alone can send."""
        if self._socket is None:
            made = socket.socket(socket.AF_UNIX, _KIND)
            try:
                made.connect(str(self._path))
                made.bind("")
            except OSError:
                made.close()
                raise
            self._socket = made
        return self._socket


def _order(data: bytes) -> LaneOrder:
    return _held(_parsed(data, "order"))


def _plain(order: LaneOrder) -> dict[str, dict[str, int]]:
    return {"limits": dict(order.limits), "shares": dict(order.shares)}


def _held(found: Value) -> LaneOrder:
    shares = found.members().get("shares")
    return LaneOrder(
        _mbps(found.member("limits")),
        {name: each.integer(1, FULL) for name, each in shares.members().items()} if shares else {},
    )


def _encoded(report: UplinkReport) -> bytes:
    return json.dumps(
        {
            "uplinks": dict(report.uplinks),
            "taps": {tap: tier and tier.value for tap, tier in report.taps.items()},
            **_plain(report.held),
        }
    ).encode()


def _report(data: bytes) -> UplinkReport:
    found = _parsed(data, "answer")
    return UplinkReport(
        _mbps(found.member("uplinks")),
        {tap: _tier(each) for tap, each in found.member("taps").members().items()},
        _held(found),
    )


def _mbps(found: Value) -> dict[str, int]:
    return {name: each.integer(1, _MOST_MBPS) for name, each in found.members().items()}


def _tier(found: Value) -> Tier | None:
    if found.raw is None:
        return None
    try:
        return Tier(found.text())
    except ValueError:
        raise found.refused(" or ".join(Tier)) from None


def _parsed(data: bytes, what: str) -> Value:
    try:
        return Value(json.loads(data), what)
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(what, str(error), "JSON") from None
