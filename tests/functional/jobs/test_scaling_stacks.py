# SPDX-License-Identifier: Apache-2.0
"""Elastic groups whose members a stack of Heat has: one size is set, whatever Heat, users and engines do meanwhile."""

import random
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.leader import Election, NotLeaderError
from nova_numa_ext.orchestrator.store.scaling import StackTemplate
from tests.support.heat_api import PARAMETER
from tests.support.stack_world import StackWorld


class Killed(BaseException):
    """The engine's process ends here."""


@pytest.fixture
def world(tmp_path):
    """See :class:`StackWorld`."""
    return StackWorld(tmp_path)


def grown(world, reads=150.0):
    """Let a group of three grow to five."""
    world.tell(reads)
    world.go(4)
    assert len(world.there()) == 5
    assert world.group.resize is None


def test_a_group_grows_from_three_to_five_and_shrinks_to_three(world):
    grown(world)
    assert world.log() == [("beyond", 2)]
    assert world.heat.updates == [4]
    for _ in range(2):
        world.tell(30.0)
        world.go(4)
    assert world.heat.updates == [4, 3, 2]
    world.tell(30.0)
    world.go(4)
    assert world.log()[-1] == ("least", 0)
    assert len(world.there()) == 3
    assert {*world.users} <= world.there(), "who is not of the stack stays"
    assert (world.troubles, world.group.trouble) == ([], "")
    assert world.heat.parameters["flavor"] == "small", "all else stays"


def test_nothing_is_decided_while_the_stack_comes_to_its_size(world):
    world.heat.hangs = True
    world.tell(150.0)
    world.go(2)
    world.tell(150.0)
    world.go(2)
    assert world.log() == [("beyond", 2), ("unseen", 0)]
    assert world.group.trouble == "", "it is the service's own update"
    world.heat.hangs = False
    world.go(2)
    assert world.group.resize is None


@pytest.mark.parametrize(
    "status", ["UPDATE_IN_PROGRESS", "UPDATE_FAILED", "CREATE_FAILED", "SUSPEND_COMPLETE"]
)
def test_a_stack_that_is_not_at_rest_is_waited_for_and_said(world, status):
    world.heat.status, world.heat.hangs = status, True
    world.tell(150.0)
    world.go(4)
    assert world.heat.updates == []
    assert world.log() == [("unseen", 0)]
    assert world.group.trouble.startswith(f"stack web is {status}")
    world.heat.status, world.heat.hangs = "UPDATE_COMPLETE", False
    world.later(0)
    grown(world)
    assert world.group.trouble == ""


def test_an_update_that_fails_is_said_and_not_asked_for_again(world):
    world.heat.works = "UPDATE_FAILED"
    world.tell(150.0)
    world.go(4)
    world.tell(150.0)
    world.go(4)
    assert world.heat.updates == [4]
    assert (world.group.resize, world.group.refusals) == (None, 1)
    assert "stack web is UPDATE_FAILED: Resource CREATE failed" in world.group.trouble


def test_an_update_that_heat_takes_back_is_not_asked_for_during_a_while(world):
    world.heat.works = "ROLLBACK_COMPLETE"
    world.tell(150.0)
    world.go(3)
    world.later(61.0)
    world.go(1)
    assert (world.group.resize, world.group.refusals) == (None, 1)
    world.tell(150.0)
    world.go(3)
    assert world.log()[-1] == ("back_off", 0)
    world.later(301.0)
    world.heat.works = "UPDATE_COMPLETE"
    grown(world)
    assert (world.heat.updates, world.group.refusals) == ([4, 4], 0)


@pytest.mark.parametrize("status", [400, 403, 409])
def test_what_heat_refuses_is_said_and_not_asked_for_during_a_while(world, status):
    world.heat.refuse = lambda method, _path: status if method == "PATCH" else None
    world.tell(150.0)
    world.go(3)
    assert (world.group.resize, world.group.refusals) == (None, 1)
    assert f"with {status}: as the test has it" in world.group.trouble
    world.heat.refuse = None
    world.tell(150.0)
    world.go(2)
    assert (world.log()[-1], world.heat.updates) == (("back_off", 0), [])


