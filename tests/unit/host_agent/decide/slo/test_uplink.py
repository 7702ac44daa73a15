# SPDX-License-Identifier: Apache-2.0
"""An uplink as the one memory node of a host: whose is what of it, and whose turn it is."""

import pytest

from host_agent.conf.slo import BalmOptions
from host_agent.decide.slo import account, entitlement, uplink
from host_agent.decide.slo.shapes import BalmState, BeServer, BeTarget, SloView, Taken
from host_agent.decide.slo.uplink import Ceiling, UplinkUse
from host_agent.model.latency import LatencyReading, LcServer

LC = LcServer("lc", frozenset({3}), 1000.0, LatencyReading(5000.0, 1000, 1000, 0.0))
OTHER = LcServer("other", frozenset({1}), 1000.0, LatencyReading(10.0, 1000, 0, 0.0))
BES = tuple(BeServer(uuid, frozenset({2}), {2: 1.0}, {2: 1.0}) for uuid in ("a", "b", "c"))
SEEN = SloView((LC, OTHER), BES, (1, 2, 3), (10, 100), {1: 1e4, 2: 1e4, 3: 1e4})
USE = UplinkUse("eth0", 1000.0, 950.0, {"a": 900.0, "b": 40.0}, frozenset({"lc"}))


def decided(use: UplinkUse, state: BalmState | None = None, *, may_begin: bool = True) -> bool:
    found = uplink.decide(
        SEEN,
        use,
        state or BalmState(),
        BalmOptions(),
        100.0,
        knob=Ceiling(0.3),
        may_begin=may_begin,
    )
    return found is not None


def test_who_sends_by_it_is_in_its_view_and_nobody_else() -> None:
    found = Ceiling(0.3).view(SEEN, USE)
    assert [lc.uuid for lc in found.lcs] == ["lc"], "the other one has no tap there"
    assert [be.uuid for be in found.bes] == ["a", "b"], "c has a QoS policy of Neutron, say"
    assert {be.group for be in found.bes} == {"eth0"}, "one limit for all"
    assert not any(be.movable for be in found.bes)
    assert entitlement.own_mbps(found, {uplink.UPLINK}) == pytest.approx(700.0)


def test_latency_critical_servers_have_their_share_together() -> None:
    both = UplinkUse("eth0", 1000.0, 950.0, {"a": 900.0}, frozenset({"lc", "other"}))
    found = Ceiling(0.3).view(SEEN, both)
    assert [lc.declared_mbps for lc in found.lcs] == pytest.approx([150.0, 150.0])


@pytest.mark.parametrize(
    ("sent", "theirs", "may"),
    [(950.0, 900.0, True), (99.0, 99.0, False), (950.0, 400.0, False), (200.0, 100.0, True)],
)
def test_an_uplink_may_be_the_cause_where_best_effort_servers_send_much(
    sent: float, theirs: float, may: bool
) -> None:
    use = UplinkUse("eth0", 1000.0, sent, {"a": theirs}, frozenset({"lc"}))
    assert use.may_be_cause is may
    assert decided(use) is may


def test_what_is_held_is_looked_after_though_the_uplink_is_idle() -> None:
    idle = UplinkUse("eth0", 1000.0, 5.0, {"a": 1.0}, frozenset({"lc"}), 500)
    held = BalmState(targets={"a": BeTarget(50)})
    assert decided(idle, held)
    assert not decided(idle, held, may_begin=False), "memory is trying something"


@pytest.mark.parametrize(("level", "limit"), [(100, None), (90, 900), (10, 100)])
def test_a_level_is_a_share_of_the_uplink(level: int, limit: int | None) -> None:
    state = BalmState(targets={"a": BeTarget(level), "b": BeTarget(level)})
    assert uplink.limit_mbps(state, 1000.0) == limit
    assert uplink.level_of(limit, 1000.0) == level


def test_an_uplink_of_one_mbit_is_never_closed() -> None:
    assert uplink.limit_mbps(BalmState(targets={"a": BeTarget(10)}), 1.0) == 1


def test_accounts_of_both_controllers_are_one() -> None:
    one = Taken(full_s={"a": 10.0, "b": 20.0}, spared=frozenset({"x"}))
    both = account.joined(one, Taken(full_s={"a": 15.0, "c": 1.0}, spared=frozenset({"y"})))
    assert both.full_s == {"a": 15.0, "b": 20.0, "c": 1.0}
    assert both.spared == {"x"}, "floors are each one's own"
