# SPDX-License-Identifier: Apache-2.0
"""What a server holds of nova's own root provider, read from the metadata that nova leaves in libvirt. Pure.

The rules are nova's (``nova.scheduler.utils.ResourceRequest``): dedicated vCPUs are PCPU, others VCPU; memory and disk
come from the flavor, disk not for a server that boots from a volume; ``resources:CLASS=n`` replaces an amount, and 0
removes it. PCI devices are left out: nova-compute adds them to an allocation by itself at its next update.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from host_agent.workloads import NOVA_NAMESPACES
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

    :raises CapabilityMissingError: the metadata does not say enough, or the flavor asks for what cannot be counted here
    """
    instance = _instance(ET.fromstring(xml))
    flavor = instance.find("{*}flavor") if instance is not None else None
    project = instance.find("{*}owner/{*}project") if instance is not None else None
    user = instance.find("{*}owner/{*}user") if instance is not None else None
    if instance is None or flavor is None or project is None or user is None:
        raise CapabilityMissingError("nova's metadata does not tell its owner and flavor")
    specs = {s.get("name", ""): (s.text or "").strip() for s in flavor.iterfind("{*}extraSpecs/*")}
    consumer = {
        "project_id": project.get("uuid"),
        "user_id": user.get("uuid"),
        "consumer_generation": None,
    }
    from_image = instance.find("{*}root[@type='image']") is not None
    amounts = {
        **_cpus(specs, _number(flavor, "vcpus")),
        "MEMORY_MB": _number(flavor, "memory"),
        "DISK_GB": (_number(flavor, "disk") if from_image else 0)
        + _number(flavor, "ephemeral")
        + ceil(_number(flavor, "swap") / 1024),
        **_replaced(specs),
    }
    return NovaPart({name: number for name, number in amounts.items() if number}, consumer)


def _cpus(specs: Mapping[str, str], vcpus: int) -> dict[str, int]:
    policy = specs.get("hw:cpu_policy", "shared")
    if policy == "mixed":
        raise CapabilityMissingError("its flavor mixes shared and dedicated CPUs")
    if policy == "dedicated":
        emulator = specs.get("hw:emulator_threads_policy") == "isolate"
        return {"PCPU": vcpus + emulator}
    return {"VCPU": vcpus}


def _replaced(specs: Mapping[str, str]) -> dict[str, int]:
    """Amounts that the flavor itself names."""
    found: dict[str, int] = {}
    for key, value in specs.items():
        match = _GROUP.match(key)
        if match is None or match["name"] in names.RESOURCE_CLASSES:
            continue
        if match["group"]:
            raise CapabilityMissingError(f"its flavor asks for {key}, whose provider is not known")
        found[match["name"]] = int(value)
    return found


def _instance(root: ET.Element) -> ET.Element | None:
    found = (root.find(f"metadata/{{{namespace}}}instance") for namespace in NOVA_NAMESPACES)
    return next((instance for instance in found if instance is not None), None)


def _number(flavor: ET.Element, tag: str) -> int:
    return int(flavor.findtext(f"{{*}}{tag}") or 0)
