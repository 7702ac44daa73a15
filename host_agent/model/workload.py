# SPDX-License-Identifier: Apache-2.0
"""libvirt domains + nova's metadata -> :class:`Workload`.

Nova writes the flavor with its extra specs into the domain's metadata (namespaces ``…/nova/1.0`` and ``…/nova/1.1``),
so the agent needs no nova API. A domain that cannot be understood is *unmanaged*, never an error: one bad domain must
not take the agent from the others.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from host_agent.model import cpus
from placement_traits import names
from placement_traits import request as requests
from placement_traits.errors import InvalidValueError, NumaExtError
from placement_traits.names import Tier
from placement_traits.workload_request import WorkloadRequest

NOVA_NAMESPACES: Final = (
    "http://openstack.org/xmlns/libvirt/nova/1.1",
    "http://openstack.org/xmlns/libvirt/nova/1.0",
)

_TRAIT = re.compile(rf"{names.CUSTOM_PREFIX}[A-Z0-9_]+")
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_PCI_NUMBER = re.compile(r"0x[0-9a-fA-F]{1,8}|[0-9]{1,8}")
_DIGITS: Final = 15  # more bytes than any host has
_KIB_PER_UNIT: Final[Mapping[str, float]] = {
    "b": 1 / 1024,
    "bytes": 1 / 1024,
    "KiB": 1,
    "k": 1,
    "MiB": 1024,
    "M": 1024,
    "GiB": 1024**2,
    "G": 1024**2,
    "TiB": 1024**3,
    "T": 1024**3,
}


class Activity(StrEnum):
    """What may be done to a domain now."""

    RUNNING = "running"
    PAUSED = "paused"  # also: being started, incoming migration; left alone until it is resumed
    OFF = "off"


class Unmanaged(StrEnum):
    """Why the agent leaves a domain alone."""

    NOT_NOVA = "it has no nova metadata"
    MALFORMED = "its metadata cannot be understood"
    OPTED_OUT = "its flavor says numa_ext:managed=false"
    UNTAGGED = "its flavor has no numa_ext extra spec"
    DENIED = "this host's deny list ([agent]deny_servers) names it"


@dataclass(frozen=True, slots=True)
class Cell:
    """One guest NUMA node.

    :param id: number in the guest
    :param vcpus: its virtual CPUs
    :param memory_mb: its memory, MiB
    :param host_nodes: host nodes its memory is bound to; empty when libvirt binds nothing
    """

    id: int
    vcpus: frozenset[int]
    memory_mb: int
    host_nodes: frozenset[int]


@dataclass(frozen=True, slots=True)
class Domain:
    """What the domain's XML says, without judgement.

    :param uuid: nova's server UUID, which is libvirt's too
    :param name: libvirt's name (``instance-0000002a``)
    :param vcpus: virtual CPUs
    :param memory_mb: guest memory, MiB
    :param vcpu_cpuset: CPUs that the vCPUs share (``<vcpu cpuset>``), None when not restricted
    :param vcpu_pins: vCPU -> CPUs (``<vcpupin>``)
    :param emulator_pin: CPUs of the emulator threads (``<emulatorpin>``), None when not restricted
    :param cells: guest NUMA nodes, empty for a guest without a NUMA topology
    :param hostdevs: VFIO devices: PCI addresses, ``mdev-UUID``, ``interface-TYPE``
    :param huge_pages: backed by a hugetlb pool
    :param locked: its memory is locked (``<locked/>``) or encrypted
    :param mergeable: the kernel may merge its pages with equal ones of others (no ``<nosharepages/>``)
    :param serial_controller: it has a virtio-serial controller, so that ports can be plugged into it
    :param interfaces: names of the host's sides of its interfaces, of those that have one
    :param ports: virtio-serial port -> path of the host's UNIX socket, "" while libvirt does not name it
    :param number: libvirt's, another one after each start; "" where it does not run
    """

    uuid: str
    name: str
    vcpus: int
    memory_mb: int
    vcpu_cpuset: frozenset[int] | None = None
    vcpu_pins: Mapping[int, frozenset[int]] = field(default_factory=dict)
    emulator_pin: frozenset[int] | None = None
    cells: tuple[Cell, ...] = ()
    hostdevs: tuple[str, ...] = ()
    huge_pages: bool = False
    locked: bool = False
    mergeable: bool = True
    serial_controller: bool = False
    interfaces: tuple[str, ...] = ()
    ports: Mapping[str, str] = field(default_factory=dict)
    number: str = ""

    @property
    def pci_devices(self) -> tuple[str, ...]:
        """PCI addresses of the devices it holds, ascending; mediated ones have none."""
        return tuple(sorted(name for name in self.hostdevs if _PCI_ADDRESS.fullmatch(name)))

    @property
    def immovable(self) -> str | None:
        """Why pages must never be moved, None when they may be."""
        if self.hostdevs:
            return "a VFIO device pins its pages"
        if self.huge_pages:
            return "hugetlb pages would eat the pool that nova promised on the target node"
        if self.locked:
            return "its memory is locked"
        return None


@dataclass(frozen=True, slots=True)
class Workload:
    """One domain as the agent sees it.

    :param domain: what libvirt says
    :param activity: what may be done to it now
    :param title: nova's display name, libvirt's name where there is none
    :param flavor: flavor name, "" when unknown
    :param request: what it wants; None when the agent leaves it alone
    :param unmanaged: why it is left alone; None when it is managed
    :param problem: the sentence about malformed metadata
    :param project: uuid of the project that owns it, "" when unknown
    """

    domain: Domain
    activity: Activity = Activity.RUNNING
    title: str = ""
    flavor: str = ""
    request: WorkloadRequest | None = None
    unmanaged: Unmanaged | None = None
    problem: str = ""
    project: str = ""

    @property
    def uuid(self) -> str:
        """UUID of the server."""
        return self.domain.uuid

    @property
    def denied(self) -> "Workload":
        """The same for an agent that must not touch it."""
        return replace(self, request=None, unmanaged=Unmanaged.DENIED)

    @property
    def tier(self) -> Tier | None:
        """Its tier; None also for an unmanaged one."""
        return self.request.tier if self.request else None

    @property
    def floating(self) -> bool:
        """A guest without a NUMA topology, by its flavor *and* by its XML (an image can ask for one, too)."""
        return not self.domain.cells and (self.request is None or self.request.floating)


def parse(xml: str, activity: Activity, *, manage_untagged: bool = False) -> Workload:
    """Understand one domain.

    :param xml: the live XML (``virDomainGetXMLDesc``)
    :param activity: its state
    :param manage_untagged: also manage servers whose flavor has none of our keys
    :raises InvalidValueError: libvirt's own part of the XML makes no sense (never seen; the caller skips the domain)
    """
    try:
        root = ET.fromstring(xml)
    except (ET.ParseError, UnicodeEncodeError) as error:
        raise InvalidValueError("domain XML", xml[:80], f"well-formed XML ({error})") from error
    domain = _domain(root)
    instance = _instance(root)
    if instance is None:
        return Workload(domain, activity, domain.name, unmanaged=Unmanaged.NOT_NOVA)
    title = _text(instance, "name") or domain.name
    flavor = _find(instance, "flavor")
    flavor_name = "" if flavor is None else flavor.get("name", "")
    owner = _find(instance, "owner")
    project = None if owner is None else _find(owner, "project")
    project_uuid = "" if project is None else project.get("uuid", "")

    def left_alone(reason: Unmanaged, problem: str = "") -> Workload:
        return Workload(
            domain, activity, title, flavor_name, None, reason, problem, project=project_uuid
        )

    if flavor is None:
        return left_alone(Unmanaged.MALFORMED, "the nova metadata holds no flavor")
    specs = _extra_specs(flavor)
    traits = _image_traits(instance)
    ours = [key for key in specs if key.startswith(f"{names.EXTRA_SPEC_NAMESPACE}:")]
    if not ours and not traits & set(names.TierTrait) and not manage_untagged:
        return left_alone(Unmanaged.UNTAGGED)
    try:
        request = requests.parse(
            specs,
            vcpus=_number(flavor, "vcpus"),
            memory_mb=_number(flavor, "memory"),
            image_traits=traits,
            image_properties=_image_properties(instance),
        )
    except (NumaExtError, ValueError) as error:
        return left_alone(Unmanaged.MALFORMED, str(error))
    if not request.managed:
        return left_alone(Unmanaged.OPTED_OUT)
    return Workload(domain, activity, title, flavor_name, request, project=project_uuid)


def _domain(root: ET.Element) -> Domain:
    vcpu = root.find("vcpu")
    cpuset = vcpu.get("cpuset") if vcpu is not None else None
    emulator = root.find("cputune/emulatorpin")
    backing = root.find("memoryBacking")
    return Domain(
        uuid=(root.findtext("uuid") or "").strip(),
        name=(root.findtext("name") or "").strip(),
        vcpus=_int("vcpu", vcpu.text if vcpu is not None else None),
        memory_mb=_kib(root.find("memory")) // 1024,
        vcpu_cpuset=cpus.parse(cpuset) if cpuset else None,
        vcpu_pins={
            _int("vcpupin", pin.get("vcpu")): cpus.parse(pin.get("cpuset", ""))
            for pin in root.iterfind("cputune/vcpupin")
        },
        emulator_pin=None if emulator is None else cpus.parse(emulator.get("cpuset", "")),
        cells=tuple(_cells(root)),
        hostdevs=tuple(_hostdevs(root)),
        huge_pages=backing is not None and backing.find("hugepages") is not None,
        locked=(backing is not None and backing.find("locked") is not None)
        or root.find("launchSecurity") is not None,
        mergeable=backing is None or backing.find("nosharepages") is None,
        serial_controller=root.find("devices/controller[@type='virtio-serial']") is not None,
        interfaces=tuple(_interfaces(root)),
        ports=dict(_ports(root)),
        number=root.get("id", ""),
    )


def _interfaces(root: ET.Element) -> Iterator[str]:
    for target in root.iterfind("devices/interface/target"):
        name = target.get("dev", "")
        if name and "/" not in name and not name.startswith("."):
            yield name


def _ports(root: ET.Element) -> Iterator[tuple[str, str]]:
    for channel in root.iterfind("devices/channel"):
        target, source = channel.find("target"), channel.find("source")
        if target is not None and target.get("type") == "virtio":
            yield target.get("name", ""), "" if source is None else source.get("path", "")


def _cells(root: ET.Element) -> Iterator[Cell]:
    bound = {
        _int("memnode", node.get("cellid")): cpus.parse(node.get("nodeset", ""))
        for node in root.iterfind("numatune/memnode")
    }
    memory = root.find("numatune/memory")
    every = cpus.parse(memory.get("nodeset", "")) if memory is not None else frozenset[int]()
    for position, cell in enumerate(root.iterfind("cpu/numa/cell")):
        number = _int("cell", cell.get("id", str(position)))
        kib = _in_kib("memory of a cell", cell.get("memory", "0"), cell)
        yield Cell(number, cpus.parse(cell.get("cpus", "")), kib // 1024, bound.get(number, every))


def _hostdevs(root: ET.Element) -> Iterator[str]:
    for device in root.iterfind("devices/hostdev"):
        address = device.find("source/address")
        if device.get("type") == "mdev" and address is not None:
            yield f"mdev-{address.get('uuid', '')}"
        elif device.get("type") == "pci" and address is not None:
            part = {
                name: _hex(f"PCI {name}", address.get(name, "0"))
                for name in ("domain", "bus", "slot", "function")
            }
            yield f"{part['domain']:04x}:{part['bus']:02x}:{part['slot']:02x}.{part['function']}"
    for interface in root.iterfind("devices/interface"):
        if interface.get("type") in ("hostdev", "vdpa"):
            yield f"interface-{interface.get('type')}"


def _instance(root: ET.Element) -> ET.Element | None:
    for namespace in NOVA_NAMESPACES:
        found = root.find(f"metadata/{{{namespace}}}instance")
        if found is not None:
            return found
    return None


def _find(parent: ET.Element, tag: str) -> ET.Element | None:
    return parent.find(f"{{*}}{tag}")


def _text(parent: ET.Element, tag: str) -> str:
    found = _find(parent, tag)
    return "" if found is None else (found.text or "").strip()


def _number(flavor: ET.Element, tag: str) -> int:
    return _int(f"flavor's {tag} in the nova metadata", _text(flavor, tag))


def _extra_specs(flavor: ET.Element) -> dict[str, str]:
    return {
        spec.get("name", ""): (spec.text or "").strip()
        for spec in flavor.iterfind("{*}extraSpecs/{*}extraSpec")
    }


def _image_traits(instance: ET.Element) -> frozenset[str]:
    """Traits that the image requires: nova keeps them in the property ``traits_required``, a list written as text."""
    return frozenset(_TRAIT.findall(_image_properties(instance).get("traits_required", "")))


def _image_properties(instance: ET.Element) -> dict[str, str]:
    return {
        entry.get("name", ""): (entry.text or "").strip()
        for entry in instance.iterfind("{*}image/{*}properties/{*}property")
    }


def _int(where: str, value: str | None) -> int:
    text = (value or "").strip()
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS):
        raise InvalidValueError(where, text, f"an integer >= 0 of at most {_DIGITS} digits")
    return int(text)


def _hex(where: str, value: str) -> int:
    if _PCI_NUMBER.fullmatch(value) is None:
        raise InvalidValueError(where, value, "a number as libvirt writes it, such as 0x3f")
    return int(value, 16 if value.startswith("0x") else 10)


def _kib(memory: ET.Element | None) -> int:
    if memory is None:
        raise InvalidValueError("domain XML", None, "a <memory> element")
    return _in_kib("memory", memory.text, memory)


def _in_kib(where: str, value: str | None, holder: ET.Element) -> int:
    return int(_int(where, value) * _KIB_PER_UNIT.get(holder.get("unit", "KiB"), 1))
