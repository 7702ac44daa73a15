# SPDX-License-Identifier: Apache-2.0
"""What is carried out of a decision, whatever the source of a group says."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_numa_ext.policy.elastic.decide import ScalingDecision, decide
from nova_numa_ext.policy.elastic.fleet import Acted, ElasticFleet, granted, known_better
from nova_numa_ext.policy.elastic.load import MemberLoad
from nova_numa_ext.policy.elastic.period import Member, Period
from nova_numa_ext.policy.elastic.settings import ScalingSettings
from nova_numa_ext.policy.elastic.terms import ScalingTerm
from placement_traits.reason import Reason

SETTINGS = ScalingSettings(35.0, least=2, most=6, cool_down_in_s=0.0)
NAMES = frozenset("abcd")
FLEET = ElasticFleet(NAMES, joined=frozenset("cd"))
NOW_S = 10_000.0
MORE = ScalingDecision(3, Reason(ScalingTerm.BEYOND, 2.5))
FEWER = ScalingDecision(-1, Reason(ScalingTerm.SPARE, 1.5), ("d", "c"))


def period(names=NAMES, at_s=NOW_S):
    return Period(at_s, at_s, tuple(Member(name, MemberLoad(100.0)) for name in sorted(names)))


def asked(decision, fleet=FLEET, of=None, settings=SETTINGS, **acted):
    found = granted(decision, of or period(), fleet, Acted(NOW_S, **acted), settings)
    return found.change, found.leaving, found.reason.term


def test_what_agrees_is_granted_within_the_most_and_a_step():
    assert asked(MORE) == (2, (), ScalingTerm.BEYOND)
    assert asked(MORE, settings=replace(SETTINGS, largest_out=1)) == (1, (), ScalingTerm.BEYOND)
    assert asked(FEWER) == (-1, ("d",), ScalingTerm.SPARE)
    enough = ScalingDecision(0, Reason(ScalingTerm.ENOUGH, 0))
    assert asked(enough) == (0, (), ScalingTerm.ENOUGH)


@pytest.mark.parametrize(
    ("fleet", "decision", "term"),
    [
        (replace(FLEET, asked=1), FEWER, ScalingTerm.BUILDING),
        (replace(FLEET, coming=frozenset("e")), MORE, ScalingTerm.BUILDING),
        (replace(FLEET, going=frozenset("d")), MORE, ScalingTerm.LEAVING),
        (replace(FLEET, servers=NAMES | {"e"}), MORE, ScalingTerm.MEMBERS_DIFFER),
        (replace(FLEET, servers=frozenset("abc")), FEWER, ScalingTerm.MEMBERS_DIFFER),
        (replace(FLEET, lost=2), MORE, ScalingTerm.MOST),
        (replace(FLEET, joined=frozenset()), FEWER, ScalingTerm.NOT_OURS),
    ],
)
def test_what_nova_and_the_database_have_forbids(fleet, decision, term):
    assert asked(decision, fleet) == (0, (), term)


@pytest.mark.parametrize("at_s", [NOW_S - 601.0, NOW_S + 601.0])
def test_old_periods_and_wrong_clocks_change_nothing(at_s):
    assert asked(MORE, of=period(at_s=at_s)) == (0, (), ScalingTerm.STALE)


def test_what_was_done_lately_forbids():
    cool = replace(SETTINGS, cool_down_in_s=300.0)
    assert asked(FEWER, settings=cool, actions_s=[NOW_S - 299.0])[2] == ScalingTerm.COOL_DOWN
    assert asked(MORE, actions_s=[NOW_S - 60.0 * at for at in range(12)])[2] == ScalingTerm.BUDGET
    assert asked(MORE, not_before_s=NOW_S + 1.0)[2] == ScalingTerm.BACK_OFF
    assert asked(FEWER, not_before_s=NOW_S + 1.0)[2] == ScalingTerm.SPARE


def test_the_least_is_kept_by_what_serves():
    fleet = ElasticFleet(frozenset("cd"), joined=frozenset("cd"))
    assert asked(FEWER, fleet, period("cd")) == (0, (), ScalingTerm.LEAST)


def test_nova_and_the_database_know_better_whose_members_are_and_what_comes():
    claims = tuple(replace(each, created_here=True) for each in period().members)
    found = known_better(
        replace(period(), members=claims),
        ElasticFleet(NAMES, frozenset("c"), frozenset("e"), frozenset("fg"), asked=1),
    )
    assert [each.name for each in found.members if each.created_here] == ["c"]
    assert (found.building, found.leaving) == (2, 2)


SOME = st.frozensets(st.sampled_from("abcdefgh"))


@given(
    st.builds(ElasticFleet, SOME, SOME, SOME, SOME, st.integers(0, 3), st.integers(0, 3)),
    SOME,
    st.lists(st.floats(0.0, 5.0), min_size=8, max_size=8),
    st.floats(NOW_S - 2000.0, NOW_S + 2000.0),
    st.lists(st.floats(0.0, NOW_S)),
)
def test_whatever_a_source_says_no_limit_is_broken(fleet, names, loads, at_s, actions_s):
    """Issue 21, point 4."""
    fleet = replace(fleet, joined=fleet.joined & fleet.servers)
    told = known_better(period(names, at_s), fleet)
    ratios = dict(zip(sorted(names), loads, strict=False))
    decision = decide(told, ratios, actions_s, SETTINGS)
    found = granted(decision, told, fleet, Acted(NOW_S, actions_s), SETTINGS)
    assert -SETTINGS.largest_in <= found.change <= SETTINGS.largest_out
    if found.change > 0:
        assert len(fleet.servers) + found.change <= SETTINGS.most
    if found.change < 0:
        assert len(fleet.serving) + found.change >= SETTINGS.least
    assert len(found.leaving) == max(-found.change, 0)
    assert set(found.leaving) <= fleet.joined
    if found.change:
        assert set(names) == fleet.serving
