# SPDX-License-Identifier: Apache-2.0
"""Hosts of a leaf say what they send, the engine says on the leaf what they may: over the real Placement."""

import pytest

from nova_numa_ext.orchestrator.cloud.uplinks import LeafUplinks
from placement_traits import beats, names, network_demand, removal
from placement_traits.client import PlacementError
from placement_traits.errors import ConflictError
from placement_traits.fabric_tree import FabricWriter
from placement_traits.leaf_limits import LeafLimit, NetworkDemand
from placement_traits.leaf_neighbours import neighbours
from placement_traits.network_demand import DemandWriter, LeafReader
from tests.support.fabrics import fabric

UPLINK = 10_000
PLAN = fabric([3, 3, 2], leafs_per_pod=2, uplinks_mbps=(UPLINK, UPLINK, None))
LC, BE1, BE2 = "l000-00", "l000-01", "l000-02"
ELSEWHERE = "l001-00"
UNKNOWN = "l002-00"
MOST_KEPT = 0.3
KEPT = 3000


@pytest.fixture
def leafs(empty_cloud):
    """Nova's providers of eight hosts, each with a beat, and their fabric::

    net:train
    ├─ net:train:p00
    │  ├─ net:train:l000      LEAF_UPLINK_MBPS 10000: l000-00, l000-01, l000-02
    │  └─ net:train:l001      LEAF_UPLINK_MBPS 10000: l001-00, l001-01, l001-02
    └─ net:train:p01
       └─ net:train:l002      uplinks not known: l002-00, l002-01
    """
    cloud = empty_cloud

    def made():
        for host in PLAN.hosts:
            cloud.compute(host)
            beats.BeatWriter(cloud.client, host).beat()
        FabricWriter(cloud.client).apply(PLAN)

    cloud.once("a fabric whose hosts have agents", made)
    return Leafs(cloud)


class Leafs:
    """Agents of the hosts and an engine, at a time that goes on by itself alone."""

    def __init__(self, cloud):
        self.client = cloud.client
        self.now_s = 1_790_000_000.0
        self.writes = 0
        self.engine = self.new_engine()
        self._writers = {}
        self._readers = {}

    def clock(self):
        return self.now_s

    def new_engine(self, may=None):
        self._may = may or self._count
        return LeafUplinks(self.client, MOST_KEPT, self.clock)

    def _count(self):
        self.writes += 1

    def say(self, host, **demand):
        writer = self._writers.setdefault(host, DemandWriter(self.client, host, self.clock))
        writer.write(NetworkDemand(**demand))

    def withdraw(self, host):
        self._writers[host].withdraw()

    def look(self, seconds=30.0):
        self.now_s += seconds
        return self.engine.look(self._may)

    def limit(self, host):
        reader = self._readers.setdefault(
            host, LeafReader(self.client, host, self.clock, self.clock)
        )
        return reader.read()

    def inventories(self, leaf="l000"):
        found = self.client.provider_named(f"net:train:{leaf}")
        body = self.client.get(f"/resource_providers/{found['uuid']}/inventories")["inventories"]
        return {
            key.removeprefix(names.TRAIT_PREFIX): (each["total"], each["reserved"])
            for key, each in body.items()
        }


def test_nobody_is_limited_before_anyone_asks(leafs) -> None:
    before = leafs.client.counters.requests
    assert leafs.look() == 0
    assert leafs.client.counters.requests - before == 2
    leafs.say(BE1, best_effort=9000)
    leafs.say(BE2, best_effort=9000)
    assert leafs.look() == 0
    assert leafs.limit(LC) is leafs.limit(BE1) is None
    assert leafs.inventories()["LEAF_UPLINK_MBPS"] == (UPLINK, 0)


def test_what_is_asked_for_is_kept_and_the_rest_divided(leafs) -> None:
    """Design 7.3: the common figure of several hosts stands on the leaf, reserved for latency-critical servers."""
    leafs.say(LC, latency_critical=1200, asked=1000)
    leafs.say(BE1, best_effort=9000)
    leafs.say(BE2, best_effort=6000)
    leafs.say(ELSEWHERE, best_effort=9000)
    assert leafs.look() == 1
    assert leafs.limit(BE1) == leafs.limit(BE2) == LeafLimit(1000, 4500)
    assert leafs.limit(ELSEWHERE) is None, "another leaf"
    assert leafs.inventories()["LEAF_UPLINK_MBPS"] == (UPLINK, 1000)


