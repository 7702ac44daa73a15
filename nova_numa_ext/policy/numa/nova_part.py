# SPDX-License-Identifier: Apache-2.0
"""What a server holds of nova's own root provider, from what nova's API shows of it. Pure.

The rules are nova's (``nova.scheduler.utils.ResourceRequest``): dedicated vCPUs are PCPU, others VCPU; memory and disk
come from the flavor, disk not for a server that boots from a volume; ``resources:CLASS=n`` replaces an amount, and 0
removes it. Which vCPUs are dedicated the server's NUMA topology shows, whether flavor or image asked for it. PCI
devices are left out: nova-compute adds them to an allocation by itself at its next update.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Final

from placement_traits import names
from placement_traits.amounts import parse_amount
from placement_traits.errors import CapabilityMissingError

_GROUP: Final = re.compile(r"^resources(?P<group>[A-Za-z0-9_-]*):(?P<name>[A-Z0-9_]+)$")
_ENCRYPTED: Final = ("hw:mem_encryption", "hw_mem_encryption")


@dataclass(frozen=True, slots=True)
class FlavorSizes:
    """What a server's flavor gives it.

    :param vcpus: virtual CPUs
    :param memory_mb: memory, MiB
    :param disk_gb: root disk, GiB
    :param ephemeral_gb: further disks, GiB
    :param swap_mb: swap disk, MiB
    """

    vcpus: int
    memory_mb: int
    disk_gb: int = 0
    ephemeral_gb: int = 0
    swap_mb: int = 0


def cpus(vcpus: int, pinned: int, *, isolated_emulator: bool) -> dict[str, int]:
    """Return the CPUs that a guest is given, by resource class.

    :param pinned: vCPUs with a host CPU of their own
    :param isolated_emulator: the flavor asks for a CPU for the emulator's threads, which needs a pinned vCPU
    """
    own = pinned + (1 if pinned and isolated_emulator else 0)
    return {names.PCPU: own, names.VCPU: vcpus - pinned}


def nova_part(
    sizes: FlavorSizes,
    specs: Mapping[str, str],
    image_properties: Mapping[str, str],
    *,
    pinned: int,
    from_volume: bool,
) -> dict[str, int]:
    """Return amounts of the root provider by resource class.

    :param specs: the flavor's extra specs
    :param image_properties: the image's, with underscores
    :param pinned: vCPUs with a host CPU of their own
    :param from_volume: the root disk is a volume
    :raises CapabilityMissingError: the flavor asks for what cannot be counted here
    """
    if any(
        str(found.get(key)).lower() == "true"
        for key in _ENCRYPTED
        for found in (specs, image_properties)
    ):
        raise CapabilityMissingError(
            "its memory is encrypted, and the provider of its MEM_ENCRYPTION_CONTEXT is not known"
        )
    isolated = specs.get("hw:emulator_threads_policy") == "isolate"
    amounts = {
        **cpus(sizes.vcpus, pinned, isolated_emulator=isolated),
        names.MEMORY_MB: sizes.memory_mb,
        names.DISK_GB: (0 if from_volume else sizes.disk_gb)
        + sizes.ephemeral_gb
        + ceil(sizes.swap_mb / 1024),
        **_replaced(specs),
    }
    return {name: number for name, number in amounts.items() if number}


def _replaced(specs: Mapping[str, str]) -> dict[str, int]:
    """Amounts that the flavor itself names."""
    found: dict[str, int] = {}
    for key, value in specs.items():
        match = _GROUP.match(key)
        if match is None or match["name"] in names.RESOURCE_CLASSES:
            continue
        if match["group"]:
            raise CapabilityMissingError(f"its flavor asks for {key}, whose provider is not known")
        amount = parse_amount(value)
        if amount is None:
            raise CapabilityMissingError(f"its flavor asks for {key}={value}, which is no number")
        found[match["name"]] = amount
    return found
