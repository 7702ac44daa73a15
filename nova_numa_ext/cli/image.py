# SPDX-License-Identifier: Apache-2.0
"""What of an image counts beside a flavor, as Glance shows it."""

from collections.abc import Mapping
from typing import Any, Final

from placement_traits.guest_topology import IMAGE_PROPERTIES

_TRUE: Final = frozenset({"1", "t", "true", "on", "y", "yes"})  # what nova takes for true


def required_traits(image: Mapping[str, Any]) -> frozenset[str]:
    """Traits that an image requires."""
    return frozenset(
        name.removeprefix("trait:")
        for name, value in image.items()
        if name.startswith("trait:") and value == "required"
    )


def topology_properties(image: Mapping[str, Any]) -> dict[str, str]:
    """Properties that a guest's NUMA topology depends on."""
    return {name: str(image[name]) for name in IMAGE_PROPERTIES if image.get(name) is not None}


def has_latency_port(image: Mapping[str, Any]) -> bool:
    """Tell whether its guests get the virtio-serial controller that the agent plugs the latency port into."""
    return str(image.get("hw_qemu_guest_agent", "")).strip().lower() in _TRUE