def test_a_host_that_sends_little_leaves_its_part_to_others(leafs) -> None:
    leafs.say(LC, latency_critical=1000, asked=1000)
    leafs.say(BE1, best_effort=9000)
    leafs.say(BE2, best_effort=2000)
    leafs.look()
    assert leafs.limit(BE1) == LeafLimit(1000, 7000)
    leafs.say(BE1, best_effort=7000)
    leafs.say(BE2, best_effort=2000)
    leafs.look()
    assert leafs.limit(BE1) == LeafLimit(1000, 7000), "who is at the limit would send more"


def test_it_grows_step_by_step_when_nobody_asks_any_more(leafs) -> None:
    leafs.say(LC, latency_critical=1000, asked=1000)
    leafs.say(BE1, best_effort=9000)
    leafs.say(BE2, best_effort=9000)
    leafs.look()
    leafs.withdraw(LC)
    seen = []
    while (found := leafs.limit(BE1)) and len(seen) < 20:
        seen.append(found.best_effort)
        leafs.look()
    assert seen == [4500, 5626, 7033, 8792]
    assert leafs.limit(BE1) is None
    assert "LEAF_BE_MBPS" not in leafs.inventories()
    assert leafs.inventories()["LEAF_UPLINK_MBPS"] == (UPLINK, 0)


