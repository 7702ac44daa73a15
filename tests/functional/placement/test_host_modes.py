# SPDX-License-Identifier: Apache-2.0
"""Modes of hosts in the real Placement: what it costs; agents and operators leave what is not theirs."""

from types import SimpleNamespace

from emulation.hosts import four_nodes
from host_agent.conf.options import Options
from host_agent.control.rollout import Rollout
from host_agent.model.assignment import Observation
from host_agent.model.round import Round
from host_agent.report.metrics import Metrics
from host_agent.report.publisher import Publisher
from nova_numa_ext.cli import modes
from placement_traits import host_modes, names
from placement_traits.host_modes import HostModes
from placement_traits.names import ObserveTrait, TierTrait
from placement_traits.reporter import Reporter
from tests.support.placement_side import GivenPlacement

H1 = "h1"


def prepared(client):
    """The operators' end."""
    setter = HostModes(client)
    setter.prepare()
    return setter


def turn(cloud, *, observe):
    """Let an operator set the host's mode."""
    setter = prepared(cloud.connect())
    return setter.set(setter.root(H1), observe=observe)


def root_traits(cloud):
    return set(cloud.client.get(f"/resource_providers/{cloud.root}/traits")["traits"])


def test_an_agent_sees_the_mode_in_what_it_reads_anyway(reported_compute):
    """One request a pass while no mode changes, as before; one more in the pass after it."""
    cloud = reported_compute
    passes = [cloud.reporter.sync(cloud.tree)]
    assert turn(cloud, observe=True)
    passes += [cloud.reporter.sync(cloud.tree) for _ in range(2)]
    assert turn(cloud, observe=False)
    passes += [cloud.reporter.sync(cloud.tree) for _ in range(2)]
    assert [one.requests for one in passes] == [1, 2, 1, 2, 1]
    assert [one.writes for one in passes] == [0] * 5, "it is the operators'"
    seen = [host_modes.observes_only(one.root_traits) for one in passes]
    assert seen == [False, True, True, False, False]


def test_withdrawing_tiers_leaves_the_mode(reported_compute):
    cloud = reported_compute
    turn(cloud, observe=True)
    withdrawn = Reporter(cloud.connect()).withdraw_tiers(H1)
    assert host_modes.observes_only(root_traits(cloud))
    assert root_traits(cloud).isdisjoint(TierTrait)
    assert host_modes.observes_only(withdrawn.root_traits)
    assert Reporter(cloud.connect()).withdraw_tiers(H1).writes == 0
    cloud.reporter.sync(cloud.tree)
    assert {*TierTrait, names.MODE_OBSERVE} <= root_traits(cloud)


def test_an_agent_leaves_the_leaf_of_its_host(reported_compute):
    """Until the host is removed: then nothing of ours stays."""
    cloud = reported_compute
    fabrics = {names.leaf_trait("train", "l1"), names.MISCABLED, names.LANES}
    cloud.traits(cloud.root, *fabrics)
    cloud.reporter.sync(cloud.tree)
    Reporter(cloud.connect()).withdraw_tiers(H1)
    assert fabrics <= root_traits(cloud)
    Reporter(cloud.connect()).remove(H1)
    assert root_traits(cloud) == {"HW_CPU_X86_AVX2"}


def test_a_mode_set_while_the_agent_writes_loses_nothing(reported_compute, monkeypatch):
    cloud = reported_compute
    client = cloud.connect()
    setter, put = prepared(client), client.put
    once = iter([lambda: cloud.traits(cloud.root, "CUSTOM_SITE_RACK_7")])

    def late(path, body=None):
        if path.endswith(f"{cloud.root}/traits"):
            next(once, lambda: None)()
        return put(path, body)

    monkeypatch.setattr(client, "put", late)
    assert setter.set(setter.root(H1), observe=True)
    assert {"CUSTOM_SITE_RACK_7", "HW_CPU_X86_AVX2", names.MODE_OBSERVE, names.HOST} <= root_traits(
        cloud
    )


def test_setting_it_again_writes_nothing_and_the_fleet_is_asked_once(reported_compute):
    cloud = reported_compute
    cloud.compute("without-agent")
    setter = prepared(cloud.connect())
    assert [root.name for root in setter.to_change(observe=True)] == [H1]
    assert setter.to_change(observe=False) == []
    assert turn(cloud, observe=True)
    assert not turn(cloud, observe=True)
    assert setter.to_change(observe=True) == []
    assert [root.name for root in setter.to_change(observe=False)] == [H1]


def test_an_agent_obeys_publishes_it_and_remembers_it(one_compute, tmp_path):
    """Also one that starts for the first time: it does nothing before it has read the mode."""
    cloud, woken = one_compute, []
    turn(cloud, observe=True)

    def agent():
        rollout = Rollout(
            Options(),
            follows_placement=True,
            file=tmp_path / "rollout.json",
            wake=lambda: woken.append(1),
        )
        publisher = Publisher(
            Options(),
            GivenPlacement(Reporter(cloud.connect()), H1),
            Metrics(),
            follower=rollout,
        )
        return rollout, publisher

    def one_round():
        done = Round(Observation(four_nodes()), modes=rollout.modes)
        publisher.on_round(done)
        rollout.on_round(done)
        return {feature.name for feature in done.modes.observed}

    rollout, publisher = agent()
    assert not rollout.mode_known
    assert len(one_round()) == 4
    assert names.HOST not in root_traits(cloud)
    late = Round(Observation(four_nodes()), modes=rollout.modes)
    turn(cloud, observe=False)
    assert publisher.look()
    publisher.on_round(late)
    assert not publisher.publish_once(), "it began before the mode was known"
    turn(cloud, observe=True)
    one_round()
    publisher.publish_once()
    one_round()
    assert publisher.publish_once()
    assert {*ObserveTrait, TierTrait.BE} <= root_traits(cloud)
    assert TierTrait.LC not in root_traits(cloud)

    rollout, _ = agent()
    assert rollout.mode_known
    assert len(rollout.modes.observed) == 4

    turn(cloud, observe=False)
    rollout, publisher = agent()
    one_round()
    before = len(woken)
    assert publisher.publish_once()
    assert len(woken) == before + 1, "the next round comes now"
    assert one_round() == set()
    assert publisher.publish_once()
    assert {*TierTrait} <= root_traits(cloud)
    assert root_traits(cloud).isdisjoint(ObserveTrait)


def test_several_writers_set_the_modes_of_a_fleet(empty_cloud):
    hosts = [SimpleNamespace(name=f"h{n}", uuid=empty_cloud.compute(f"h{n}")) for n in range(20)]
    gone = SimpleNamespace(name="gone", uuid="11111111-1111-1111-1111-111111111111")
    prepared(empty_cloud.connect())
    clients = []

    def connect():
        clients.append(empty_cloud.connect())
        return clients[-1]

    said = dict(modes.set_all(connect, [*hosts, gone], observe=True))
    assert {said[host.name] for host in hosts} == {"set"}
    assert "11111111" in said["gone"]
    assert sorted(client.counters.requests for client in clients) == [1, *[2] * len(hosts)]
