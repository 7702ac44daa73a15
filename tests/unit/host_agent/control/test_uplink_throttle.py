# SPDX-License-Identifier: Apache-2.0
"""The throttle of an uplink that is arithmetic: bytes follow from demand and limit, latencies from what is left.

What a kernel makes of a limit: ``tests/functional/host_agent/test_throttle_in_kernel.py``.
"""

from dataclasses import replace

import pytest

from host_agent.conf.slo import BalmOptions
from host_agent.control.uplink_throttle import UplinkThrottle
from host_agent.decide.slo.floor import HOUR_S
from host_agent.decide.slo.shapes import Taken
from host_agent.decide.slo.uplink import Ceiling
from host_agent.model.journal import Result
from host_agent.model.lanes import LaneOrder
from host_agent.model.levels import FULL
from placement_traits.names import Tier
from tests.support.uplink_host import UplinkHost, seen, until

SPEED = 100
URGENT_MBPS = 5.0
STEP_S = 0.2
TAPS = {"tap1": Tier.LC, "tap2": Tier.BE, "tap3": Tier.BE}


class Uplink(UplinkHost):
    """An uplink of 100 Mbit/s with a latency-critical server and two best-effort ones, and their unit of lanes.

    :ivar demand: what the best-effort servers send without a limit, Mbit/s
    :ivar local: what be1 sends to servers on the same host, Mbit/s
    :ivar second: what goes over another uplink, eth1, Mbit/s; None: there is none
    :ivar is_lost: eth0 has no lanes any more
    :ivar full: part of the uplink from which on servers wait in its queue
    """

    def __init__(self, options: BalmOptions | None = None) -> None:
        super().__init__(SPEED, TAPS)
        self.demand = {"be1": 300.0, "be2": 100.0}
        self.full = 0.99
        self.others = 0.0
        self.local = 0.0
        self.second: float | None = None
        self.is_lost = False
        self.always: float | None = None
        self.orders: list[int | None] = []
        self.ordered_for: set[str] = set()
        self.is_stubborn = False  # it does not slow down, as UDP does not
        self.there = True
        self.obeys = True
        self.acts = self.may_begin = True
        self.taken = Taken()
        self.throttle = UplinkThrottle(
            options or BalmOptions(), Ceiling(0.3), self, self.counted, self.report
        )
        self.throttle.watch({"lc": ("tap1",), "be1": ("tap2",), "be2": ("tap3",)})

    # -- what it is to the throttle --

    def order(self, order: LaneOrder) -> None:
        self.orders.append(order.limits.get("eth0"))
        self.ordered_for |= set(order.limits)
        if not self.there:
            return
        self.uplinks = {} if self.is_lost else {"eth0": SPEED}
        if self.second is not None:
            self.uplinks["eth1"] = SPEED
        super().order(order if self.obeys else LaneOrder())

    # -- what it is --

    @property
    def limit(self) -> int | None:
        """What is effective."""
        return self.held.limits.get("eth0")

    @property
    def best_effort(self) -> float:
        """What the best-effort servers send, Mbit/s."""
        return min(sum(self.demand.values()), SPEED if self.limit is None else self.limit)

    @property
    def ratio(self) -> float:
        """Latency over objective."""
        if self.always is not None:
            return self.always
        return 10.0 if self.best_effort + URGENT_MBPS >= self.full * SPEED else 0.5

    @property
    def spent_s(self) -> float:
        return 300.0 * self.throttle.state.taken.spent("lc", self.now)

    def run(self, seconds: float) -> "Uplink":
        for _ in range(round(seconds / STEP_S)):
            self.send(self._rates(), STEP_S)
            is_fresh = self.now > self.throttle.state.judge_from_s
            self.throttle.turn(
                seen(self.ratio, tuple(self.demand), is_fresh=is_fresh),
                self.taken,
                self.now,
                may_begin=self.may_begin,
                acts=self.acts,
            )
        return self

    def _rates(self) -> dict[str, float]:
        total = sum(self.demand.values()) or 1.0
        rates = {"tap1": URGENT_MBPS}
        for tap, wanted in zip(("tap2", "tap3"), self.demand.values(), strict=True):
            rates[tap] = wanted if self.is_stubborn else self.best_effort * wanted / total
        rates["tap2"] += self.local
        rates["eth1"] = self.second or 0.0
        rates["eth0"] = min(SPEED, self.best_effort + URGENT_MBPS + self.others)
        return rates


