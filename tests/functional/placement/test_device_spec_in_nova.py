# SPDX-License-Identifier: Apache-2.0
"""The ``device_spec`` lines that we print, through nova's own code into a real Placement and back.

Real are nova's parser of the option, its PCI view (``pci_placement_translator``), its ProviderTree and its report
client: what nova-compute's resource tracker runs at each periodic update. Made by the test is the list of devices,
which nova reads from libvirt and keeps in its database.
"""

import json
from types import SimpleNamespace

import pytest
from keystoneauth1.adapter import Adapter
from nova import conf as nova_conf
from nova import context as nova_context
from nova import objects
from nova.compute import pci_placement_translator as translator
from nova.pci import devspec, whitelist
from nova.scheduler.client import report

from emulation.hosts import four_nodes
from placement_traits import names, presets
from placement_traits.device_spec import device_spec_lines
from placement_traits.offers import publish, publishable
from placement_traits.reader import read_tree
from placement_traits.reporter import Reporter
from placement_traits.tree import desired_tree, from_tree, gpu_edges, gpu_place
from tests.support.hosts import SETTINGS

VENDOR, PRODUCT = "10de", "20b0"
PRESETS = {name: presets.load(name).topology for name in presets.available()}
WITH_GPUS = sorted(name for name, topology in PRESETS.items() if topology.gpus)


class Compute:
    """nova-compute's resource tracker as far as PCI in Placement goes; a new one is a restarted nova-compute."""

    def __init__(self, cloud, name, topology):
        objects.register_all()
        self._adapter = Adapter(cloud.adapter.session, service_type="placement", raise_exc=False)
        self._name, self._root = name, cloud.uuid(name)
        lines = device_spec_lines(topology, "CUSTOM_GPU")
        specs = [line.removeprefix("device_spec = ") for line in lines]
        self._tracker = SimpleNamespace(
            dev_filter=whitelist.Whitelist(specs),
            pci_devs=[_device(gpu.address) for gpu in topology.gpus],
            stats=SimpleNamespace(populate_pools_metadata_from_assigned_devices=lambda: None),
        )
        self.restart()

    def restart(self):
        """Forget everything that nova-compute keeps in memory."""
        self._client = report.SchedulerReportClient(adapter=self._adapter)

    def update(self):
        """One periodic update (ResourceTracker._update_to_placement)."""
        context = nova_context.RequestContext("nova", "service", is_admin=True)
        tree = self._client.get_provider_tree_and_ensure_root(context, self._root, name=self._name)
        allocations = self._client.get_allocations_for_provider_tree(context, self._name)
        translator.update_provider_tree_for_pci(tree, self._name, self._tracker, allocations, [])
        self._client.update_from_provider_tree(context, tree)


def _device(address):
    return objects.PciDevice(
        address=address,
        vendor_id=VENDOR,
        product_id=PRODUCT,
        dev_type="type-PCI",
        status="available",
        instance_uuid=None,
        parent_addr=None,
        extra_info={},
    )


def gpu_traits_in(cloud, name):
    """Our traits of nova's own PCI providers, by PCI address."""
    root = cloud.uuid(name)
    found = cloud.client.get(f"/resource_providers?in_tree={root}")["resource_providers"]
    return {
        provider["name"].removeprefix(f"{name}_").lower(): {
            trait
            for trait in cloud.client.get(f"/resource_providers/{provider['uuid']}/traits")[
                "traits"
            ]
            if names.is_ours(trait)
        }
        for provider in found
        if provider["name"].startswith(f"{name}_")
    }


@pytest.fixture(autouse=True)
def pci_in_placement():
    """``[pci]report_in_placement = true``."""
    nova_conf.CONF.set_override("report_in_placement", True, "pci")
    yield
    nova_conf.CONF.clear_override("report_in_placement", "pci")


def test_nova_accepts_the_lines():
    """Nova's own parser of the option reads them and finds the device."""
    line = next(device_spec_lines(four_nodes(), "CUSTOM_GPU"))
    spec = devspec.PciDeviceSpec(json.loads(line.removeprefix("device_spec = ")))
    device = {
        "address": "0000:05:00.0",
        "vendor_id": VENDOR,
        "product_id": PRODUCT,
        "dev_type": "type-PCI",
    }
    assert spec.match(device)
    assert spec.get_tags()["resource_class"] == "CUSTOM_GPU"


@pytest.mark.parametrize("preset", WITH_GPUS)
def test_links_come_back_from_novas_own_providers(one_compute, preset):
    """Issue 3: exact round trip tree -> Placement -> topology, by ``traits=`` of ``[pci]device_spec`` lines."""
    topology = PRESETS[preset]
    Compute(one_compute, "h1", topology).update()
    traits = gpu_traits_in(one_compute, "h1")
    assert gpu_edges(traits) == publishable(topology).gpu_links
    places = {address: gpu_place(held) for address, held in traits.items()}
    assert places == {gpu.address: (gpu.node, gpu.switch) for gpu in topology.gpus}


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_preset_comes_back_exactly_from_our_own_providers(one_compute, preset):
    topology = PRESETS[preset]
    Reporter(one_compute.client).sync(desired_tree("h1", topology, SETTINGS))
    found = from_tree(read_tree(one_compute.client, "h1"))
    assert found == publish(topology, SETTINGS)
    assert found.topology == publishable(topology)


def test_novas_periodic_update_and_restart_leave_ours_and_ours_leaves_novas(one_compute):
    """Issue 3: survives nova-compute's periodic update and restart; the whole tree stays as it is."""
    topology = four_nodes()
    tree = desired_tree("h1", topology, SETTINGS)
    reporter = Reporter(one_compute.client)
    compute = Compute(one_compute, "h1", topology)
    compute.update()
    reporter.sync(tree)
    compute.update()
    before = one_compute.everything()
    assert before["h1_0000:05:00.0"][1] >= {
        "COMPUTE_MANAGED_PCI_DEVICE",
        "CUSTOM_GPU_LINK_NV2_0_1",
        "CUSTOM_NUMA_EXT_NODE_0",
    }
    for _ in range(2):
        compute.update()
        compute.restart()
        assert reporter.sync(tree).writes == 0
    compute.update()
    assert one_compute.everything() == before


def test_a_flavor_can_ask_for_two_gpus_with_a_link_between_them(one_compute):
    """On a DGX-1: a link's trait is held by its two ends, so two groups with it are exactly that pair."""
    topology = PRESETS["dgx-1"]
    Compute(one_compute, "h1", topology).update()
    edge = next(e for e in topology.gpu_links if e.link is names.GpuLink.NV1)
    position = {gpu.address: i for i, gpu in enumerate(topology.gpus)}
    trait = names.gpu_link(edge.link, position[edge.a], position[edge.b])
    query = f"resources1=CUSTOM_GPU:1&required1={trait}&resources2=CUSTOM_GPU:1&required2={trait}"
    body = one_compute.client.get(f"/allocation_candidates?{query}&group_policy=isolate")
    found = {
        frozenset(
            one_compute.client.get(f"/resource_providers/{rp}")["name"] for rp in one["allocations"]
        )
        for one in body["allocation_requests"]
    }
    assert found == {frozenset({f"h1_{edge.a.upper()}", f"h1_{edge.b.upper()}"})}
