# SPDX-License-Identifier: Apache-2.0
"""Lanes of an uplink as text: whose traffic is where, and when there are none. Nothing here is written to a kernel."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from host_agent.decide.lanes import grouping, queues, ruleset, terms
from host_agent.decide.lanes.guard import LaneGuard
from host_agent.decide.lanes.planning import (
    LanePlan,
    LaneSettings,
    planned,
    unmarked,
)
from host_agent.decide.lanes.terms import LaneTerm
from host_agent.model.lanes import BestEffortHold, LaneNetwork, LanePort, LaneQueue, UplinkFacts
from placement_traits.errors import InvalidValueError
from placement_traits.names import Tier

ROOT = Path(__file__).parents[5]
FACTS = UplinkFacts("eth0", 10_000, "fq_codel")
BOTH = (LaneQueue.HTB, LaneQueue.ETS)
SETTINGS = LaneSettings()
MAP = (1, 2, 1, 0, *[1] * 12)
"""An operator's: priority 1 in class 2, 3 in class 0, all others in class 1."""
LC = LanePort("tap1", Tier.LC, LaneNetwork.TUNNEL)
BE = LanePort("tap2", Tier.BE, LaneNetwork.VLAN)


def plan(queue: LaneQueue = LaneQueue.ETS) -> LanePlan:
    found = planned(FACTS, [queue], SETTINGS)
    assert isinstance(found, LanePlan)
    return found


def refusals(facts: UplinkFacts, settings: LaneSettings = SETTINGS) -> list[str]:
    found = planned(facts, BOTH, settings)
    return [] if isinstance(found, LanePlan) else [reason.term for reason in found]


# Plans ----------------------------------------------------------------------------------------------------------------


def test_lanes_share_the_whole_link_and_the_strict_one_has_a_cap() -> None:
    found = planned(FACTS, BOTH, LaneSettings(strict_cap=0.2, best_effort_share=0.75))
    assert isinstance(found, LanePlan)
    assert found.queue is LaneQueue.ETS, "the better one of two"
    assert [lane.share for lane in found.lanes] == pytest.approx([0.2, 0.2, 0.6])
    assert [lane.is_strict for lane in found.lanes] == [True, False, False]
    assert found.lane(Tier.LC).cap == 0.2
    assert [found.lane(tier).dscp for tier in (Tier.LC, None, Tier.BE)] == [46, None, 8]


@pytest.mark.parametrize("value", [0.0, 1.0, -0.1, float("nan")])
def test_a_cap_leaves_others_something(value: float) -> None:
    with pytest.raises(InvalidValueError, match="strict_cap"):
        LaneSettings(strict_cap=value)


@pytest.mark.parametrize(
    ("facts", "term"),
    [
        (replace(FACTS, speed_mbps=None), LaneTerm.SPEED),
        (replace(FACTS, speed_mbps=25_000), LaneTerm.TOO_FAST),
        (replace(FACTS, is_bond=True), LaneTerm.BOND),
        (replace(FACTS, ovs_qos=""), LaneTerm.OVS_QOS),
        (replace(FACTS, ovs_qos="linux-htb"), LaneTerm.OVS_QOS),
        (replace(FACTS, root_qdisc="htb", root_handle="1"), LaneTerm.ROOT_QDISC),
    ],
)
def test_an_uplink_with_queues_of_others_or_of_unfit_speed_has_no_lanes(
    facts: UplinkFacts, term: LaneTerm
) -> None:
    assert refusals(facts) == [term]


def test_all_reasons_are_said_at_once() -> None:
    facts = UplinkFacts("bond0", 100_000, "cake", "8001", is_bond=True, ovs_qos="")
    found = planned(facts, [], SETTINGS)
    assert not isinstance(found, LanePlan)
    assert [reason.term for reason in found] == [
        LaneTerm.TOO_FAST,
        LaneTerm.BOND,
        LaneTerm.OVS_QOS,
        LaneTerm.ROOT_QDISC,
        LaneTerm.SCHEDULER,
    ]
    assert all("{" not in terms.sentence(reason) for reason in found)
    assert terms.sentence(found[2]) == (
        "bond0 is a port of Open vSwitch with QoS none, which would overwrite lanes; an operator may run: "
        "ovs-vsctl set port bond0 qos=@q -- --id=@q create qos type=linux-noop"
    )


@pytest.mark.parametrize(
    "facts",
    [
        replace(FACTS, speed_mbps=100_000, root_qdisc="mqprio", root_handle="8001", offload=MAP),
        replace(FACTS, is_bond=True, offload=MAP),
        replace(FACTS, ovs_qos="linux-noop"),
        replace(FACTS, root_qdisc="htb", root_handle="4e"),
    ],
)
def test_offload_noop_and_our_own_lanes_are_no_reason(facts: UplinkFacts) -> None:
    assert refusals(facts) == []


