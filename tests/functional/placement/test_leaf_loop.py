# SPDX-License-Identifier: Apache-2.0
"""Three hosts of a leaf, each with its throttle, and an engine, over the real Placement; their uplinks are arithmetic.

The leaf passes 1,000 Mbit/s upwards, and each of two hosts has a best-effort server that sends as much. A server of the
third waits behind them in the switch, and nothing on its own host is to blame.
"""

import pytest

from host_agent.conf.slo import BalmOptions
from host_agent.control.uplink_throttle import UplinkThrottle
from host_agent.decide.slo.shapes import Taken
from host_agent.decide.slo.uplink import Ceiling
from host_agent.report.leaf import LeafExchange
from nova_numa_ext.orchestrator.cloud.uplinks import LeafUplinks
from placement_traits import beats
from placement_traits.fabric_tree import FabricWriter
from placement_traits.names import Tier
from placement_traits.network_demand import DemandWriter, LeafReader
from tests.support.fabrics import fabric
from tests.support.uplink_host import UplinkHost, seen

UPLINK, SPEED, URGENT_MBPS = 1000, 1000, 100.0
STEP_S, LOOK_S = 1.0, 30.0
PLAN = fabric([3], leafs_per_pod=1, uplinks_mbps=(UPLINK,))
ASKS, *HOLD = PLAN.hosts


class AtOnce:
    """Background tasks in the thread that gives them."""

    def submit(self, function, *arguments):
        function(*arguments)
        return True


class Host(UplinkHost):
    """A host of the leaf.

    :param demand: what its best-effort server would send, Mbit/s
    :param has_urgent: a latency-critical server with an objective is there
    """

    def __init__(self, leaf, name, demand, *, has_urgent):
        super().__init__(SPEED, {"lc": Tier.LC, "be": Tier.BE})
        self._leaf, self.demand, self._has_urgent = leaf, demand, has_urgent
        client = leaf.connect()
        sides = (
            DemandWriter(client, name, leaf.clock),
            LeafReader(client, name, leaf.clock, leaf.clock),
        )
        self.throttle = UplinkThrottle(
            BalmOptions(),
            Ceiling(0.3),
            self,
            self.counted,
            self.report,
            leaf=LeafExchange(lambda: sides, AtOnce(), leaf.clock),
            protected=0.3,
        )
        self.throttle.watch({"lc": ("lc",), "be": ("be",)})

    @property
    def limits(self):
        return self.held.limits

    @property
    def best_effort(self):
        return min(self.demand, self.limits.get("eth0", SPEED))

    def step(self):
        urgent = URGENT_MBPS if self._has_urgent else 0.0
        rates = {"lc": urgent, "be": self.best_effort, "eth0": urgent + self.best_effort}
        self.send(rates, STEP_S)
        now = self._leaf.now_s
        if self._has_urgent:
            here = seen(self._leaf.ratio, ("be",))
            self.throttle.turn(here, Taken(), now, may_begin=True, acts=True)
        else:
            self.throttle.rest()
        self.throttle.follow(now)


class Leaf:
    """The leaf, its hosts and the engine, at a time that goes on by itself alone."""

    def __init__(self, cloud):
        self.connect = cloud.connect
        self.now_s = 1_790_000_000.0
        self.has_engine = True
        self.engine = LeafUplinks(cloud.connect(), 0.3, self.clock)
        self._looked_s = self.now_s
        self.hosts = [
            Host(self, ASKS, 0.0, has_urgent=True),
            *(Host(self, name, 1000.0, has_urgent=False) for name in HOLD),
        ]

    def clock(self):
        return self.now_s

    @property
    def best_effort(self):
        return sum(host.best_effort for host in self.hosts)

    @property
    def ratio(self):
        """Latency over objective."""
        return 5.0 if self.best_effort + URGENT_MBPS > UPLINK else 0.5

    def run(self, seconds):
        """Return the seconds in which the objective was violated."""
        violated = 0.0
        for _ in range(round(seconds / STEP_S)):
            self.now_s += STEP_S
            violated += STEP_S * (self.ratio > 1)
            for host in self.hosts:
                host.step()
            if self.has_engine and self.now_s >= self._looked_s + LOOK_S:
                self._looked_s = self.now_s
                self.engine.look(lambda: None)
        return violated


@pytest.fixture
def leaf(empty_cloud):
    """Nova's providers of three hosts with beats, and their fabric::

    net:train
    └─ net:train:p00
       └─ net:train:l000      LEAF_UPLINK_MBPS 1000: l000-00, l000-01, l000-02
    """

    def made():
        for host in PLAN.hosts:
            empty_cloud.compute(host)
            beats.BeatWriter(empty_cloud.client, host).beat()
        FabricWriter(empty_cloud.client).apply(PLAN)

    empty_cloud.once("a leaf of three hosts with agents", made)
    return Leaf(empty_cloud)


def test_others_of_the_leaf_slow_down_within_two_minutes_and_no_further_than_needed(leaf) -> None:
    assert 30.0 <= leaf.run(120.0) <= 110.0
    assert leaf.ratio < 1
    assert 0.85 * (UPLINK - URGENT_MBPS) <= leaf.best_effort <= UPLINK - URGENT_MBPS
    assert leaf.hosts[1].limits == leaf.hosts[2].limits == {"eth0": 437}, "875 in equal parts"


@pytest.mark.long
def test_a_lasting_need_is_tried_ever_more_rarely(leaf) -> None:
    """Whether room is needed is seen where it is taken back, and that costs the one who needs it a minute."""
    leaf.run(120.0)
    hours = [leaf.run(1800.0) for _ in range(3)]
    assert 0.0 < hours[0] <= 500.0
    assert hours[2] <= 120.0


@pytest.mark.long
def test_all_is_let_go_when_the_server_that_waits_is_gone(leaf) -> None:
    leaf.run(120.0)
    leaf.hosts[0].step = lambda: None  # with its host
    leaf.run(660.0)
    assert leaf.best_effort == 2 * 1000.0


def test_all_is_let_go_when_the_engine_is_gone(leaf) -> None:
    leaf.run(120.0)
    leaf.has_engine = False
    leaf.run(300.0)
    assert leaf.best_effort == 2 * 1000.0


def test_without_an_engine_no_host_is_slowed(leaf) -> None:
    leaf.has_engine = False
    assert leaf.run(300.0) == 300.0
    assert leaf.best_effort == 2 * 1000.0