def test_a_liar_gets_the_share_and_takes_no_more_than_an_equal_part(leafs) -> None:
    leafs.say(LC, latency_critical=10**9, asked=10**9)
    leafs.say(BE1, best_effort=10**9)
    leafs.say(BE2, best_effort=9000)
    leafs.look()
    assert leafs.limit(BE2) == LeafLimit(KEPT, (UPLINK - KEPT) // 2)


def test_liars_on_every_host_keep_no_more_than_one(leafs) -> None:
    for host in (LC, BE1, BE2):
        leafs.say(host, latency_critical=10**9, best_effort=10**9, asked=10**9)
    leafs.look()
    assert leafs.limit(BE2) == LeafLimit(KEPT, (UPLINK - KEPT) // 3)


def test_another_provider_speaks_for_no_host(leafs) -> None:
    """Whoever can write to Placement says it of a host on the leaf, or of nobody."""
    leafs.say(BE1, best_effort=9000)
    leafs.say(LC)
    path = "/resource_providers"
    fake = "00000000-0000-4000-8000-000000000001"
    leafs.client.post(path, {"name": "network:made-up", "uuid": fake})
    body = {
        "resource_provider_generation": 0,
        "inventories": {
            names.NET_MINUTE: {"total": int(leafs.now_s // 60)},
            names.NET_LC_MBPS: {"total": 1000, "reserved": 1000},
        },
    }
    leafs.client.put(f"{path}/{fake}/inventories", body)
    assert "made-up" not in network_demand.demands(leafs.client, leafs.clock)
    assert leafs.look() == 0


@pytest.mark.parametrize("minutes", [4, -4])
def test_what_was_said_long_ago_or_by_a_clock_ahead_is_of_no_account(leafs, minutes) -> None:
    leafs.say(LC, latency_critical=1000, asked=1000)
    leafs.say(BE1, best_effort=9000)
    leafs.now_s += 60 * minutes
    assert leafs.look(0.0) == 0
    assert leafs.limit(BE1) is None


def test_a_limit_whose_engine_is_gone_lapses(leafs) -> None:
    leafs.say(LC, latency_critical=1000, asked=1000)
    leafs.look()
    assert leafs.limit(BE1) is not None
    leafs.now_s += 60 * 5
    assert leafs.limit(BE1) is None
    leafs.engine = leafs.new_engine()
    assert leafs.look() == 1, "the next engine takes it off, and does not go on from it"
    assert "LEAF_BE_MBPS" not in leafs.inventories()


def test_another_leader_goes_on_with_what_stands_there(leafs) -> None:
    leafs.say(LC, latency_critical=1000, asked=1000)
    leafs.look()
    leafs.engine = leafs.new_engine()
    leafs.withdraw(LC)
    leafs.look()
    assert leafs.limit(BE1) is None, "best-effort servers of one host had all that was left"


class NoLeaderError(Exception):
    pass


def test_who_does_not_lead_any_more_writes_nothing(leafs) -> None:
    def may():
        raise NoLeaderError

    leafs.say(LC, latency_critical=1000, asked=1000)
    leafs.new_engine(may)
    with pytest.raises(NoLeaderError):
        leafs.look()
    assert "LEAF_BE_MBPS" not in leafs.inventories()


def test_a_leaf_whose_uplinks_are_not_known_is_left_alone(leafs) -> None:
    leafs.say(UNKNOWN, latency_critical=1000, asked=1000)
    assert leafs.look() == 0
    assert leafs.limit(UNKNOWN) is None


def test_plans_and_drained_leafs_keep_what_is_said(leafs) -> None:
    leafs.say(LC, latency_critical=1000, asked=1000)
    leafs.look()
    before = leafs.inventories()
    writer = FabricWriter(leafs.client)
    assert not writer.apply(PLAN).done
    assert leafs.inventories() == before
    assert writer.drain("train", "l000", on=True)
    assert not writer.drain("train", "l000", on=True)
    assert leafs.inventories()["LEAF_UPLINK_MBPS"] == (UPLINK, 1000)
    assert writer.drain("train", "l000", on=False)
    assert leafs.inventories() == before
    leafs.withdraw(LC)
    leafs.look()
    assert leafs.inventories()["LEAF_UPLINK_MBPS"] == (UPLINK, 0)


def test_a_plan_without_the_uplinks_ends_it(leafs) -> None:
    leafs.say(LC, latency_critical=1000, asked=1000)
    leafs.look()
    FabricWriter(leafs.client).apply(fabric([3, 3, 2], leafs_per_pod=2))
    assert not any("MBPS" in key or "MINUTE" in key for key in leafs.inventories())
    assert leafs.limit(BE1) is None
    assert leafs.look() == 0


def test_a_write_that_another_overtakes_is_done_by_the_next_look(leafs, monkeypatch) -> None:
    leafs.say(LC, latency_critical=1000, asked=1000)

    def overtaken():
        leafs.writes += 1
        if leafs.writes == 1:
            FabricWriter(leafs.client).drain("train", "l000", on=True)

    leafs.new_engine(overtaken)
    assert leafs.look() == 0
    assert leafs.look() == 1
    assert leafs.limit(BE1).kept == 1000


def test_an_agent_writes_over_what_others_made_of_its_words(leafs) -> None:
    leafs.say(LC, latency_critical=5)
    another = DemandWriter(leafs.client, LC, leafs.clock)
    another.write(NetworkDemand(latency_critical=6))
    leafs.say(LC, latency_critical=7)
    assert network_demand.demands(leafs.client, leafs.clock) == {LC: NetworkDemand(7)}
    before = leafs.client.counters.requests
    leafs.say(LC, latency_critical=8)
    assert leafs.client.counters.requests - before == 1
    network_demand.remove(leafs.client, LC)
    leafs.say(LC, latency_critical=9)
    assert network_demand.demands(leafs.client, leafs.clock) == {LC: NetworkDemand(9)}


def test_without_a_beat_nothing_is_said(leafs) -> None:
    network_demand.remove(leafs.client, BE2)
    beats.remove(leafs.client, BE2)
    with pytest.raises((PlacementError, ConflictError)):
        leafs.say(BE2, best_effort=1)


def test_a_host_that_is_taken_out_leaves_nothing(leafs) -> None:
    leafs.say(LC, latency_critical=5)
    removal.remove(leafs.client, LC)
    name = network_demand.provider(LC)
    assert leafs.client.provider_named(name) is None
    assert leafs.client.provider_named(beats.provider(LC)) is None


def test_neighbours_are_those_of_the_leaf_and_of_the_pod(leafs) -> None:
    found = neighbours(leafs.client, LC)
    assert found.leaf == {LC, BE1, BE2}
    assert found.pod == {host for host, leaf in PLAN.hosts.items() if leaf in {"l000", "l001"}}
    assert neighbours(leafs.client, UNKNOWN).pod == {"l002-00", "l002-01"}
    FabricWriter(leafs.client).remove("train")
    assert neighbours(leafs.client, LC) is None
