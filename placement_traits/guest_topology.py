# SPDX-License-Identifier: Apache-2.0
"""Does nova give a guest NUMA nodes and dedicated CPUs? What of nova's answer our decisions need, without nova.

Nova looks at flavor and image together (``nova.virt.hardware.numa_get_constraints``); random flavors and images hold
this against it. Contradictions between the two are nova's to refuse, so any answer to them will do.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from placement_traits.amounts import parse_amount

NUMA_NODES: Final = "hw:numa_nodes"
IMAGE_PROPERTIES: Final = ("hw_numa_nodes", "hw_cpu_policy", "hw_mem_page_size")
"""Properties of an image that :func:`guest_topology` reads."""

_CPUS = re.compile(r"resources(?:[1-9][0-9]*)?:(PCPU|VCPU)")


@dataclass(frozen=True, slots=True)
class GuestTopology:
    """What nova makes of flavor and image.

    :param nodes: NUMA nodes that they ask for, 0 when neither does
    :param cpu_policy: ``dedicated``, ``shared`` or ``mixed``; None when neither says
    :param page_size: page size of the flavor, None without
    :param persistent_memory: the flavor asks for vPMEM
    """

    nodes: int
    cpu_policy: str | None
    page_size: str | None
    persistent_memory: bool

    @property
    def numa(self) -> bool:
        """True when nova builds a guest NUMA topology: for nodes, own CPUs, a page size or persistent memory."""
        return bool(
            self.nodes
            or self.cpu_policy in ("dedicated", "mixed")
            or self.page_size
            or self.persistent_memory
        )

    @property
    def dedicated(self) -> bool:
        """True when every vCPU has a CPU of its own."""
        return self.cpu_policy == "dedicated"


def guest_topology(
    extra_specs: Mapping[str, str], image_properties: Mapping[str, str] = MappingProxyType({})
) -> GuestTopology:
    """Return what nova makes of a flavor's extra specs and an image's properties."""
    nodes = extra_specs.get(NUMA_NODES) or image_properties.get("hw_numa_nodes") or "0"
    kinds = {
        match[1]
        for key, value in extra_specs.items()
        if (match := _CPUS.match(key)) and parse_amount(value)
    }
    return GuestTopology(
        parse_amount(nodes) or 0,
        _cpu_policy(kinds)
        or extra_specs.get("hw:cpu_policy")
        or image_properties.get("hw_cpu_policy"),
        extra_specs.get("hw:mem_page_size"),
        any(label.strip() for label in extra_specs.get("hw:pmem", "").split(",")),
    )


def _cpu_policy(kinds: set[str]) -> str | None:
    """CPU policy that amounts of CPUs in the flavor stand for."""
    if "VCPU" in kinds:
        return "shared"
    return "dedicated" if kinds else None