def test_an_adapters_own_classes_are_the_lanes_and_no_queue_is_written() -> None:
    found = planned(replace(FACTS, root_qdisc="mqprio", offload=MAP), BOTH, SETTINGS)
    assert isinstance(found, LanePlan)
    assert found.queue is None
    assert "meta priority set 4e:1" in ruleset.written(found, [LC]), "& 15 is 1, of class 2"


@pytest.mark.parametrize("shared", [0, 2, 3])
def test_an_adapter_that_puts_urgent_packets_to_others_has_no_lanes(shared: int) -> None:
    put = [*MAP]
    put[1] = put[shared]
    found = planned(replace(FACTS, offload=tuple(put)), BOTH, SETTINGS)
    assert isinstance(found, tuple)
    assert [each.term for each in found] == [LaneTerm.OFFLOAD_MAP]
    assert "its map is" in terms.sentence(found[0])


def test_force_is_for_speed_and_bonds_only() -> None:
    forced = LaneSettings(is_forced=True)
    assert refusals(replace(FACTS, speed_mbps=100_000, is_bond=True), forced) == []
    assert refusals(replace(FACTS, ovs_qos=""), forced) == [LaneTerm.OVS_QOS]
    assert refusals(replace(FACTS, root_qdisc="cake"), forced) == [LaneTerm.ROOT_QDISC]


@pytest.mark.parametrize("name", ["", "eth0; drop", "-eth0", "..", "a" * 16, "et\nh0", 'e"0', "é"])
def test_a_device_that_is_no_single_word_is_refused(name: str) -> None:
    with pytest.raises(InvalidValueError, match="device"):
        planned(replace(FACTS, device=name), BOTH, SETTINGS)
    with pytest.raises(InvalidValueError, match="device"):
        ruleset.written(plan(), [replace(LC, device=name)])
    with pytest.raises(InvalidValueError, match="device"):
        queues.removed(name)


# Marks ----------------------------------------------------------------------------------------------------------------


def test_what_guests_send_is_marked_where_it_comes_out_of_them() -> None:
    assert (
        ruleset.written(plan(), [BE, LC])
        == """\
table netdev numa_ext
delete table netdev numa_ext
table inet numa_ext
delete table inet numa_ext
table netdev numa_ext {
    chain tap_tap1 {
        type filter hook ingress device "tap1" priority -150; policy accept;
        meta priority set 4e:1
    }
    chain tap_tap2 {
        type filter hook ingress device "tap2" priority -150; policy accept;
        meta priority set 4e:3
        ip dscp set 0x08
        ip6 dscp set 0x08
    }
}
table inet numa_ext {
    chain tunnels {
        type filter hook output priority -150; policy accept;
        udp dport { 4789, 6081 } meta priority 4e:1 ip dscp set 0x2e
        udp dport { 4789, 6081 } meta priority 4e:1 ip6 dscp set 0x2e
        udp dport { 4789, 6081 } meta priority 4e:3 ip dscp set 0x08
        udp dport { 4789, 6081 } meta priority 4e:3 ip6 dscp set 0x08
    }
}
"""
    )


def test_without_ports_nothing_is_marked_and_removal_leaves_nothing() -> None:
    assert " set " not in ruleset.written(plan(), [])
    assert ruleset.written(plan(), []).startswith(ruleset.removed())
    assert ruleset.removed().splitlines()[1::2] == [
        "delete table netdev numa_ext",
        "delete table inet numa_ext",
    ]


def test_a_server_without_a_tier_has_a_priority_and_keeps_its_headers() -> None:
    text = ruleset.written(plan(), [LanePort("tap3", None, LaneNetwork.FLAT)])
    assert "meta priority set 4e:2" in text
    assert "dscp" not in text


@pytest.mark.parametrize(
    ("port", "term"),
    [
        (replace(LC, has_policy=True), LaneTerm.QOS_POLICY),
        (replace(LC, is_behind_veth=True), LaneTerm.VETH),
        (replace(LC, bypasses=True), LaneTerm.BYPASS),
    ],
)
def test_a_port_of_neutrons_or_that_marks_do_not_reach_is_left_alone(
    port: LanePort, term: LaneTerm
) -> None:
    reason = unmarked(port)
    assert reason is not None and reason.term == term
    assert "tap1" in terms.sentence(reason)
    assert ruleset.written(plan(), [port]) == ruleset.written(plan(), [])


# Queues ---------------------------------------------------------------------------------------------------------------


def test_ets_has_a_capped_strict_band_and_what_is_unmarked_in_the_middle() -> None:
    assert queues.written(plan()) == (
        "qdisc replace dev eth0 root handle 4e: ets bands 3 strict 1 quanta 1514 1514 "
        "priomap 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1\n"
        "qdisc replace dev eth0 parent 4e:1 handle 4e1: tbf rate 3000000kbit burst 1500000 latency 20ms\n"
    )


