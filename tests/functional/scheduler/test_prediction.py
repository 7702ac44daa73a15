# SPDX-License-Identifier: Apache-2.0
"""Our restatement of nova's cell choice against nova's own function, over random hosts and guests."""

import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nova import objects
from nova.conf import CONF
from nova.pci import stats as pci_stats
from nova.virt import hardware

from nova_numa_ext.policy.numa import cells
from nova_numa_ext.scheduler import nova_objects as facts

THREAD_POLICIES = (None, "prefer", "isolate", "require")


@pytest.fixture(autouse=True, scope="module")
def nova_objects():
    objects.register_all()
    logging.getLogger("nova.virt.hardware").setLevel(logging.ERROR)


@st.composite
def host_cell(draw, number, threads):
    """A cell of up to 4 cores whose CPUs are dedicated, shared, or (legacy) both."""
    cpus = set(range(number * 16, number * 16 + threads * draw(st.integers(1, 4))))
    kind = draw(st.sampled_from(["dedicated", "shared", "legacy", "split"]))
    half = {cpu for cpu in cpus if cpu % (2 * threads) < threads}
    dedicated = {"dedicated": cpus, "shared": set(), "legacy": cpus, "split": half}[kind]
    shared = {"dedicated": set(), "shared": cpus, "legacy": cpus, "split": cpus - half}[kind]
    pinned = (
        set(draw(st.lists(st.sampled_from(sorted(dedicated)), unique=True))) if dedicated else set()
    )
    memory = draw(st.integers(1, 4)) * 1024
    pages = []
    if draw(st.booleans()):
        pages.append(
            objects.NUMAPagesTopology(
                size_kb=4, total=memory * 256, used=draw(st.integers(0, memory)) * 128, reserved=0
            )
        )
        if draw(st.booleans()):
            pages.append(
                objects.NUMAPagesTopology(
                    size_kb=2048,
                    total=512,
                    used=draw(st.integers(0, 512)),
                    reserved=draw(st.integers(0, 64)),
                )
            )
    first = min(cpus)
    return objects.NUMACell(
        id=number,
        socket=number // 2,
        cpuset=shared,
        pcpuset=dedicated,
        memory=memory,
        memory_usage=draw(st.sampled_from([0, 512, 1024, memory])),
        cpu_usage=draw(st.integers(0, 6)),
        pinned_cpus=pinned,
        siblings=[
            set(range(core, core + threads)) for core in range(first, first + len(cpus), threads)
        ],
        mempages=pages,
        network_metadata=objects.NetworkMetadata(physnets=set(), tunneled=False),
    )


@st.composite
def guest_topology(draw):
    policy = draw(st.sampled_from([None, "shared", "dedicated", "mixed"]))
    thread_policy = (
        draw(st.sampled_from(THREAD_POLICIES)) if policy in ("dedicated", "mixed") else None
    )
    page_size = draw(st.sampled_from([None, None, 4, 2048, 1048576, -1, -2, -3]))
    guest, cpu = [], 0
    for number in range(draw(st.integers(1, 3))):
        shared = draw(st.integers(1, 4)) if policy != "dedicated" else 0
        pinned = (
            draw(st.integers(0 if policy == "mixed" else 1, 4))
            if policy in ("dedicated", "mixed")
            else 0
        )
        guest.append(
            objects.InstanceNUMACell(
                id=number,
                cpuset=set(range(cpu, cpu + shared)),
                pcpuset=set(range(cpu + shared, cpu + shared + pinned)),
                memory=draw(st.sampled_from([256, 512, 1000, 1024, 2048])),
                cpu_policy=policy,
                cpu_thread_policy=thread_policy,
                pagesize=page_size,
            )
        )
        cpu += shared + pinned
    emulator = draw(st.sampled_from([None, "isolate", "share"])) if policy == "dedicated" else None
    return objects.InstanceNUMATopology(cells=guest, emulator_threads_policy=emulator)


