# SPDX-License-Identifier: Apache-2.0
"""The scheduler's view of the fleet against the real Placement."""

import dataclasses
import logging
import math
import threading
import uuid

import pytest

from emulation.hosts import four_nodes
from placement_traits import names, shards
from placement_traits.client import PlacementClient
from placement_traits.errors import ServiceUnavailableError
from placement_traits.fleet import Amount
from placement_traits.names import GpuLink, NeighbourTrait
from placement_traits.offers import L3State
from placement_traits.reporter import Reporter
from placement_traits.snapshot import ViewState
from placement_traits.topology import Gpu
from placement_traits.tree import desired_tree
from placement_traits.view import FleetView, ViewSettings
from tests.support.faults import FaultyAdapter, lose_request
from tests.support.hosts import SETTINGS


def two_nodes(**changes):
    """Half of the lab's host, so that making a fleet takes little time."""
    lab = four_nodes()
    values = {
        "sockets": lab.sockets[:1],
        "nodes": lab.nodes[:2],
        "l3_domains": lab.l3_domains[:2],
        "cores": lab.cores[:4],
        "distances": ((10, 16), (16, 10)),
        "gpus": (Gpu("0000:05:00.0", 0), Gpu("0000:85:00.0", 1)),
    }
    return four_nodes(**(values | changes))


