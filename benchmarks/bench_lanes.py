# SPDX-License-Identifier: Apache-2.0
"""Lanes of an uplink, in network namespaces: how late a latency-critical server's packets are behind best-effort ones

Two servers share an uplink of 100 Mbit/s: one sends a probe each 5 ms, the other one as much as goes. Real tc and nft,
written by the code of numa-host-agent-lanes; queues of htb, for ets is not in every kernel. The same with one queue,
with lanes and marks, with lanes and no marks (the control), and with a best-effort server that claims to be urgent.
Then the throttle alone: the uplink has 150 Mbit/s, its lanes leave 50 of them unused, and servers wait in a switch
behind it that has one queue; the agent's controller reads the probes' delays as they come. Ratios are of the 99th
percentile of delays, each repeat against its own one queue.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from benchmarks import report
from benchmarks.lane_world import FAR, TAPS, UPLINK, LaneWorld, lacking
from host_agent.conf.slo import BalmOptions, SloOptions
from host_agent.control.journal import PrintedJournal
from host_agent.control.lanes import LaneKeeper
from host_agent.control.slo_report import SloReport
from host_agent.control.uplink_throttle import UplinkThrottle
from host_agent.decide.lanes import queues, ruleset
from host_agent.decide.lanes.planning import LanePlan, LaneSettings, planned
from host_agent.decide.slo.shapes import BeServer, BeTarget, SloView, Taken
from host_agent.decide.slo.uplink import Ceiling
from host_agent.model.lanes import LaneNetwork, LaneOrder, LanePort, LaneQueue, UplinkReport
from host_agent.model.latency import LcServer
from host_agent.observe.latency.window import LatencyWindow
from host_agent.observe.network import traffic
from nova_numa_ext.simulator.metrics import percentile
from placement_traits.names import Tier

SPEED_MBPS: Final = 100
PORT: Final = 7000
EXPEDITED: Final = 46 << 2
"""TOS of a guest that claims to be urgent."""

OBJECTIVE_MS: Final = 2.0
"""Of the throttle: a tenth of what one queue of 512 KB makes of a probe."""
THROTTLED_S: Final = 40.0
WIDE_MBPS: Final = 150

_LAST_S: Final = 10.0  # when the search has ended: it takes about 20 s
_WARM_S: Final = 1.0
_SAMPLE_S: Final = 4.0
_PACKETS: Final = 20_000
_BATCHES: Final = 15

ONE_QUEUE: Final = (
    f"qdisc replace dev {UPLINK} root handle 1: htb default 1\n"
    f"class replace dev {UPLINK} parent 1: classid 1:1 htb rate {SPEED_MBPS}mbit "
    "burst 15140 cburst 15140\n"
    f"qdisc replace dev {UPLINK} parent 1:1 pfifo limit 340\n"
)
"""What a port of a switch without classes does: one queue of 512 KB."""

SENDER: Final = """
import socket, sys, time
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, int(sys.argv[1]))
packet = b"p" * 64
for _ in range(int(sys.argv[3])):
    began = time.perf_counter_ns()
    for _ in range(int(sys.argv[2])):
        sender.sendto(packet, ("10.97.0.9", 9))
    print((time.perf_counter_ns() - began) / int(sys.argv[2]))
