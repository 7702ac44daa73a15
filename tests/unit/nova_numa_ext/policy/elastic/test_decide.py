# SPDX-License-Identifier: Apache-2.0
"""How many members more or fewer, and its limits of safety."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_numa_ext.policy.elastic.decide import decide, rule
from nova_numa_ext.policy.elastic.load import MemberLoad
from nova_numa_ext.policy.elastic.members import leaving
from nova_numa_ext.policy.elastic.period import Member, Period
from nova_numa_ext.policy.elastic.settings import ScalingSettings, literal
from nova_numa_ext.policy.elastic.terms import SENTENCES, ScalingTerm, sentence
from placement_traits.errors import InvalidValueError

TABLE = [
    ((1.4, 1.3, 0.9), 1, 1),
    ((1.4, 0.9, 0.9), 1, 0),
    ((1.4, 0.9, 0.9), 0, 1),
    ((1.9, 1.8, 1.7), 1, 3),
    ((1.2, 1.1, 0.5), 1, 0),
    ((0.4, 0.5, 0.5, 0.6), 1, -1),
    ((0.9,) * 4, 1, 0),
    ((0.5,) * 5, 1, -2),
]


@pytest.mark.parametrize(("ratios", "tolerated", "change"), TABLE)
def test_f_004_53_the_published_rule(
    ratios: tuple[float, ...], tolerated: int, change: int
) -> None:
    """F-004-53: all rows of the table; β = 0.5."""
    assert rule(ratios, tolerated, 0.5) == change
    settings = replace(literal(35.0), tolerated=tolerated)
    assert decide(period(len(ratios)), named(ratios), (), settings).change == change


def period(count: int, *, at_s: float = 0.0, data_at_s: float = 0.0, **rest) -> Period:
    members = tuple(Member(f"m{at}", MemberLoad(1.0), created_here=True) for at in range(count))
    return Period(at_s, data_at_s, members, **rest)


def named(ratios) -> dict[str, float | None]:
    return {f"m{at}": ratio for at, ratio in enumerate(ratios)}


OURS = ScalingSettings(35.0, largest_in=3, cool_down_in_s=0.0)


def test_f_004_54_three_members_stay_for_ever() -> None:
    """F-004-54: idle members beyond the least leave, the least stay."""
    assert decide(period(3), named([0.0] * 3), (), OURS).change == 0
    found = decide(period(5), named([0.0] * 5), (), OURS)
    assert (found.change, found.leaving) == (-2, ("m0", "m1"))
    held = decide(period(3), named([0.0] * 3), (), OURS)
    assert sentence(held.reason) == "would do with 1 members, 3 is the least"


@pytest.mark.parametrize(
    ("seen", "ratios", "settings", "term", "change"),
    [
        (period(3, building=2), [2.0] * 3, OURS, ScalingTerm.BUILDING, 0),
        (period(3, leaving=1), [2.0] * 3, OURS, ScalingTerm.LEAVING, 0),
        (period(3, rebalancing=True), [2.0] * 3, OURS, ScalingTerm.REBALANCING, 0),
        (period(3, at_s=601.0), [2.0] * 3, OURS, ScalingTerm.STALE, 0),
        (period(3, at_s=600.0), [2.0] * 3, OURS, ScalingTerm.BEYOND, 3),
        (period(3), [2.0, None, 2.0], OURS, ScalingTerm.NO_MODEL, 0),
        (period(0), [], OURS, ScalingTerm.BELOW_LEAST, 3),
        (period(2), [0.1, 0.1], OURS, ScalingTerm.BELOW_LEAST, 1),
        (period(2), [None, None], OURS, ScalingTerm.BELOW_LEAST, 1),
        (period(6), [2.0] * 6, replace(OURS, most=6), ScalingTerm.MOST, 0),
        (period(6), [2.0] * 6, replace(OURS, most=7), ScalingTerm.BEYOND, 1),
        (period(9), [2.0] * 9, replace(OURS, most=7), ScalingTerm.ABOVE_MOST, -2),
        (period(4), [0.95] * 4, OURS, ScalingTerm.ENOUGH, 0),
    ],
    ids=lambda value: str(value) if isinstance(value, ScalingTerm) else "",
)
def test_a_limit_of_safety(
    seen: Period, ratios: list[float | None], settings: ScalingSettings, term: str, change: int
) -> None:
    found = decide(seen, named(ratios), (), settings)
    assert (found.reason.term, found.change) == (term, change)


@pytest.mark.parametrize(
    ("ratio", "actions_s", "term"),
    [
        (2.0, (900.0,), ScalingTerm.COOL_DOWN),
        (2.0, (700.0,), ScalingTerm.BEYOND),
        (0.1, (700.0,), ScalingTerm.COOL_DOWN),
        (0.1, (400.0,), ScalingTerm.SPARE),
        (2.0, (-3000.0, -2700.0, 0.0, 100.0), ScalingTerm.BEYOND),
        (2.0, (-2000.0, 0.0, 100.0), ScalingTerm.BUDGET),
    ],
)
def test_actions_are_apart_and_few(ratio: float, actions_s: tuple[float, ...], term: str) -> None:
    """Each kind has a cool-down of its own; an hour has a budget."""
    settings = replace(OURS, cool_down_out_s=200.0, cool_down_in_s=500.0, actions_per_hour=3)
    now = period(5, at_s=1000.0, data_at_s=1000.0)
    assert decide(now, named([ratio] * 5), actions_s, settings).reason.term == term


def test_a_member_of_a_user_never_leaves() -> None:
    foreign = tuple(Member(f"m{at}", MemberLoad(1.0)) for at in range(5))
    found = decide(Period(0.0, 0.0, foreign), named([0.0] * 5), (), OURS)
    assert (found.change, found.leaving, found.reason.term) == (0, (), ScalingTerm.NOT_OURS)
    mixed = (*foreign, Member("m5", MemberLoad(1.0), created_here=True))
    found = decide(Period(0.0, 0.0, mixed), named([0.0] * 6), (), OURS)
    assert (found.change, found.leaving) == (-1, ("m5",))


def test_who_leaves_first() -> None:
    """What cannot be fixed, then the worst place, then the youngest, then by name."""
    base = Member("", MemberLoad(1.0), created_here=True, age_s=100.0)
    members = [
        replace(base, name="old"),
        replace(base, name="badly placed", placement=0.2),
        replace(base, name="young", age_s=5.0),
        replace(base, name="cannot be fixed", cannot_fix=True, age_s=900.0),
        replace(base, name="a user's", created_here=False, cannot_fix=True),
        replace(base, name="elder"),
    ]
    order = ("cannot be fixed", "badly placed", "young", "elder", "old")
    assert leaving(members, 9) == order
    assert leaving(members, 2) == order[:2]
    assert leaving(members, 0) == ()


MEMBERS = st.lists(
    st.builds(
        Member,
        name=st.uuids().map(str),
        load=st.builds(MemberLoad, st.floats(0, 1e5), st.floats(0, 1e5), st.floats(0, 100)),
        created_here=st.booleans(),
        disturbed=st.booleans(),
        cannot_fix=st.booleans(),
        placement=st.floats(0, 1),
        age_s=st.floats(0, 1e7),
    ),
    max_size=12,
    unique_by=lambda one: one.name,
)


PERIODS = st.builds(
    Period,
    at_s=st.just(1e4),
    data_at_s=st.floats(-1e4, 1e4),
    members=MEMBERS.map(tuple),
    building=st.integers(0, 3),
    leaving=st.integers(0, 1),
    rebalancing=st.booleans(),
)
LIMITS = st.builds(
    lambda least, more, out, into: ScalingSettings(
        35.0, least=least, most=least + more, largest_out=out, largest_in=into
    ),
    st.integers(1, 6),
    st.integers(0, 8),
    st.integers(1, 4),
    st.integers(1, 4),
)


@given(
    PERIODS,
    st.lists(st.none() | st.floats(0, 100), min_size=12, max_size=12),
    st.lists(st.floats(-1e4, 1e4), max_size=20),
    LIMITS,
)
def test_no_history_leads_outside_the_limits(
    now: Period,
    judged: list[float | None],
    actions_s: list[float],
    settings: ScalingSettings,
) -> None:
    """Never below the least, above the most, more than a step, never a server of a user."""
    ratios = {one.name: ratio for one, ratio in zip(now.members, judged, strict=False)}
    found = decide(now, ratios, actions_s, settings)
    after = len(now.members) + found.change
    assert -settings.largest_in <= found.change <= settings.largest_out
    if found.change > 0:
        assert after <= settings.most
    if found.change < 0:
        assert after >= settings.least
    assert len(found.leaving) == len(set(found.leaving)) == max(-found.change, 0)
    assert {one.name for one in now.members if one.created_here}.issuperset(found.leaving)
    if now.building or now.leaving or now.rebalancing or now.at_s - now.data_at_s > 600.0:
        assert found.change == 0


def test_every_term_has_a_sentence() -> None:
    assert set(SENTENCES) == set(ScalingTerm)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("objective_ms", 0.0),
        ("objective_ms", float("nan")),
        ("confidence", 1.1),
        ("most", 2),
        ("least", 0),
        ("head_room", 0.9),
        ("head_room", float("inf")),
        ("wrong_factor", 1.0),
    ],
)
def test_a_setting_outside_its_bounds_is_refused(name: str, value: float) -> None:
    with pytest.raises(InvalidValueError, match=name):
        replace(OURS, **{name: value})
