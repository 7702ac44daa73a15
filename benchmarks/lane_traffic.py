# SPDX-License-Identifier: Apache-2.0
"""Traffic of servers on an uplink: a probe that is late when it waits in a queue, and bulk senders.

Runs in a namespace of :mod:`.lane_world`. A probe carries the time at which it was sent, the kernel notes when it came:
both are of one clock of one machine, so a delay is one way and without the time that a reader needs to wake up.
"""

import argparse
import json
import select
import socket
import struct
import sys
import threading
import time
from typing import Final

_SO_TIMESTAMPNS: Final = 35
_TIMESPEC: Final = struct.Struct("@ll")
_SENT: Final = struct.Struct("!Q")
_BLOCK: Final = b"b" * 16_384
_PROBE_BYTES: Final = 128


_EVERY_S: Final = 0.1


def receive(
    address: str, port: int, seconds: float, skipped_s: float = 0.0, *, as_they_come: bool = False
) -> None:
    """Take probes and bulk traffic on one port each; print delays in ms, and bytes by the port of bulk.

    :param port: of probes; bulk comes to the two behind it
    :param skipped_s: after the last sender has come, in which bytes are not counted: they do not start together
    :param as_they_come: print new delays each tenth of a second, too
    """
    delays: list[float] = []
    taken, counted_s = [0, 0], seconds
    probes = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    probes.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    probes.bind((address, port))
    listeners = [socket.create_server((address, port + 1 + which)) for which in range(len(taken))]
    print("ready", flush=True)
    bulk: dict[socket.socket, int] = {}
    end, count_s = time.monotonic() + seconds, 0.0
    shown, show_s = 0, time.monotonic() + _EVERY_S
    while (left := end - time.monotonic()) > 0:
        if count_s and time.monotonic() >= count_s:
            taken, counted_s, count_s = [0] * len(taken), end - time.monotonic(), 0.0
        if as_they_come and time.monotonic() >= show_s:
            print(json.dumps(delays[shown:]), flush=True)
            shown, show_s = len(delays), time.monotonic() + _EVERY_S
        for found in select.select([probes, *listeners, *bulk], [], [], min(left, _EVERY_S))[0]:
            if found is probes:
                delays.append(_delay_ms(probes))
            elif found in listeners:
                bulk[found.accept()[0]] = listeners.index(found)
                count_s = time.monotonic() + skipped_s
            else:
                data = found.recv(1 << 16)
                taken[bulk[found]] += len(data)
                if not data:
                    del bulk[found]
    print(json.dumps({"delays_ms": delays, "bytes": taken, "seconds": counted_s}), flush=True)


def _delay_ms(probes: socket.socket) -> float:
    data, notes, _flags, _sender = probes.recvmsg(2048, 128)
    came_ns = next(
        seconds * 1_000_000_000 + ns
        for level, kind, value in notes
        if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS)
        for seconds, ns in [_TIMESPEC.unpack(value)]
    )
    return float(came_ns - _SENT.unpack_from(data)[0]) / 1e6


def probe(address: str, port: int, seconds: float, every_ms: float, tos: int) -> None:
    """Send probes."""
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sent = _SENT.pack(time.time_ns())
        sender.sendto(sent.ljust(_PROBE_BYTES, b"p"), (address, port))
        time.sleep(every_ms / 1000)


def bulk(address: str, port: int, seconds: float, flows: int, tos: int) -> None:
    """Send as much as goes, by TCP."""
    end = time.monotonic() + seconds

    def one() -> None:
        with socket.socket() as sender:
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
            sender.settimeout(seconds)
            try:
                sender.connect((address, port))
                while time.monotonic() < end:
                    sender.sendall(_BLOCK)
            except OSError:
                return  # the other end has taken what it came for

    threads = [threading.Thread(target=one) for _ in range(flows)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    """Do what the command line says."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("what", choices=["receive", "probe", "bulk"])
    made.add_argument("address")
    made.add_argument("port", type=int)
    made.add_argument("seconds", type=float)
    made.add_argument("--every-ms", type=float, default=5.0)
    made.add_argument("--flows", type=int, default=2)
    made.add_argument("--tos", type=int, default=0)
    made.add_argument("--skipped-s", type=float, default=0.0)
    made.add_argument("--as-they-come", action="store_true")
    args = made.parse_args(sys.argv[1:])
    if args.what == "receive":
        receive(
            args.address,
            args.port,
            args.seconds,
            args.skipped_s,
            as_they_come=args.as_they_come,
        )
    elif args.what == "probe":
        probe(args.address, args.port, args.seconds, args.every_ms, args.tos)
    else:
        bulk(args.address, args.port, args.seconds, args.flows, args.tos)


if __name__ == "__main__":
    main()
