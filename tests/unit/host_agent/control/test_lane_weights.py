# SPDX-License-Identifier: Apache-2.0
"""Weights of lanes by trial, over a link that is arithmetic: lanes have their shares, and what one leaves others take.

What a kernel makes of a share: ``tests/functional/host_agent/test_throttle_in_kernel.py``.
"""

from dataclasses import replace

import pytest

from host_agent.conf.slo import BalmOptions
from host_agent.control.uplink_throttle import UplinkThrottle
from host_agent.decide.slo.floor import HOUR_S
from host_agent.decide.slo.shapes import Taken
from host_agent.decide.slo.weights import Weights
from host_agent.model.journal import Result
from host_agent.model.lanes import LaneOrder
from placement_traits.names import Tier
from tests.support.uplink_host import UplinkHost, seen, until

SPEED = 100
STRICT, BEST_EFFORT = 0.3, 0.35
STEP_S = 0.2
RICH = BalmOptions(budget_s_per_hour=3600.0)
"""So that no account ends what a test is about."""


class Link(UplinkHost):
    """Lanes of 30, 35 and 35 Mbit/s: of a latency-critical server, of the host itself, of a best-effort server.

    :ivar demand: what each would send, Mbit/s
    :ivar always: latency over objective, whatever is sent; None: by what the latency-critical server gets
    :ivar is_silent: it reports nothing any more
    """

    def __init__(self, options: BalmOptions | None = None, **demand: float) -> None:
        super().__init__(SPEED, {"lc": Tier.LC, "be": Tier.BE})
        self.demand = {"lc": 45.0, "host": 100.0, "be": 100.0} | demand
        self.always: float | None = None
        self.is_silent = False
        self.acts = True
        self.tried: list[int] = []
        self.throttle = UplinkThrottle(
            options or RICH, Weights(STRICT, BEST_EFFORT), self, self.counted, self.report
        )
        self.throttle.watch({"lc": ("lc",), "be": ("be",)})

    def order(self, order: LaneOrder) -> None:
        assert not order.limits
        before = self.kept
        super().order(order)
        if self.kept != before:
            self.tried.append(self.kept)

    @property
    def kept(self) -> int:
        """Part of its share that the best-effort server keeps, per cent."""
        return self.held.shares.get("eth0", 100)

    @property
    def got(self) -> dict[str, float]:
        """What each sends: at least its lane's share, then the strict one what is left, then the others."""
        given_up = SPEED * BEST_EFFORT * (1 - self.kept / 100)
        least = {
            "lc": SPEED * STRICT + given_up,
            "host": 35.0,
            "be": SPEED * BEST_EFFORT - given_up,
        }
        got = {who: min(self.demand[who], least[who]) for who in least}
        for who in ("lc", "host", "be"):
            got[who] += min(self.demand[who] - got[who], SPEED - sum(got.values()))
        return got

    @property
    def ratio(self) -> float:
        """Latency over objective."""
        if self.always is not None:
            return self.always
        short = self.demand["lc"] - self.got["lc"]
        return 0.5 if short <= 0.01 else 2.0 + short

    @property
    def spent_s(self) -> float:
        return 300.0 * self.throttle.state.taken.spent("lc", self.now)

    def run(self, seconds: float) -> float:
        """Return for how long the objective was violated."""
        violated_s = 0.0
        for _ in range(round(seconds / STEP_S)):
            got = self.got
            taps = {"lc": self.demand["lc"], "be": got["be"]}
            self.send({**taps, "eth0": sum(got.values())}, STEP_S)
            violated_s += STEP_S * (self.ratio > 1)
            is_fresh = not self.is_silent and self.now > self.throttle.state.judge_from_s
            here = seen(self.ratio, ("be",), is_fresh=is_fresh)
            self.throttle.turn(here, Taken(), self.now, may_begin=True, acts=self.acts)
        return violated_s


@pytest.fixture
def link() -> Link:
    return Link()


def test_they_end_at_the_weight_that_just_keeps_the_objective(link: Link) -> None:
    assert link.run(60.0) <= 10.0
    assert link.kept == 50, (
        "30 and half of 35 are enough for 45; of 40 per cent given up they are not"
    )
    assert link.ratio < 1
    assert {10, 60} <= set(link.tried), "healed at once, then back as far as it goes"
    assert link.got["host"] >= 35.0, "the host's own traffic pays nothing"
    written = [entry for entry in link.journal if entry.action == "uplink" and entry.server]
    assert {entry.server for entry in written} == {"be"}
    assert written[0].what["best_effort_share_percent"] == 10
    assert "best_effort_mbps" not in written[0].what
    shown = {(name, *labels): value for name, labels, value in link.throttle.samples()}
    assert shown["numa_ext_uplink_best_effort_share_percent", "eth0"] == 50
    assert not any(name == "numa_ext_uplink_limit_mbps" for name, *_ in shown)