@st.composite
def situation(draw):
    threads = draw(st.sampled_from([1, 2]))
    count = draw(st.integers(1, 4))
    host = objects.NUMATopology(cells=[draw(host_cell(number, threads)) for number in range(count)])
    ratio = st.sampled_from([1.0, 1.5, 4.0])
    limits = objects.NUMATopologyLimits(
        cpu_allocation_ratio=draw(ratio), ram_allocation_ratio=draw(ratio)
    )
    devices = draw(st.lists(st.sampled_from([None, *range(count)]), max_size=3))
    return host, draw(guest_topology()), limits, devices, draw(st.booleans())


def pools(devices):
    return objects.PciDevicePoolList(
        objects=[
            objects.PciDevicePool(
                vendor_id="8086",
                product_id=f"{n:04x}",
                numa_node=node,
                count=n + 1,
                tags={"dev_type": "type-PCI"},
            )
            for n, node in enumerate(devices)
        ]
    )


class Spec:
    """The part of a RequestSpec that says what the guest's cells are."""

    def __init__(self, topology):
        self.numa_topology = topology

    def __contains__(self, name):
        return name == "numa_topology"


class Host:
    """The part of a HostState that says what the host's cells are."""

    def __init__(self, topology, limits, stats):
        self.numa_topology = topology
        self.cpu_allocation_ratio = limits.cpu_allocation_ratio
        self.ram_allocation_ratio = limits.ram_allocation_ratio
        self.pci_stats = stats


@settings(max_examples=1500, deadline=None)
@given(situation())
def test_the_same_cells_as_nova_compute_would_pick(case):
    topology, guest, limits, devices, pack = case
    stats = pci_stats.PciDeviceStats(topology, stats=pools(devices))
    host = Host(topology, limits, stats)
    known = facts.host_facts(host)
    ours = cells.predict(
        known.cells,
        facts.guest_cells(Spec(guest)),
        known.limits,
        pack=pack,
        isolated_emulator=facts.isolated_emulator(Spec(guest)),
        pci_free=known.pci_free,
    )
    CONF.set_override("packing_host_numa_cells_allocation_strategy", pack, group="compute")
    nova = hardware.numa_fit_instance_to_host(
        topology, guest.obj_clone(), None, limits=limits, pci_requests=[], pci_stats=stats
    )
    assert ours == (None if nova is None else tuple(cell.id for cell in nova.cells))


def test_a_mixed_guest_that_packs_but_overcommits_leaves_its_mark_on_novas_search():
    """Nova numbers a guest cell once its CPUs pack, though the limits forbid the host cell: later pairs look known."""
    sizes = ((4, 4, 512, 2), (8, 8, 0, 2), (2, 8, 0, 10))
    host = objects.NUMATopology(
        cells=[
            objects.NUMACell(
                id=number,
                socket=0,
                cpuset=set(range(64 * number, 64 * number + shared)),
                pcpuset=set(range(64 * number + 32, 64 * number + 32 + dedicated)),
                memory=1024,
                memory_usage=used,
                cpu_usage=usage,
                pinned_cpus=set(),
                siblings=[{64 * number + 32 + cpu} for cpu in range(dedicated)],
                mempages=[],
                network_metadata=objects.NetworkMetadata(physnets=set(), tunneled=False),
            )
            for number, (shared, dedicated, used, usage) in enumerate(sizes)
        ]
    )
    guest = objects.InstanceNUMATopology(
        cells=[
            objects.InstanceNUMACell(
                id=0, cpuset={0}, pcpuset={1}, memory=512, cpu_policy="mixed", pagesize=None
            ),
            objects.InstanceNUMACell(
                id=1, cpuset={2, 3}, pcpuset={4}, memory=1024, cpu_policy="mixed", pagesize=None
            ),
        ]
    )
    limits = objects.NUMATopologyLimits(cpu_allocation_ratio=1.5, ram_allocation_ratio=1.0)
    known = facts.KnownHosts().of(Host(host, limits, None))
    ours = cells.predict(known.cells, facts.guest_cells(Spec(guest)), known.limits)
    nova = hardware.numa_fit_instance_to_host(host, guest.obj_clone(), None, limits=limits)
    assert ours == tuple(cell.id for cell in nova.cells) == (0, 1)
