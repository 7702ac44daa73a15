# SPDX-License-Identifier: Apache-2.0
"""GPUs of this host by PCI: which there are, their NUMA node, and what lies between each two of them.

The path of a device below ``devices/pciDDDD:BB`` names every bridge above it::

    pci0000:16 / 0000:16:02.0 / 0000:17:00.0 / 0000:18:08.0 / 0000:19:00.0
    host bridge  root port      switch, up     switch, down   GPU

Link words are those of ``nvidia-smi topo -m``: PIX below one bridge or switch, PXB several of them, PHB a host bridge,
NODE several host bridges of one NUMA node, SYS beyond. NVLinks are not on PCI; NVML adds them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Final

from placement_traits.names import GpuLink
from placement_traits.topology import Gpu, GpuEdge, implied_link

_DISPLAY_CLASS: Final = "0x03"

# Display controllers for the console only: servers' BMC chips and virtual adapters.
CONSOLE_VENDORS: Final = frozenset(
    {
        "102b",  # Matrox
        "1a03",  # ASPEED
        "1013",  # Cirrus Logic
        "1234",  # QEMU standard VGA
        "15ad",  # VMware
        "1af4",  # virtio
        "1b36",  # QXL
    }
)


@dataclass(frozen=True, slots=True)
class _Device:
    address: str
    node: int | None
    product: str
    bridges: tuple[str, ...]  # host bridge first, the device itself not included


def read_gpus(
    sys: Path = Path("/sys"), products: Iterable[str] = ()
) -> tuple[tuple[Gpu, ...], tuple[GpuEdge, ...]]:
    """Find the GPUs of this host and the links that do not follow from switch and node numbers.

    :param sys: root of sysfs; tests relocate it
    :param products: ``vendor:product`` pairs to take as GPUs whatever their class is
    :returns: GPUs by address, links by ends
    """
    ids = frozenset(product.lower() for product in products)
    folder = sys / "bus/pci/devices"
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    return _linked([_read(path) for path in paths if _is_gpu(path, ids)])


def _is_gpu(path: Path, ids: frozenset[str]) -> bool:
    if (path / "physfn").exists():  # a virtual function is part of the GPU that is counted
        return False
    vendor, product = _vendor_product(path)
    if f"{vendor}:{product}" in ids:
        return True
    return _text(path / "class").startswith(_DISPLAY_CLASS) and vendor not in CONSOLE_VENDORS


def numa_node(path: Path) -> int | None:
    """Return the NUMA node of a PCI device, None where it is gone, is going, or the firmware does not say (-1).

    :param path: its folder below ``bus/pci/devices``
    """
    try:
        node = int(_text(path / "numa_node") or "-1")
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _read(path: Path) -> _Device:
    real = path.resolve().parts
    start = next(i for i, part in enumerate(real) if part.startswith("pci"))
    product = ":".join(_vendor_product(path))
    return _Device(path.name, numa_node(path), product, real[start:-1])


def _vendor_product(path: Path) -> tuple[str, str]:
    return _text(path / "vendor").removeprefix("0x"), _text(path / "device").removeprefix("0x")


def _text(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def _switch(device: _Device, others: Iterable[_Device]) -> str | None:
    """Address of the switch or bridge right above a GPU; None for a root port that leads to this GPU only.

    A switch is two bridges deep (upstream and downstream port); GPUs meet at its upstream port.
    """
    host_bridge_and_port = 2
    if len(device.bridges) > host_bridge_and_port + 1:
        return device.bridges[-2]
    if len(device.bridges) > host_bridge_and_port:
        return device.bridges[-1]
    shared = any(other.bridges == device.bridges for other in others if other is not device)
    return device.bridges[-1] if shared and len(device.bridges) == host_bridge_and_port else None


def _linked(devices: list[_Device]) -> tuple[tuple[Gpu, ...], tuple[GpuEdge, ...]]:
    above = [_switch(device, devices) for device in devices]
    numbers = {address: i for i, address in enumerate(sorted({s for s in above if s}))}
    gpus = tuple(
        Gpu(device.address, device.node, numbers[switch] if switch else None, device.product)
        for device, switch in zip(devices, above, strict=True)
    )
    edges = []
    for (a, device_a), (b, device_b) in combinations(zip(gpus, devices, strict=True), 2):
        link = _link(device_a, device_b)
        if link is not implied_link(a, b):
            edges.append(GpuEdge(a.address, b.address, link))
    return gpus, tuple(edges)


def _link(a: _Device, b: _Device) -> GpuLink:
    common = 0
    while common < min(len(a.bridges), len(b.bridges)) and a.bridges[common] == b.bridges[common]:
        common += 1
    if common == 0:
        same_node = a.node is not None and a.node == b.node
        return GpuLink.NODE if same_node else GpuLink.SYS
    if common == 1:
        return GpuLink.PHB
    # At most the downstream port of one switch on either side.
    deepest = max(len(a.bridges), len(b.bridges)) - common
    return GpuLink.PIX if deepest <= 1 else GpuLink.PXB
