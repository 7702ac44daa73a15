# SPDX-License-Identifier: Apache-2.0
"""What a latency-critical server may take of best-effort ones: what it paid for, an account, never the floor."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host_agent.conf.slo import BalmOptions
from host_agent.decide.slo import entitlement
from host_agent.decide.slo.floor import HOUR_S, LevelHour, spared
from host_agent.decide.slo.shapes import AccountSpent, BalmPhase, BeServer, FloorReached, SloView
from host_agent.model.latency import LcServer
from host_agent.model.traffic import Traffic
from tests.support.balm_host import LEVELS, Be, Host, Ratios, be

NODE = frozenset({0})
CAPACITY = 100_000.0


def _view(declared: float, *traffic: float | None) -> SloView:
    bes = tuple(
        BeServer(
            f"b{n}",
            NODE,
            {0: 1.0},
            {0: 1.0},
            traffic=None if mbps is None else Traffic(mbps, mbps),
        )
        for n, mbps in enumerate(traffic)
    )
    lc = LcServer("lc", NODE, 1000.0, declared_mbps=declared)
    return SloView((lc,), bes, (0,), LEVELS, {0: CAPACITY})


def _held(view: SloView, level: int, unthrottled: float | None = None) -> entitlement.Held:
    known = {} if unthrottled is None else {be.uuid: unthrottled for be in view.bes}
    return entitlement.Held(
        {be.uuid: level for be in view.bes}, {u: Traffic(mbps, mbps) for u, mbps in known.items()}
    )


# -- what is free ------------------------------------------------------------------------------------------------------


def test_what_latency_critical_servers_declare_is_not_best_effort_servers_own() -> None:
    view = _view(40_000.0, 50_000.0)
    assert entitlement.own_mbps(view, NODE) == 60_000.0
    two = replace(view.lcs[0], nodes=frozenset({0, 1}))
    assert entitlement.own_mbps(replace(view, lcs=(two,)), NODE) == 80_000.0, "half of it is there"
    assert entitlement.own_mbps(replace(view, capacity_mbps={}), NODE) == math.inf


def test_servers_are_held_at_the_level_that_leaves_them_their_own() -> None:
    view = _view(40_000.0, 50_000.0, 50_000.0)
    servers = ("b0", "b1")
    assert entitlement.level(view, _held(view, 100), NODE, servers) == 60
    assert entitlement.level(view, _held(view, 100), NODE, ("b0",)) == 20, "the other goes on"
    unseen = _view(35_000.0, None, None)
    assert entitlement.level(unseen, _held(unseen, 100), NODE, servers) == 70, "by the capacity"
    free = replace(view, capacity_mbps={})
    assert entitlement.level(free, _held(view, 100), NODE, servers) == 100


def test_only_what_goes_below_is_lost() -> None:
    at_own, below = _view(40_000.0, 30_000.0, 30_000.0), _view(40_000.0, 10_000.0, 10_000.0)
    assert entitlement.loss(at_own, _held(at_own, 60, 50_000.0), NODE).share == 0.0
    lost = entitlement.loss(below, _held(below, 20, 50_000.0), NODE)
    assert (lost.share, lost.traffic_mbps, lost.measured) == (pytest.approx(0.4), 20_000.0, True)
    guessed = entitlement.loss(below, _held(below, 20), NODE)
    assert (guessed.share, guessed.measured) == (pytest.approx(0.4), False)
    unseen = _view(40_000.0, None, None)
    lost = entitlement.loss(unseen, _held(unseen, 20), NODE)
    assert (lost.share, lost.traffic_mbps) == (pytest.approx(0.4), None), "the level's deficit"


def test_what_is_paid_for_is_taken_in_one_action_however_many_servers_there_are() -> None:
    def plant(found: Mapping[str, Be]) -> Ratios:
        used = sum(b.mbps * b.level / 100 for b in found.values())
        return {"lc": 0.45 / (1.0 - used / 130_000.0)}

    bes = {f"b{n:02d}": be(0, 1.0, mbps=2_000.0, movable=False) for n in range(48)}
    host = Host({"lc": 0}, bes, plant, declared_mbps={"lc": 40_000.0}, capacity_mbps=CAPACITY)
    host.poll()
    assert {b.level for b in host.bes.values()} == {70}
    host.run(120.0)
    assert (plant(host.bes)["lc"] or 9.9) <= 1.0
    assert not any(isinstance(event, AccountSpent) for event in host.events)


# -- the account -------------------------------------------------------------------------------------------------------


def _liar(found: Mapping[str, Be]) -> Ratios:
    return {"lc": 0.85 if max(b.level for b in found.values()) <= 10 else 1.5}


def test_a_liar_that_is_content_with_the_strongest_throttles_pays_for_them() -> None:
    """H2: it is never violated while it has what it wants."""
    bes = {f"b{n}": be(0, 1.0, mbps=10_000.0, movable=False) for n in range(3)}
    host = Host({"lc": 0}, bes, _liar, poll_s=1.0)
    host.run(2.0 * HOUR_S)
    spent = [event for event in host.events if isinstance(event, AccountSpent)]
    assert spent
    assert spent[0].measured
    taken = sum(hour.total for hour in host.state.taken.hours.values()) / 3 / 100
    assert taken <= 2.0 * BalmOptions().budget_s_per_hour, "in the last hour"


def test_servers_that_are_violated_together_pay_together() -> None:
    bes = {"b": be(0, 1.0, movable=False)}

    def plant(found: Mapping[str, Be]) -> Ratios:
        return dict.fromkeys(("a", "z"), 1.5 + found["b"].level / 100)

    paid = Host({"a": 0, "z": 0}, bes, plant).run(60.0).state.taken.spent_s
    alone = Host({"a": 0}, bes, plant).run(60.0).state.taken.spent_s
    assert paid["a"] == pytest.approx(paid["z"])
    # Each account grows back by itself: 300 s an hour are 5 s in that minute.
    assert paid["a"] + 5.0 == pytest.approx((alone["a"] + 5.0) / 2, abs=1.0)


def test_a_server_pays_nothing_for_a_throttle_without_effect_on_traffic() -> None:
    view = _view(0.0, 50_000.0)
    assert entitlement.loss(view, _held(view, 10, 50_000.0), NODE).share == 0.0


def test_an_overdrawn_server_gets_what_it_declares_and_the_event_says_what_it_took() -> None:
    """Honest, but it declares 20 GB/s and needs 60."""

    def plant(found: Mapping[str, Be]) -> Ratios:
        used = sum(b.mbps * b.level / 100 for b in found.values())
        return {"lc": 0.5 + 0.5 * used / 40_000.0}

    bes = {f"b{n}": be(0, 1.0, mbps=25_000.0, movable=False) for n in range(4)}
    host = Host(
        {"lc": 0},
        bes,
        plant,
        poll_s=0.5,
        declared_mbps={"lc": 20_000.0},
        capacity_mbps=CAPACITY,
    )
    while not host.events:
        host.run(10.0)
        assert host.now < HOUR_S
    (event,) = host.events[:1]
    assert isinstance(event, AccountSpent)
    assert event.declared_mbps == 20_000.0
    assert 55_000.0 <= (event.needed_mbps or 0.0) <= 70_000.0
    host.run(60.0)
    assert {b.level for b in host.bes.values()} == {80}, "its own 20 GB/s, for as long as it lasts"
    assert host.state.phase is BalmPhase.WATCH


def test_silence_for_a_while_opens_no_new_account() -> None:
    bes = {"b": be(0, 1.0, movable=False)}
    host = Host({"lc": 0}, bes, lambda found: {"lc": 1.5 + found["b"].level / 100}).run(20.0)
    before = host.state.taken.spent_s["lc"]
    view = host.observe()
    mute = replace(view, lcs=tuple(replace(lc, reading=None) for lc in view.lcs))
    host.observe = lambda: mute  # type: ignore[method-assign]
    host.poll()
    assert before > 10.0
    assert host.state.taken.spent_s["lc"] == pytest.approx(before, abs=0.1)


def test_who_falls_silent_pays_for_throttles_that_are_still_held() -> None:
    """Beside an honest server that is met, nothing would give them back."""

    def plant(found: Mapping[str, Be]) -> Ratios:
        liar = 0.85 if found["b"].level <= 10 else 1.5
        return {"liar": liar, "honest": 0.9}

    host = Host({"liar": 0, "honest": 0}, {"b": be(0, 1.0, movable=False)}, plant, poll_s=0.5)
    host.run(60.0)
    assert host.bes["b"].level == 10
    before = host.state.taken.spent_s["liar"]
    seen = host.observe

    def mute() -> SloView:
        view = seen()
        return replace(
            view,
            lcs=tuple(
                replace(lc, reading=None if lc.uuid == "liar" else lc.reading) for lc in view.lcs
            ),
        )

    host.observe = mute  # type: ignore[method-assign]
    host.run(20.0)
    assert host.state.taken.spent_s["liar"] > before + 10.0
    host.run(400.0)
    assert host.bes["b"].level == 100


def test_an_overdrawn_server_holds_nobody_at_another_node() -> None:
    def plant(found: Mapping[str, Be]) -> Ratios:
        return {"lc": 1.5 + found["near"].level / 100}

    bes = {
        "near": be(0, 1.0, mbps=90_000.0, movable=False),
        "far": be(1, 1.0, mbps=90_000.0, movable=False),
    }
    host = Host(
        {"lc": 0},
        bes,
        plant,
        poll_s=0.5,
        declared_mbps={"lc": 40_000.0},
        capacity_mbps=CAPACITY,
    )
    while not host.state.taken.overdrawn:
        host.run(10.0)
        assert host.now < HOUR_S
    host.run(5.0)
    assert (host.bes["near"].level, host.bes["far"].level) == (70, 100)


# -- the floor ---------------------------------------------------------------------------------------------------------


def test_the_floor_beats_what_is_paid_for() -> None:
    """The latency-critical server paid for nearly all; the best-effort one keeps its mean level."""
    host = Host(
        {"lc": 0},
        {"b": be(0, 1.0, mbps=100_000.0, movable=False)},
        lambda found: {"lc": 0.9 if found["b"].level <= 10 else 1.5},
        poll_s=1.0,
        declared_mbps={"lc": 95_000.0},
        capacity_mbps=CAPACITY,
    )
    levels = []
    for _ in range(3 * 3600):
        host.poll()
        levels.append(host.bes["b"].level)
    means = [sum(levels[at : at + 3600]) / 3600 for at in range(0, len(levels) - 3600, 60)]
    assert min(means) >= BalmOptions().be_floor_percent
    reached = [event for event in host.events if isinstance(event, FloorReached)]
    assert [event.be for event in reached[:1]] == ["b"]
    assert not any(isinstance(event, AccountSpent) for event in host.events)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_wish_brings_a_mean_of_an_hour_below_the_floor(data: st.DataObject) -> None:
    """Whatever is wished, a server that is not throttled while spared keeps its mean over every hour."""
    floor = data.draw(st.sampled_from([10.0, 20.0, 50.0, 90.0]))
    hour, out, levels = LevelHour(), frozenset[str](), []
    now = 0.0
    for wished, minutes in data.draw(
        st.lists(st.tuples(st.sampled_from(LEVELS), st.integers(1, 90)), max_size=8)
    ):
        for _ in range(6 * minutes):
            level = 100 if out else wished
            now += 10.0
            hour = hour.after(now, 10.0, level)
            out = spared([("b", hour)], out, floor)
            levels.append(level)
    means = [sum(levels[at : at + 360]) / 360 for at in range(max(0, len(levels) - 359))]
    assert min(means, default=100.0) >= floor


# -- classes -----------------------------------------------------------------------------------------------------------


def _healed_s(count: int) -> float:
    """Seconds of violation until 48 or 8 servers in eight classes are throttled enough: nearly all have to be."""

    def plant(found: Mapping[str, Be]) -> Ratios:
        return {"lc": 0.5 + 2.0 * sum(b.level for b in found.values()) / len(found) / 100}

    bes = {
        f"b{n:02d}": be(0, 1.0, mbps=96_000.0 / count, movable=False, group=f"class{n % 8}")
        for n in range(count)
    }
    return Host({"lc": 0}, bes, plant).settle(600.0).red_s


def test_servers_of_a_class_are_throttled_and_released_together() -> None:
    """M5: 48 servers in eight classes took six times as long as eight in eight."""
    assert _healed_s(48) <= 1.5 * _healed_s(8)


def test_a_newcomer_in_a_class_has_its_level() -> None:
    bes = {"a": be(0, 1.0, movable=False, group="g")}
    host = Host({"lc": 0}, bes, lambda found: {"lc": 0.9 if found["a"].level <= 30 else 1.5})
    host.settle()
    level = host.bes["a"].level
    host.bes["new"] = be(0, 1.0, movable=False, group="g")
    host.poll()
    assert host.state.targets["new"].level == level < 100
