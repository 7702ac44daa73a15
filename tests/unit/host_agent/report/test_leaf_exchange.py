# SPDX-License-Identifier: Apache-2.0
"""What a host says to Placement of its network, and hears of its leaf: how often, and what becomes of it in silence."""

import pytest

from host_agent.report.leaf import EVERY_S, LASTS_S, LeafExchange
from host_agent.util.background import BackgroundTasks
from placement_traits.errors import ServiceUnavailableError
from placement_traits.leaf_limits import LeafLimit, NetworkDemand

LITTLE = NetworkDemand(40, 10)
MUCH = NetworkDemand(40, 900)
ASKED = NetworkDemand(40, 0, 50)
SAID = LeafLimit(50, 400)


class Leaf:
    """Placement, at a time that goes on by itself alone."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.said: LeafLimit | None = None
        self.done: list[NetworkDemand | str] = []
        self.is_silent = False
        self.made = 0
        self._tasks = BackgroundTasks("test")
        self.exchange = LeafExchange(self._sides, self._tasks, lambda: self.now_s)

    def _sides(self) -> "tuple[Leaf, Leaf]":
        self.made += 1
        return self, self

    def write(self, demand: NetworkDemand) -> None:
        self.done.append(demand)

    def withdraw(self) -> None:
        self.done.append("withdrawn")

    def read(self) -> LeafLimit | None:
        if self.is_silent:
            raise ServiceUnavailableError("Placement is silent")
        self.done.append("read")
        return self.said

    def show(
        self, demand: NetworkDemand, *, listens: bool = False, after_s: float = EVERY_S
    ) -> list[NetworkDemand | str]:
        self.now_s += after_s
        self.done.clear()
        self.exchange.show(demand, listens=listens)
        return self.finish()

    def finish(self) -> list[NetworkDemand | str]:
        assert self._tasks.finish(10.0) == 0
        return self.done


@pytest.fixture
def leaf() -> Leaf:
    return Leaf()


def test_a_host_that_sends_little_says_and_asks_nothing(leaf: Leaf) -> None:
    assert leaf.show(LITTLE) == []
    assert leaf.made == 0


def test_one_that_sends_much_only_listens_until_the_leaf_speaks(leaf: Leaf) -> None:
    assert leaf.show(MUCH, listens=True) == ["read", "withdrawn"]
    assert leaf.show(MUCH, listens=True, after_s=1.0) == [], "each half minute"
    leaf.said = SAID
    assert leaf.show(MUCH, listens=True) == ["read", MUCH]
    assert leaf.exchange.limit == SAID
    assert leaf.show(LITTLE) == ["read", LITTLE], "as long as it is held, whatever it sends"
    leaf.said = None
    assert leaf.show(LITTLE) == ["read", "withdrawn"]
    assert leaf.show(LITTLE) == ["withdrawn"], "and then it is silent"
    assert leaf.show(LITTLE) == []


def test_who_asks_is_heard_at_once_and_taken_back_at_once(leaf: Leaf) -> None:
    leaf.show(MUCH, listens=True)
    assert leaf.show(ASKED, after_s=1.0) == ["read", ASKED]
    assert leaf.show(ASKED, after_s=1.0) == []
    assert leaf.show(LITTLE, after_s=1.0) == ["withdrawn"]


def test_what_was_read_lapses_where_placement_says_nothing_more(
    leaf: Leaf, caplog: pytest.LogCaptureFixture
) -> None:
    leaf.said = SAID
    leaf.show(MUCH, listens=True)
    leaf.is_silent = True
    for _ in range(2):
        leaf.show(MUCH, listens=True)
    assert leaf.exchange.limit == SAID
    leaf.show(MUCH, listens=True, after_s=LASTS_S - 2 * EVERY_S)
    assert leaf.exchange.limit is None
    assert caplog.text.count("Placement is silent") == 1
    leaf.is_silent = False
    assert leaf.show(MUCH, listens=True) == ["read", MUCH]
    assert leaf.exchange.limit == SAID and leaf.made > 1


def test_an_agent_that_watches_nothing_takes_its_word_back_once(leaf: Leaf) -> None:
    leaf.said = SAID
    leaf.show(ASKED)
    leaf.done.clear()
    for _ in range(3):
        leaf.exchange.rest()
    assert leaf.finish() == ["withdrawn"]
    assert leaf.show(LITTLE, after_s=0.0) == []
    assert leaf.exchange.limit is None
