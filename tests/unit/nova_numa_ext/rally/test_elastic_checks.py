# SPDX-License-Identifier: Apache-2.0
"""An elastic group under the loads of a task: what is missed, what is outside its limits, what is left."""

import itertools
from typing import Any

import pytest

from nova_numa_ext.policy.elastic.settings import ScalingSettings
from nova_numa_ext.rally import elastic_checks
from nova_numa_ext.rally.elastic_checks import ElasticChecks, networks, of_group
from tests.support.elastic_cloud import GROUP, FollowedGroup

SETTINGS = ScalingSettings(35.0, least=3, most=6, period_s=15.0)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> FollowedGroup:
    """See :class:`FollowedGroup`; it is set."""
    made = FollowedGroup(asked={})
    monkeypatch.setattr(elastic_checks, "ask", made.ask)
    return made


def checks(group: FollowedGroup) -> ElasticChecks:
    """Checks whose clock goes on by a second at each look."""
    ticks = itertools.count()
    jobs: Any = group
    return ElasticChecks(
        jobs,
        GROUP,
        group.servers,
        users=group.users,
        settings=SETTINGS,
        load="load {members}",
        clock=lambda: float(next(ticks)),
        sleep=lambda seconds: None,
    )


def test_a_group_that_follows_its_load_has_no_fault(group: FollowedGroup) -> None:
    made = checks(group)
    made.follow(430.0, 5, 60.0)
    made.follow(180.0, 3, 60.0)
    made.judge_steps()
    assert made.found.sentences() == []
    assert (made.found.loads, made.found.looks >= 4) == (2, True)
    assert made.strays(1.0) == []
    assert group.loads[0] == {
        "group": GROUP,
        "members": "u0,u1,u2",
        "operations": "430.0",
        "objective_ms": "35.0",
    }


def test_the_user_s_servers_carry_the_training(group: FollowedGroup) -> None:
    group.asked = None
    checks(group).teach((120.0, 480.0))
    assert [one["members"] for one in group.loads] == ["u0,u1,u2"] * 2
    assert group.added == []


def test_a_group_that_does_not_come_to_its_size_is_a_fault_with_the_service_s_words(
    group: FollowedGroup,
) -> None:
    group.moves = False
    made = checks(group)
    made.follow(430.0, 5, 20.0)
    assert made.found.missed == [
        "3 members carry 430 operations per second after 20 s, 5 were expected: it is paused"
    ]
    assert made.found.outside == []
    assert len(group.loads) > 1, "the load goes on while the group is waited for"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"beyond": 4}, "the group has 7 servers, 3 to 6 are allowed"),
        ({"gone": frozenset({"u0"})}, "the group has 2 servers, 3 to 6 are allowed"),
        ({"gone": frozenset({"u0"}), "beyond": 1}, "servers of its user are gone: u0"),
        ({"step": 4}, r"+4 members were decided, -1 to +3 are a step"),
    ],
)
def test_what_is_outside_of_limits_is_a_fault_of_limits_alone(
    group: FollowedGroup, changes: dict[str, Any], sentence: str
) -> None:
    for name, value in changes.items():
        setattr(group, name, value)
    made = checks(group)
    made.follow(180.0, 3, 60.0)
    made.judge_steps()
    assert made.found.missed == []
    assert sentence in made.found.sentences()


def test_servers_that_nobody_has_put_there_are_left(group: FollowedGroup) -> None:
    group.beyond = 1
    assert checks(group).strays(5.0) == ["x0"]


def test_networks_are_those_of_the_servers() -> None:
    assert networks(None) == networks({"nics": "auto"}) == []
    assert networks({"nics": "none"}) == ["none"]
    assert networks({"nics": [{"net-id": "n"}]}) == ["n"]


def test_only_the_group_is_filled_into_a_source() -> None:
    query = 'sum by (server) (rate(web{group="{group}"}[$window]))'
    filled = of_group({"prometheus": {"reads": query}}, "g")
    assert filled == {"prometheus": {"reads": query.replace("{group}", "g")}}