@pytest.fixture
def uplink() -> Uplink:
    return Uplink()


def test_a_flood_is_held_to_what_keeps_the_objective_and_to_no_less(uplink: Uplink) -> None:
    uplink.run(3.0)
    assert uplink.limit == 70 or uplink.ratio < 1.0, "at once to what is best-effort servers' own"
    uplink.run(30.0)
    assert uplink.limit == 90
    assert uplink.ratio < 1.0
    done = [entry for entry in uplink.journal if entry.action == "uplink" and entry.server]
    assert {entry.server for entry in done} == {"be1", "be2"}, "one class"
    assert done[0].what["uplink"] == "eth0"
    assert done[0].measured["sent_mbps"] == pytest.approx(100, abs=1)
    shown = {(name, *labels): value for name, labels, value in uplink.throttle.samples()}
    assert shown["numa_ext_uplink_limit_mbps", "eth0"] == 90
    assert shown["numa_ext_uplink_sent_mbps", "eth0", "best_effort"] == pytest.approx(90, abs=1)
    assert sum(value for (name, *_), value in shown.items() if name.endswith("phase")) == 1


def test_trials_that_fail_are_rare(uplink: Uplink) -> None:
    """Each fills the queue again: of a time without end, less than one per cent, which is what p99 leaves."""
    uplink.run(150.0)
    violated_s = 0.0
    for _ in range(400):
        uplink.run(1.0)
        violated_s += float(uplink.ratio > 1.0)
    assert 0.0 < violated_s <= 4.0
    assert uplink.limit == 90


def test_a_limit_that_keeps_the_objective_is_left_for_a_minute(uplink: Uplink) -> None:
    """Memory tries a weaker throttle after five seconds; a queue that fills costs more."""
    until(lambda: uplink.limit == 90 and not uplink.throttle.at_work, uplink.run, STEP_S)
    found_s = uplink.now
    until(lambda: uplink.limit != 90, uplink.run, STEP_S)
    assert uplink.limit is None
    assert uplink.now - found_s == pytest.approx(60.0, abs=2.0)


def test_what_is_best_effort_servers_own_is_taken_for_nothing(uplink: Uplink) -> None:
    """Held to 70 % of the uplink: the rest is [lanes]strict_cap."""
    uplink.full = 0.82
    uplink.run(60.0)
    assert uplink.limit == 70
    before = uplink.spent_s
    uplink.run(60.0)
    assert uplink.limit == 70
    assert uplink.spent_s <= before


def test_what_goes_below_is_charged_and_ends_with_the_account() -> None:
    uplink = Uplink(replace(BalmOptions(), budget_s_per_hour=10.0))
    uplink.full = 0.52
    uplink.run(20.0)
    assert uplink.limit is not None and uplink.limit <= 40
    uplink.run(120.0)
    assert uplink.limit is not None and uplink.limit >= 70, "it still gets what is its own"
    assert [entry.server for entry in uplink.journal if entry.action == "account_spent"] == ["lc"]


def test_who_does_not_slow_down_is_charged_by_what_goes_through(uplink: Uplink) -> None:
    """What a flood sends into its tap is not what it had: no more than the uplink takes, and the limit."""
    uplink.is_stubborn, uplink.full = True, 0.52
    uplink.run(10.0)
    spent = uplink.spent_s
    uplink.run(60.0)
    assert uplink.limit == 40
    assert 10.0 <= uplink.spent_s - spent <= 40.0, "30 of 100, for a minute, less what it grew back"


def test_an_account_is_one_whatever_is_taken(uplink: Uplink) -> None:
    uplink.full = 0.52
    uplink.taken = Taken(full_s={"lc": uplink.now + 2 * HOUR_S})
    uplink.run(30.0)
    assert uplink.limit is None or uplink.limit >= 70, "memory has spent it"


