# SPDX-License-Identifier: Apache-2.0
"""Which host cells and CPUs nova-compute will give a guest: nova's own choice, restated over plain data.

Without PCI devices, nova-compute picks the host cells by itself (``nova.virt.hardware.numa_fit_instance_to_host``)
and no allocation steers it. So the scheduler predicts that choice and orders the allocation candidates to agree with
it.

The algorithm, in nova's order: when the host has more cells than the guest, sort the host cells by three stable
sorts (free memory, then CPUs in use or free dedicated CPUs, then free PCI devices, the last being the strongest),
most free first for
*spread* and most used first for *pack*; then take the first permutation of host cells in which every guest cell
fits. Inside a cell it takes whole cores as far as the thread policy wants them, in the order of the host's own list of
cores, and threads of a core in the order in which Python iterates over nova's sets of integers; that order is kept
where the sets are read. Random hosts and guests hold this against nova's functions.
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
    :param cpuset: CPUs for shared guests
    :param cpu_usage: virtual CPUs of NUMA guests on them
    :param pcpus: CPUs for dedicated guests
    :param free_pcpus: of those, free ones
    :param free_siblings: free dedicated CPUs of each core, cores and their threads in nova's order
    :param threads_per_core: threads of the widest core
    :param legacy_pinning: the same CPUs serve shared and dedicated guests (``vcpu_pin_set``)
    :param memory_mb: memory
    :param memory_usage_mb: memory of NUMA guests
    :param pages: page pools, largest pages first
    """

    id: int
    socket: int | None
    cpuset: frozenset[int]
    cpu_usage: int
    pcpus: int
    free_pcpus: int
    free_siblings: tuple[tuple[int, ...], ...]
    threads_per_core: int
    legacy_pinning: bool
    memory_mb: int
    memory_usage_mb: int
    pages: tuple[PagePool, ...] = ()

    @property
    def cpus(self) -> int:
        """Number of CPUs for shared guests."""
        return len(self.cpuset)

    @property
    def free_memory_mb(self) -> int:
        """Memory not promised to NUMA guests, MiB."""
        return self.memory_mb - self.memory_usage_mb


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


@dataclass(frozen=True, slots=True)
class Pinning:
    """Host CPUs that one guest cell gets for itself.

    :param vcpus: of each of its dedicated virtual CPUs, ascending
    :param emulator: for the guest's emulator threads
    """

    vcpus: tuple[int, ...] = ()
    emulator: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Prediction:
    """What nova-compute will give a guest.

    :param nodes: host cell of each guest cell
    :param pinnings: CPUs of each guest cell
    """

    nodes: tuple[int, ...]
    pinnings: tuple[Pinning, ...]


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
) -> Prediction | None:
    """Return what the guest will get, None when it fits nowhere.

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
                return Prediction(ids, fitting.pinnings)
    return None


class _Fitting:
    """What nova's search remembers while it walks the permutations of one host.

    Nova works on the guest's own cells. A cell whose CPUs were packed onto a host cell carries that cell's number and
    its CPUs from then on, even if the host's overcommit forbids it afterwards (``_pack_instance_onto_cores`` sets both
    before ``_numa_fit_instance_cell`` looks at the limits), and a page size chosen on one host cell binds it on the
    next. Numbers and page sizes reach nova's caches, and a pair that a cache knows is not packed again: so a guest cell
    can end with the number of one host cell and the CPUs of another, and it does so here as well.
    """

    def __init__(
        self, guest: list[GuestCell], limits: AllocationRatios | None, isolated: bool
    ) -> None:
        self._guest = guest
        self._limits = limits
        self._isolated = isolated
        self._ids = list(range(len(guest)))
        self._pinnings = [Pinning()] * len(guest)
        self._known: dict[tuple[int, int], bool] = {}

    @property
    def pinnings(self) -> tuple[Pinning, ...]:
        """CPUs of each guest cell."""
        return tuple(self._pinnings)

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
            pinning = _pin(cell, guest, reserved)
            if pinning is None:
                return False
            self._ids[index] = cell.id
            self._pinnings[index] = pinning
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
    """Return whether there are enough CPUs of each kind."""
    if guest.floats and guest.cpus > cell.cpus:
        return False
    return not guest.pinned or guest.pcpus + reserved <= min(cell.pcpus, cell.free_pcpus)


def _pin(cell: HostCell, guest: GuestCell, reserved: int) -> Pinning | None:
    """Choose the dedicated CPUs of a guest cell under its thread policy: nova's ``_pack_instance_onto_cores``."""
    cores = [core for core in cell.free_siblings if core]
    if guest.thread_policy is ThreadPolicy.ISOLATE:
        if cell.threads_per_core > 1 and not cell.legacy_pinning:
            return None
        whole = [core for core in cores if len(core) >= cell.threads_per_core]
        vcpus = _take(whole, 1, guest.pcpus)
        unused = [core for core in cores if not vcpus or not set(core) & set(vcpus)]
        return _pinning(vcpus, unused, reserved) if vcpus else None
    sibling_only = guest.thread_policy is ThreadPolicy.REQUIRE
    if sibling_only and cell.threads_per_core <= 1:
        return None
    for threads in range(max(map(len, cores), default=0), int(sibling_only), -1):
        vcpus = _take([core for core in cores if len(core) >= threads], threads, guest.pcpus)
        found = None if vcpus is None else _pinning(vcpus, cores, reserved)
        if found is not None:
            return found
    return (
        None
        if sibling_only
        else _pinning(_take(cores, cell.threads_per_core, guest.pcpus), cores, reserved)
    )


def _take(cores: Sequence[Sequence[int]], threads: int, count: int) -> tuple[int, ...] | None:
    """Return ``count`` CPUs, so many threads of each core in turn; None when there are not enough."""
    usable = [cpu for core in cores for cpu in core[:threads]]
    return tuple(usable[:count]) if len(usable) >= count else None


def _pinning(
    vcpus: tuple[int, ...] | None, cores: Sequence[Sequence[int]], reserved: int
) -> Pinning | None:
    """Add the emulator's CPU, the first of ``cores`` that is left; None when one is needed and none is left."""
    if vcpus is None or not reserved:
        return None if vcpus is None else Pinning(vcpus)
    left = [cpu for core in cores for cpu in core if cpu not in vcpus]
    return Pinning(vcpus, tuple(left[:reserved])) if vcpus and left else None


def _within(cell: HostCell, guest: GuestCell, limits: AllocationRatios | None) -> bool:
    if limits is None or not guest.floats:
        return True
    return (
        cell.cpu_usage + guest.cpus <= cell.cpus * limits.cpu_ratio
        and cell.memory_usage_mb + guest.memory_mb <= cell.memory_mb * limits.ram_ratio
    )
