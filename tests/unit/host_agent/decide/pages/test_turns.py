# SPDX-License-Identifier: Apache-2.0
"""Searches at a time are bounded: who begins, who waits, and of whom counters are read often."""

import math
from dataclasses import replace

from host_agent.conf.bwap import BwapOptions
from host_agent.decide.pages.bwap import BwapPhase, BwapSearch
from host_agent.decide.pages.shares import Memory
from host_agent.decide.pages.turns import read_often, turns

TWO = BwapOptions(at_once=2)
SEARCH = BwapSearch({0: 1.0}, frozenset({0}))


def memory(phase: BwapPhase = BwapPhase.WAITING, queued_s: float = math.inf) -> Memory:
    return Memory(search=replace(SEARCH, phase=phase, queued_s=queued_s))


def test_those_that_have_waited_the_longest_are_called() -> None:
    known = {
        "a": memory(),
        "late": memory(queued_s=9.0),
        "c": memory(BwapPhase.MEASURING),
        "early": memory(queued_s=2.0),
    }
    found = turns(known, TWO)
    assert [uuid for uuid in known if found.may_begin(uuid)] == ["early"]
    assert read_often(known, TWO) == {"c", "early"}


def test_who_has_not_waited_takes_what_those_leave() -> None:
    known = {"a": memory(), "b": memory(), "queued": memory(queued_s=2.0)}
    found = turns(known, TWO)
    assert all(map(found.may_begin, known))
    left = found.after("a", known["a"], memory(BwapPhase.PLACING))
    assert [uuid for uuid in known if left.may_begin(uuid)] == ["queued"]
    assert found.after("a", known["a"], memory(queued_s=3.0)) == found, "it has not begun"
    called = found.after("queued", known["queued"], memory(BwapPhase.PLACING))
    assert called == found, "it had its place"


def test_what_has_ended_or_is_held_or_blind_takes_no_place() -> None:
    blind = replace(SEARCH, blind=TWO.blind_samples)
    known = {
        "found": memory(BwapPhase.FOUND),
        "held": replace(memory(BwapPhase.PLACING), held=True),
        "near": Memory(),
        "blind": Memory(search=blind),
        "placing": memory(BwapPhase.PLACING),
        "waiting": memory(),
    }
    assert turns(known, TWO).may_begin("waiting")
    assert read_often(known, TWO) == {"placing", "waiting"}


def test_held_searches_that_go_on_are_read_beside_those_that_began_meanwhile() -> None:
    known = {name: memory(BwapPhase.MEASURING) for name in "abc"} | {"d": memory(queued_s=1.0)}
    found = turns(known, TWO)
    assert not any(map(found.may_begin, known))
    assert read_often(known, TWO) == {"a", "b", "c"}
