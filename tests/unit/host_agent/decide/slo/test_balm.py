# SPDX-License-Identifier: Apache-2.0
"""BALM against hosts of pure arithmetic: the fixtures of the specification, traps of the source."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host_agent.conf.slo import BalmOptions
from host_agent.decide.slo.shapes import (
    AccountSpent,
    BalmPhase,
    BeTarget,
    CannotFixSloViolation,
    Release,
    Released,
    ShouldLeave,
)
from tests.support.balm_host import LEVELS, OURS, Be, Host, Ratios, be

LITERAL = BalmOptions(throttle_while_moving=False, foresee=False)
"""The source leaves the violating level in force while pages move."""

both_ways = pytest.mark.parametrize("how", [LITERAL, OURS], ids=["as-the-source", "ours"])


def _ok(good: bool) -> float:
    return 0.9 if good else 1.5


def _limit(server: Be, limits: Mapping[float, int]) -> float:
    """Good up to a level that depends on the share at home: the first entry that the share reaches."""
    share = round(server.local(server.node), 2)
    return _ok(server.level <= next(limit for least, limit in limits.items() if share >= least))


def f1(bes: Mapping[str, Be]) -> Ratios:
    return {"lc": _limit(bes["be"], {0.8: 100, 0.7: 20, 0.0: 10})}


def f2(bes: Mapping[str, Be]) -> Ratios:
    return {"lc": _limit(bes["be"], {0.81: 10, 0.71: 20, 0.61: 30, 0.0: 100})}


def f3(bes: Mapping[str, Be]) -> Ratios:
    good = _ok(bes["be"].level <= 40)
    return {"lc0": good, "lc1": good}


def f4(bes: Mapping[str, Be]) -> Ratios:
    gbps = {"big": 30, "small": 10}
    return {"lc": sum(gbps[u] * b.local(0) * b.level / 100 for u, b in bes.items()) / 8}


def f6(bes: Mapping[str, Be]) -> Ratios:
    return {"lc": _limit(bes["be"], {0.81: 0, 0.71: 20, 0.61: 60, 0.0: 100})}


def always_red(bes: Mapping[str, Be]) -> Ratios:
    return {"lc": 2.0}


# -- fixtures ----------------------------------------------------------------------------------------------------------


@both_ways
def test_f_004_25_f1_cross_socket_ends_unthrottled_with_pages_moved_home(how: BalmOptions) -> None:
    host = Host({"lc": 0}, {"be": be(1, 0.6)}, f1, how).settle()
    assert host.end("be") == (0.8, 100)
    assert host.events == []


def test_f_004_25_f1_goes_the_way_of_the_source() -> None:
    host = Host({"lc": 0}, {"be": be(1, 0.6)}, f1, LITERAL).settle()
    assert host.trace == [
        *[(10, 0.6), (20, 0.6), (20, 0.7), (30, 0.7), (30, 0.8)],
        *[(level, 0.8) for level in range(40, 101, 10)],
    ]


@both_ways
def test_f_004_26_f2_intra_socket_moves_pages_out(how: BalmOptions) -> None:
    host = Host({"lc": 0}, {"be": be(0, 1.0)}, f2, how).settle()
    assert host.end("be") == (0.6, 100)


@both_ways
def test_f_004_27_f3_both_sockets_ends_at_the_last_good_level(how: BalmOptions) -> None:
    """The source's listing throttles anew for ever and then raises its exception on this solvable host."""
    host = Host({"lc0": 0, "lc1": 1}, {"be": be(1, 0.6)}, f3, how).settle()
    assert host.end("be") == (0.6, 40)
    assert [level for level, _ in host.trace] == [10, 20, 30, 40, 50, 40]
    assert host.events == []
    host.run(60.0)
    assert host.end("be") == (0.6, 40), "and stays there"


