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

from placement_traits import names
from placement_traits.amounts import parse_amount

NUMA_NODES: Final = "hw:numa_nodes"
IMAGE_PROPERTIES: Final = (
    "hw_numa_nodes",
    "hw_cpu_policy",
    "hw_mem_page_size",
    "hw_cpu_realtime_mask",
)
"""Properties of an image that :func:`guest_topology` reads."""

_CPUS = re.compile(r"resources(?:[1-9][0-9]*)?:(PCPU|VCPU)")
_MASK_PART = re.compile(r"(?P<excluded>\^)?(?P<first>[0-9]{1,9})\s*(-\s*(?P<last>[0-9]{1,9}))?$")
_MOST_VCPUS: Final = 65536  # more than any hypervisor has


@dataclass(frozen=True, slots=True)
class GuestTopology:
    """What nova makes of flavor and image.

    :param nodes: NUMA nodes that they ask for, 0 when neither does
    :param cpu_policy: ``dedicated``, ``shared`` or ``mixed``; None when neither says
    :param page_size: page size of the flavor, None without
    :param persistent_memory: the flavor asks for vPMEM
    :param mask: which vCPUs of a ``mixed`` guest are dedicated, such as ``0-3,^1``
    :param isolated_emulator: the emulator's threads of a guest with dedicated vCPUs have a dedicated CPU more
    """

    nodes: int
    cpu_policy: str | None
    page_size: str | None
    persistent_memory: bool
    mask: str
    isolated_emulator: bool

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

    def pinned(self, vcpus: int) -> int:
        """Return how many of so many vCPUs have a CPU of their own."""
        if self.dedicated:
            return vcpus
        return _in_mask(self.mask, vcpus) if self.cpu_policy == "mixed" else 0


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
        extra_specs.get("hw:cpu_dedicated_mask")
        or image_properties.get("hw_cpu_realtime_mask")
        or extra_specs.get("hw:cpu_realtime_mask", ""),
        extra_specs.get("hw:emulator_threads_policy") == "isolate",
    )


def _in_mask(mask: str, vcpus: int) -> int:
    """Count the vCPUs of a mask as ``nova.virt.hardware.parse_cpu_spec`` reads it; ``^`` in front means all but."""
    vcpus = min(vcpus, _MOST_VCPUS)
    chosen, excluded = (1 << vcpus) - 1 if mask.strip().startswith("^") else 0, 0
    for part in mask.split(","):
        match = _MASK_PART.match(part.strip())
        if match:
            first, end = int(match["first"]), min(int(match["last"] or match["first"]) + 1, vcpus)
            bits = (1 << end) - (1 << first) if first < end else 0
            if match["excluded"]:
                excluded |= bits
            else:
                chosen |= bits
    return (chosen & ~excluded).bit_count()


def _cpu_policy(kinds: set[str]) -> str | None:
    """CPU policy that amounts of CPUs in the flavor stand for."""
    if names.VCPU in kinds:
        return "shared"
    return "dedicated" if kinds else None
