# SPDX-License-Identifier: Apache-2.0
"""Which devices does a flavor ask for, and by which resource classes does Placement count them?

A flavor names PCI devices by an alias, which nova's configuration defines (``[pci]alias``), other devices by an amount
of a resource class (vGPUs, devices that the operator gave a class), and those of Cyborg by a profile. What of them is a
GPU is seen where the devices are: by the resource classes of the GPUs that hosts have.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import os_resource_classes

from placement_traits import names
from placement_traits.amounts import parse_amount
from placement_traits.errors import InvalidValueError

NO_DEVICES: Final = frozenset(
    {
        names.VCPU,
        names.PCPU,
        names.MEMORY_MB,
        names.DISK_GB,
        names.MEM_ENCRYPTION_CONTEXT,
        *names.RESOURCE_CLASSES,
    }
)
"""Resource classes that are no devices."""

_MOST_DEVICES: Final = 256
"""No host has so many devices; a request for more, over all aliases, is refused by nova like one for these."""

_RESOURCE = re.compile(r"^resources[A-Za-z0-9_-]*:([A-Z0-9_]+)$")


class By(StrEnum):
    """How a flavor names devices."""

    ALIAS = "alias"
    RESOURCE_CLASS = "resource class"
    PROFILE = "profile"


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """Devices that a flavor asks for by one name.

    :param by: what the name is
    :param name: of a PCI alias, a resource class or a device profile
    :param parts: what it asks of each device; Placement gives an amount of a class from one provider, and each PCI
        device from its own
    """

    by: By
    name: str
    parts: tuple[int, ...]


def requested(extra_specs: Mapping[str, str]) -> tuple[DeviceRequest, ...]:
    """Return the devices that a flavor's extra specs ask for."""
    return (*_by_alias(extra_specs), *_by_class(extra_specs), *_by_profile(extra_specs))


def _by_alias(extra_specs: Mapping[str, str]) -> Iterator[DeviceRequest]:
    left = _MOST_DEVICES
    for alias in extra_specs.get("pci_passthrough:alias", "").split(","):
        name, count = (word.strip() for word in alias.rpartition(":")[::2])
        devices = min(parse_amount(count) or 0, left)
        if name and devices:
            left -= devices
            yield DeviceRequest(By.ALIAS, name, (1,) * devices)


def _by_class(extra_specs: Mapping[str, str]) -> Iterator[DeviceRequest]:
    for key, value in extra_specs.items():
        match = _RESOURCE.match(key)
        devices = parse_amount(value)
        if match and match[1] not in NO_DEVICES and devices:
            yield DeviceRequest(By.RESOURCE_CLASS, match[1], (devices,))


def _by_profile(extra_specs: Mapping[str, str]) -> Iterator[DeviceRequest]:
    name = extra_specs.get("accel:device_profile")
    if name:
        yield DeviceRequest(By.PROFILE, name, (1,))


def classes_of_aliases(definitions: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return the resource classes that PCI aliases stand for, by name of the alias.

    Nova asks Placement for the class that an alias names, else for the one made of vendor and product
    (``nova.compute.pci_placement_translator``).

    :param definitions: values of nova's option ``[pci]alias``
    :raises InvalidValueError: one of them is not a JSON object with a name
    """
    found: dict[str, frozenset[str]] = {}
    for definition in definitions:
        alias = _definition(definition)
        name = str(alias["name"]).strip()
        found[name] = found.get(name, frozenset()) | {_resource_class(alias)}
    return found


def _definition(text: str) -> Mapping[str, Any]:
    try:
        alias = json.loads(text)
    except (ValueError, RecursionError):
        alias = None
    if not isinstance(alias, dict) or "name" not in alias:
        raise InvalidValueError("[pci]alias", text[:80], "a JSON object with a name")
    return alias


def _resource_class(alias: Mapping[str, Any]) -> str:
    own = alias.get("resource_class")
    if not own:
        return f"CUSTOM_PCI_{alias.get('vendor_id')}_{alias.get('product_id')}".upper()
    name = str(own).upper()
    if name in os_resource_classes.STANDARDS or os_resource_classes.is_custom(name):
        return name
    return str(os_resource_classes.normalize_name(name))