@both_ways
def test_f_004_28_f4_only_the_heavy_one_is_touched(how: BalmOptions) -> None:
    bes = {"big": be(1, 0.6, mbps=30_000.0), "small": be(1, 0.6, mbps=10_000.0)}
    host = Host({"lc": 0}, bes, f4, how).settle()
    assert (host.end("big"), host.end("small")) == ((0.9, 100), (0.6, 100))
    assert {uuid for uuid, _ in host.changes} == {"big"}


@both_ways
def test_f_004_29_f5_infeasible_gives_up_at_pass_max_retries_plus_two(how: BalmOptions) -> None:
    host = Host({"lc": 0}, {"be": be(1, 0.6)}, always_red, how)
    passes = 0
    for _ in range(3000):
        passes += any(reason.term == "search" for reason in host.poll().reasons)
        if host.events:
            break
    assert passes == how.max_retries + 2 == 5
    (event,) = host.events
    assert isinstance(event, CannotFixSloViolation)
    assert (event.lcs, event.nodes) == (("lc",), (0,))


@both_ways
def test_f_004_30_f6_migration_helps_where_mba_alone_cannot(how: BalmOptions) -> None:
    host = Host({"lc": 0}, {"be": be(0, 1.0)}, f6, how).settle()
    assert host.end("be") == (0.6, 100)
    assert host.events == []


def test_lowering_the_level_while_pages_move_shortens_the_violation() -> None:
    """The violating level is not in force while the pages travel."""
    red = [Host({"lc": 0}, {"be": be(0, 1.0)}, f2, how).settle().red_s for how in (LITERAL, OURS)]
    assert red[1] < red[0]


# -- phases of the search ----------------------------------------------------------------------------------------------


def test_f_004_22_the_heaviest_user_of_the_violated_node_is_throttled_first() -> None:
    """The heaviest user of the host is not the heaviest one there."""
    bes = {"far": be(1, 0.9, mbps=30_000.0), "near": be(0, 1.0, mbps=10_000.0)}
    host = Host({"lc": 0}, bes, always_red)
    host.run(0.5)
    assert next(uuid for uuid, _ in host.changes) == "near"


def test_f_004_23_throttles_one_after_the_other_until_healed() -> None:
    def plant(found: Mapping[str, Be]) -> Ratios:
        return {"lc": _ok(sum(b.mbps * b.level / 100 for b in found.values()) < 30_000.0)}

    bes = {f"be{n}": be(0, 1.0, mbps=10_000.0 + n, movable=False) for n in range(5)}
    host = Host({"lc": 0}, bes, plant)
    while host.state.phase is not BalmPhase.CLIMB:
        host.poll()
    throttled = [uuid for uuid, target in host.changes if target.level == 10]
    assert throttled == ["be4", "be3", "be2"], "heaviest first, the others are left alone"


def test_a_healing_action_is_not_judged_while_queues_drain() -> None:
    """The latency falls slowly after the throttle; it is not taken for a throttle without effect."""
    throttled_at: list[float] = []

    def plant(found: Mapping[str, Be]) -> Ratios:
        if all(server.level == 100 for server in found.values()):
            return {"lc": 3.0}
        passed = host.now - throttled_at[0] if throttled_at else 0.0
        return {"lc": max(0.9, 3.0 - 4.0 * passed)}

    bes = {f"be{n}": be(0, 1.0, mbps=20_000.0 + n, movable=False) for n in range(3)}
    host = Host({"lc": 0}, bes, plant)
    while host.state.phase is not BalmPhase.CLIMB:
        if host.poll().changes:
            throttled_at.append(host.now)
    throttled = [uuid for uuid, target in host.changes if target.level == 10]
    assert throttled == ["be2"]


def test_f_004_41_a_quiet_poll_wants_nothing_and_remembers_nothing_more() -> None:
    """The cost of a poll is measured by the benchmark; here: it cannot grow with time."""
    bes = {f"be{n}": be(1, 0.6) for n in range(6)}
    host = Host({"lc": 0}, bes, lambda found: {"lc": 0.9}).run(2.0)
    early = host.state
    assert not any(host.poll().reasons for _ in range(500))
    assert replace(host.state, seen_s=0.0) == replace(early, seen_s=0.0)


