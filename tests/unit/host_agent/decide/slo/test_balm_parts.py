# SPDX-License-Identifier: Apache-2.0
"""The small parts of BALM: states, traffic at a node, steps of pages, legal levels."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host_agent.conf.slo import BalmOptions
from host_agent.decide.pages.steps import away, towards
from host_agent.decide.partitions.plan import plan
from host_agent.decide.slo.account import charge
from host_agent.decide.slo.shapes import BalmState, SloView, Taken
from host_agent.decide.slo.turn import Turn
from host_agent.decide.slo.violation import SloState, evaluate, state_of
from host_agent.model.latency import LatencyReading, LcServer
from host_agent.model.levels import legal, mba_levels, quota_levels, step_up, vcpu_quota_us
from host_agent.model.pages import share_error
from host_agent.model.partition import PartitionRequest
from host_agent.model.rdt import (
    Actual,
    BandwidthControl,
    BandwidthUnit,
    CacheControl,
    Capabilities,
    GroupState,
)
from host_agent.model.traffic import Traffic, traffic_at
from placement_traits.errors import InvalidValueError
from placement_traits.names import Tier


def _lc(uuid: str, node: int, p99_us: float | None, slo_us: float = 1000.0) -> LcServer:
    return LcServer(uuid, frozenset({node}), slo_us, LatencyReading(p99_us, 1000, 0, 0.0))


# -- states ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("latency_ms", "state"),
    [
        (1.01, SloState.VIOLATED),
        (1.00, SloState.AT_RISK),
        (0.96, SloState.AT_RISK),
        (0.95, SloState.MET),
        (0.81, SloState.MET),
        (0.80, SloState.AMPLE),
    ],
)
def test_f_004_20_states_of_one_server(latency_ms: float, state: SloState) -> None:
    assert state_of(latency_ms / 1.0, BalmOptions()) is state
    assert state_of(latency_ms * 5 / 5.0, BalmOptions()) is state


def test_f_004_20_the_worst_server_wins_and_only_the_violated_are_located() -> None:
    verdict = evaluate([_lc("a", 0, 970.0), _lc("b", 1, 400.0), _lc("c", 2, 2000.0)], BalmOptions())
    assert verdict.state is SloState.VIOLATED
    assert verdict.location == {0, 2}
    assert (verdict.endangered, verdict.violated) == ({"a", "c"}, {"c"})
    assert verdict.worst(verdict.endangered) == 2.0


def test_one_violation_beyond_chance_is_enough_to_act_at_once() -> None:
    """Another server that is at risk only is no reason to wait for more samples."""
    at_risk = _lc("a", 0, 970.0)
    violated = LcServer("b", frozenset({1}), 1000.0, LatencyReading(2000.0, 1000, 500, 0.0))
    assert evaluate([at_risk, violated], BalmOptions()).sure
    assert not evaluate([at_risk], BalmOptions()).sure


def test_silence_is_never_ample_and_hides_no_violation() -> None:
    assert (
        evaluate([_lc("a", 0, None), _lc("b", 1, 100.0)], BalmOptions()).state is SloState.UNKNOWN
    )
    assert (
        evaluate([_lc("a", 0, None), _lc("b", 1, 2000.0)], BalmOptions()).state is SloState.VIOLATED
    )
    assert evaluate([], BalmOptions()).state is SloState.AMPLE


def test_thresholds_out_of_order_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="at_risk_slack_percent"):
        BalmOptions(at_risk_slack_percent=30.0, ample_slack_percent=20.0)


def test_an_account_refills_over_the_hour() -> None:
    """All of it in an hour, a sixth in ten minutes in which nothing is throttled."""
    view = SloView((_lc("a", 0, 400.0),), ())
    spent = BalmState(taken=Taken(full_s={"a": 1440.0}), seen_s=0.0)
    assert spent.taken.spent("a", 0.0) == pytest.approx(0.4)
    turn = Turn(view, spent, BalmOptions(), now_s=600.0)
    charge(turn)
    assert turn.state.taken.spent("a", 600.0) == pytest.approx(0.4 - 1.0 / 6.0)
    later = Turn(view, turn.state, BalmOptions(), now_s=3600.0)
    charge(later)
    assert later.state.taken.full_s == {}


# -- traffic -----------------------------------------------------------------------------------------------------------


def test_f_004_22_on_two_sockets_the_remote_traffic_is_the_rest() -> None:
    seen = Traffic(local_mbps=12_000.0, total_mbps=20_000.0)
    shares = {0: 0.4, 1: 0.6}
    assert traffic_at({0}, {1}, shares, seen) == pytest.approx(8_000.0)
    assert traffic_at({1}, {1}, shares, seen) == pytest.approx(12_000.0)
    assert traffic_at({0, 1}, {1}, shares, seen) == pytest.approx(20_000.0)


def test_f_004_22_beyond_two_nodes_remote_traffic_is_dealt_by_pages() -> None:
    seen = Traffic(local_mbps=12_000.0, total_mbps=20_000.0)
    shares = {0: 0.1, 1: 0.6, 2: 0.3}
    assert traffic_at({0}, {1}, shares, seen) == pytest.approx(2_000.0)
    assert traffic_at({2}, {1}, shares, seen) == pytest.approx(6_000.0)


# -- pages -------------------------------------------------------------------------------------------------------------


def test_f_004_24_direction_of_a_step() -> None:
    everywhere = {0: 1.0, 1: 1.0}
    at_home = {0: 1.0}
    assert away(at_home, {0}, {0: 0.6, 1: 0.4}, everywhere, 0.1) == {0: 0.9, 1: 0.1}
    assert away({0: 0.4, 1: 0.6}, {0}, {0: 0.4, 1: 0.6}, everywhere, 0.1) == {0: 0.3, 1: 0.7}
    assert away({0: 0.4, 1: 0.6}, {0, 1}, {0: 0.4, 1: 0.6}, everywhere, 0.1) is None
    assert away({1: 1.0}, {0}, {0: 0.4, 1: 0.6}, everywhere, 0.1) is None


def test_more_than_two_nodes_spread_by_the_weights_of_the_guest() -> None:
    shares = {0: 0.4, 1: 0.3, 2: 0.2, 3: 0.1}
    stepped = away(shares, {0}, shares, dict.fromkeys(range(4), 1.0), 0.12)
    assert stepped == pytest.approx({0: 0.28, 1: 0.36, 2: 0.24, 3: 0.12})


def test_a_full_node_takes_nothing_and_the_others_take_its_part() -> None:
    room = {0: 1.0, 1: 0.3, 2: 1.0}
    assert away({0: 0.7, 1: 0.3}, {0}, {1: 1.0}, room, 0.1) == {0: 0.6, 1: 0.3, 2: 0.1}
    assert away({0: 0.7, 1: 0.3}, {0}, {1: 1.0}, {0: 1.0, 1: 0.3}, 0.1) is None


_shares = (
    st.lists(st.integers(0, 20), min_size=2, max_size=8)
    .filter(any)
    .map(lambda parts: {node: part / sum(parts) for node, part in enumerate(parts)})
)


@given(_shares, _shares, st.sets(st.integers(0, 7)), st.floats(0.01, 1.0), st.data())
def test_steps_are_legal_shares_and_come_to_an_end(
    shares: dict[int, float],
    preferred: dict[int, float],
    crowded: set[int],
    step: float,
    data: st.DataObject,
) -> None:
    room = {node: data.draw(st.floats(0.0, 1.0)) for node in shares}
    for _ in range(110):
        before, after = shares, away(shares, crowded, preferred, room, step)
        if after is None:
            break
        shares = after
        assert sum(after.values()) == pytest.approx(1.0, abs=2e-6)
        for node, share in after.items():
            assert 0.0 <= share <= 1.0
            assert node in before or node in room
            assert share <= max(room.get(node, 0.0), before.get(node, 0.0)) + 1e-5
        moved = sum(before.get(n, 0.0) - after.get(n, 0.0) for n in crowded)
        assert moved <= step + 1e-5
    else:
        pytest.fail("steps away never end")
    for _ in range(110):
        back = towards(shares, preferred, step)
        if back is None:
            return
        assert share_error(back, preferred) < share_error(shares, preferred) + 1e-9
        assert sum(back.values()) == pytest.approx(1.0, abs=2e-6)
        shares = back
    pytest.fail("steps back never end")


# -- levels ------------------------------------------------------------------------------------------------------------


def _control(
    lowest: int, step: int, unit: BandwidthUnit = BandwidthUnit.PERCENT
) -> BandwidthControl:
    top = 100 if unit is BandwidthUnit.PERCENT else 2048
    return BandwidthControl(lowest, top, step, True, "max", 8, unit, (0, 1))


def test_f_004_34_levels_are_those_of_the_hardware() -> None:
    assert mba_levels(_control(10, 10)) == tuple(range(10, 101, 10))
    assert mba_levels(_control(20, 20)) == (20, 40, 60, 80, 100)
    assert mba_levels(_control(12, 13)) == (13, 26, 39, 52, 65, 78, 91, 100)
    assert mba_levels(None) == ()
    assert mba_levels(_control(10, 10, BandwidthUnit.MBPS)) == ()


@given(st.integers(1, 60), st.integers(1, 40), st.integers(1, 100), st.integers(1, 50))
def test_f_004_34_every_level_is_legal_and_a_climb_ends_at_the_top(
    lowest: int, granularity: int, level: int, step: int
) -> None:
    control = _control(lowest, granularity)
    levels = mba_levels(control)
    assert all(control.from_percent(found) == found for found in levels)
    level = legal(levels, level)
    assert level in levels
    for _ in range(101):
        higher = step_up(levels, level, step)
        assert higher in levels
        if level == 100:
            assert higher == 100
            return
        assert higher > level
        level = higher
    pytest.fail("the climb never ends")


def test_f_004_36_without_mba_the_same_levels_are_quotas_of_cpu_time() -> None:
    assert quota_levels()[0] == 10
    assert quota_levels()[-1] == 100
    assert vcpu_quota_us(40) == (100_000, 40_000)
    assert vcpu_quota_us(100) == (100_000, -1), "no quota at all"


# -- from levels to classes of service ---------------------------------------------------------------------------------

HOST = Capabilities(
    (CacheControl("L3", 0xFFF, 1, 0, 4, (0, 1)),),
    _control(10, 10),
    None,
)
EMPTY = Actual((GroupState("", "shareable", {"L3": {0: 0xFFF, 1: 0xFFF}, "MB": {0: 100, 1: 100}}),))


def _partition(uuid: str, level: int, domains: tuple[int, ...]) -> PartitionRequest:
    levels = dict.fromkeys(domains, level)
    return PartitionRequest(uuid, Tier.BE, domains, mba_percent=levels)


def test_f_004_33_a_level_is_written_for_the_domains_of_the_cpus_only() -> None:
    planned = plan(HOST, EMPTY, [_partition("be1", 10, (1,)), _partition("be2", 60, (0,))])
    levels = {
        place.uuid: next(g.schemata["MB"] for g in planned.groups if g.name == place.group)
        for place in planned.places
    }
    assert levels == {"be1": {0: 100, 1: 10}, "be2": {0: 60, 1: 100}}
    assert len({place.group for place in planned.places}) == 2, "a class of its own for each"


def test_f_004_35_more_servers_than_classes_share_without_hurting_anyone() -> None:
    requests = [_partition(f"be{n}", 10 if n < 3 else 100, (n % 2,)) for n in range(6)]
    planned = plan(HOST, EMPTY, requests)
    assert not planned.refused
    assert len(planned.groups) == 3
    for request in requests:
        place = planned.get(request.uuid)
        assert place is not None
        group = next(g for g in planned.groups if g.name == place.group)
        for domain, level in request.mba_percent.items():
            assert group.schemata["MB"][domain] <= level
