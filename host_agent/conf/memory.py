# SPDX-License-Identifier: Apache-2.0
"""Options of page moves: section ``[memory]``."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from placement_traits.options import Section, option


@dataclass(frozen=True, slots=True)
class MemoryOptions(Section):
    """``[memory]``."""

    section: ClassVar = "memory"
    title: ClassVar = "Placement of guest memory over NUMA nodes"

    mode: Literal["observe", "enforce"] = option(
        "enforce",
        "What is done with pages; see [agent]mode.",
        choices={
            "observe": "pages stay where they are",
            "enforce": "pages are moved",
        },
        change="moves of pages are the last feature to be switched on",
        leave="[agent]mode is enough",
    )
    enabled: bool = option(
        True,
        "Move pages that are not on their node. Never widens a cpuset.",
        change="pages must never be moved, for instance while you measure",
        leave="floating servers run here",
    )
    dead_band_percent: float = option(
        1.0,
        "Share of a server's memory that may be elsewhere before anything is moved.",
        minimum=0.0,
        maximum=100.0,
        change="pages wander back and forth (raise)",
        leave="the journal shows no repeated moves",
    )
    rate_mbps: int = option(
        400,
        "MB/s that page moves may use in one round; 0 is no limit. Moves take memory bandwidth from the servers.",
        minimum=0,
        change="moves disturb servers (lower), or take too long after starts (raise)",
        leave="the memory bandwidth of the host is not known",
    )
    pause_ms: float = option(
        50.0,
        "Milliseconds that one call to the kernel should take at most to move pages: a server that wants one of "
        "them waits. One huge page is moved in any case, never more than 16 MiB at a time; 0 is no limit.",
        minimum=0.0,
        maximum=60_000.0,
        change="latency-critical servers show spikes while pages move (lower)",
        leave="one huge page alone takes longer than that: less cannot be moved",
    )
    slice_s: float = option(
        1.0,
        "Seconds that page moves of all servers together may take in one round; the rest follows in the next.",
        minimum=0.01,
        maximum=60.0,
        change="one large server keeps others waiting for their move (lower)",
        leave="release_after_s of [rdt] is near: a round must end before it",
    )
    polled_slice_s: float = option(
        0.1,
        "The same while a controller polls its sensors between the rounds: what it sees is acted on so much later "
        "at worst.",
        minimum=0.01,
        maximum=60.0,
        change="objectives are missed while pages move (lower)",
        leave="no server has an objective",
    )
    margin_mb: int = option(
        256,
        "Memory left free on every node when floating servers are moved there, MiB, beside what nova promised to "
        "servers that are bound to the node.",
        minimum=0,
        change="servers die of lack of memory on a node (raise)",
        leave="the host has little memory and servers are small",
    )
    sample_pages: int = option(
        512,
        "Pages of each server looked up per round to see drift between two full passes.",
        minimum=16,
        maximum=4096,
        change="drift is found late on servers with much memory (raise)",
        leave="many small servers: each look costs one system call per server",
    )

    @property
    def dead_band(self) -> float:
        """Share of a server's memory that may be elsewhere before anything is moved."""
        return self.dead_band_percent / 100

    @property
    def arrived(self) -> float:
        """Share that may be elsewhere when a search takes its pages for placed: page moves end at their dead band."""
        return 2 * self.dead_band
