# SPDX-License-Identifier: Apache-2.0
"""Bytes of servers' interfaces, as the kernel counts them on the host's side of each.

What a server sends is received there. An interface that bypasses the host's kernel (SR-IOV, vhost-user) has no such
side, and its bytes are not seen.
"""

from collections.abc import Iterable
from pathlib import Path

from host_agent.model.network import TrafficBytes


def traffic(sys: Path, interfaces: Iterable[str]) -> TrafficBytes | None:
    """Return the bytes of some interfaces together, None where none of them is there.

    :param sys: where sysfs is
    """
    found = [each for name in interfaces if (each := _counted(sys, name)) is not None]
    if not found:
        return None
    return TrafficBytes(sum(each.sent for each in found), sum(each.received for each in found))


def _counted(sys: Path, name: str) -> TrafficBytes | None:
    folder = sys / "class/net" / name / "statistics"
    try:
        return TrafficBytes(*(int((folder / f"{way}_bytes").read_text()) for way in ("rx", "tx")))
    except (OSError, ValueError):
        return None
