# SPDX-License-Identifier: Apache-2.0
"""The view of one host, put together from what Placement tells of its providers. Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from placement_traits import names
from placement_traits.fleet import Amount, DeviceView, GpuView, HostView, L3View, RdtView
from placement_traits.names import GpuLink
from placement_traits.tree import gpu_edges, gpu_place, l3_place

# Nova marks its providers of PCI devices with the first, those of vGPUs and other mediated devices with the second.
DEVICES: Final = (names.MANAGED_PCI_DEVICE, names.OWNER_NOVA)

_MOST: Final = 2**62

# How nova's libvirt driver names the provider of a GPU that is shared as mediated devices.
_MDEV_PARENT: Final = re.compile(
    r"^pci_([0-9a-f]{4})_([0-9a-f]{2})_([0-9a-f]{2})_([0-7])$", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class ProviderFacts:
    """One provider as the API returned it, as far as it concerns us."""

    traits: frozenset[str]
    amounts: Mapping[str, Amount]

    @property
    def named(self) -> bool:
        """The name holds something that the traits do not: host or PCI address."""
        return not self.traits.isdisjoint((names.HOST, names.GPU, *DEVICES))

    @property
    def device(self) -> bool:
        """It is a device that servers allocate; what describes it is another provider, ours, or it does so itself."""
        return names.OWNER not in self.traits and not self.traits.isdisjoint((names.GPU, *DEVICES))


def bounded(capacity: int, used: int) -> Amount:
    """Return an amount that fits a record, whatever overcommit an operator has written."""
    return Amount(min(capacity, _MOST), used)


def relevant(traits: Iterable[str]) -> frozenset[str]:
    """Drop the traits that do not concern us; a fleet of nova's own would fill the memory."""
    return frozenset(trait for trait in traits if names.is_ours(trait) or trait in DEVICES)


def known_names(host: HostView) -> dict[str, str]:
    """Names by uuid of the providers whose name matters, as far as a host's view holds them."""
    return {
        host.root_uuid: host.name,
        **{gpu.uuid: names.gpu_provider(host.name, gpu.address) for gpu in host.gpus},
        **{device.uuid: f"{host.name}_{device.address}" for device in host.devices},
    }


def host_view(
    root: str, facts: Mapping[str, ProviderFacts], names_of: Mapping[str, str]
) -> HostView | None:
    """Put one host together; None when its root is not among the facts."""
    if root not in facts or root not in names_of:
        return None
    name = names_of[root]
    ours = {uuid: fact for uuid, fact in facts.items() if names.OWNER in fact.traits}
    gpus = {uuid: fact for uuid, fact in ours.items() if names.GPU in fact.traits}
    devices = {
        uuid: _address(name, names_of[uuid])
        for uuid, fact in facts.items()
        if fact.device and uuid != root and uuid in names_of
    }
    l3 = [view for uuid, fact in ours.items() if (view := _l3(uuid, fact)) is not None]
    rest = ours.keys() - gpus.keys() - {view.uuid for view in l3}
    return HostView(
        root,
        name,
        facts[root].traits.difference(DEVICES),
        _rdt(rest, ours),
        tuple(sorted(l3, key=lambda view: view.l3_id)),
        _gpus(_described(gpus, devices, name, names_of, facts), facts),
        tuple(
            DeviceView(
                uuid,
                address,
                _sum(facts[uuid].amounts.values()),
                min(facts[uuid].amounts, default=""),
            )
            for uuid, address in sorted(devices.items(), key=lambda device: device[1])
        ),
    )


def _described(
    gpus: Iterable[str],
    devices: Mapping[str, str],
    host: str,
    names_of: Mapping[str, str],
    facts: Mapping[str, ProviderFacts],
) -> dict[str, str]:
    """PCI address by provider that locates a GPU: a device's own provider only where we have none for it."""
    prefix = names.gpu_provider(host, "")
    ours = {uuid: names_of[uuid].removeprefix(prefix) for uuid in gpus if uuid in names_of}
    known = frozenset(ours.values())
    themselves = {
        uuid: address
        for uuid, address in devices.items()
        if names.GPU in facts[uuid].traits and address not in known
    }
    return ours | themselves


def _address(host: str, name: str) -> str:
    """PCI address in the name of a device's provider, as sysfs writes it; without one the name less the host's."""
    own = name.removeprefix(f"{host}_")
    parent = _MDEV_PARENT.match(own)
    return f"{parent[1]}:{parent[2]}:{parent[3]}.{parent[4]}".lower() if parent else own.lower()


def _sum(amounts: Iterable[Amount]) -> Amount:
    found = list(amounts)
    return Amount(sum(amount.capacity for amount in found), sum(amount.used for amount in found))


def _rdt(candidates: Iterable[str], facts: Mapping[str, ProviderFacts]) -> RdtView | None:
    for uuid in sorted(candidates):
        return RdtView(uuid, facts[uuid].amounts.get(names.RDT_CLOS))
    return None


def _l3(uuid: str, fact: ProviderFacts) -> L3View | None:
    place = l3_place(fact.traits)
    if place is None:
        return None
    return L3View(
        uuid,
        place.l3_id,
        place.nodes,
        place.socket,
        place.chassis,
        fact.amounts.get(names.LLC_WAY),
        fact.amounts.get(names.MEMORY_BANDWIDTH_MBPS),
        place.neighbours,
        fact.amounts.get(names.LLC_NEIGHBOURHOOD),
        place.cpus,
    )


def _gpus(address_of: Mapping[str, str], facts: Mapping[str, ProviderFacts]) -> tuple[GpuView, ...]:
    """Read where GPUs are from the traits of the providers that describe them, by provider with PCI address."""
    uuid_of = {address: uuid for uuid, address in address_of.items()}
    links: dict[str, dict[str, GpuLink]] = {address: {} for address in uuid_of}
    for edge in gpu_edges({address: facts[uuid].traits for address, uuid in uuid_of.items()}):
        links[edge.a][edge.b] = links[edge.b][edge.a] = edge.link
    return tuple(
        GpuView(uuid, address, *gpu_place(facts[uuid].traits), links[address])
        for address, uuid in sorted(uuid_of.items())
    )
