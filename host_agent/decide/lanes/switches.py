# SPDX-License-Identifier: Apache-2.0
"""The same lanes for switches, as files: options of OpenSM and tables of SONiC. Written for operators, never applied.

A host orders what it sends itself; where several share an uplink of their leaf only the switch can, by the DSCP that
hosts write (SONiC) or by the service level (OpenSM). Each file is made from the lanes alone, and what an operator has
there already is compared with it, entry by entry.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from host_agent.decide.lanes.planning import LanePlan, TrafficLane
from placement_traits.errors import InvalidValueError
from placement_traits.names import Tier

_NAME: Final = "numa_ext"
_SERVICE_LEVELS: Final = 16
_DROPS: Final = 15  # the lane to which a service level is mapped that must not be used
_HEAVIEST: Final = 255
_DATA_LANES: Final = (1, 2, 4, 8, 15)
_CODE_POINTS: Final = 64
_BYTES_PER_MBIT: Final = 125_000


def opensm(plan: LanePlan) -> str:
    """Return options for ``opensm.conf``: service level and virtual lane 0 for what has no tier, 1 for LC, 2 for BE.

    The lane of LC is in the high list, and lets one packet through after each 4 KiB: at most about half of a link while
    others send, for the lists know no smaller cap. The others share the low list by weight.
    """
    lane_of = _virtual_lanes(plan)
    shared = {lane_of[lane.number]: lane for lane in plan.lanes if not lane.is_strict}
    most = max(lane.share for lane in shared.values())
    low = {number: max(1, round(_HEAVIEST * lane.share / most)) for number, lane in shared.items()}
    high = [lane_of[lane.number] for lane in plan.lanes if lane.is_strict]
    count = next(each for each in _DATA_LANES if each >= len(plan.lanes))
    levels = [level if level < len(plan.lanes) else 0 for level in range(_SERVICE_LEVELS)]
    levels[-1] = _DROPS
    options = {
        "qos": "TRUE",
        "qos_max_vls": count,
        "qos_high_limit": 1,
        "qos_vlarb_high": ",".join(f"{number}:64" for number in high),
        "qos_vlarb_low": ",".join(f"{number}:{low[number]}" for number in sorted(low)),
        "qos_sl2vl": ",".join(map(str, levels)),
    }
    return "".join(f"{name} {value}\n" for name, value in options.items())


def sonic(plan: LanePlan, ports: Sequence[str]) -> str:
    """Return tables for ``config_db.json``: a class and a queue for each lane, the first lane in the highest queue.

    :param ports: of the switch; its speed is that of the plan
    :raises InvalidValueError: no port is named, or one that is no word
    """
    if not ports or not all(port.isalnum() for port in ports):
        raise InvalidValueError("ports of the switch", ",".join(ports), "names such as Ethernet0")
    queue_of = {lane.number: str(len(plan.lanes) - lane.number) for lane in plan.lanes}
    dscp = {lane.dscp: queue_of[lane.number] for lane in plan.lanes if lane.dscp is not None}
    others = queue_of[plan.lane_of[None]]
    schedulers = {f"{_NAME}_{lane.number}": _scheduler(plan, lane) for lane in plan.lanes}
    tables: dict[str, Mapping[str, Mapping[str, str]]] = {
        "DSCP_TO_TC_MAP": {
            _NAME: {str(point): dscp.get(point, others) for point in range(_CODE_POINTS)}
        },
        "TC_TO_QUEUE_MAP": {_NAME: {queue: queue for queue in sorted(queue_of.values())}},
        "SCHEDULER": schedulers,
        "QUEUE": {
            f"{port}|{queue_of[lane.number]}": {"scheduler": f"{_NAME}_{lane.number}"}
            for port in ports
            for lane in plan.lanes
        },
        "PORT_QOS_MAP": {
            port: {"dscp_to_tc_map": _NAME, "tc_to_queue_map": _NAME} for port in ports
        },
    }
    return json.dumps(tables, indent=4, sort_keys=True) + "\n"


def differences(made: str, given: str) -> tuple[str, ...]:
    """Return what a file of an operator lacks, or has otherwise, of a file that was made here; none: it has it all.

    What it has besides is the operator's own.

    :param made: of :func:`opensm` or :func:`sonic`
    :param given: of the same kind
    :raises InvalidValueError: it is of no such kind
    """
    expected, found = _entries(made), _entries(given)
    return tuple(
        f"{name}: {found.get(name, 'nothing')}, not {value}"
        for name, value in expected.items()
        if found.get(name) != value
    )


def _virtual_lanes(plan: LanePlan) -> dict[int, int]:
    """Return the virtual lane, and service level, of each of our lanes."""
    order: tuple[Tier | None, ...] = (None, Tier.LC, Tier.BE)
    return {plan.lane_of[tier]: number for number, tier in enumerate(order)}


def _scheduler(plan: LanePlan, lane: TrafficLane) -> dict[str, str]:
    if lane.is_strict:
        most = round(plan.speed_mbps * lane.cap * _BYTES_PER_MBIT)
        return {"type": "STRICT", "meter_type": "bytes", "pir": str(most)}
    shared = sum(each.share for each in plan.lanes if not each.is_strict)
    return {"type": "DWRR", "weight": str(max(1, round(100 * lane.share / shared)))}


def _entries(text: str) -> dict[str, str]:
    """Return the entries of a file by name."""
    if not text.lstrip().startswith("{"):
        lines = (line.split("#", 1)[0].split(maxsplit=1) for line in text.splitlines())
        return {words[0]: words[1].replace(" ", "").strip() for words in lines if len(words) == 2}
    try:
        return dict(_leaves("", json.loads(text)))
    except ValueError as error:
        raise InvalidValueError("file of a switch", str(error), "JSON") from error


def _leaves(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(value, dict):
        yield name, str(value)
        return
    for key, each in value.items():
        yield from _leaves(f"{name}/{key}" if name else str(key), each)