class Clock:
    """Seconds that pass only when told."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def fleet(empty_cloud):
    """Four hosts of ours and one without an agent::

    h0 … h3     VCPU 8, MEMORY_MB 8192
    ├─ :rdt     CUSTOM_RDT_CLOS 6
    ├─ :l3_0    NODE_0; CUSTOM_LLC_WAY 13, CUSTOM_MEMORY_BANDWIDTH_MBPS 10000
    ├─ :l3_1    NODE_1; the same
    ├─ :gpu-0000:05:00.0, :gpu-0000:85:00.0    NV2 between them
    └─ _0000:05:00.0                           nova's
    plain       nova's root alone
    """

    def write():
        roots = {f"h{number}": empty_cloud.compute(f"h{number}") for number in range(4)}
        for name, root in roots.items():
            empty_cloud.child(root, f"{name}_0000:05:00.0", "COMPUTE_MANAGED_PCI_DEVICE")
            report(empty_cloud, name)
        empty_cloud.compute("plain")
        return roots

    empty_cloud.roots = empty_cloud.once("four hosts of two nodes", write)
    empty_cloud.seen = FaultyAdapter(empty_cloud.adapter, lambda _m, _u: empty_cloud.fault)
    empty_cloud.fault = None
    empty_cloud.clock = Clock()
    empty_cloud.view = FleetView(
        empty_cloud.seen,
        ViewSettings(full_share=0.5, full_least=2),
        empty_cloud.clock,
        background=False,
    )
    return empty_cloud


def report(cloud, name, state=None, **changes):
    Reporter(cloud.client).sync(desired_tree(name, two_nodes(**changes), SETTINGS, state))


def test_nothing_of_ours_is_an_empty_fleet(empty_cloud):
    empty_cloud.compute("plain")
    view = FleetView(empty_cloud.adapter, background=False)
    view.refresh()
    snapshot = view.snapshot()
    assert (snapshot.hosts, snapshot.state) == ({}, ViewState.FRESH)


def test_a_complete_reading_takes_few_requests_and_shows_each_host(fleet):
    fleet.view.refresh()
    assert len(fleet.seen.log) <= 4
    snapshot = fleet.view.snapshot()
    assert set(snapshot.hosts) == set(fleet.roots.values())
    host = snapshot.host(fleet.roots["h3"])
    assert host.name == "h3"
    assert host.traits == desired_tree("h3", two_nodes(), SETTINGS).root_traits
    assert host.rdt.clos == Amount(6, 0)
    assert [domain.l3_id for domain in host.l3] == [0, 1]
    domain = host.l3[1]
    assert (domain.nodes, domain.socket, domain.chassis) == ((1,), 0, 0)
    assert (domain.ways, domain.bandwidth_mbps) == (Amount(13, 0), Amount(10_000, 0))
    assert domain.neighbourhood == Amount(1_000, 0)
    assert domain.neighbours == frozenset()
    assert [(gpu.address, gpu.node) for gpu in host.gpus] == [
        ("0000:05:00.0", 0),
        ("0000:85:00.0", 1),
    ]
    assert host.gpus[0].links == {"0000:85:00.0": GpuLink.NV2}
    assert [device.address for device in host.devices] == ["0000:05:00.0"]
    assert snapshot.host(str(uuid.uuid4())) is None


def test_an_unchanged_fleet_costs_one_request(fleet):
    fleet.view.refresh()
    before = fleet.view.snapshot()
    fleet.seen.log.clear()
    fleet.view.refresh()
    assert len(fleet.seen.log) == 1
    after = fleet.view.snapshot()
    assert after.version == before.version
    assert after.hosts == before.hosts


def test_only_changed_hosts_are_read_again(fleet):
    fleet.view.refresh()
    report(fleet, "h1", {1: L3State(frozenset({NeighbourTrait.DEVIL}), 2_000)})
    rdt, l3 = fleet.uuid("h2:rdt"), fleet.uuid("h2:l3_1")
    fleet.claim(
        str(uuid.uuid4()),
        allocations={rdt: {names.RDT_CLOS: 1}, l3: {names.LLC_WAY: 4}},
    )
    fleet.seen.log.clear()
    fleet.view.refresh()
    assert len(fleet.seen.log) == 3
    snapshot = fleet.view.snapshot()
    changed = snapshot.host(fleet.roots["h1"]).l3[1]
    assert changed.neighbours == {NeighbourTrait.DEVIL}
    assert changed.bandwidth_mbps == Amount(8_000, 0)
    taken = snapshot.host(fleet.roots["h2"])
    assert (taken.rdt.clos, taken.l3[1].ways) == (Amount(6, 1), Amount(13, 4))
    assert fleet.view.stats.trees_read == 2


def test_many_changes_are_one_complete_reading(fleet):
    fleet.view.refresh()
    for name in fleet.roots:
        report(fleet, name, {0: L3State(reserved_bandwidth_mbps=3_000)})
    fleet.seen.log.clear()
    fleet.view.refresh()
    assert len(fleet.seen.log) <= 5
    assert fleet.view.stats.full_reads == 2
    for root in fleet.roots.values():
        assert fleet.view.snapshot().host(root).l3[0].bandwidth_mbps.capacity == 7_000


def test_hosts_come_and_go(fleet):
    fleet.view.refresh()
    new = fleet.compute("h4")
    report(fleet, "h4")
    gone = fleet.roots["h0"]
    tree = fleet.client.get(f"/resource_providers?in_tree={gone}")["resource_providers"]
    for provider in sorted(tree, key=lambda provider: provider["uuid"] == gone):
        fleet.client.delete(f"/resource_providers/{provider['uuid']}")
    fleet.view.refresh()
    snapshot = fleet.view.snapshot()
    assert snapshot.host(new).name == "h4"
    assert snapshot.host(gone) is None
    assert len(snapshot.hosts) == 4


def test_the_first_host_of_a_fresh_cloud_is_seen_at_the_next_look(empty_cloud):
    """Placement does not know one trait of ours until an agent publishes."""
    clock = Clock()
    view = FleetView(empty_cloud.adapter, ViewSettings(), clock, background=False)
    empty_cloud.compute("h0")
    for _look in range(2):
        view.refresh()
        assert not view.snapshot().hosts
    Reporter(empty_cloud.client).sync(desired_tree("h0", two_nodes(), SETTINGS))
    clock.now += 1
    view.refresh()
    assert [host.name for host in view.snapshot().hosts.values()] == ["h0"]


def test_a_complete_reading_keeps_to_the_limit_of_placement(empty_cloud):
    """12 hosts, and ``[placement]max_allocation_candidates``: one by one they were 212 requests at a limit of 3."""
    roots = [empty_cloud.compute(f"h{number}") for number in range(12)]
    topology = two_nodes(gpus=(), gpu_links=())
    for number in range(12):
        Reporter(empty_cloud.client).sync(desired_tree(f"h{number}", topology, SETTINGS))
    empty_cloud.claim(str(uuid.uuid4()), allocations={roots[0]: {"MEMORY_MB": 8192}})
    seen = FaultyAdapter(empty_cloud.adapter, lambda _method, _url: None)
    for limit in (1, 3, 11, 12, 1000):
        empty_cloud.conf.set_override("max_allocation_candidates", limit, "placement")
        view = FleetView(seen, ViewSettings(full_interval_s=0.0), background=False)
        for _complete in range(2):
            seen.log.clear()
            view.refresh()
            assert len(view.snapshot().hosts) == 12
            assert all(len(host.l3) == 2 for host in view.snapshot().hosts.values())
            assert len(seen.log) <= 2 + 2 * math.ceil(12 / limit)


def test_a_lower_limit_than_before_is_found_out(fleet):
    for limit in (3, 2):
        fleet.conf.set_override("max_allocation_candidates", limit, "placement")
        fleet.clock.now += ViewSettings().full_interval_s
        fleet.view.refresh()
        assert len(fleet.view.snapshot().hosts) == 4
    fleet.seen.log.clear()
    fleet.clock.now += ViewSettings().full_interval_s
    fleet.view.refresh()
    assert len(fleet.seen.log) <= 2 + 2 * 2


def test_a_host_whose_agent_publishes_no_probe_is_read_alone_until_it_does(fleet):
    tree = desired_tree("h1", two_nodes(), SETTINGS)
    without = [
        dataclasses.replace(
            child,
            traits=child.traits - {*shards.all_traits()},
            inventories={name: i for name, i in child.inventories.items() if name != names.PROBE},
        )
        for child in tree.children
    ]
    Reporter(fleet.client).sync(dataclasses.replace(tree, children=tuple(without)))
    for _complete in range(2):
        fleet.seen.log.clear()
        fleet.view.refresh()
        assert fleet.view.snapshot().host(fleet.roots["h1"]).rdt.clos == Amount(6, 0)
        fleet.clock.now += ViewSettings().full_interval_s
    alone = len(fleet.seen.log)
    amounts = {}
    FleetView(fleet.adapter, background=False, root_amounts=amounts).refresh()
    assert amounts[fleet.roots["h1"]] == {"VCPU": Amount(8, 0), "MEMORY_MB": Amount(8192, 0)}
    report(fleet, "h1")
    for _complete in range(2):
        fleet.clock.now += 1
        fleet.view.refresh()
    fleet.clock.now += ViewSettings().full_interval_s
    fleet.seen.log.clear()
    fleet.view.refresh()
    assert len(fleet.seen.log) == 4 < alone


@pytest.mark.parametrize("complete", [True, False])
def test_a_host_that_is_full_is_seen_all_the_same(fleet, complete):
    if not complete:
        fleet.view.refresh()
    root = fleet.roots["h3"]
    fleet.claim(
        str(uuid.uuid4()),
        allocations={root: {"MEMORY_MB": 8192}, fleet.uuid("h3:l3_0"): {names.LLC_WAY: 13}},
    )
    fleet.seen.log.clear()
    fleet.view.refresh()
    assert len(fleet.seen.log) <= 4
    host = fleet.view.snapshot().host(root)
    assert host.l3[0].ways == Amount(13, 13)
    assert host.rdt.clos == Amount(6, 0)
    assert len(host.gpus) == 2
    assert [device.address for device in host.devices] == ["0000:05:00.0"]


def test_what_a_server_takes_of_roots_is_seen_at_once_by_who_asks_for_it(fleet):
    amounts = {}
    view = FleetView(fleet.seen, background=False, root_amounts=amounts)
    view.refresh()
    assert set(amounts) >= set(fleet.roots.values())
    root = fleet.roots["h2"]
    fleet.claim(str(uuid.uuid4()), allocations={root: {"VCPU": 3}})
    fleet.seen.log.clear()
    view.refresh()
    assert amounts[root] == {"VCPU": Amount(8, 3), "MEMORY_MB": Amount(8192, 0)}
    assert view.stats.trees_read == 1
    assert len(fleet.seen.log) == 3
    view.refresh()
    assert view.stats.trees_read == 1


def test_what_only_the_root_says_is_picked_up_by_the_next_complete_reading(fleet):
    fleet.view.refresh()
    settings = dataclasses.replace(SETTINGS, tiers=frozenset())
    Reporter(fleet.client).sync(desired_tree("h1", two_nodes(), settings))
    fleet.clock.now += ViewSettings().full_interval_s
    fleet.view.refresh()
    traits = fleet.view.snapshot().host(fleet.roots["h1"]).traits
    assert not traits & frozenset(names.TierTrait)


def test_a_new_host_that_was_seen_without_its_tiers_is_whole_with_the_next_comparison(fleet):
    """An agent writes the root last, and the root is not compared."""
    fleet.view.refresh()
    root = fleet.compute("h4")
    seen = []

    def look_before_the_root_is_written(method, url):
        if method == "PUT" and url.endswith(f"{root}/traits"):
            fleet.view.refresh()
            seen.append(fleet.view.snapshot().host(root).traits)

    client = PlacementClient(FaultyAdapter(fleet.adapter, look_before_the_root_is_written))
    Reporter(client).sync(desired_tree("h4", two_nodes(), SETTINGS))
    assert seen == [frozenset()]
    fleet.view.refresh()
    traits = fleet.view.snapshot().host(root).traits
    assert traits == desired_tree("h4", two_nodes(), SETTINGS).root_traits


def test_a_host_without_rdt_has_no_amounts_of_it(fleet):
    report(fleet, "h2", rdt=None)
    fleet.view.refresh()
    host = fleet.view.snapshot().host(fleet.roots["h2"])
    assert host.rdt is None
    assert host.l3[0].ways is None
    assert host.l3[0].bandwidth_mbps == Amount(10_000, 0)


def test_a_view_that_ages_says_so_once_and_recovers_once(fleet, caplog):
    caplog.set_level(logging.INFO, "placement_traits.view")
    assert fleet.view.snapshot().state is ViewState.EMPTY
    fleet.view.refresh()
    assert fleet.view.snapshot().state is ViewState.FRESH
    fleet.fault = lose_request
    for _ in range(3):
        fleet.clock.now += 20
        with pytest.raises(ServiceUnavailableError):
            fleet.view.refresh()
        last = fleet.view.snapshot()
    assert (last.state, last.age_s) == (ViewState.STALE, 60)
    assert len(last.hosts) == 4
    assert fleet.view.stats.failures == 3
    fleet.fault = None
    fleet.view.refresh()
    assert fleet.view.snapshot().state is ViewState.FRESH
    said = [each.message for each in caplog.records if each.name == "placement_traits.view"]
    assert said[0] == "The view of Placement is fresh: 4 hosts."
    assert said[1].startswith("The view of Placement is stale: 40.0 s old, allowed are 30.0 s.")
    assert "no route to Placement" in said[1]
    assert said[2:] == ["The view of Placement is fresh: 4 hosts."]


def test_the_background_thread_serves_the_first_caller_and_follows_changes(fleet):
    view = FleetView(fleet.adapter, ViewSettings(interval_s=0.01, wait_s=60))
    try:
        assert len(view.snapshot().hosts) == 4
        report(fleet, "h2", {0: L3State(frozenset({NeighbourTrait.BE}))})
        seen = threading.Event()
        for _ in range(6000):
            if view.snapshot().host(fleet.roots["h2"]).l3[0].neighbours:
                break
            seen.wait(0.01)
        assert view.snapshot().host(fleet.roots["h2"]).l3[0].neighbours == {NeighbourTrait.BE}
    finally:
        view.stop()


def test_a_caller_is_not_held_longer_than_the_bound_while_placement_hangs():
    hanging = threading.Event()

    class Hangs:
        def request(self, *_args, **_kwargs):
            hanging.wait()
            raise AssertionError("the test ends the wait by ending")

    view = FleetView(Hangs(), ViewSettings(wait_s=0.01))
    snapshot = view.snapshot()
    assert (snapshot.state, snapshot.hosts) == (ViewState.EMPTY, {})


def test_an_unforeseen_error_does_not_end_the_thread(caplog):
    calls = []
    enough = threading.Event()

    class Broken:
        def request(self, *_args, **_kwargs):
            calls.append(1)
            if len(calls) > 2:
                enough.set()
            raise RuntimeError("a bug")

    view = FleetView(Broken(), ViewSettings(interval_s=0.001, wait_s=0.001))
    view.snapshot()
    assert enough.wait(60)
    view.stop()
    assert "not foreseen" in caplog.text
    assert view.stats.failures >= 2


def test_a_host_with_nothing_below_its_root_is_not_in_the_view(empty_cloud):
    """Nothing of it could be asked for; the filter treats it as a host without an agent."""
    empty_cloud.compute("h0")
    report(empty_cloud, "h0", l3_domains=(), cores=(), rdt=None, gpus=(), gpu_links=())
    view = FleetView(empty_cloud.adapter, background=False)
    view.refresh()
    assert view.snapshot().hosts == {}


def test_devices_that_nova_or_the_operator_counts_are_found_by_their_place(empty_cloud):
    """A PCI device, the parent of vGPUs, and an accelerator that carries our traits itself."""
    root = empty_cloud.compute("h")
    empty_cloud.child(root, "h_0000:AF:00.0", "COMPUTE_MANAGED_PCI_DEVICE", CUSTOM_GPU=1)
    empty_cloud.child(root, "h_pci_0000_85_00_0", "OWNER_NOVA", VGPU=4)
    link = names.gpu_link(GpuLink.NV4, 0, 1)
    for number in range(2):
        place = (names.GPU, names.numbered("NODE", number), link)
        empty_cloud.child(root, f"h_fpga{number}", *place, CUSTOM_FPGA=1)
    gpus = (Gpu("0000:85:00.0", 1), Gpu("0000:af:00.0", 0))
    topology = two_nodes(gpus=gpus, gpu_links=())
    Reporter(empty_cloud.client).sync(desired_tree("h", topology, SETTINGS))
    view = FleetView(empty_cloud.adapter, background=False)
    view.refresh()
    host = view.snapshot().host(root)
    assert [(device.address, device.amount.free) for device in host.devices] == [
        ("0000:85:00.0", 4),
        ("0000:af:00.0", 1),
        ("fpga0", 1),
        ("fpga1", 1),
    ]
    assert [(gpu.address, gpu.node) for gpu in host.gpus] == [
        ("0000:85:00.0", 1),
        ("0000:af:00.0", 0),
        ("fpga0", 0),
        ("fpga1", 1),
    ]
    assert host.gpus[2].links == {"fpga1": GpuLink.NV4}
