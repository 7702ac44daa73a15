# SPDX-License-Identifier: Apache-2.0
"""The programs of the sources as the model sees them: how they use core, cache and memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from emulation.physics.parameters import DATA
from placement_traits.names import InterferenceClass


@dataclass(frozen=True, slots=True)
class Workload:
    """One program.

    :param name: its name in the publication
    :param interference_class: sheep, rabbit or devil
    :param remote_sensitive: declared sensitive to remote memory
    :param core_cpi: cycles per instruction without L3 accesses
    :param l3_accesses_pki: L3 accesses per 1000 instructions
    :param working_set_kb: L3 working set of one thread, KiB
    :param least_miss_ratio: misses per L3 access when the whole working set fits
    :param parallelism: memory accesses in flight at once
    :param coupling: 0.0 threads are independent, 1.0 all wait for the slowest
    """

    name: str
    interference_class: InterferenceClass
    remote_sensitive: bool
    core_cpi: float
    l3_accesses_pki: float
    working_set_kb: float
    least_miss_ratio: float
    parallelism: float
    coupling: float


WORKLOADS: Final[Mapping[str, Workload]] = MappingProxyType(
    {
        name: Workload(name, InterferenceClass(row[0]), bool(row[1]), *map(float, row[2:]))
        for name, row in DATA["workloads"].items()
    }
)

MAPPING_MIX: Final = (
    "neo4j",
    "sockshop",
    "derby",
    "fft",
    "sor",
    "mpegaudio",
    "sunflow",
    "stream",
)
"""The eight programs of the mapping evaluation (Lakew et al., table 2 and STREAM)."""


def representative(interference_class: InterferenceClass) -> Workload:
    """Return the program that stands for a class where only the class of a guest is known."""
    names = {
        InterferenceClass.SHEEP: "sockshop",
        InterferenceClass.RABBIT: "sunflow",
        InterferenceClass.DEVIL: "sor",
    }
    return WORKLOADS[names[interference_class]]