@pytest.mark.parametrize("status", [500, 503, 200])
def test_a_heat_that_is_silent_is_said_and_what_it_did_is_found(world, status):
    world.tell(150.0)
    world.heat.refuse = lambda _method, _path: status
    world.go(2)
    assert "Heat does not answer" in world.group.trouble
    assert world.log() == [("unseen", 0)]
    world.heat.refuse, world.heat.late = None, True
    world.later(0)
    world.tell(150.0)
    world.go(3)
    assert "timed out" in world.group.trouble
    world.heat.late = False
    world.go(3)
    assert (world.heat.updates, len(world.there())) == ([4], 5)


def test_a_request_that_never_arrives_is_forgotten_and_decided_again(world):
    world.heat.lost = True
    world.tell(150.0)
    world.go(3)
    assert world.group.resize.asked_at is not None
    world.heat.lost = False
    world.go(3)
    assert world.heat.updates == [], "it may still come"
    world.later(61.0)
    world.go(1)
    assert world.group.resize is None
    grown(world)
    assert world.heat.updates == [4]


def test_another_size_that_a_user_sets_meanwhile_wins(world):
    world.heat.lost = True
    world.tell(150.0)
    world.go(3)
    world.heat._update({"parameters": {PARAMETER: 3}})
    world.go(3)
    assert world.heat.updates == [3]
    assert (world.heat.size, world.group.resize) == (3, None)


def test_servers_that_come_before_heat_is_asked_keep_the_most(world, monkeypatch):
    monkeypatch.setattr(world.stacks, "carry_on", lambda *_: "")
    world.tell(150.0)
    world.go(2)
    assert world.group.resize.after == 4
    monkeypatch.undo()
    world.users += [world.api.make_server(world.uuid) for _ in range(2)]
    world.go(2)
    assert (world.heat.updates, world.group.resize) == ([], None)


def test_a_stack_whose_servers_are_not_in_the_group_is_not_resized(world):
    world.api.servers[world.heat.made[0]]["group"] = ""
    world.users.append(world.api.make_server(world.uuid))
    world.tell(150.0)
    world.go(2)
    assert world.heat.updates == []
    assert "says 2 servers, and 1 of its are in the server group" in world.group.trouble


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda heat: setattr(heat, "name", "other"), "stack web is not there"),
        (lambda heat: heat.parameters.pop(PARAMETER), "is no number of servers"),
        (lambda heat: heat.compute.groups.clear(), "server group"),
    ],
)
def test_what_is_gone_is_said(world, change, sentence):
    world.tell(150.0)
    change(world.heat)
    world.go(2)
    assert sentence in world.group.trouble
    assert world.heat.updates == []


def test_a_pause_stops_what_heat_was_not_asked_for(world):
    def paused(when, what):
        if when == "before" and what.endswith("/resources"):
            world.groups.pause(world.uuid, "user-1", paused=True)

    world.tell(150.0)
    world.go(2)
    world.stops = paused
    world.go(2)
    assert (world.heat.updates, world.group.resize.after) == ([], 4)
    world.stops = lambda *_: None
    world.groups.pause(world.uuid, "user-1", paused=False)
    world.go(3)
    assert world.heat.updates == [4]


def test_a_term_that_is_over_stops_right_before_heat_is_asked(world):
    world.tell(150.0)
    world.go(2)
    asked = []

    def may():
        asked.append(world.group.resize.asked_at)
        if asked[-1] is not None:
            raise NotLeaderError("the term is over")

    with pytest.raises(NotLeaderError):
        world.rounds.round(Actor("engine"), may, lambda *_: None)
    assert (world.heat.updates, asked[-1] is not None) == ([], True)
    world.later(61.0)
    world.go(2)
    grown(world)
    assert world.heat.updates == [4]