@pytest.mark.parametrize("mbps", [20_000.0, 0.0], ids=["traffic", "none-seen"])
def test_f_004_42_the_first_poll_that_knows_of_a_violation_throttles(mbps: float) -> None:
    red = False
    host = Host({"lc": 0}, {"be": be(1, 0.6, mbps=mbps)}, lambda bes: {"lc": 1.5 if red else 0.9})
    host.run(5.0)
    assert host.changes == []
    red = True
    host.poll()
    assert host.changes == [("be", BeTarget(10))]


def test_f_004_31_pages_that_do_harm_elsewhere_come_back() -> None:
    """The other socket's server suffers from what is moved there."""

    def plant(found: Mapping[str, Be]) -> Ratios:
        server = found["be"]
        return {"lc0": _ok(server.level <= 30), "lc1": _ok(server.local(1) <= 0.05)}

    host = Host({"lc0": 0, "lc1": 1}, {"be": be(0, 1.0)}, plant).settle()
    host.run(10.0)
    assert host.end("be") == (1.0, 30), "the last configuration in which all was well"
    assert host.events == []


def test_pages_that_did_harm_are_not_moved_again_soon() -> None:
    """Each step would violate again; by and by the load may be another one."""

    def plant(found: Mapping[str, Be]) -> Ratios:
        server = found["be"]
        return {"lc0": _ok(server.level <= 30), "lc1": _ok(server.local(1) <= 0.05)}

    host = Host({"lc0": 0, "lc1": 1}, {"be": be(0, 1.0)}, plant).settle()
    assert set(host.state.barred) == {"be"}
    host.run(OURS.bar_s + 1.0)
    assert host.state.barred == {}


def test_a_step_that_will_violate_is_not_taken() -> None:
    """Latency rises by 0.15 per level: from 0.9 the next step would violate, so pages move before it."""

    def plant(found: Mapping[str, Be]) -> Ratios:
        server = found["be"]
        return {"lc": 0.45 + 0.015 * server.level * server.local(0)}

    literal = Host({"lc": 0}, {"be": be(0, 1.0)}, plant, LITERAL).settle()
    ours = Host({"lc": 0}, {"be": be(0, 1.0)}, plant).settle()
    assert ours.end("be")[1] == literal.end("be")[1] == 100
    assert ours.red_s < literal.red_s
    assert all(0.45 + 0.015 * level * share <= 1.0 for level, share in ours.trace)


def test_a_step_is_foreseen_by_the_server_that_rises_and_not_by_the_worst_one() -> None:
    """Another server is steadily near its objective: it hides nothing."""

    def plant(found: Mapping[str, Be]) -> Ratios:
        server = found["be"]
        return {"lc": 0.3 + 0.02 * server.level * server.local(0), "steady": 0.9}

    host = Host({"lc": 0, "steady": 1}, {"be": be(0, 1.0)}, plant).settle()
    assert host.end("be")[1] == 100
    assert all(0.3 + 0.02 * level * share <= 1.0 for level, share in host.trace)


def test_a_server_that_could_not_climb_gets_a_second_lap() -> None:
    """The first one's pages cannot move; only the second one's do heal."""

    def plant(found: Mapping[str, Be]) -> Ratios:
        return {"lc": _ok(found["b"].local(0) <= 0.65)}

    bes = {"a": be(0, 1.0, mbps=30_000.0, movable=False), "b": be(0, 1.0)}
    host = Host({"lc": 0}, bes, plant).settle()
    assert (host.end("a"), host.end("b")) == ((1.0, 100), (0.6, 100))


def test_no_throttle_at_all_still_moves_pages() -> None:
    host = Host({"lc": 0}, {"be": be(0, 1.0)}, f6, levels=()).settle()
    assert host.end("be") == (0.6, 100)


def test_a_move_that_gets_stuck_is_given_up() -> None:
    host = Host({"lc": 0}, {"be": be(0, 1.0)}, f2, pages_per_s=0.0).settle()
    assert host.end("be") == (1.0, 10)
    assert host.state.targets["be"] == BeTarget(10, {0: 1.0})


