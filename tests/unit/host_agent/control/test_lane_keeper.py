# SPDX-License-Identifier: Apache-2.0
"""What becomes of lanes where programs fail, devices change under their names, and kernels do not do as they are told.

What a real kernel makes of them: ``tests/functional/host_agent/test_lanes_in_kernel.py``.
"""

import re
from dataclasses import replace

import pytest

from host_agent.control.lanes import LEASE_S, LaneKeeper
from host_agent.decide.lanes import queues, ruleset
from host_agent.decide.lanes.planning import HANDLE, LanePlan, LaneSettings, planned
from host_agent.decide.lanes.terms import LaneTerm
from host_agent.model.lanes import (
    BestEffortHold,
    LaneNetwork,
    LaneOrder,
    LanePort,
    LaneQueue,
    ShownClass,
    ShownMarks,
    ShownQueue,
    UplinkFacts,
    UplinkReport,
)
from placement_traits.errors import CapabilityMissingError
from placement_traits.names import Tier

BARE = ShownQueue("fq_codel", "0")
PORT = LanePort("tap1", Tier.LC, LaneNetwork.FLAT)


def plan(speed_mbps: int = 1000) -> LanePlan:
    found = planned(UplinkFacts("eth0", speed_mbps, "fq_codel"), [LaneQueue.HTB], LaneSettings())
    assert isinstance(found, LanePlan)
    return found


def shown(of: LanePlan) -> ShownQueue:
    """What a kernel shows of lanes."""
    classes = {"ff": ShownClass(of.speed_mbps, of.speed_mbps, None)}
    for lane in of.lanes:
        first = 0 if lane.is_strict else 1
        most_mbps = of.hold.most_mbps
        ceil = most_mbps if most_mbps and lane.number == 3 else of.speed_mbps
        rate = min(round(of.speed_mbps * of.share(lane)), ceil)
        classes[f"{lane.number}"] = ShownClass(rate, ceil, first)
    return ShownQueue("htb", "4e", {"default": "0x2"}, classes)


class Devices:
    """eth0 and tap1 of a kernel that does as it is told, unless a test says otherwise."""

    def __init__(self) -> None:
        self.indexes = {"eth0": 2, "tap1": 7}
        self.speed_mbps = 1000
        self.offload: tuple[int, ...] = ()
        self.root = BARE
        self.table: ShownMarks | None = None
        self.userland = frozenset[str]()
        self.deaf = ""
        self.is_mute = False
        self.refuses = ""
        self.written: list[str] = []

    def names(self) -> tuple[str, ...]:
        return tuple(self.indexes)

    def index(self, device: str) -> int | None:
        return self.indexes.get(device)

    def facts(self, device: str) -> UplinkFacts:
        if device not in self.indexes:
            raise CapabilityMissingError(f"there is no network device {device}")
        return UplinkFacts(
            device, self.speed_mbps, self.root.kind, self.root.handle, offload=self.offload
        )

    def queue(self, device: str) -> ShownQueue:
        if self.is_mute:
            raise CapabilityMissingError("tc: timed out")
        return self.root if device == "eth0" else BARE

    def userland_ports(self) -> frozenset[str]:
        if self.refuses == "ovs-vsctl":
            raise CapabilityMissingError("ovs-vsctl: Permission denied")
        return self.userland

    def marks(self) -> ShownMarks | None:
        return self.table

    def write_queues(self, batch: str) -> None:
        self._write("tc", batch)
        if self.deaf == "tc":
            return
        if batch == queues.removed("eth0"):
            self.root = BARE
        else:
            ceil = int(re.findall(r"classid 4e:3 .* ceil (\d+)kbit", batch)[0]) // 1000
            most_mbps = None if ceil == self.speed_mbps else ceil
            strict = re.findall(r"classid 4e:1 htb rate (\d+)kbit", batch)
            given_up = int(strict[0]) / (10 * self.speed_mbps) - 30 if strict else 0.0
            hold = BestEffortHold(most_mbps, round(100 * (1 - given_up / 35)))
            self.root = shown(replace(plan(self.speed_mbps), hold=hold))

    def write_marks(self, text: str) -> None:
        self._write("nft", text)
        if text == ruleset.removed():
            self.table = None
        elif self.deaf != "nft":
            ports = [PORT] if "tap_tap1" in text else []
            speed = min(self.speed_mbps, 10_000)  # marks are the same at each
            self.table = ruleset.expected(plan(speed), ports)

    def _write(self, program: str, text: str) -> None:
        if self.refuses == program:
            raise CapabilityMissingError(f"{program}: Operation not permitted")
        self.written.append(text)


