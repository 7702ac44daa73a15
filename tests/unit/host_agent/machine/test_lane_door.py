# SPDX-License-Identifier: Apache-2.0
"""What the agent and the unit of lanes say to each other: nobody waits, and nobody else is heard."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from host_agent.machine import lane_door
from host_agent.machine.lane_door import LaneDoor, LaneDoorCaller
from host_agent.model.lanes import LaneOrder, UplinkReport
from placement_traits.names import Tier

REPORT = UplinkReport(
    {"eth0": 10_000},
    {"tap1": Tier.LC, "tap2": Tier.BE, "tap3": None},
    LaneOrder({"eth0": 700}, {"eth1": 40}),
)

LAST = LaneOrder({"eth0": 40}, {"eth0": 70})


class Taken:
    """Orders as the unit gets them."""

    def __init__(self) -> None:
        self.orders: list[LaneOrder] = []

    def __call__(self, order: LaneOrder) -> UplinkReport:
        self.orders.append(order)
        return REPORT


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lanes.sock"


@pytest.fixture
def caller(path: Path) -> Iterator[LaneDoorCaller]:
    made = LaneDoorCaller(path)
    yield made
    made.close()


def test_an_order_is_answered_with_what_is_in_force(path: Path, caller: LaneDoorCaller) -> None:
    taken = Taken()
    with LaneDoor(path) as door:
        assert caller.answer() is None
        for order in (LaneOrder({"eth0": 700}), LaneOrder(), LAST):
            caller.order(order)
        door.serve(taken)
        assert taken.orders == [LAST], "only the last one counts"
        assert caller.answer() == REPORT
        assert caller.answer() is None
        assert path.stat().st_mode & 0o777 == 0o600
    assert not path.exists()


def test_a_caller_that_finds_nobody_goes_on_and_finds_the_next_one(
    path: Path, caller: LaneDoorCaller
) -> None:
    taken = Taken()
    for _ in range(2):
        caller.order(LaneOrder({"a": 1}))
        assert caller.answer() is None
        with LaneDoor(path) as door:
            caller.order(LaneOrder({"a": 2}))
            caller.order(LaneOrder({"a": 2}))
            door.serve(taken)
            assert caller.answer() == REPORT
    assert taken.orders == [LaneOrder({"a": 2})] * 2


def test_what_an_earlier_start_has_left_is_removed(path: Path, caller: LaneDoorCaller) -> None:
    left = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    left.bind(str(path))
    left.close()
    taken = Taken()
    with LaneDoor(path) as door:
        caller.order(LaneOrder())
        door.serve(taken)
    assert taken.orders == [LaneOrder()]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"limits": []}',
        b"[" * 60_000,
        b'{"limits": {"a": 0}}',
        b'{"limits": {"a": -5}}',
        b'{"limits": {"a": true}}',
        b'{"limits": {"a": 1e9}}',
        b'{"limits": {"a": 99999999999}}',
        b'{"limits": {"a": "70; delete table"}}',
        b'{"shares": {"a": 50}}',
        b'{"limits": {}, "shares": []}',
        b'{"limits": {}, "shares": {"a": 0}}',
        b'{"limits": {}, "shares": {"a": 101}}',
    ],
)
def test_an_order_that_is_none_is_not_taken(path: Path, data: bytes) -> None:
    taken = Taken()
    with LaneDoor(path) as door, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.bind("")
        sender.sendto(data, str(path))
        door.serve(taken)
    assert taken.orders == []


def test_an_order_of_an_earlier_release_holds_no_share(path: Path) -> None:
    taken = Taken()
    with LaneDoor(path) as door, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.bind("")
        sender.sendto(b'{"limits": {"eth0": 70}}', str(path))
        door.serve(taken)
    assert taken.orders == [LaneOrder({"eth0": 70})]


def test_an_order_of_a_socket_without_a_name_ends_nothing(
    path: Path, caller: LaneDoorCaller
) -> None:
    """No answer would find its way."""
    taken = Taken()
    with LaneDoor(path) as door, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(b'{"limits": {"eth0": 1}}', str(path))
        caller.order(LaneOrder({"eth0": 70}))
        door.serve(taken)
        assert taken.orders == [LaneOrder({"eth0": 70})]
        assert caller.answer() == REPORT


def test_a_flood_of_orders_does_not_keep_the_unit(
    path: Path, caller: LaneDoorCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each that is read another one is there."""
    taken = Taken()
    with LaneDoor(path) as door:
        read: list[int] = []
        parsed = lane_door._order

        def parse(data: bytes) -> LaneOrder:
            read.append(len(read))
            if len(read) < 1000:
                caller.order(LaneOrder({"eth0": 70}))
            return parsed(data)

        monkeypatch.setattr(lane_door, "_order", parse)
        caller.order(LaneOrder({"eth0": 70}))
        door.serve(taken)
        assert len(read) < 100
        assert taken.orders == [LaneOrder({"eth0": 70})]
        door.serve(taken)
        assert len(taken.orders) == 2, "the rest is not lost"


def test_an_answer_that_is_none_is_not_used(path: Path, caller: LaneDoorCaller) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as unit:
        unit.bind(str(path))
        caller.order(LaneOrder())
        _, sender = unit.recvfrom(100)
        for data in (b"{}", b'{"uplinks": {"a": 0}, "taps": {}, "limits": {}}'):
            unit.sendto(data, sender)
            assert caller.answer() is None
        unit.sendto(b'{"uplinks": {}, "taps": {"t": "xx"}, "limits": {}}', sender)
        assert caller.answer() is None
        unit.sendto(b'{"uplinks": {}, "taps": {}, "limits": {}}', sender)
        assert caller.answer() == UplinkReport()


def test_nobody_but_the_unit_can_answer(path: Path, caller: LaneDoorCaller) -> None:
    """Its own name is one that any process of the host could guess."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as unit:
        unit.bind(str(path))
        caller.order(LaneOrder())
        _, sender = unit.recvfrom(100)
        assert sender[:1] == b"\0", "a name of the kernel's choice"
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other,
            pytest.raises(PermissionError),
        ):
            other.sendto(b"{}", sender)
