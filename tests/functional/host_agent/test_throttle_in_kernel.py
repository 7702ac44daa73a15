# SPDX-License-Identifier: Apache-2.0
"""A limit of best-effort servers in a real kernel, ordered over a real socket: it holds, and leaves nothing."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.lane_world import FAR, TAPS, UPLINK, LaneWorld, lacking
from host_agent.control.lanes import LEASE_S, LaneKeeper
from host_agent.decide.lanes.planning import LaneSettings
from host_agent.machine.lane_door import LaneDoor, LaneDoorCaller
from host_agent.model.lanes import LaneNetwork, LaneOrder, LanePort, LaneQueue
from host_agent.observe.network import traffic
from placement_traits.names import Tier

pytestmark = pytest.mark.root

PORTS = [
    LanePort(TAPS[0], Tier.LC, LaneNetwork.FLAT),
    LanePort(TAPS[1], Tier.BE, LaneNetwork.FLAT),
]
SPEED_MBPS = 100
WARM_BYTES = 300_000
MEASURED_S = 0.5
LIMIT_MBPS = 20


@pytest.fixture(scope="module")
def world() -> Iterator[LaneWorld]:
    if why := lacking():
        pytest.skip(why)
    with LaneWorld(SPEED_MBPS) as made:
        yield made


def sent_mbps(world: LaneWorld) -> float:
    """What goes over the uplink while a best-effort server sends as much as goes."""
    sink = world.start("far", "receive", FAR, 7000, 2.0)
    assert sink.stdout is not None
    sink.stdout.readline()
    sender = world.start("guest2", "bulk", FAR, 7001, 2.0)
    before = _bytes(world)
    while _bytes(world) - before < WARM_BYTES:
        time.sleep(0.02)
    first, began = _bytes(world), time.monotonic()
    time.sleep(MEASURED_S)
    last, ended = _bytes(world), time.monotonic()
    for each in (sender, sink):
        each.kill()
        each.wait()
    return (last - first) * 8 / 1e6 / (ended - began)


def _bytes(world: LaneWorld) -> int:
    """What the uplink has sent, which is "received" by what is behind it."""
    found = traffic(world.sys, (UPLINK,))
    assert found is not None
    return found.received


def test_a_limit_is_ordered_over_a_socket_holds_and_lapses(
    world: LaneWorld, tmp_path: Path
) -> None:
    kept = LaneKeeper(world.uplinks, [UPLINK], LaneQueue.HTB, LaneSettings())
    assert kept.turn(PORTS, 0.0).troubles == ()
    before = _classes(world)
    caller = LaneDoorCaller(tmp_path / "lanes.sock")
    with LaneDoor(tmp_path / "lanes.sock") as door:
        caller.order(LaneOrder({UPLINK: LIMIT_MBPS}))
        door.serve(lambda order: kept.order(order, 0.0))
        answer = caller.answer()
    caller.close()
    assert answer is not None
    assert answer.held.limits == {UPLINK: LIMIT_MBPS}, "read back from the kernel as it was written"
    assert answer.uplinks == {UPLINK: SPEED_MBPS}
    assert answer.taps == {TAPS[0]: Tier.LC, TAPS[1]: Tier.BE}
    differing = set(_classes(world)) - set(before)
    assert len(differing) == 1, "the other lanes are as they were"
    assert "4e:3 " in differing.pop()
    assert sent_mbps(world) <= 1.3 * LIMIT_MBPS
    assert kept.turn(PORTS, LEASE_S - 1.0).troubles == ()
    assert _classes(world) != before, "a turn leaves it"
    kept.lapse(LEASE_S)
    assert _classes(world) == before
    kept.order(LaneOrder({UPLINK: LIMIT_MBPS}), 20.0)
    LaneKeeper(world.uplinks, [UPLINK], LaneQueue.HTB, LaneSettings()).reset()
    assert world.uplinks.queue(UPLINK).kind == "noqueue", "as ExecStopPost does"


def test_a_share_is_ordered_read_back_and_lapses(world: LaneWorld) -> None:
    kept = LaneKeeper(world.uplinks, [UPLINK], LaneQueue.HTB, LaneSettings())
    assert kept.turn(PORTS, 0.0).troubles == ()
    before = _classes(world)
    for percent in (40, 1):
        order = LaneOrder(shares={UPLINK: percent})
        assert kept.order(order, 0.0).held == order, "read back from the kernel as it was written"
        differing = set(_classes(world)) - set(before)
        assert sorted(line.split()[2] for line in differing) == ["4e:1", "4e:3"]
        assert kept.turn(PORTS, 1.0).troubles == ()
    kept.lapse(LEASE_S)
    assert _classes(world) == before
    kept.reset()


def _classes(world: LaneWorld) -> list[str]:
    return world.run("host", "tc", "class", "show", "dev", UPLINK).splitlines()