def test_htb_has_classes_that_borrow_below_one_of_the_whole_link() -> None:
    lines = queues.written(plan(LaneQueue.HTB)).splitlines()
    assert lines[0] == "qdisc replace dev eth0 root handle 4e: htb default 2"
    assert lines[1].startswith("class replace dev eth0 parent 4e: classid 4e:ff htb rate 10000mbit")
    assert [line.partition(" burst")[0] for line in lines[2:]] == [
        "class replace dev eth0 parent 4e:ff classid 4e:1 "
        "htb rate 3000000kbit ceil 10000000kbit prio 0 quantum 1514",
        "class replace dev eth0 parent 4e:ff classid 4e:2 "
        "htb rate 3500000kbit ceil 10000000kbit prio 1 quantum 1514",
        "class replace dev eth0 parent 4e:ff classid 4e:3 "
        "htb rate 3500000kbit ceil 10000000kbit prio 1 quantum 1514",
    ]


def test_shares_of_a_slow_uplink_are_in_their_ratio_too() -> None:
    """In whole Mbit/s 52.5 and 17.5 of 100 would be 52 and 18: 2.9 to 1, not 3."""
    found = planned(replace(FACTS, speed_mbps=100), [LaneQueue.HTB], LaneSettings(0.3, 0.75))
    assert isinstance(found, LanePlan)
    rates = re.findall(r"rate (\d+)kbit", queues.written(found))
    assert rates == ["30000", "17500", "52500"]


def test_a_limit_is_the_ceiling_of_one_class_and_never_below_its_rate() -> None:
    free = plan(LaneQueue.HTB)
    limited = replace(free, hold=BestEffortHold(2_000))
    (line,) = queues.changed(free, limited).splitlines()
    assert line.startswith(
        "class replace dev eth0 parent 4e:ff classid 4e:3 htb rate 2000000kbit ceil 2000000kbit prio 1"
    )
    assert line in queues.written(limited)
    without = queues.changed(limited, free)
    assert "rate 3500000kbit ceil 10000000kbit" in without
    assert without in queues.written(free)


def test_what_best_effort_servers_give_up_is_the_strict_lanes_and_no_others() -> None:
    free = plan(LaneQueue.HTB)
    held = replace(free, hold=BestEffortHold(share_percent=40))
    strict, others, theirs = queues.changed(free, held).splitlines()
    assert " classid 4e:1 htb rate 5100000kbit ceil 10000000kbit prio 0 " in strict
    assert " classid 4e:2 htb rate 3500000kbit ceil 10000000kbit prio 1 quantum 3785 " in others
    assert " classid 4e:3 htb rate 1400000kbit ceil 10000000kbit prio 1 quantum 1514 " in theirs
    rates = re.findall(r"classid 4e:[123] htb rate (\d+)kbit", queues.written(held))
    assert sum(map(int, rates)) == 10_000_000, "the link, as before"
    assert queues.changed(held, held) == ""


def test_our_lanes_are_removed_before_others_are_made() -> None:
    assert queues.written(plan(), replaces=True) == queues.removed("eth0") + queues.written(plan())


def test_quanta_are_in_the_ratio_of_shares_and_hold_a_packet() -> None:
    found = planned(FACTS, BOTH, LaneSettings(best_effort_share=0.75))
    assert isinstance(found, LanePlan)
    assert queues.quanta(found.lanes[1:]) == (1514, 4542)


# Groups and guard -----------------------------------------------------------------------------------------------------


def test_the_most_demanding_have_a_lane_each_and_the_others_share_the_last() -> None:
    demand: dict[str, tuple[float, ...]] = {
        "ft": (0.9, 0.2),
        "cg": (0.1, 0.5),
        "bt": (0.2,),
        "is": (),
    }
    assert grouping.grouped(demand, 4) == (("ft",), ("cg",), ("bt",), ("is",))
    assert grouping.grouped(demand, 9) == (("ft",), ("cg",), ("bt",), ("is",))
    assert grouping.grouped(demand, 2) == (("ft",), ("cg", "bt", "is"))
    assert grouping.grouped(demand, 1) == (("ft", "cg", "bt", "is"),)
    with pytest.raises(InvalidValueError, match="1 or more"):
        grouping.grouped(demand, 0)


def test_weights_are_inverse_to_demand() -> None:
    assert grouping.weights((0.8, 0.4, 0.3, 0.1, 0.0)) == (1, 2, 2, 8, 8)
    assert grouping.weights(()) == ()


def test_lanes_that_are_overwritten_twice_in_ten_minutes_are_given_up() -> None:
    guard = LaneGuard("eth0")
    assert guard.overwritten(0.0) is None
    assert guard.overwritten(601.0) is None
    reason = guard.overwritten(1200.0)
    assert reason is not None
    assert terms.sentence(reason) == (
        "lanes of eth0 were overwritten 2 times in 600 s: they are withdrawn"
    )


def test_every_term_of_lanes_has_its_sentence_which_its_page_explains() -> None:
    assert terms.SENTENCES.keys() == set(LaneTerm)
    page = " ".join((ROOT / "doc/source/operator/lanes.rst").read_text().split())
    for sentence in terms.SENTENCES.values():
        assert f'"{re.sub(r"{.*?}", "…", sentence)}"' in page