def test_a_trial_that_makes_the_objective_violated_is_taken_back(link: Link) -> None:
    link.run(60.0)
    link.tried.clear()
    assert 0.0 < link.run(900.0) <= 9.0, "each fails within seconds, and the next one waits longer"
    assert link.kept == 50
    assert set(link.tried) == {50, 60}
    assert link.tried.count(60) <= 6


def test_what_is_not_needed_any_more_is_given_back(link: Link) -> None:
    link.run(60.0)
    link.demand["lc"] = 10.0
    link.run(900.0)
    assert (link.kept, link.held) == (100, LaneOrder())


def test_what_has_no_effect_is_taken_back_and_left_alone(link: Link) -> None:
    """The link says no: whatever lanes have, the latency stays."""
    link.always = 3.0
    link.run(200.0)
    assert link.kept == 100
    (vain,) = {entry.problem for entry in link.journal if entry.action == "uplink_in_vain"}
    assert vain == (
        "giving latency-critical servers more and best-effort servers less of eth0 does not keep the objective"
    )
    link.tried.clear()
    link.run(300.0)
    assert link.tried == [], "nor for a liar"


def test_between_met_by_far_and_at_risk_nothing_is_tried(link: Link) -> None:
    link.run(60.0)
    link.tried.clear()
    link.always = 0.9
    link.run(900.0)
    assert link.tried == []
    assert link.kept == 50


def test_who_says_nothing_ends_no_trial_well(link: Link) -> None:
    """While a trial waits for its judgement its server falls silent: the weight goes no further."""
    link.run(60.0)
    until(lambda: link.kept == 60, link.run, STEP_S)
    link.is_silent = True
    link.tried.clear()
    link.run(30.0)
    assert all(kept <= 60 for kept in link.tried)
    link.throttle.rest()
    assert link.held == LaneOrder(), "and without any latency nothing is held"


@pytest.mark.parametrize(
    "demand",
    [{"lc": 5.0}, {"be": 3.0}],
    ids=["their lane is not nearly full", "best-effort servers send little"],
)
def test_a_violation_that_weights_do_not_explain_is_no_turn_of_them(
    demand: dict[str, float],
) -> None:
    link = Link(**demand)
    link.always = 3.0
    link.run(60.0)
    assert link.tried == []
    assert link.journal == []


def test_what_is_given_up_is_charged_and_what_is_borrowed_is_no_loss() -> None:
    link = Link(BalmOptions(), host=0.0, lc=5.0)
    link.run(10.0)
    assert link.got["be"] == 95.0
    link.demand["lc"] = 90.0
    link.run(10.0)
    assert (link.kept, link.got["be"]) == (20, 10.0), "of 35 that are its own; the rest was lent"
    before = link.spent_s
    link.run(20.0)
    assert link.spent_s - before == pytest.approx(20 * (25 / 35 - 300 / 3600), rel=0.1)
    link.demand["lc"] = 20.0
    before = link.spent_s
    link.run(20.0)
    assert link.kept < 100
    assert link.spent_s < before, "it has more than its share: nothing of it is missing"


def test_who_has_spent_its_account_gets_no_more_than_its_lane() -> None:
    link = Link(BalmOptions(budget_s_per_hour=10.0))
    link.run(120.0)
    assert link.kept == 100
    (spent,) = {entry.problem for entry in link.journal if entry.action == "account_spent"}
    assert "[lanes]strict_cap" in spent


def test_an_observer_orders_nothing_and_says_what_it_would(link: Link) -> None:
    link.acts = False
    link.run(90.0)
    assert link.tried == []
    assert {entry.result for entry in link.journal} == {Result.WOULD}
    assert link.journal[0].what["best_effort_share_percent"] == 10


def test_the_floor_of_best_effort_servers_holds_for_their_share() -> None:
    link = Link(replace(RICH, be_floor_percent=95.0), lc=60.0)
    given_up = []
    for _ in range(60):
        link.run(10.0)
        given_up.append(100 - link.kept)
    assert max(given_up) > 50
    assert sum(given_up) * 10.0 / HOUR_S <= 5.0, "per cent of their share, in the mean of an hour"