@pytest.fixture
def devices() -> Devices:
    return Devices()


def keeper(devices: Devices) -> LaneKeeper:
    return LaneKeeper(devices, ["eth0"], LaneQueue.HTB, LaneSettings())


def test_a_turn_without_a_difference_writes_nothing(devices: Devices) -> None:
    kept = keeper(devices)
    assert kept.turn([PORT], 0.0).marked == ("tap1",)
    assert len(devices.written) == 2
    assert kept.indexes == {2}, "whose queues are watched"
    kept.turn([PORT], 5.0)
    assert len(devices.written) == 2


def test_a_tap_that_a_program_switches_has_no_mark(devices: Devices) -> None:
    """Open vSwitch's userland datapath takes packets before nftables sees them."""
    kept = keeper(devices)
    devices.userland = frozenset({"tap1"})
    turn = kept.turn([PORT], 0.0)
    assert (turn.lanes, turn.marked) == ({"eth0": LaneQueue.HTB}, ())
    assert [each.term for each in turn.reasons] == [LaneTerm.BYPASS]
    devices.userland = frozenset()
    assert kept.turn([PORT], 5.0).marked == ("tap1",)
    devices.refuses = "ovs-vsctl"
    unknown = kept.turn([PORT], 10.0)
    assert unknown.marked == ("tap1",)
    assert unknown.sentences() == ("marks of taps may be passed by: ovs-vsctl: Permission denied",)


def test_another_tap_of_that_name_is_marked_anew(devices: Devices) -> None:
    """A hard reboot: older kernels take a chain off with its device, and show it all the same."""
    kept = keeper(devices)
    kept.turn([PORT], 0.0)
    devices.indexes["tap1"] = 8
    kept.turn([PORT], 5.0)
    assert devices.written[-1] == ruleset.written(plan(), [PORT])
    assert len(devices.written) == 3


def test_a_tap_that_is_not_there_keeps_no_other_from_its_mark(devices: Devices) -> None:
    """nft refuses a whole ruleset for one device that is gone."""
    gone = replace(PORT, device="tap9")
    assert keeper(devices).turn([PORT, gone], 0.0).marked == ("tap1",)


def test_another_uplink_of_that_name_is_nobodys_fault(devices: Devices) -> None:
    kept = keeper(devices)
    for number in range(5):
        devices.indexes["eth0"], devices.root = 10 + number, BARE
        turn = kept.turn([PORT], float(number))
        assert (turn.lanes, turn.reasons) == ({"eth0": LaneQueue.HTB}, ())


def test_another_speed_makes_other_lanes(devices: Devices) -> None:
    kept = keeper(devices)
    kept.turn([PORT], 0.0)
    devices.speed_mbps = 100
    kept.turn([PORT], 5.0)
    assert devices.written[-1] == queues.written(plan(100), replaces=True)


def test_a_speed_that_is_too_high_takes_lanes_and_marks_off(devices: Devices) -> None:
    kept = keeper(devices)
    kept.turn([PORT], 0.0)
    devices.speed_mbps = 25_000
    turn = kept.turn([PORT], 5.0)
    assert [each.term for each in turn.reasons] == [LaneTerm.TOO_FAST]
    assert (devices.root, devices.table) == (BARE, None)


def test_classes_of_an_adapter_get_marks_and_no_queues(devices: Devices) -> None:
    devices.root, devices.speed_mbps = ShownQueue("mqprio", "8001"), 25_000
    devices.offload = (1, 2, 1, 0, *[1] * 12)
    turn = keeper(devices).turn([PORT], 0.0)
    assert (turn.lanes, turn.marked, turn.sentences()) == ({"eth0": "mqprio"}, ("tap1",), ())
    assert [text.split()[0] for text in devices.written] == ["table"]
    keeper(devices).reset()
    assert devices.root.kind == "mqprio"


@pytest.mark.parametrize(
    ("kind", "offload"), [("mqprio", (1, 2, 1, 0, *[1] * 12)), ("prio", ()), ("mqprio", ())]
)
def test_a_root_qdisc_of_others_with_our_handle_is_theirs(
    devices: Devices, kind: str, offload: tuple[int, ...]
) -> None:
    devices.root, devices.offload = ShownQueue(kind, HANDLE), offload
    turn = keeper(devices).turn([PORT], 0.0)
    assert [each.term for each in turn.reasons] == ([] if offload else [LaneTerm.ROOT_QDISC])
    keeper(devices).reset()
    assert devices.root.kind == kind