def test_no_server_is_held_below_its_floor_for_an_hour() -> None:
    uplink = Uplink(replace(BalmOptions(), be_floor_percent=90.0))
    uplink.full = 0.02
    limits = []
    for _ in range(90):
        uplink.run(10.0)
        limits.append(100 if uplink.limit is None else uplink.limit)
    assert sum(limits) / len(limits) >= 60
    assert any(entry.action in {"floor", "uplink_in_vain"} for entry in uplink.journal)


def test_when_nothing_helps_all_is_given_back_and_memory_may_try(uplink: Uplink) -> None:
    uplink.always = 3.0
    uplink.run(200.0)
    assert uplink.limit is None
    assert not uplink.throttle.at_work
    assert "uplink_in_vain" in {entry.action for entry in uplink.journal}
    count = len([limit for limit in uplink.orders if limit is not None])
    uplink.run(100.0)
    assert len([limit for limit in uplink.orders if limit is not None]) == count


def test_a_throttle_falls_when_the_flood_is_over(uplink: Uplink) -> None:
    uplink.run(30.0)
    uplink.demand = {"be1": 10.0, "be2": 0.0}
    uplink.run(120.0)
    assert uplink.limit is None


@pytest.mark.parametrize("why", ["idle", "local", "others", "memory"])
def test_a_violation_that_the_uplink_does_not_explain_is_no_turn_of_it(
    uplink: Uplink, why: str
) -> None:
    uplink.always = 3.0
    if why == "idle":
        uplink.demand = {"be1": 3.0, "be2": 3.0}
    elif why == "local":
        uplink.demand, uplink.local = {"be1": 1.0, "be2": 1.0}, 500.0
    elif why == "others":
        uplink.demand = {"be1": 20.0, "be2": 10.0}
        uplink.others = 60.0
    else:
        uplink.may_begin = False
    uplink.run(20.0)
    assert set(uplink.orders) == {None}
    assert uplink.journal == []


def test_an_observer_orders_nothing_and_says_what_it_would(uplink: Uplink) -> None:
    uplink.acts = False
    uplink.run(90.0)
    assert set(uplink.orders) == {None}
    foreseen = [entry for entry in uplink.journal if entry.server == "be1"]
    assert {entry.result for entry in uplink.journal} == {Result.WOULD}
    assert 1 <= len(foreseen) <= 2, "once a minute"
    assert foreseen[0].what["best_effort_mbps"] < SPEED


def test_a_unit_that_is_gone_ends_what_was_tried(uplink: Uplink) -> None:
    uplink.run(3.0)
    assert uplink.limit is not None
    uplink.there = False
    uplink.run(10.0)
    assert uplink.throttle.state.targets == {}
    assert list(uplink.throttle.samples()) == []
    uplink.there, uplink.held = True, LaneOrder()
    uplink.run(30.0)
    assert uplink.limit == 90, "another one is found"


def test_a_search_stays_with_the_uplink_that_it_was_begun_for(uplink: Uplink) -> None:
    """Also where no limit is effective there: what was found out is of that one alone."""
    uplink.second, uplink.obeys = 1.0, False
    uplink.run(3.0)
    assert uplink.throttle.at_work
    uplink.second = float(SPEED)
    uplink.demand = {"be1": 60.0, "be2": 20.0}
    uplink.run(3.0)
    assert uplink.ordered_for == {"eth0"}
    uplink.is_lost, uplink.obeys = True, True
    uplink.run(3.0)
    limited = [t for t in uplink.throttle.state.targets.values() if t.level < FULL]
    assert not limited, "the former's have gone with it"
    uplink.always = 3.0
    uplink.ordered_for.clear()
    uplink.run(10.0)
    assert uplink.ordered_for == {"eth1"}


def test_a_unit_that_cannot_limit_costs_nothing(uplink: Uplink) -> None:
    """Its nft refuses: what is in force is what it says, not what was ordered."""
    uplink.obeys = False
    uplink.run(60.0)
    assert uplink.spent_s == 0.0


def test_orders_are_repeated_while_they_hold_and_end_with_the_agent(uplink: Uplink) -> None:
    uplink.run(40.0)
    uplink.orders.clear()
    uplink.run(5.0)
    assert len(uplink.orders) >= 4, "each lapses by itself"
    uplink.throttle.close()
    assert uplink.orders[-1] is None