def test_f_004_24_both_sockets_violated_moves_no_pages() -> None:
    host = Host({"lc0": 0, "lc1": 1}, {"be": be(1, 0.6)}, f3).settle()
    assert all(target.shares is None for _, target in host.changes)


def test_four_nodes_move_to_all_that_are_not_violated() -> None:
    spread = dict.fromkeys(range(4), 0.25)

    def plant(found: Mapping[str, Be]) -> Ratios:
        return {"lc": _ok(found["be"].local(2) <= 0.16 or found["be"].level <= 10)}

    host = Host({"lc": 2}, {"be": Be(0, spread, spread)}, plant, nodes=(0, 1, 2, 3)).settle()
    assert host.bes["be"].level == 100
    expected = {0: 0.28333, 1: 0.28333, 2: 0.15, 3: 0.28333}
    assert host.bes["be"].shares == pytest.approx(expected, abs=1e-5)


# -- giving back -------------------------------------------------------------------------------------------------------


def test_f_004_32_ample_slack_gives_pages_back_until_it_would_hurt() -> None:
    load = 1.0

    def plant(found: Mapping[str, Be]) -> Ratios:
        return {"lc": load * (0.4 + found["be"].local(0) * found["be"].level / 100)}

    host = Host({"lc": 0}, {"be": be(1, 0.4)}, plant).settle()
    crowded = host.end("be")
    assert crowded == (0.5, 100)
    load = 0.5
    host.run(120.0)
    assert host.end("be") == (0.4, 100), "all is as its own policy wants it"
    assert host.state.targets["be"] == BeTarget()


def test_f_004_32_a_trial_that_hurts_is_undone_and_the_next_waits_longer() -> None:
    begun: list[float] = []

    def plant(found: Mapping[str, Be]) -> Ratios:
        server = found["be"]
        return {"lc": 0.7 if round(server.local(0), 3) <= 0.3 else 1.3}

    host = Host({"lc": 0}, {"be": be(1, 0.6)}, plant).settle()
    valid = host.end("be")
    assert valid == (0.7, 100)
    for _ in range(3000):
        was = host.state.phase
        host.poll()
        if was is BalmPhase.WATCH and host.state.phase is BalmPhase.TRIAL:
            begun.append(host.now)
    pauses = [b - a for a, b in pairwise(begun)]
    assert len(pauses) >= 3
    assert pauses == sorted(pauses)
    assert pauses[-1] > 2.5 * pauses[0]
    host.run(5.0)
    assert host.end("be") == valid


def test_what_leaves_little_room_has_to_prove_itself_before_it_is_kept() -> None:
    """What was given back hurts only seconds later: it is taken back, and nothing is searched."""
    hurts = True

    def plant(found: Mapping[str, Be]) -> Ratios:
        if round(found["be"].local(0), 3) <= 0.3:
            return {"lc": 0.7}
        return {"lc": 1.3 if hurts else 0.9}

    host = Host({"lc": 0}, {"be": be(1, 0.6)}, plant).settle()
    hurts = False
    while host.state.phase is not BalmPhase.TRIAL:
        host.poll()
    host.run(3.0)
    assert host.state.phase is BalmPhase.TRIAL, "kept without proof"
    hurts = True
    host.run(1.0)
    assert (host.state.phase, host.state.search) == (BalmPhase.WATCH, None)
    host.run(5.0)
    assert host.end("be") == (0.7, 100)


def test_ample_slack_releases_throttles_before_pages() -> None:
    load = 1.0

    def plant(found: Mapping[str, Be]) -> Ratios:
        worst = load * _ok(found["be"].level <= 40)
        return {"lc0": worst, "lc1": worst}

    host = Host({"lc0": 0, "lc1": 1}, {"be": be(1, 0.6)}, plant).settle()
    assert host.end("be") == (0.6, 40)
    load = 0.3
    host.run(60.0)
    assert host.end("be") == (0.6, 100)


# -- a world that changes ----------------------------------------------------------------------------------------------


