# SPDX-License-Identifier: Apache-2.0
"""Lanes as a batch for ``tc -batch``: our root qdisc with all below it, or its removal.

With ``ets`` a strict band is served first, the others by quanta; its cap is a ``tbf`` below the band. With ``htb`` a
lane is a class with its share as rate, the strict one of the highest priority, below one class of the whole link, for
only classes below another one borrow. Each may have the whole link while no other lane sends; as the shares together
are the link, the strict one has no more than its cap while the others want theirs, and what is left over goes to these
in the ratio of their shares (quantum). What has no mark of ours is in the lane of servers without a tier.

While best-effort servers are throttled, the class of their lane has that limit as its ceiling, and no more than it as
its rate. While they keep a part of their share only, the strict lane has the rest of it, too. Classes that differ are
changed in place: no packet that waits is lost, and no other lane notices.

A batch is no transaction, and the root of ``htb`` cannot be changed in place: lanes of ours that are there are removed
first, and for that moment the uplink has the kernel's default.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from host_agent.decide.lanes.planning import HANDLE, LanePlan, TrafficLane, checked
from host_agent.model.lanes import LaneQueue, ShownClass, ShownQueue
from placement_traits.names import Tier

_QUANTUM: Final = 1_514  # bytes: the smallest band still sends a whole packet in its turn
_LINK: Final = 0xFF  # minor number of the class of the whole link
_PRIORITIES: Final = 16  # entries of a priomap
_KBIT: Final = 1000  # of a Mbit/s
_SHOWN_WHOLE_KBIT: Final = 1_000_000
_LEAST_BURST_BYTES: Final = 15_140  # ten packets
_TICK_HZ: Final = 250  # a bucket holds what comes in one tick of the slowest usual kernel
_LATENCY_MS: Final = 20  # how long a packet may wait in the capped band


def written(plan: LanePlan, *, replaces: bool = False) -> str:
    """Return the batch that makes the lanes.

    :param replaces: the root qdisc is ours already
    """
    lines = _ets(plan) if plan.queue is LaneQueue.ETS else _htb(plan)
    return (removed(plan.device) if replaces else "") + "\n".join([*lines, ""])


def changed(before: LanePlan, after: LanePlan) -> str:
    """Return the batch that makes lanes of ``htb`` those of another plan, which only holds them otherwise.

    :param before: as they are
    """
    old, new = ([_class(plan, lane) for lane in plan.lanes] for plan in (before, after))
    return "".join(f"{line}\n" for line in new if line not in old)


def removed(device: str) -> str:
    """Return the batch that gives the kernel's default back; the caller has seen that the root is ours."""
    return f"qdisc del dev {checked(device)} root\n"


def quanta(lanes: Sequence[TrafficLane]) -> tuple[int, ...]:
    """Return bytes that lanes send in a turn, in the ratio of their shares, the smallest one packet."""
    least = min((lane.share for lane in lanes), default=1.0)
    return tuple(round(_QUANTUM * lane.share / least) for lane in lanes)


def shows(plan: LanePlan, shown: ShownQueue) -> bool:
    """Tell whether the root qdisc of a device is the lanes of a plan.

    :param shown: as the kernel has it
    """
    if shown.handle != HANDLE or shown.kind != plan.queue:
        return False
    return _shows_ets(plan, shown) if plan.queue is LaneQueue.ETS else _shows_htb(plan, shown)


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
        rate = _kbit(plan, lane.cap)
        yield (
            f"qdisc replace dev {device} parent {HANDLE}:{lane.number:x} handle {HANDLE}{lane.number:x}: "
            f"tbf rate {rate}kbit burst {_burst(rate)} latency {_LATENCY_MS}ms"
        )


def _htb(plan: LanePlan) -> Iterator[str]:
    device = checked(plan.device)
    others = plan.lane_of[None]
    link = f"{plan.speed_mbps}mbit"
    burst = _burst(plan.speed_mbps * _KBIT)
    yield f"qdisc replace dev {device} root handle {HANDLE}: htb default {others:x}"
    yield (
        f"class replace dev {device} parent {HANDLE}: classid {HANDLE}:{_LINK:x} "
        f"htb rate {link} ceil {link} quantum {_QUANTUM} burst {burst} cburst {burst}"
    )
    yield from (_class(plan, lane) for lane in plan.lanes)


def _class(plan: LanePlan, lane: TrafficLane) -> str:
    """Return the class of a lane of ``htb``."""
    rate, ceil = _rates_kbit(plan, lane)
    first = 0 if lane.is_strict else 1
    return (
        f"class replace dev {checked(plan.device)} parent {HANDLE}:{_LINK:x} classid {HANDLE}:{lane.number:x} "
        f"htb rate {rate}kbit ceil {ceil}kbit prio {first} quantum {_turns(plan)[lane.number]} "
        f"burst {_burst(rate)} cburst {_burst(ceil)}"
    )


def _rates_kbit(plan: LanePlan, lane: TrafficLane) -> tuple[int, int]:
    """Return what a lane of ``htb`` has at least and at most, kbit/s."""
    rate, ceil = _kbit(plan, plan.share(lane)), plan.speed_mbps * _KBIT
    if plan.hold.most_mbps is not None and lane is plan.lane(Tier.BE):
        ceil = min(ceil, plan.hold.most_mbps * _KBIT)
    return min(rate, ceil), ceil


def _turns(plan: LanePlan) -> dict[int, int]:
    """Return what each class sends in a turn when it borrows, by its number."""
    shared = [replace(lane, share=plan.share(lane)) for lane in plan.lanes if not lane.is_strict]
    own = {lane.number: _QUANTUM for lane in plan.lanes}
    return own | {lane.number: turn for lane, turn in zip(shared, quanta(shared), strict=True)}


def _shows_ets(plan: LanePlan, shown: ShownQueue) -> bool:
    shared = [lane for lane in plan.lanes if not lane.is_strict]
    expected = {
        "bands": len(plan.lanes),
        "strict": len(plan.lanes) - len(shared),
        "priomap": [plan.lane_of[None] - 1] * _PRIORITIES,
    }
    found = shown.options.get("quanta")
    given = found[-len(shared) :] if isinstance(found, list) and shared else []
    return given == list(quanta(shared)) and expected.items() <= shown.options.items()


def _shows_htb(plan: LanePlan, shown: ShownQueue) -> bool:
    link = ShownClass(plan.speed_mbps, plan.speed_mbps, None)
    expected = {f"{_LINK:x}": link}
    for lane in plan.lanes:
        rate, ceil = (round(kbit / _KBIT, 3) for kbit in _rates_kbit(plan, lane))
        expected[f"{lane.number:x}"] = ShownClass(rate, ceil, 0 if lane.is_strict else 1)
    default = shown.options.get("default")
    return shown.classes == expected and default == f"{plan.lane_of[None]:#x}"


def _kbit(plan: LanePlan, share: float) -> int:
    """Return a share of the link, kbit/s: whole Mbit/s from 1 Gbit/s on, for tc shows such rates without the rest."""
    found = max(1, round(plan.speed_mbps * share * _KBIT))
    return found if found < _SHOWN_WHOLE_KBIT else round(found / _KBIT) * _KBIT


def _burst(kbit: int) -> int:
    """Return bytes of a bucket."""
    return max(_LEAST_BURST_BYTES, kbit * 1000 // 8 // _TICK_HZ)