def test_a_port_of_neutrons_is_named_only_where_there_are_lanes(devices: Devices) -> None:
    governed = replace(PORT, has_policy=True)
    turn = keeper(devices).turn([governed], 0.0)
    assert [each.term for each in turn.reasons] == [LaneTerm.QOS_POLICY]
    devices.root = ShownQueue("cake", "8001")
    turn = keeper(devices).turn([governed], 0.0)
    assert [each.term for each in turn.reasons] == [LaneTerm.ROOT_QDISC]


def test_what_is_not_there_as_written_is_taken_off(devices: Devices) -> None:
    devices.deaf = "nft"
    turn = keeper(devices).turn([PORT], 0.0)
    assert turn.troubles == ("marks are not there as they were written",)
    assert (turn.marked, devices.table) == ((), None)
    devices.deaf = "tc"
    devices.root = replace(shown(plan()), options={"default": "0x3"})  # of another release of ours
    turn = keeper(devices).turn([PORT], 0.0)
    assert turn.troubles[0].startswith("lanes of eth0 are not there as they were written")
    assert turn.lanes == {}
    assert devices.written[-1] in (queues.removed("eth0"), ruleset.removed())


@pytest.mark.parametrize("program", ["tc", "nft"])
def test_what_is_refused_is_said_and_tried_again(devices: Devices, program: str) -> None:
    kept = keeper(devices)
    devices.refuses = program
    assert kept.turn([PORT], 0.0).troubles == (f"{program}: Operation not permitted",)
    devices.refuses = ""
    assert kept.turn([PORT], 5.0).sentences() == ()
    assert devices.table is not None


def test_what_cannot_be_read_stays_as_it_is(devices: Devices) -> None:
    """tc hangs on a busy host: lanes stand, and without marks nobody would be in them."""
    kept = keeper(devices)
    first = kept.turn([PORT], 0.0)
    count = len(devices.written)
    devices.is_mute = True
    turn = kept.turn([PORT], 5.0)
    assert (turn.lanes, turn.marked, turn.troubles) == (first.lanes, ("tap1",), ("tc: timed out",))
    assert len(devices.written) == count
    devices.indexes["eth0"] = 3
    turn = kept.turn([PORT], 10.0)
    assert (turn.lanes, turn.marked) == ({}, ()), "another device, of which nothing is known"
    devices.is_mute = False
    assert kept.turn([PORT], 15.0) == first


def test_lanes_that_could_not_be_written_have_no_marks(devices: Devices) -> None:
    kept = keeper(devices)
    kept.turn([PORT], 0.0)
    devices.speed_mbps, devices.refuses = 100, "tc"
    turn = kept.turn([PORT], 5.0)
    assert (turn.lanes, turn.marked, devices.table) == ({}, (), None)
    devices.is_mute = True
    assert kept.turn([PORT], 10.0).lanes == {}, "nor when nothing can be read after that"


def test_a_reset_goes_on_behind_what_is_refused(devices: Devices) -> None:
    kept = keeper(devices)
    kept.turn([PORT], 0.0)
    devices.refuses = "tc"
    with pytest.raises(CapabilityMissingError, match="tc: Operation not permitted"):
        kept.reset()
    assert devices.table is None
    devices.refuses = "nft"
    kept.reset()
    assert devices.root == BARE


def test_an_order_limits_best_effort_servers_at_once_and_until_it_lapses(
    devices: Devices,
) -> None:
    kept = keeper(devices)
    first = kept.turn([PORT], 0.0)
    before = devices.root
    taps = {"tap1": Tier.LC}
    assert kept.order(LaneOrder({}), 0.5) == UplinkReport({"eth0": 1000}, taps)
    assert kept.order(LaneOrder({"eth0": 200}), 1.0) == UplinkReport(
        {"eth0": 1000}, taps, LaneOrder({"eth0": 200})
    )
    assert devices.root.classes["3"] == ShownClass(200, 200, 1), "its rate is not above it"
    count = len(devices.written)
    assert devices.written[-1].startswith("class replace dev eth0 parent 4e:ff classid 4e:3 ")
    assert devices.written[-1].count("\n") == 1, "no other lane notices"
    kept.order(LaneOrder({"eth0": 200}), 1.5)
    assert kept.turn([PORT], 5.0) == first
    assert len(devices.written) == count, "nothing is written where nothing differs"
    kept.lapse(1.5 + LEASE_S - 0.1)
    assert devices.root != before
    kept.lapse(1.5 + LEASE_S)
    assert devices.root == before, "the agent is gone, paused or hung"
    assert kept.order(LaneOrder({}), 20.0).held.limits == {}