"""


@dataclass(frozen=True, slots=True)
class LaneSample:
    """What went over the uplink.

    :param p99_ms: of delays of probes
    :param mbps: of bulk traffic that the far end's process has read, by sender
    :param sent_mbps: that the kernel has sent over the uplink meanwhile, by number of the lane
    :param probes: that came
    """

    p99_ms: float
    mbps: tuple[float, float]
    sent_mbps: Mapping[int, float]
    probes: int


def lanes(world: LaneWorld, settings: LaneSettings) -> LanePlan:
    """Return the lanes of the uplink, as the unit plans them."""
    found = planned(world.uplinks.facts(UPLINK), [LaneQueue.HTB], settings)
    if not isinstance(found, LanePlan):
        raise SystemExit(f"no lanes: {found}")
    return found


def with_lanes(world: LaneWorld, settings: LaneSettings, ports: Iterable[LanePort]) -> None:
    """Have the uplink have lanes, and nothing else."""
    untouched(world)
    plan = lanes(world, settings)
    world.uplinks.write_queues(queues.written(plan))
    world.uplinks.write_marks(ruleset.written(plan, ports))


def with_one_queue(world: LaneWorld) -> None:
    """Have the uplink have one queue."""
    untouched(world)
    world.uplinks.write_queues(ONE_QUEUE)


def untouched(world: LaneWorld) -> None:
    """Have the uplink as the kernel makes it."""
    if world.uplinks.queue(UPLINK).kind != "noqueue":
        world.uplinks.write_queues(queues.removed(UPLINK))
    world.uplinks.write_marks(ruleset.removed())


def sample(
    world: LaneWorld, *, probing: bool, senders: tuple[str, ...], tos: int = 0
) -> LaneSample:
    """Send for some seconds.

    :param senders: guests that send as much as goes
    :param tos: that these write into their packets
    """
    whole = _WARM_S + _SAMPLE_S
    sink = world.start("far", "receive", FAR, PORT, whole, "--skipped-s", _WARM_S)
    assert sink.stdout is not None
    sink.stdout.readline()
    started = [
        world.start(guest, "bulk", FAR, PORT + 1 + which, whole, "--tos", tos)
        for which, guest in enumerate(senders)
    ]
    if probing:
        started.append(world.start("guest1", "probe", FAR, PORT, whole - 0.2))
    sent_mbps = counted(world, _WARM_S, _SAMPLE_S - _WARM_S)
    found: dict[str, Any] = json.loads(sink.communicate()[0])
    for each in started:
        each.wait()
    skipped = int(len(found["delays_ms"]) * _WARM_S / whole)
    delays = found["delays_ms"][skipped:]
    mbps = [each * 8 / 1e6 / found["seconds"] for each in found["bytes"]]
    return LaneSample(percentile(delays, 0.99), (mbps[0], mbps[1]), sent_mbps, len(delays))


def counted(world: LaneWorld, after_s: float, seconds: float) -> Mapping[int, float]:
    """Return what classes of the uplink send, Mbit/s, by their number, as the kernel counts it: it may be read late.

    :param after_s: how long from now it begins
    :param seconds: how long it lasts
    """
    time.sleep(after_s)
    before, since = world.sent(), time.monotonic()
    time.sleep(seconds)
    after, lasted_s = world.sent(), time.monotonic() - since
    return {number: (after[number] - before[number]) * 8 / 1e6 / lasted_s for number in before}


@dataclass(frozen=True, slots=True)
class ThrottleSample:
    """What the throttle has made of the uplink.

    :param p99_ms: of delays of probes, in the last seconds
    :param used: of the line behind the uplink in these, share
    :param healed_s: after how long the objective was met again, from its first violation on; infinity: never
    :param met_s: when it was met for good, after the best-effort server began; infinity: never
    :param level: share of the uplink that the best-effort server may use in the end, per cent
    """

    p99_ms: float
    used: float
    healed_s: float
    met_s: float
    level: int


class UnitHere:
    """The unit of lanes in this process."""

    def __init__(self, keeper: LaneKeeper) -> None:
        self._keeper = keeper
        self._answer: UplinkReport | None = None

    def order(self, order: LaneOrder) -> None:
        """Carry out an order."""
        self._answer = self._keeper.order(order, time.monotonic())

    def answer(self) -> UplinkReport | None:
        """Return what is effective."""
        answer, self._answer = self._answer, None
        return answer

    def close(self) -> None:
        """Nothing is open."""


def throttled(
    world: LaneWorld, settings: LaneSettings, ports: Iterable[LanePort]
) -> ThrottleSample:
    """Throttle the best-effort server by the objective of the other one.

    :param world: with a slower line behind the uplink
    """
    keeper = LaneKeeper(world.uplinks, [UPLINK], LaneQueue.HTB, settings)
    keeper.turn(ports, time.monotonic())
    report = SloReport(SloOptions(), PrintedJournal(lambda _line: None))
    throttle = UplinkThrottle(
        BalmOptions(),
        Ceiling(settings.strict_cap),
        UnitHere(keeper),
        lambda device: traffic(world.sys, (device,)),
        report,
    )
    throttle.watch({"lc": (TAPS[0],), "be": (TAPS[1],)})
    window = LatencyWindow(OBJECTIVE_MS * 1000)
    sink = world.start("far", "receive", FAR, PORT, THROTTLED_S, "--as-they-come")
    assert sink.stdout is not None
    sink.stdout.readline()
    started = [
        world.start("guest2", "bulk", FAR, PORT + 2, THROTTLED_S),
        world.start("guest1", "probe", FAR, PORT, THROTTLED_S - 0.2, "--every-ms", 2),
    ]
    began = time.monotonic()
    last: list[float] = []
    met_s = violated_s = healed_s = math.inf
    counted = before = traffic(world.sys, (UPLINK,))
    since, lasted_s = began, 1.0
    for line in sink.stdout:
        now = time.monotonic()
        if not line.startswith("["):
            break
        delays: list[float] = json.loads(line)
        window.add([(delay * 1000, 1) for delay in delays], now)
        reading = window.read(now, throttle.state.judge_from_s)
        lc = LcServer("lc", frozenset({0}), OBJECTIVE_MS * 1000, reading)
        be = BeServer("be", frozenset({0}), {0: 1.0}, {0: 1.0})
        throttle.turn(SloView((lc,), (be,), (0,)), Taken(), now, may_begin=True, acts=True)
        ratio = lc.ratio
        if ratio is not None and ratio > 1.0:
            met_s = math.inf
            violated_s = min(violated_s, now)
        elif ratio is not None and math.isinf(met_s):
            met_s = now - began
            if violated_s < now:
                healed_s = min(healed_s, now - violated_s)
        if now - began < THROTTLED_S - _LAST_S:
            before, since = traffic(world.sys, (UPLINK,)), now
        else:
            last += delays
            counted, lasted_s = traffic(world.sys, (UPLINK,)), now - since
    for each in started:
        each.wait()
    sink.wait()
    level = throttle.state.targets.get("be", BeTarget()).level
    keeper.reset()
    assert before is not None and counted is not None
    used = (counted.received - before.received) * 8 / 1e6 / lasted_s / SPEED_MBPS
    return ThrottleSample(percentile(last, 0.99), used, healed_s, met_s, level)


def ns_per_packet(world: LaneWorld, priority: int) -> float:
    """Return what the host itself needs to send a packet by its uplink, the least of the medians of batches, ns."""
    sent = world.run("host", "python3", "-c", SENDER, str(priority), str(_PACKETS), str(_BATCHES))
    return statistics.median(map(float, sent.split()))


def packet_costs_ns(settings: LaneSettings) -> tuple[float, float]:
    """Return what the host needs to send a packet by an uplink without queues, and by one with lanes."""
    with LaneWorld(10_000) as world:
        world.run("host", "ip", "link", "set", UPLINK, "nomaster")
        world.run("host", "ip", "addr", "add", "10.97.0.1/24", "dev", UPLINK)
        world.run(
            "host", "ip", "neigh", "add", "10.97.0.9", "lladdr", "02:00:00:00:00:09", "dev", UPLINK
        )
        bare = ns_per_packet(world, 0)
        with_lanes(world, settings, ())
        return bare, ns_per_packet(world, 0x4E0001)


def main() -> None:
    """Run it."""
    made: argparse.ArgumentParser = report.parser(__doc__)
    made.add_argument("--repeats", type=int, default=5)
    args = made.parse_args()
    if why := lacking():
        raise SystemExit(f"bench-lanes {why}")
    settings = LaneSettings()
    lc = LanePort(TAPS[0], Tier.LC, LaneNetwork.FLAT)
    be = LanePort(TAPS[1], Tier.BE, LaneNetwork.FLAT)
    other = LanePort(TAPS[0], None, LaneNetwork.FLAT)
    ways: dict[str, list[LaneSample]] = {}
    rows = []
    weights, used = [], []
    throttles: list[ThrottleSample] = []
    with LaneWorld(SPEED_MBPS) as world:
        lane_of = lanes(world, settings).lane_of
        for repeat in range(args.repeats):
            with_one_queue(world)
            ways.setdefault("alone", []).append(sample(world, probing=True, senders=()))
            for way, ports, tos in (
                ("one_queue", None, 0),
                ("lanes", (lc, be), 0),
                ("without_marks", (), 0),
                ("lying", (lc, be), EXPEDITED),
            ):
                if ports is None:
                    with_one_queue(world)
                else:
                    with_lanes(world, settings, ports)
                ways.setdefault(way, []).append(
                    sample(world, probing=True, senders=("guest2",), tos=tos)
                )
            three = LaneSettings(best_effort_share=0.75)
            with_lanes(world, three, (other, be))
            both = sample(world, probing=False, senders=("guest1", "guest2"))
            middle, low = both.sent_mbps[lane_of[None]], both.sent_mbps[lane_of[Tier.BE]]
            weights.append(low / middle)
            used.append((middle + low) / SPEED_MBPS)
            for way, samples in ways.items():
                last = samples[-1]
                rows.append((repeat, way, last.p99_ms, last.mbps[0], last.probes))
    waiting: list[LaneSample] = []
    with LaneWorld(WIDE_MBPS, behind_mbps=SPEED_MBPS) as world:
        for repeat in range(args.repeats):
            with_lanes(world, settings, (lc, be))
            waiting.append(sample(world, probing=True, senders=("guest2",)))
            throttles.append(throttled(world, settings, (lc, be)))
            rows.append(
                (repeat, "behind", waiting[-1].p99_ms, waiting[-1].mbps[0], waiting[-1].probes)
            )
            slowed = throttles[-1]
            rows.append((repeat, "throttle", slowed.p99_ms, slowed.used * SPEED_MBPS, slowed.level))
    bare, laned = packet_costs_ns(settings)
    report.table(("repeat", "way", "p99_ms", "be_mbps", "probes"), rows)

    def ratios(way: str) -> list[float]:
        return [
            one.p99_ms / queue.p99_ms
            for one, queue in zip(ways[way], ways["one_queue"], strict=True)
        ]

    figures = {
        "lc_p99_alone_ms": statistics.median(each.p99_ms for each in ways["alone"]),
        "lc_p99_one_queue_ms": statistics.median(each.p99_ms for each in ways["one_queue"]),
        "lc_p99_lanes_ms": statistics.median(each.p99_ms for each in ways["lanes"]),
        "lc_p99_ratio_lanes_median": statistics.median(ratios("lanes")),
        "lc_p99_ratio_lanes_worst": max(ratios("lanes")),
        "lc_p99_ratio_without_marks_median": statistics.median(ratios("without_marks")),
        "lc_p99_ratio_without_marks_least": min(ratios("without_marks")),
        "lc_p99_ratio_lying_median": statistics.median(ratios("lying")),
        "be_share_lanes": min(each.sent_mbps[lane_of[Tier.BE]] for each in ways["lanes"])
        / SPEED_MBPS,
        "be_read_lanes": min(each.mbps[0] for each in ways["lanes"]) / SPEED_MBPS,
        "lc_p99_ratio_throttle_median": statistics.median(
            one.p99_ms / queue.p99_ms for one, queue in zip(throttles, waiting, strict=True)
        ),
        "lc_p99_behind_ms": statistics.median(each.p99_ms for each in waiting),
        "line_used_throttle": min(each.used for each in throttles),
        "throttle_healed_s_worst": max(each.healed_s for each in throttles),
        "throttle_met_s_median": statistics.median(each.met_s for each in throttles),
        "throttle_level_median": statistics.median(each.level for each in throttles),
        "weight_3to1_median": statistics.median(weights),
        "weight_3to1_worst_error": max(abs(each / 3 - 1) for each in weights),
        "weight_3to1_used_least": min(used),
        "lane_ns_per_packet": laned - bare,
        "untouched_ns_per_packet": bare,
    }
    source = {
        "kernel": os.uname().release,
        "load": os.getloadavg()[0],
        "repeats": args.repeats,
        "queue": "htb",
        "tc": subprocess.run(
            ["tc", "-V"], capture_output=True, text=True, check=True
        ).stdout.strip(),
    }
    report.finish("lanes", "measured", figures, source, args.json)


if __name__ == "__main__":
    main()
