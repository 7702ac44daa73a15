# SPDX-License-Identifier: Apache-2.0
"""Hosts whose uplinks lead to one leaf: who asks there for room, and who is held for the sake of others."""

from collections.abc import Mapping

import pytest

from host_agent.conf.slo import BalmOptions
from host_agent.control.uplink_throttle import UplinkThrottle
from host_agent.decide.slo.floor import HOUR_S
from host_agent.decide.slo.shapes import Taken
from host_agent.decide.slo.uplink import Ceiling
from placement_traits.leaf_limits import LeafLimit, NetworkDemand
from placement_traits.names import Tier
from tests.support.uplink_host import UplinkHost, seen

SPEED = 1000
STEP_S = 0.5


class Host(UplinkHost):
    """A host with an uplink of 1,000 Mbit/s, and what its leaf says to it.

    :ivar ratio: latency over objective of its latency-critical server; None: there is none
    :ivar best_effort: what its best-effort server would send, Mbit/s
    :ivar shown: what it said to the leaf last
    """

    def __init__(self, ratio: float | None = None, best_effort: float = 0.0, **options: float):
        super().__init__(SPEED, {"lc": Tier.LC, "be": Tier.BE})
        self.ratio, self.best_effort = ratio, best_effort
        self.limit: LeafLimit | None = None
        self.shown: NetworkDemand | None = None
        self.listens = False
        self.rested = 0
        self.others_try = False
        self.throttle = UplinkThrottle(
            BalmOptions(**options),
            Ceiling(0.3),
            self,
            self.counted,
            self.report,
            leaf=self,
            protected=0.3,
        )
        self.throttle.watch({"lc": ("lc",), "be": ("be",)})

    # -- the leaf, to the throttle --

    def show(self, demand: NetworkDemand, *, listens: bool) -> None:
        self.shown, self.listens = demand, listens

    def rest(self) -> None:
        self.rested += 1
        self.shown = None

    # -- what it is --

    @property
    def limits(self) -> Mapping[str, int]:
        return self.held.limits

    @property
    def sent(self) -> float:
        return min(self.best_effort, float(self.limits.get("eth0", SPEED)))

    def run(self, seconds: float) -> "Host":
        for _ in range(round(seconds / STEP_S)):
            urgent = 0.0 if self.ratio is None else 40.0
            self.send({"lc": urgent, "be": self.sent, "eth0": urgent + self.sent}, STEP_S)
            if self.ratio is None:
                self.throttle.rest()
            else:
                here = seen(self.ratio, ("be",))
                self.throttle.turn(
                    here, Taken(), self.now, may_begin=not self.others_try, acts=True
                )
            self.throttle.follow(self.now)
        return self

    @property
    def asks(self) -> int:
        return self.shown.asked if self.shown else 0


def test_a_host_whose_servers_wait_elsewhere_asks_for_a_little_more_than_they_send() -> None:
    host = Host(ratio=0.5).run(20.0)
    assert host.shown == NetworkDemand(40, 0, 0) and not host.listens
    host.ratio = 5.0
    assert host.run(4.0).asks == 0, "not for a moment's sake"
    assert host.run(4.0).asks == 50


def test_it_asks_for_no_more_than_is_latency_critical_servers_of_its_own_uplink() -> None:
    host = Host(ratio=5.0).run(8.0)
    host.send({"lc": 1e7, "eth0": 1e7}, STEP_S)
    assert host.run(1.0).asks <= 300


def test_it_asks_for_a_minute_longer_and_no_more() -> None:
    host = Host(ratio=5.0).run(10.0)
    host.ratio = 0.5
    assert host.run(59.0).asks == 50
    assert host.run(2.0).asks == 0


def test_it_asks_for_twice_as_long_where_the_objective_is_violated_again_soon() -> None:
    host = Host(ratio=5.0).run(10.0)
    kept = []
    for _ in range(7):
        host.ratio, asked_s = 0.5, 0.0
        while host.run(10.0).asks:
            asked_s += 10.0
        kept.append(asked_s)
        host.ratio = 5.0
        host.run(10.0)
    assert kept == pytest.approx([60, 120, 240, 480, 960, 1800, 1800], abs=10)
    host.ratio = 0.5
    host.run(1900.0 + 700.0)
    host.ratio = 5.0
    host.run(10.0)
    host.ratio = 0.5
    assert host.run(50.0).asks and not host.run(20.0).asks, "and for a minute after a long time"