def test_a_newcomer_joins_a_running_search() -> None:
    def plant(found: Mapping[str, Be]) -> Ratios:
        return {"lc": sum(b.local(0) * b.level / 100 for b in found.values()) / 0.5}

    host = Host({"lc": 0}, {"a": be(0, 1.0)}, plant)
    while host.state.phase is not BalmPhase.CLIMB:
        host.poll()
    host.bes["b"] = be(0, 1.0)
    host.run(120.0)
    assert host.state.phase in (BalmPhase.WATCH, BalmPhase.TRIAL)
    assert (host.ratios()["lc"] or 9.9) <= 1.0


def test_a_server_that_leaves_in_the_middle_of_its_turn_is_forgotten() -> None:
    bes = {"a": be(0, 1.0, mbps=30_000.0), "b": be(0, 1.0)}

    def plant(found: Mapping[str, Be]) -> Ratios:
        return {"lc": sum(b.local(0) * b.level / 100 for b in found.values()) / 0.8}

    host = Host({"lc": 0}, bes, plant)
    while host.state.moving is None:
        host.poll()
    del host.bes[host.state.moving.be]
    host.run(120.0)
    assert host.state.phase in (BalmPhase.WATCH, BalmPhase.TRIAL)
    assert (host.ratios()["lc"] or 9.9) <= 1.0


def test_everything_is_given_back_when_the_last_lc_server_leaves() -> None:
    host = Host({"lc": 0}, {"be": be(1, 0.6)}, f1)
    host.run(2.0)
    assert host.bes["be"].level < 100
    host.lcs.clear()
    host.run(5.0)
    assert host.end("be") == (0.6, 100)
    assert host.events == []


def test_a_load_that_rises_in_the_middle_of_a_climb_is_healed_at_once() -> None:
    load = 1.0

    def plant(found: Mapping[str, Be]) -> Ratios:
        return {"lc": load * (0.5 + found["be"].local(0) * found["be"].level / 100)}

    host = Host({"lc": 0}, {"be": be(0, 1.0)}, plant)
    while not (host.state.phase is BalmPhase.CLIMB and host.bes["be"].level >= 40):
        host.poll()
    load = 1.3
    host.run(60.0)
    assert (host.ratios()["lc"] or 9.9) <= 1.0
    assert host.red_s < 5.0


# -- servers that cannot be helped, or lie -----------------------------------------------------------------------------


def test_f_004_38_what_cannot_be_fixed_proposes_who_should_leave() -> None:
    bes = {"heavy": be(0, 1.0, movable=False, mbps=30_000.0), "light": be(1, 1.0, mbps=500.0)}
    host = Host({"lc": 0}, bes, lambda found: {"lc": 1.2 + found["heavy"].level / 100})
    host.run(60.0)
    event = next(e for e in host.events if isinstance(e, CannotFixSloViolation))
    assert event.leave == ("heavy", "lc")


def test_a_server_that_is_always_red_gets_nothing_for_it() -> None:
    host = Host({"liar": 0}, {"be": be(1, 0.6)}, lambda bes: {"liar": 2.0})
    host.run(60.0)
    assert host.end("be") == (0.6, 100)
    released = [event.what for event in host.events if isinstance(event, Released)]
    assert released == [Release.THROTTLE, Release.PAGES]
    assert set(host.state.ignored) == {"liar"}
    host.run(500.0)
    assert len(host.events) == 3, "it is ignored for a while"
    assert not any(isinstance(event, ShouldLeave) for event in host.events), "nothing has helped it"


@pytest.mark.parametrize("mbps", [20_000.0, 0.0], ids=["traffic", "none-seen"])
def test_help_that_is_not_enough_stays_in_force_until_the_account_is_used_up(mbps: float) -> None:
    host = Host(
        {"lc": 0},
        {"be": be(0, 1.0, mbps=mbps, movable=False)},
        lambda found: {"lc": 1.5 + found["be"].level / 100},
    )
    host.run(100.0)
    assert host.end("be") == (1.0, 10), "released as a trial, and throttled again: it had helped"
    assert not any(isinstance(event, Released) for event in host.events)
    assert [e.leave for e in host.events if isinstance(e, ShouldLeave)] == [("be",)]
    host.run(400.0)
    assert host.end("be") == (1.0, 100)
    assert any(isinstance(event, AccountSpent) for event in host.events)


