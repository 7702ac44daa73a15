# SPDX-License-Identifier: Apache-2.0
"""Lanes as a batch for ``tc -batch``: our root qdisc with all below it, or its removal.

With ``ets`` a strict band is served first, the others by quanta; its cap is a ``tbf`` below the band. With ``htb`` a
lane is a class with its share as rate and its cap as ceiling, the strict one of the highest priority, below one class
of the whole link, for only classes below another one borrow. What has no mark of ours is in the lane of servers without
a tier.

A batch is no transaction, and ``htb`` cannot be changed in place: lanes of ours that are there are removed first, and
for that moment the uplink has the kernel's default.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from host_agent.decide.lanes.planning import HANDLE, LanePlan, LaneQueue, TrafficLane, checked

_QUANTUM: Final = 1_514  # bytes: the smallest band still sends a whole packet in its turn
_LINK: Final = 0xFF  # minor number of the class of the whole link
_PRIORITIES: Final = 16  # entries of a priomap
_LEAST_BURST_BYTES: Final = 15_140  # ten packets
_TICK_HZ: Final = 250  # a bucket holds what comes in one tick of the slowest usual kernel
_LATENCY_MS: Final = 20  # how long a packet may wait in the capped band


def written(plan: LanePlan, *, replaces: bool = False) -> str:
    """Return the batch that makes the lanes.

    :param replaces: the root qdisc is ours already
    """
    lines = _ets(plan) if plan.queue is LaneQueue.ETS else _htb(plan)
    return (removed(plan.device) if replaces else "") + "\n".join([*lines, ""])


def removed(device: str) -> str:
    """Return the batch that gives the kernel's default back; the caller has seen that the root is ours."""
    return f"qdisc del dev {checked(device)} root\n"


def quanta(lanes: Sequence[TrafficLane]) -> tuple[int, ...]:
    """Return bytes that lanes send in a turn, in the ratio of their shares, the smallest one packet."""
    least = min((lane.share for lane in lanes), default=1.0)
    return tuple(round(_QUANTUM * lane.share / least) for lane in lanes)


def _ets(plan: LanePlan) -> Iterator[str]:
    device = checked(plan.device)
    strict = [lane for lane in plan.lanes if lane.is_strict]
    shared = [lane for lane in plan.lanes if not lane.is_strict]
    others = plan.lane_of[None] - 1
    words = [f"qdisc replace dev {device} root handle {HANDLE}: ets bands {len(plan.lanes)}"]
    if strict:
        words.append(f"strict {len(strict)}")
    if shared:
        words.append("quanta " + " ".join(map(str, quanta(shared))))
    yield " ".join([*words, "priomap", *[str(others)] * _PRIORITIES])
    for lane in strict:
        rate = _mbps(plan, lane.cap)
        yield (
            f"qdisc replace dev {device} parent {HANDLE}:{lane.number:x} handle {HANDLE}{lane.number:x}: "
            f"tbf rate {rate}mbit burst {_burst(rate)} latency {_LATENCY_MS}ms"
        )


def _htb(plan: LanePlan) -> Iterator[str]:
    device = checked(plan.device)
    others = plan.lane_of[None]
    link = f"{plan.speed_mbps}mbit"
    burst = _burst(plan.speed_mbps)
    yield f"qdisc replace dev {device} root handle {HANDLE}: htb default {others:x}"
    yield (
        f"class replace dev {device} parent {HANDLE}: classid {HANDLE}:{_LINK:x} "
        f"htb rate {link} ceil {link} quantum {_QUANTUM} burst {burst} cburst {burst}"
    )
    for lane in plan.lanes:
        rate, ceiling = _mbps(plan, lane.share), _mbps(plan, lane.cap)
        first = 0 if lane.is_strict else 1
        yield (
            f"class replace dev {device} parent {HANDLE}:{_LINK:x} classid {HANDLE}:{lane.number:x} "
            f"htb rate {rate}mbit ceil {ceiling}mbit prio {first} quantum {_QUANTUM} "
            f"burst {_burst(rate)} cburst {_burst(ceiling)}"
        )


def _mbps(plan: LanePlan, share: float) -> int:
    return max(1, round(plan.speed_mbps * share))


def _burst(mbps: int) -> int:
    """Return bytes of a bucket."""
    return max(_LEAST_BURST_BYTES, mbps * 1_000_000 // 8 // _TICK_HZ)
