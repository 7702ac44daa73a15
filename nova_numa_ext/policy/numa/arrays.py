# SPDX-License-Identifier: Apache-2.0
"""Many hosts as arrays: one record for each NUMA cell and each L3 domain.

Deciding about ten thousand hosts one by one costs more than the decision allows. So what :class:`.cells.HostCell` and
:class:`~placement_traits.fleet.L3View` hold of a host is written once, when it changes, into one row of records, and
:mod:`.batch` decides about all rows together. Shapes: ``H`` hosts, ``C`` cells and ``D`` domains of the largest host;
a smaller host has absent records at the end of its row. Sets of NUMA nodes, sockets and neighbours are bits of a
number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from nova_numa_ext.policy.numa.cells import AllocationRatios, HostCell
from placement_traits.fleet import Amount, HostView, L3View
from placement_traits.names import NeighbourTrait

Records: TypeAlias = npt.NDArray[np.void]
Integers: TypeAlias = npt.NDArray[np.int64]
Bits: TypeAlias = npt.NDArray[np.uint64]
Floats: TypeAlias = npt.NDArray[np.float64]
Mask: TypeAlias = npt.NDArray[np.bool_]

MOST_BITS: Final = 64
MOST_POOLS: Final = 3
NEIGHBOURS: Final = (
    NeighbourTrait.RABBIT,
    NeighbourTrait.DEVIL,
    NeighbourTrait.LC,
    NeighbourTrait.BE,
)

CELL: Final = np.dtype(
    [
        ("present", "?"),
        ("node", "u8"),  # one bit
        ("socket", "u8"),  # one bit, none when unknown
        ("cpus", "i8"),
        ("cpu_usage", "i8"),
        ("pcpus", "i8"),
        ("free_pcpus", "i8"),
        ("free_threads", "i8"),
        ("whole_cores", "i8"),
        ("usable_cores", "i8"),
        ("most_sibling_cpus", "i8"),
        ("threads_per_core", "i8"),
        ("legacy_pinning", "?"),
        ("memory_mb", "i8"),
        ("memory_usage_mb", "i8"),
        ("free_memory_mb", "i8"),
        ("pci_free", "i8"),
        ("pools", "i8"),
        ("page_kb", "i8", (MOST_POOLS,)),  # largest pages first
        ("page_free_kb", "f8", (MOST_POOLS,)),
        ("page_total_kb", "f8", (MOST_POOLS,)),
    ]
)

DOMAIN: Final = np.dtype(
    [
        ("present", "?"),
        ("l3_id", "i8"),
        ("nodes", "u8"),  # bits
        ("socket", "i8"),
        ("neighbours", "u1"),  # bits, in the order of NEIGHBOURS
        ("ways_known", "?"),
        ("ways_capacity", "i8"),
        ("ways_free", "i8"),
        ("bandwidth_known", "?"),
        ("bandwidth_capacity", "i8"),
        ("bandwidth_free", "i8"),
    ]
)


@dataclass(frozen=True, slots=True)
class HostArrays:
    """Hosts of one decision.

    :param cells: ``CELL`` records, H x C
    :param domains: ``DOMAIN`` records, H x D
    :param cpu_ratio: overcommit of CPUs, H
    :param ram_ratio: overcommit of memory, H
    :param kind: number of the host's kind, H
    :param kinds: one host of each kind (hosts with the same traits are of one kind), None for hosts without an agent
    """

    cells: Records
    domains: Records
    cpu_ratio: Floats
    ram_ratio: Floats
    kind: Integers
    kinds: Sequence[HostView | None]


def representable(cells: Sequence[HostCell], view: HostView | None) -> bool:
    """Return whether a host has a row: its nodes and sockets have bits, its page pools columns."""
    domains = view.l3 if view is not None else ()
    gpus = view.gpus if view is not None else ()
    return (
        all(
            0 <= cell.id < MOST_BITS
            and 0 <= (cell.socket or 0) < MOST_BITS
            and len(cell.pages) <= MOST_POOLS
            for cell in cells
        )
        and all(0 <= node < MOST_BITS for domain in domains for node in domain.nodes)
        and all(domain.l3_id >= 0 for domain in domains)
        and all(0 <= (gpu.node or 0) < MOST_BITS for gpu in gpus)
    )


def cell_records(
    cells: Sequence[HostCell], pci_free: Mapping[int | None, int] | None
) -> list[tuple[Any, ...]]:
    """Return ``CELL`` records of one host.

    :param pci_free: free PCI devices by NUMA node, None when the host reports none
    """
    return [_cell_record(cell, (pci_free or {}).get(cell.id, 0)) for cell in cells]


def _cell_record(cell: HostCell, pci_free: int) -> tuple[Any, ...]:
    unused = (0,) * (MOST_POOLS - len(cell.pages))
    return (
        True,
        1 << cell.id,
        0 if cell.socket is None else 1 << cell.socket,
        cell.cpus,
        cell.cpu_usage,
        cell.pcpus,
        cell.free_pcpus,
        sum(cell.free_threads),
        cell.whole_cores,
        cell.usable_cores,
        cell.most_sibling_cpus,
        cell.threads_per_core,
        cell.legacy_pinning,
        cell.memory_mb,
        cell.memory_usage_mb,
        cell.free_memory_mb,
        pci_free,
        len(cell.pages),
        (*(pool.size_kb for pool in cell.pages), *unused),
        (*(pool.free_kb for pool in cell.pages), *unused),
        (*(pool.total_kb for pool in cell.pages), *unused),
    )


def domain_records(view: HostView | None) -> list[tuple[Any, ...]]:
    """Return ``DOMAIN`` records of one host, none when it publishes nothing."""
    return [_domain_record(domain) for domain in view.l3] if view is not None else []


def _domain_record(domain: L3View) -> tuple[Any, ...]:
    return (
        True,
        domain.l3_id,
        sum(1 << node for node in domain.nodes),
        domain.socket,
        sum(1 << bit for bit, trait in enumerate(NEIGHBOURS) if trait in domain.neighbours),
        *_amount(domain.ways),
        *_amount(domain.bandwidth_mbps),
    )


def _amount(amount: Amount | None) -> tuple[bool, int, int]:
    return (False, 0, 0) if amount is None else (True, amount.capacity, amount.free)


def rows(dtype: np.dtype[np.void], hosts: Sequence[Sequence[tuple[Any, ...]]]) -> Records:
    """Return the records of several hosts, each row filled with absent records to the length of the longest."""
    width = max(map(len, hosts), default=0)
    absent = (np.zeros((), dtype).item(),)
    return np.array([[*host, *absent * (width - len(host))] for host in hosts], dtype).reshape(
        len(hosts), width
    )


def wider(records: Records, width: int) -> Records:
    """Return rows with at least ``width`` records each."""
    missing = width - records.shape[1]
    if missing <= 0:
        return records
    return np.concatenate([records, np.zeros((len(records), missing), records.dtype)], axis=1)


def limits(hosts: Sequence[AllocationRatios]) -> tuple[Floats, Floats]:
    """Return the overcommit of CPUs and of memory, one number per host."""
    return np.array([each.cpu_ratio for each in hosts]), np.array(
        [each.ram_ratio for each in hosts]
    )


def count_bits(bits: Bits) -> Integers:
    """Return the number of bits that are set in each number."""
    octets = np.ascontiguousarray(bits).view(np.uint8).reshape(*bits.shape, 8)
    count: Integers = np.unpackbits(octets, axis=-1).sum(axis=-1, dtype=np.int64)
    return count


def union(bits: Bits) -> Bits:
    """Return the union of the sets in the last axis."""
    together: Bits = np.bitwise_or.reduce(bits, axis=-1)
    return together