def test_a_liar_does_not_keep_the_other_servers_from_help() -> None:
    def plant(found: Mapping[str, Be]) -> Ratios:
        return {"liar": 2.0, "lc": 0.5 + found["be"].local(0) * found["be"].level / 100}

    host = Host({"liar": 1, "lc": 0}, {"be": be(0, 1.0)}, plant)
    host.run(300.0)
    assert set(host.state.ignored) == {"liar"}
    assert (plant(host.bes)["lc"] or 9.9) <= 1.0


def test_silence_in_a_search_holds_everything_until_the_account_is_used_up() -> None:
    """At level 20 four fifths of the traffic are lost, less what grows back: 300 s last for seven minutes."""
    silent = False
    host = Host({"lc": 0}, {"be": be(1, 0.6)}, lambda b: {"lc": None} if silent else f1(b))
    host.run(1.0)
    silent, held = True, host.end("be")
    assert held == (0.6, 20)
    host.run(400.0)
    assert host.end("be") == held
    host.run(30.0)
    assert host.end("be") == (0.6, 100)
    assert any(isinstance(event, AccountSpent) for event in host.events)


def test_silence_never_gives_anything_back() -> None:
    silent = False
    host = Host(
        {"lc0": 0, "lc1": 1},
        {"be": be(1, 0.6)},
        lambda b: {"lc0": None, "lc1": 0.1} if silent else f3(b),
        BalmOptions(budget_s_per_hour=1e6),
    ).settle()
    silent = True
    host.run(300.0)
    assert host.end("be") == (0.6, 40)


def test_risk_that_cannot_be_bettered_does_not_search_for_ever() -> None:
    host = Host({"lc": 0}, {"be": be(0, 1.0, movable=False)}, lambda bes: {"lc": 0.97})
    searches = sum(
        any(reason.term == "search" for reason in host.poll().reasons) for _ in range(600)
    )
    assert searches <= 3


def test_f_004_37_only_best_effort_servers_that_may_move_are_moved() -> None:
    bes = {"bound": be(0, 1.0, movable=False, mbps=30_000.0), "floating": be(0, 1.0)}
    host = Host({"lc": 0}, bes, always_red)
    host.run(60.0)
    moved = {uuid for uuid, target in host.changes if target.shares is not None}
    assert moved == {"floating"}
    assert "lc" not in host.state.targets


def test_a_restarted_agent_takes_levels_as_they_are_and_gives_them_back() -> None:
    host = Host({"lc": 0}, {"be": be(1, 0.6, level=30)}, lambda bes: {"lc": 0.5})
    host.run(1.0)
    assert host.changes == []
    host.run(100.0)
    assert host.end("be") == (0.6, 100)


# -- for all hosts -----------------------------------------------------------------------------------------------------


@st.composite
def _worlds(draw: st.DrawFn) -> Host:
    """A random host: demand of BE servers at each node, throttled or not, adds to what LC servers feel."""
    count = draw(st.integers(2, 4))
    nodes = tuple(range(count))
    bes = {}
    for number in range(draw(st.integers(1, 4))):
        parts = draw(st.lists(st.integers(0, 5), min_size=count, max_size=count).filter(any))
        shares = {node: part / sum(parts) for node, part in enumerate(parts) if part}
        bes[f"be{number}"] = Be(
            draw(st.sampled_from(nodes)),
            shares,
            shares,
            mbps=1000.0 * draw(st.integers(1, 40)),
            movable=draw(st.booleans()),
        )
    lcs = {f"lc{n}": draw(st.sampled_from(nodes)) for n in range(draw(st.integers(1, 3)))}
    own = {lc: draw(st.floats(0.1, 1.3)) for lc in lcs}
    sensitive = {lc: draw(st.floats(0.0, 2.0)) for lc in lcs}
    lowest = draw(st.sampled_from([0, 10, 40, 100]))

    def plant(found: Mapping[str, Be]) -> Ratios:
        felt = {
            node: sum(
                b.mbps / 20_000.0 * b.local(node) * max(b.level, lowest) / 100
                for b in found.values()
            )
            for node in nodes
        }
        return {lc: own[lc] + sensitive[lc] * felt[node] for lc, node in lcs.items()}

    levels = draw(st.sampled_from([LEVELS, (), (20, 40, 60, 80, 100), (12, 25, 50, 75, 100)]))
    how = replace(draw(st.sampled_from([OURS, LITERAL])), ample_hold_s=1e6)
    return Host(lcs, bes, plant, how, levels=levels, nodes=nodes)