def test_where_asking_does_not_help_it_gives_up_for_ten_minutes() -> None:
    host = Host(ratio=5.0).run(10.0)
    assert host.run(285.0).asks == 50
    assert host.run(20.0).asks == 0
    assert host.run(570.0).asks == 0
    assert host.run(40.0).asks == 50


def test_silence_in_between_does_not_end_the_rest() -> None:
    host = Host(ratio=5.0).run(320.0)
    assert host.asks == 0
    host.ratio = None
    host.run(20.0)
    host.ratio = 5.0
    assert host.run(60.0).asks == 0


def test_nothing_is_asked_for_while_something_is_tried_here() -> None:
    """Memory, or its own best-effort servers: their turn comes first."""
    host = Host(ratio=5.0)
    host.others_try = True
    assert host.run(60.0).asks == 0
    flooded = Host(ratio=5.0, best_effort=900.0)
    assert flooded.run(3.0).asks == 0 and flooded.throttle.at_work


def test_a_host_without_latencies_is_held_to_what_its_leaf_says() -> None:
    host = Host(best_effort=900.0).run(3.0)
    assert host.listens and host.shown == NetworkDemand(0, 900, 0)
    host.limit = LeafLimit(50, 400)
    assert host.run(3.0).limits == {"eth0": 400}
    assert host.run(2.0).shown == NetworkDemand(0, 400, 0), "what it sends, not what it would"
    host.limit = None
    assert host.run(2.0).limits == {}
    assert [entry.what["best_effort_mbps"] for entry in host.journal if entry.action == "leaf"] == [
        400,
        None,
    ]


@pytest.mark.parametrize("said", [0, SPEED, 10**9])
def test_a_limit_without_a_meaning_holds_nobody(said: int) -> None:
    host = Host(best_effort=900.0).run(3.0)
    host.limit = LeafLimit(50, said)
    assert host.run(3.0).limits == {}


def test_of_its_own_limit_and_its_leafs_the_lower_one_holds() -> None:
    host = Host(ratio=5.0, best_effort=900.0).run(1.5)
    own = host.limits["eth0"]
    host.limit = LeafLimit(50, own - 100)
    assert host.run(0.5).limits == {"eth0": own - 100}
    host.limit = LeafLimit(50, own + 100)
    assert host.run(0.5).limits["eth0"] <= own


def test_others_take_no_more_of_an_hour_than_the_floor_leaves() -> None:
    """A leaf on which one Mbit/s is left, for hours: the mean of any hour is not below be_floor_percent."""
    host = Host(best_effort=900.0, be_floor_percent=20.0).run(3.0)
    host.limit = LeafLimit(300, 1)
    levels: list[float] = []
    while host.now < 1000.0 + 3 * HOUR_S:
        host.run(30.0)
        levels.append(host.limits.get("eth0", SPEED) / SPEED * 100)
    window = round(HOUR_S / 30.0)
    means = [sum(levels[n : n + window]) / window for n in range(len(levels) - window)]
    assert 19.0 <= min(means) <= 30.0, "held as far as may be, and no further"
    problems = [entry.problem for entry in host.journal if entry.problem]
    assert problems and "be_floor_percent allows 20" in problems[0]


def test_nothing_is_held_or_said_where_nobody_watches_any_more() -> None:
    host = Host(best_effort=900.0).run(3.0)
    host.limit = LeafLimit(50, 400)
    host.run(3.0)
    host.throttle.release()
    assert host.limits == {} and host.shown is None and host.rested


def test_metrics_say_who_asks_and_who_is_held() -> None:
    host = Host(ratio=5.0).run(8.0)
    host.limit = LeafLimit(50, 400)
    host.run(1.0)
    shown = {(name, labels): value for name, labels, value in host.throttle.samples()}
    assert shown["numa_ext_uplink_asks", ("eth0",)] == 1.0
    assert shown["numa_ext_uplink_leaf_limit_mbps", ("eth0",)] == 400.0
    assert shown["numa_ext_uplink_sent_mbps", ("eth0", "latency_critical")] == pytest.approx(40)
