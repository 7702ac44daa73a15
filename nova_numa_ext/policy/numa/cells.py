# SPDX-License-Identifier: Apache-2.0
"""Which host cells nova-compute will give a guest: nova's own choice, restated over plain numbers.

Without PCI devices, nova-compute picks the host cells by itself (``nova.virt.hardware.numa_fit_instance_to_host``)
and no allocation steers it. So the scheduler predicts that choice and orders the allocation candidates to agree with
it.

The algorithm, in nova's order: when the host has more cells than the guest, sort the host cells by three stable
sorts (free memory, then CPUs in use or free dedicated CPUs, then free PCI devices, the last being the strongest),
most free first for
*spread* and most used first for *pack*; then take the first permutation of host cells in which every guest cell
fits. Which CPUs inside a cell are taken does not decide whether a cell fits, so only counts are kept here. A
property test holds this against nova's function.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

KIB_PER_MIB: Final = 1024
PAGES_SMALL, PAGES_LARGE, PAGES_ANY = -1, -2, -3  # nova.virt.hardware.MEMPAGES_*


class CpuPolicy(StrEnum):
    """``hw:cpu_policy``."""

    SHARED = "shared"
    DEDICATED = "dedicated"
    MIXED = "mixed"


class ThreadPolicy(StrEnum):
    """``hw:cpu_thread_policy``."""

    PREFER = "prefer"
    ISOLATE = "isolate"
    REQUIRE = "require"


@dataclass(frozen=True, slots=True)
class PagePool:
    """Pages of one size in one cell; :attr:`free_kb` and :attr:`total_kb` as nova counts them."""

    size_kb: int
    free_kb: float
    total_kb: float


@dataclass(frozen=True, slots=True)
class HostCell:
    """One NUMA node of a host as nova accounts it.

    :param id: NUMA node
    :param socket: package, None when nova does not know
    :param cpus: CPUs for shared guests
    :param cpu_usage: virtual CPUs of NUMA guests on them
    :param pcpus: CPUs for dedicated guests
    :param free_pcpus: of those, free ones
    :param free_threads: free dedicated CPUs of each core, one number per core
    :param threads_per_core: threads of the widest core
    :param legacy_pinning: the same CPUs serve shared and dedicated guests (``vcpu_pin_set``)
    :param memory_mb: memory
    :param memory_usage_mb: memory of NUMA guests
    :param pages: page pools, largest pages first
    """

    id: int
    socket: int | None
    cpus: int
    cpu_usage: int
    pcpus: int
    free_pcpus: int
    free_threads: tuple[int, ...]
    threads_per_core: int
    legacy_pinning: bool
    memory_mb: int
    memory_usage_mb: int
    pages: tuple[PagePool, ...] = ()

    @property
    def free_memory_mb(self) -> int:
        """Memory not promised to NUMA guests, MiB."""
        return self.memory_mb - self.memory_usage_mb

    @property
    def whole_cores(self) -> int:
        """Cores all of whose threads are free dedicated CPUs."""
        return sum(free >= self.threads_per_core for free in self.free_threads)

    @property
    def usable_cores(self) -> int:
        """Cores with at least one free dedicated CPU."""
        return sum(free > 0 for free in self.free_threads)

    @property
    def most_sibling_cpus(self) -> int:
        """Most dedicated CPUs that can be taken with the same number of threads, at least two, of each core used."""
        return max(
            (
                threads * sum(free >= threads for free in self.free_threads)
                for threads in range(2, max(self.free_threads, default=0) + 1)
            ),
            default=0,
        )


@dataclass(frozen=True, slots=True)
class GuestCell:
    """One NUMA node of a guest.

    :param cpus: shared virtual CPUs
    :param pcpus: dedicated virtual CPUs
    :param memory_mb: memory
    :param policy: None means shared
    :param thread_policy: None means prefer
    :param page_size_kb: page size, one of ``PAGES_*``, or None when the guest names none
    """

    cpus: int
    pcpus: int
    memory_mb: int
    policy: CpuPolicy | None = None
    thread_policy: ThreadPolicy | None = None
    page_size_kb: int | None = None

    @property
    def pinned(self) -> bool:
        """True when at least one virtual CPU is dedicated."""
        return self.policy in (CpuPolicy.DEDICATED, CpuPolicy.MIXED)

    @property
    def floats(self) -> bool:
        """True when at least one virtual CPU is shared."""
        return self.policy is not CpuPolicy.DEDICATED


@dataclass(frozen=True, slots=True)
class AllocationRatios:
    """Overcommit that nova allows for shared guests: allocation ratios."""

    cpu_ratio: float
    ram_ratio: float


def predict(
    host: Sequence[HostCell],
    guest: Sequence[GuestCell],
    limits: AllocationRatios | None,
    *,
    pack: bool = False,
    isolated_emulator: bool = False,
    pci_free: Mapping[int | None, int] | None = None,
    wants_pci: bool = False,
    accepts: Callable[[tuple[int, ...]], bool] | None = None,
) -> tuple[int, ...] | None:
    """Return the host cell of each guest cell, None when the guest fits nowhere.

    :param host: the host's cells in nova's order
    :param guest: the guest's cells, with numbers 0, 1 …
    :param limits: overcommit; None checks none, as nova does
    :param pack: ``[compute]packing_host_numa_cells_allocation_strategy`` of the *compute* host
    :param isolated_emulator: ``hw:emulator_threads_policy=isolate``: one more dedicated CPU beside the first guest cell
    :param pci_free: free PCI devices by NUMA node (key None: node unknown); None when the host reports no PCI
    :param wants_pci: the guest asks for PCI devices
    :param accepts: a last word on host cells that fit, such as nova's check of PCI affinity
    """
    if not host or not guest or len(host) < len(guest):
        return None
    order = list(host)
    if len(host) > len(guest):
        order = _sorted(order, guest[0], pack, pci_free, wants_pci)
    fitting = _Fitting(list(guest), limits, isolated_emulator)
    for chosen in itertools.permutations(order, len(guest)):
        if all(fitting.fits(index, cell) for index, cell in enumerate(chosen)):
            ids = tuple(cell.id for cell in chosen)
            if accepts is None or accepts(ids):
                return ids
    return None


class _Fitting:
    """What nova's search remembers while it walks the permutations of one host.

    Nova works on the guest's own cells: a cell whose CPUs were packed onto a host cell carries that cell's number from
    then on, even if the host's overcommit forbids it afterwards (``_pack_instance_onto_cores`` sets it before
    ``_numa_fit_instance_cell`` looks at the limits), and a page size chosen on one host cell binds it on the next. Both
    reach nova's caches, so they are kept here as well.
    """

    def __init__(
        self, guest: list[GuestCell], limits: AllocationRatios | None, isolated: bool
    ) -> None:
        self._guest = guest
        self._limits = limits
        self._isolated = isolated
        self._ids = list(range(len(guest)))
        self._known: dict[tuple[int, int], bool] = {}

    def fits(self, index: int, cell: HostCell) -> bool:
        """Return whether guest cell ``index`` fits ``cell``, as nova would find at this point of its search."""
        key = (cell.id, self._ids[index])
        fits = self._known.get(key)
        if fits is None:
            fits = self._known[key] = self._try(index, cell)
        if fits:
            self._ids[index] = cell.id
        return fits

    def _try(self, index: int, cell: HostCell) -> bool:
        guest = self._guest[index]
        page_size = _page_size(cell, guest)
        if page_size is None:
            return False
        if guest.page_size_kb and guest.page_size_kb != page_size:
            guest = self._guest[index] = replace(guest, page_size_kb=page_size)
        reserved = int(self._isolated and index == 0)
        if not _cpus_fit(cell, guest, reserved):
            return False
        if guest.pinned:
            self._ids[index] = cell.id
        return _within(cell, guest, self._limits)


def _sorted(
    cells: list[HostCell],
    first: GuestCell,
    pack: bool,
    pci_free: Mapping[int | None, int] | None,
    wants_pci: bool,
) -> list[HostCell]:
    cells = sorted(cells, key=lambda cell: cell.free_memory_mb, reverse=not pack)
    if first.pinned:
        cells = sorted(cells, key=lambda cell: cell.free_pcpus, reverse=not pack)
    else:
        cells = sorted(cells, key=lambda cell: cell.cpu_usage, reverse=pack)
    if pci_free is not None:
        cells = sorted(cells, key=lambda cell: pci_free.get(cell.id, 0), reverse=wants_pci)
    return cells


def _page_size(cell: HostCell, guest: GuestCell) -> int | None:
    """Page size that the guest cell's memory would use, 0 where the host reports none; None when it does not fit."""
    requested_kb = guest.memory_mb * KIB_PER_MIB
    if guest.page_size_kb:
        for pool in _allowed(cell.pages, guest.page_size_kb):
            if requested_kb <= pool.free_kb and requested_kb % pool.size_kb == 0:
                return pool.size_kb
        return None
    if cell.pages:
        smallest = cell.pages[-1]
        available_kb = smallest.free_kb if guest.pinned else smallest.total_kb
        fits = requested_kb <= available_kb and requested_kb % smallest.size_kb == 0
        return smallest.size_kb if fits else None
    # A guest may not overcommit against itself; a pinned one not at all.
    return (
        0 if guest.memory_mb <= (cell.free_memory_mb if guest.pinned else cell.memory_mb) else None
    )