def test_a_turn_takes_a_lapsed_order_back_too(devices: Devices) -> None:
    kept = keeper(devices)
    kept.turn([PORT], 0.0)
    before = devices.root
    kept.order(LaneOrder({"eth0": 50}), 0.0)
    kept.turn([PORT], 300.0)
    assert devices.root == before


def test_lanes_that_are_made_anew_have_the_limit_that_was_ordered(devices: Devices) -> None:
    kept = keeper(devices)
    kept.turn([PORT], 0.0)
    kept.order(LaneOrder({"eth0": 50}), 0.0)
    devices.root = BARE
    kept.turn([PORT], 1.0)
    assert devices.root.classes["3"].ceil_mbps == 50


def test_what_has_no_lanes_of_htb_cannot_be_limited(devices: Devices) -> None:
    devices.root, devices.speed_mbps = ShownQueue("mqprio", "8001"), 25_000
    devices.offload = (1, 2, 1, 0, *[1] * 12)
    kept = keeper(devices)
    kept.turn([PORT], 0.0)
    assert kept.order(LaneOrder({"eth0": 50, "eth7": 50}), 0.0) == UplinkReport(
        {}, {"tap1": Tier.LC}
    )


def test_a_limit_that_tc_refuses_is_not_in_force_and_tried_again(devices: Devices) -> None:
    kept = keeper(devices)
    kept.turn([PORT], 0.0)
    devices.refuses = "tc"
    assert kept.order(LaneOrder({"eth0": 50}), 0.0).held.limits == {}
    devices.refuses = ""
    kept.turn([PORT], 5.0)
    assert kept.order(LaneOrder({"eth0": 60}), 5.0).held.limits == {"eth0": 60}, "another one"
    assert kept.order(LaneOrder({"eth0": 50}), 6.0).held.limits == {"eth0": 50}


def test_a_limit_that_was_refused_costs_no_lanes(devices: Devices) -> None:
    """The agent repeats its order each second, also before the next turn makes the lanes again."""
    kept = keeper(devices)
    first = kept.turn([PORT], 0.0)
    devices.deaf = "tc"
    for now_s in (0.0, 1.0, 6.0):
        assert kept.order(LaneOrder({"eth0": 50}), now_s).held.limits == {}
        if now_s > 0.0:
            assert kept.turn([PORT], now_s) == first
    tried = [text for text in devices.written if "ceil 50000kbit" in text]
    assert len(tried) == 1
    kept.order(LaneOrder({}), 7.0)
    devices.deaf = ""
    assert kept.order(LaneOrder({"eth0": 50}), 8.0).held.limits == {"eth0": 50}, (
        "it was ordered anew"
    )


def test_a_limit_that_is_not_there_as_written_makes_lanes_anew(devices: Devices) -> None:
    kept = keeper(devices)
    kept.turn([PORT], 0.0)
    devices.deaf = "tc"
    assert kept.order(LaneOrder({"eth0": 50}), 0.0).held.limits == {}
    devices.deaf = ""
    assert kept.turn([PORT], 5.0).sentences() == ()
    assert devices.root == shown(plan())


def test_a_share_that_is_given_up_is_held_until_it_lapses(devices: Devices) -> None:
    kept = keeper(devices)
    kept.turn([PORT], 0.0)
    before = devices.root
    order = LaneOrder(shares={"eth0": 40})
    assert kept.order(order, 0.0).held == order
    assert devices.root.classes["1"] == ShownClass(510, 1000, 0)
    assert devices.root.classes["2"] == before.classes["2"], "the host's own"
    assert devices.root.classes["3"] == ShownClass(140, 1000, 1), (
        "what others leave is theirs still"
    )
    count = len(devices.written)
    kept.turn([PORT], 5.0)
    assert len(devices.written) == count, "a turn leaves it"
    kept.lapse(LEASE_S)
    assert devices.root == before
