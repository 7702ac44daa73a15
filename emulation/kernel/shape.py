# SPDX-License-Identifier: Apache-2.0
"""The hardware behind the resctrl model: what CPUID would report."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Shape:
    """Hardware: what CPUID would report.

    :ivar domains: ids of the L3 caches
    :ivar shareable: ways that devices fill too
    :ivar amd: empty and broken masks are legal, bandwidth is absolute (1/8 GB/s, 2048 is all)
    :ivar cdp: mounted with ``-o cdp``
    :ivar cdpl2: mounted with ``-o cdpl2``
    :ivar mba_mbps: mounted with ``-o mba_MBps``: bandwidth is MiB/s, any 32-bit number, all of it when not written
    :ivar l3_bytes: size of one L3 cache
    :ivar l2_len: ways of an L2 cache, 0: they cannot be allocated
    :ivar l2_domains: ids of the L2 caches
    :ivar l2_bytes: size of one L2 cache
    """

    domains: tuple[int, ...] = (0,)
    cbm_len: int = 12
    min_cbm_bits: int = 1
    shareable: int = 0xC00
    closids: int = 8
    rmids: int = 32
    cpus: frozenset[int] = frozenset(range(4))
    l3: bool = True
    mba: bool = True
    monitoring: tuple[str, ...] = ("llc_occupancy", "mbm_total_bytes", "mbm_local_bytes")
    amd: bool = False
    cdp: bool = False
    cdpl2: bool = False
    mba_mbps: bool = False
    mba_min: int = 10
    mba_gran: int = 10
    thread_throttle_mode: str = "max"
    l3_bytes: int = 16 << 20
    l2_len: int = 0
    l2_domains: tuple[int, ...] = ()
    l2_bytes: int = 2 << 20

    @property
    def full(self) -> int:
        """Mask of all ways."""
        return (1 << self.cbm_len) - 1

    @property
    def caches(self) -> tuple[str, ...]:
        """Names of the L3 resources."""
        if not self.l3:
            return ()
        return ("L3CODE", "L3DATA") if self.cdp else ("L3",)

    @property
    def all_caches(self) -> tuple[str, ...]:
        """Names of all resources with masks."""
        if not self.l2_len:
            return self.caches
        return (*self.caches, *(("L2CODE", "L2DATA") if self.cdpl2 else ("L2",)))

    @property
    def mount_options(self) -> frozenset[str]:
        """The words that ``/proc/mounts`` shows."""
        chosen = {"cdp": self.cdp, "cdpl2": self.cdpl2, "mba_MBps": self.mba_mbps}
        return frozenset({"rw", *(name for name, on in chosen.items() if on)})

    def domains_of(self, resource: str) -> tuple[int, ...]:
        """Ids of the caches of a resource; bandwidth is allocated by L3 cache."""
        return self.l2_domains if _is_l2(resource) else self.domains

    def full_of(self, cache: str) -> int:
        """Mask of all ways of a cache."""
        return (1 << self.l2_len) - 1 if _is_l2(cache) else self.full

    def way_bytes(self, cache: str) -> int:
        """Size of one way of a cache."""
        return self.l2_bytes // self.l2_len if _is_l2(cache) else self.l3_bytes // self.cbm_len

    def shareable_of(self, cache: str) -> int:
        """Ways of a cache that devices fill too: they reach the L3 only."""
        return 0 if _is_l2(cache) else self.shareable

    @property
    def mba_max(self) -> int:
        """The value that throttles nothing."""
        if self.mba_mbps:
            return (1 << 32) - 1
        return 2048 if self.amd else 100

    def closids_of(self, resource: str) -> int:
        """Classes of service of a resource; one that has code and data apart has half as many."""
        halved = self.cdpl2 if _is_l2(resource) else self.cdp and resource != "MB"
        return self.closids // 2 if halved else self.closids

    @property
    def usable_closids(self) -> int:
        """Classes of service that groups may have, root's included."""
        return min(map(self.closids_of, (*self.all_caches, "MB")))


def _is_l2(resource: str) -> bool:
    return resource.startswith("L2")


INTEL: Final = Shape()
AMD: Final = Shape(
    min_cbm_bits=0, shareable=0, cbm_len=16, closids=16, amd=True, mba_min=0, mba_gran=1
)