def _allowed(pools: tuple[PagePool, ...], requested: int) -> tuple[PagePool, ...]:
    """Pools that a page size of the guest (a size in KiB or one of ``PAGES_*``) allows, largest first."""
    if requested == PAGES_ANY:
        return pools
    if requested == PAGES_SMALL:
        return pools[-1:]
    if requested == PAGES_LARGE:
        return pools[:-1]
    return tuple(pool for pool in pools if pool.size_kb == requested)


def _cpus_fit(cell: HostCell, guest: GuestCell, reserved: int) -> bool:
    if guest.floats and guest.cpus > cell.cpus:
        return False
    if not guest.pinned:
        return True
    requested = guest.pcpus + reserved
    return (
        requested <= cell.pcpus and requested <= cell.free_pcpus and _packs(cell, guest, reserved)
    )


def _packs(cell: HostCell, guest: GuestCell, reserved: int) -> bool:
    """Return whether the dedicated CPUs of a guest cell can be chosen under its thread policy (enough are free)."""
    requested = guest.pcpus
    if reserved and not requested:
        return False
    if guest.thread_policy is ThreadPolicy.ISOLATE:
        # One thread of a wholly free core each; the emulator's CPU comes from yet another core.
        smt_allowed = cell.threads_per_core == 1 or cell.legacy_pinning
        enough = 0 < requested <= cell.whole_cores
        return (
            smt_allowed and enough and (not reserved or cell.usable_cores - requested >= reserved)
        )
    if guest.thread_policy is ThreadPolicy.REQUIRE:
        return cell.threads_per_core > 1 and 0 < cell.most_sibling_cpus >= requested
    return requested + reserved <= sum(cell.free_threads)


def _within(cell: HostCell, guest: GuestCell, limits: AllocationRatios | None) -> bool:
    if limits is None or not guest.floats:
        return True
    return (
        cell.cpu_usage + guest.cpus <= cell.cpus * limits.cpu_ratio
        and cell.memory_usage_mb + guest.memory_mb <= cell.memory_mb * limits.ram_ratio
    )
