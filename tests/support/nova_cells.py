# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies for nova's objects: cells of hosts and guests, pools of devices."""

from hypothesis import strategies as st
from nova import objects

THREAD_POLICIES = (None, "prefer", "isolate", "require")


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