@settings(max_examples=40, deadline=None)
@given(_worlds())
def test_no_lc_server_is_left_red_while_a_noticeable_be_server_is_above_its_minimum(
    host: Host,
) -> None:
    _comes_to_an_end(host)


@pytest.mark.long
@settings(max_examples=1000, deadline=None)
@given(_worlds())
def test_in_a_thousand_worlds_no_lc_server_is_left_red(host: Host) -> None:
    _comes_to_an_end(host)


def _comes_to_an_end(host: Host) -> None:
    """Unless the action was tried and shown without effect, then released and reported. And every search ends."""
    free_levels = {*host.levels, 100}
    for _ in range(3000):
        decision = host.poll()
        for target in decision.changes.values():
            assert target.level in free_levels
            if target.shares is not None:
                assert sum(target.shares.values()) == pytest.approx(1.0, abs=1e-5)
                assert set(target.shares) <= set(host.nodes)
        if host.now > 5.0 and host.state.phase is BalmPhase.WATCH and host.state.moving is None:
            break
    else:
        pytest.fail(f"the search does not end: {host.state}")
    red = {lc: node for lc, node in host.lcs.items() if (host.ratios()[lc] or 0.0) > 1.0}
    if not red or not host.levels:
        return
    assert any(isinstance(event, CannotFixSloViolation) for event in host.events)
    released = {event.be for event in host.events if isinstance(event, Released)}
    for node in red.values():
        at_node = {u: b.mbps * b.level / 100 * b.local(node) for u, b in host.bes.items()}
        for uuid, mbps in at_node.items():
            if mbps > 0.05 * sum(at_node.values()):
                level = host.bes[uuid].level
                assert level == host.levels[0] or uuid in released, (uuid, level, host.events)


_COLOURS = st.lists(st.integers(0, 3), min_size=60, max_size=60)


@settings(max_examples=20, deadline=None)
@given(_worlds(), _COLOURS, st.data())
def test_no_sequence_of_colours_arrivals_and_departures_upsets_it(
    host: Host, colours: list[int], data: st.DataObject
) -> None:
    _go_through(host, colours, data)


@pytest.mark.long
@settings(max_examples=500, deadline=None)
@given(_worlds(), _COLOURS, st.data())
def test_many_sequences_of_colours_arrivals_and_departures_do_not_upset_it(
    host: Host, colours: list[int], data: st.DataObject
) -> None:
    _go_through(host, colours, data)


def _go_through(host: Host, colours: list[int], data: st.DataObject) -> None:
    spare = dict(host.bes)
    seen = {"now": 1}
    host.plant = lambda found: dict.fromkeys(host.lcs, (None, 0.5, 0.97, 1.5)[seen["now"]])
    for colour in colours:
        seen["now"] = colour
        match data.draw(st.integers(0, 9)):
            case 0 if host.bes:
                del host.bes[data.draw(st.sampled_from(sorted(host.bes)))]
            case 1:
                host.bes = {**spare, **host.bes}
        host.run(0.7)
        assert set(host.state.targets) == set(host.bes)
        assert {target.level for target in host.state.targets.values()} <= {*host.levels, 100}
