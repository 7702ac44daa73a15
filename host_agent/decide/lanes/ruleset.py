# SPDX-License-Identifier: Apache-2.0
"""Marks as an nft ruleset: one file that replaces our two tables as a whole, in one transaction.

``netdev numa_ext`` has a chain for each tap, at its ingress: what a guest sends gets the priority of its lane, whatever
the guest has written in its headers; on VLAN and flat networks its DSCP, too. ``inet numa_ext`` marks the outer header
of tunnels that the host makes, by the lane of the packet inside. An empty list of ports leaves empty tables: nothing is
marked. nft writes the six bits of DSCP and leaves the two of ECN.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from host_agent.decide.lanes.planning import (
    HANDLE,
    LanePlan,
    TrafficLane,
    checked,
    unmarked,
)
from host_agent.model.lanes import LaneNetwork, LanePort, ShownMarks

TABLE: Final = "numa_ext"
FAMILIES: Final = ("netdev", "inet")
_PRIORITY: Final = -150  # after raw and connection tracking of the same hook, before filters at 0
_TUNNEL_PORTS: Final = (4789, 6081)  # VXLAN, Geneve
_HEADERS: Final = ("ip", "ip6")


def written(plan: LanePlan, ports: Iterable[LanePort]) -> str:
    """Return the ruleset for ``nft -f``.

    :param ports: those that may not be marked are left out
    :raises InvalidValueError: a port has no name that nft takes as one word
    """
    marked = [port for port in ports if unmarked(port) is None]
    lines = [*_emptied(), f"table netdev {TABLE} {{"]
    for port in sorted(marked, key=lambda each: each.device):
        lines += _chain(plan, port)
    lines += ["}", f"table inet {TABLE} {{", "    chain tunnels {"]
    lines.append(f"        type filter hook output priority {_PRIORITY}; policy accept;")
    if any(port.network is LaneNetwork.TUNNEL for port in marked):
        lines += (f"        {line}" for line in _tunnels(plan))
    return "\n".join([*lines, "    }", "}", ""])


def removed() -> str:
    """Return the ruleset for ``nft -f`` that leaves nothing of ours."""
    return "\n".join([*_emptied(), ""])


def expected(plan: LanePlan, ports: Iterable[LanePort]) -> ShownMarks:
    """Return what ``nft -n`` shows of the ruleset of :func:`written`.

    :param ports: those that may not be marked are left out
    """
    marked = [port for port in ports if unmarked(port) is None]
    chains = {port.device: tuple(_marks(plan, port)) for port in marked}
    is_tunnelled = any(port.network is LaneNetwork.TUNNEL for port in marked)
    return ShownMarks(chains, tuple(_tunnels(plan)) if is_tunnelled else ())


def _emptied() -> Iterator[str]:
    """Yield lines that delete our tables, whether they are there or not: ``delete`` alone fails where they are not."""
    for family in FAMILIES:
        yield f"table {family} {TABLE}"
        yield f"delete table {family} {TABLE}"


def _chain(plan: LanePlan, port: LanePort) -> Iterator[str]:
    device = checked(port.device)
    yield f"    chain tap_{device} {{"
    yield f'        type filter hook ingress device "{device}" priority {_PRIORITY}; policy accept;'
    yield from (f"        {line}" for line in _marks(plan, port))
    yield "    }"


def _marks(plan: LanePlan, port: LanePort) -> Iterator[str]:
    lane = plan.lane(port.tier)
    yield f"meta priority set {_class(lane)}"
    if port.network is not LaneNetwork.TUNNEL and lane.dscp is not None:
        for header in _HEADERS:
            yield f"{header} dscp set {lane.dscp:#04x}"


def _tunnels(plan: LanePlan) -> Iterator[str]:
    ports = ", ".join(map(str, _TUNNEL_PORTS))
    for lane in plan.lanes:
        if lane.dscp is not None:
            for header in _HEADERS:
                match = f"udp dport {{ {ports} }} meta priority {_class(lane)}"
                yield f"{match} {header} dscp set {lane.dscp:#04x}"


def _class(lane: TrafficLane) -> str:
    return f"{HANDLE}:{lane.number:x}"