def stopped_at(folder, point):
    """A group that grows and shrinks, and an engine that dies at one of its requests or transactions.

    :returns: how many points there were
    """
    folder.mkdir()
    world, seen, armed = StackWorld(folder), 0, False
    plain = world.database.transaction

    def stops(*_what):
        nonlocal seen
        if armed:
            seen += 1
            if seen == point:
                raise Killed

    @contextmanager
    def counted():
        stops()
        with plain() as connection:
            yield connection
        stops()

    world.stops, world.database.transaction = stops, counted
    for reads, count in ((150.0, 5), (30.0, 4)):
        for number in range(60):
            if len(world.there()) == count and world.group.resize is None:
                break
            if number % 4 == 0:
                world.tell(reads)
            armed = True
            try:
                world.rounds.round(Actor("engine"), lambda: None, lambda *_: None)
            except Killed:
                world.start()
            armed = False
            world.heat.settle()
            world.api.settle()
            world.later(20.0)
        assert (len(world.there()), world.group.resize) == (count, None), world.group.trouble
        assert len(set(world.heat.updates)) == len(world.heat.updates), "each size once"
    assert world.broken == []
    assert {*world.users} <= world.there()
    return seen


def test_an_engine_that_dies_at_some_points_leaves_one_size(tmp_path):
    """kill -9 at requests and transactions: at a seeded share of them; the next test has all."""
    points = stopped_at(tmp_path / "0", 0)
    for point in random.Random(21).sample(range(1, points + 1), 3):
        assert stopped_at(tmp_path / str(point), point) >= point


@pytest.mark.long
@pytest.mark.timeout(600)
def test_an_engine_that_dies_at_each_point_leaves_one_size(tmp_path):
    for point in range(1, stopped_at(tmp_path / "0", 0) + 1):
        assert stopped_at(tmp_path / str(point), point) >= point


LOADS = {"grow": 150.0, "shrink": 30.0, "enough": 70.0}
ENDS = {"fail": "UPDATE_FAILED", "back": "ROLLBACK_COMPLETE", "ok": "UPDATE_COMPLETE"}
OTHERS = ("add", "take", "resize", "late", "lost", "answer", "die", "pause", "resume", "hour")
ACTS = st.sampled_from((*LOADS, *ENDS, *OTHERS))


@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(acts=st.lists(ACTS, min_size=4, max_size=14), seed=st.integers(0, 99))
def test_whatever_happens_no_limit_is_broken(tmp_path_factory, acts, seed):
    world, draw = StackWorld(tmp_path_factory.mktemp("world")), random.Random(seed)
    for act in acts:
        if act in LOADS:
            world.tell(LOADS[act])
        elif act == "add":
            world.users.append(world.api.make_server(world.uuid))
        elif act == "take" and len(world.users) > 1:
            world.api.servers[world.users.pop()]["status"] = "DELETED"
        elif act == "resize" and not world.heat.status.endswith("IN_PROGRESS"):
            world.heat._update({"parameters": {PARAMETER: draw.randint(1, 4)}})
            world.heat.updates.pop()
        elif act in ENDS:
            world.heat.works = ENDS[act]
            if act == "ok" and world.heat.status.endswith("_FAILED"):
                world.heat.status = "UPDATE_IN_PROGRESS"  # its user updates it
        elif act in {"late", "lost"}:
            setattr(world.heat, act, True)
        elif act == "answer":
            world.heat.late = world.heat.lost = False
        elif act == "die":
            world.start()
        elif act in {"pause", "resume"}:
            world.groups.pause(world.uuid, "user-1", paused=act == "pause")
        elif act == "hour":
            world.later(draw.choice([61.0, 3601.0]))
        world.go(draw.randint(1, 3))
    assert {*world.users} <= world.there()
    assert world.hooks.calls == []


def test_a_group_that_is_set_again_forgets_a_resize(world):
    world.heat.lost = True
    world.tell(150.0)
    world.go(2)
    assert world.group.resize is not None
    world.set()
    assert world.group.resize is None
    assert world.group.template == StackTemplate(world.heat.uuid, "web", PARAMETER)


def test_an_engine_whose_term_is_over_asks_for_nothing(world):
    world.tell(150.0)
    world.go(2)
    term = Election(world.database, "first", 0.05).campaign()
    while Election(world.database, "second", 15.0).campaign() is None:
        pass
    with pytest.raises(NotLeaderError):
        world.go(2, Actor("first", term))
    assert (world.heat.updates, world.group.resize.asked_at) == ([], None)
    world.go(3)
    assert world.heat.updates == [4]
