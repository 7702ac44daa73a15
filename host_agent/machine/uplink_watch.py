# SPDX-License-Identifier: Apache-2.0
"""Tells when queues of this host change (rtnetlink, RTM_NEWQDISC and RTM_DELQDISC).

A message only says *look again*; what is there is always read, so a lost one costs an interval and nothing else.
"""

import select
import socket
import struct
from typing import Final

_ROUTE: Final = 0  # NETLINK_ROUTE
_TRAFFIC_CONTROL: Final = 0x8  # RTMGRP_TC
_QDISC: Final = frozenset({36, 37})  # RTM_NEWQDISC, RTM_DELQDISC
_HEADER: Final = struct.Struct("=IHHII")  # nlmsghdr
_MESSAGE: Final = struct.Struct("=BxHi")  # tcmsg up to its device
_LARGEST: Final = 1 << 16


class QueueWatch:
    """Listens; it is a context."""

    def __init__(self) -> None:
        self._socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, _ROUTE
        )
        self._socket.bind((0, _TRAFFIC_CONTROL))

    def __enter__(self) -> "QueueWatch":
        return self

    def __exit__(self, *_error: object) -> None:
        self._socket.close()

    def fileno(self) -> int:
        """Return the descriptor, for select."""
        return self._socket.fileno()

    def changed(self, wait_s: float) -> frozenset[int]:
        """Return the numbers of devices whose queues have changed.

        :param wait_s: for the first message
        """
        found: set[int] = set()
        while select.select([self._socket], [], [], 0.0 if found else wait_s)[0]:
            try:
                found |= devices(self._socket.recv(_LARGEST))
            except OSError:  # messages were lost: everything is looked at in any case
                break
            if not found:
                break
        return frozenset(found)


def devices(messages: bytes) -> set[int]:
    """Return the devices of which messages of the kernel say that a qdisc came or went."""
    found = set()
    at = 0
    while at + _HEADER.size <= len(messages):
        length, kind, *_rest = _HEADER.unpack_from(messages, at)
        if length < _HEADER.size or at + length > len(messages):
            break
        if kind in _QDISC and length >= _HEADER.size + _MESSAGE.size:
            found.add(_MESSAGE.unpack_from(messages, at + _HEADER.size)[2])
        at += (length + 3) & ~3
    return found
