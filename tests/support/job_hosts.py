# SPDX-License-Identifier: Apache-2.0
"""Small fleets as the planner of jobs sees them."""

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID, uuid5

from nova_numa_ext.policy.jobs.host_view import HostsView
from placement_traits import names
from placement_traits.fleet import Amount, DeviceView, GpuView, HostView, RdtView
from placement_traits.fleet_arrays import FleetArrays
from placement_traits.names import GpuLink
from placement_traits.workload_request import WorkloadRequest
from tests.support.fleet import ALL_TRAITS, be, domain

GPU_CLASS = "CUSTOM_GPU"
ALIASES = {"gpu": frozenset({GPU_CLASS})}
_NAMESPACE = UUID(int=0)


def root(name: str) -> str:
    """Root provider of a host."""
    return str(uuid5(_NAMESPACE, name))


def uuid(name: str) -> str:
    """Any other provider."""
    return str(uuid5(_NAMESPACE, f"child {name}"))


def machine(name: str, *, busy: Sequence[int] = (), gpus: int = 4, ways: int = 0) -> HostView:
    """A host of two sockets with two linked GPUs each, as a Minsky; numbers of busy GPUs, ways taken in L3 0."""
    addresses = [f"0000:0{number}:00.0" for number in range(gpus)]
    peers = [number ^ 1 for number in range(gpus)]
    domains = [domain(0, ways=(13, ways)), domain(2, nodes=(1,))]
    return HostView(
        root(name),
        name,
        ALL_TRAITS,
        RdtView(uuid(f"{name} rdt"), Amount(6, 0)),
        tuple(replace(each, uuid=uuid(f"{name} {each.l3_id}")) for each in domains),
        tuple(
            GpuView(
                uuid(f"{name} gpu {number}"),
                address,
                number // 2,
                None,
                {addresses[peers[number]]: GpuLink.NV2},
            )
            for number, address in enumerate(addresses)
        ),
        tuple(
            DeviceView(
                uuid(f"{name} device {number}"),
                address,
                Amount(1, int(number in busy)),
                GPU_CLASS,
            )
            for number, address in enumerate(addresses)
        ),
    )


def amounts(
    vcpus: int = 32, memory_mb: int = 65_536, pcpus: int = 16, used: int = 0
) -> dict[str, Amount]:
    """What nova's root provider has; as many VCPUs are used as said."""
    return {
        names.VCPU: Amount(vcpus, used),
        names.PCPU: Amount(pcpus, 0),
        names.MEMORY_MB: Amount(memory_mb, 0),
        names.DISK_GB: Amount(500, 0),
    }


def view(*hosts: HostView, closed: Sequence[str] = (), **plain: dict[str, Amount]) -> HostsView:
    """Hosts with the usual amounts, then hosts without an agent by name."""
    of_roots = {host.root_uuid: amounts() for host in hosts}
    of_roots |= {root(name): given for name, given in plain.items()}
    return HostsView.of(FleetArrays.of(hosts), of_roots, {root(name) for name in closed}, ALIASES)


def gpu_request(
    gpus: int, policy: str = "topo_p", minimum: float = 0.0, vcpus: int = 2
) -> WorkloadRequest:
    """A best-effort server with GPUs that talk to each other."""
    return be(
        vcpus,
        **{
            "pci_passthrough:alias": f"gpu:{gpus}",
            "numa_ext:gpu_policy": policy,
            "numa_ext:gpu_comm": "4",
            "numa_ext:min_utility": str(minimum),
        },
    )
