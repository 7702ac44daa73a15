# SPDX-License-Identifier: Apache-2.0
"""What a server holds of nova's own root provider, read from the metadata that nova leaves in libvirt. Pure.

The rules are nova's (``nova.scheduler.utils.ResourceRequest``): dedicated vCPUs are PCPU, others VCPU; memory and disk
come from the flavor, disk not for a server that boots from a volume; ``resources:CLASS=n`` replaces an amount, and 0
removes it. PCI devices are left out: nova-compute adds them to an allocation by itself at its next update. An image may
ask for dedicated vCPUs, too, which the metadata does not show: then each vCPU is pinned to a CPU of its own.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from host_agent.model.workload import NOVA_NAMESPACES
from placement_traits import names
from placement_traits.errors import CapabilityMissingError

_GROUP: Final = re.compile(r"^resources(?P<group>[A-Za-z0-9_-]*):(?P<name>[A-Z0-9_]+)$")


@dataclass(frozen=True, slots=True)
class NovaPart:
    """Nova's part of an allocation.

    :param resources: amounts of the root provider
    :param consumer: project, user and generation of a consumer that does not exist yet
    """

    resources: Mapping[str, int]
    consumer: Mapping[str, Any]


def nova_part(xml: str) -> NovaPart:
    """Read it from a domain's XML.

    :raises CapabilityMissingError: the metadata lacks something, or the flavor asks for what cannot be counted here
    """
    root = ET.fromstring(xml)
    if root.find("launchSecurity") is not None:
        raise CapabilityMissingError(
            "its memory is encrypted, and the provider of its MEM_ENCRYPTION_CONTEXT is not known"
        )
    instance = _instance(root)
    flavor = instance.find("{*}flavor") if instance is not None else None
    project = instance.find("{*}owner/{*}project") if instance is not None else None
    user = instance.find("{*}owner/{*}user") if instance is not None else None
    if instance is None or flavor is None or project is None or user is None:
        raise CapabilityMissingError("nova's metadata does not show its owner and flavor")
    specs = {s.get("name", ""): (s.text or "").strip() for s in flavor.iterfind("{*}extraSpecs/*")}
    consumer = {
        "project_id": project.get("uuid"),
        "user_id": user.get("uuid"),
        "consumer_generation": None,
    }
    from_image = instance.find("{*}root[@type='image']") is not None
    amounts = {
        **_cpus(specs, _pins(root), _number(flavor, "vcpus")),
        names.MEMORY_MB: _number(flavor, "memory"),
        names.DISK_GB: (_number(flavor, "disk") if from_image else 0)
        + _number(flavor, "ephemeral")
        + ceil(_number(flavor, "swap") / 1024),
        **_replaced(specs),
    }
    return NovaPart({name: number for name, number in amounts.items() if number}, consumer)


def _pins(root: ET.Element) -> list[str]:
    """CPUs of each pinned vCPU."""
    return [pin.get("cpuset", "") for pin in root.iterfind("cputune/vcpupin")]


def _cpus(specs: Mapping[str, str], pins: Sequence[str], vcpus: int) -> dict[str, int]:
    """Count vCPUs.

    :param pins: of the domain; those of shared vCPUs in a cell name all shared CPUs there
    """
    policy = specs.get("hw:cpu_policy") or _policy_of(pins, vcpus)
    if policy == "mixed":
        raise CapabilityMissingError("it mixes shared and dedicated CPUs")
    if policy == "dedicated":
        emulator = specs.get("hw:emulator_threads_policy") == "isolate"
        return {names.PCPU: vcpus + emulator}
    return {names.VCPU: vcpus}


def _policy_of(pins: Sequence[str], vcpus: int) -> str:
    """Return the policy that an image has asked for, where the flavor has none."""
    own = {pin for pin in pins if pin.isdecimal() and pins.count(pin) == 1}
    if not own:
        return "shared"
    return "dedicated" if len(own) == vcpus else "mixed"


def _replaced(specs: Mapping[str, str]) -> dict[str, int]:
    """Amounts that the flavor itself names."""
    found: dict[str, int] = {}
    for key, value in specs.items():
        match = _GROUP.match(key)
        if match is None or match["name"] in names.RESOURCE_CLASSES:
            continue
        if match["group"]:
            raise CapabilityMissingError(f"its flavor asks for {key}, whose provider is not known")
        if not value.isdecimal():
            raise CapabilityMissingError(f"its flavor asks for {key}={value}, which is no number")
        found[match["name"]] = int(value)
    return found


def _instance(root: ET.Element) -> ET.Element | None:
    found = (root.find(f"metadata/{{{namespace}}}instance") for namespace in NOVA_NAMESPACES)
    return next((instance for instance in found if instance is not None), None)


def _number(flavor: ET.Element, tag: str) -> int:
    text = flavor.findtext(f"{{*}}{tag}") or "0"
    if not text.isdecimal():
        raise CapabilityMissingError(f"nova's metadata has {tag} {text}, which is no number")
    return int(text)
