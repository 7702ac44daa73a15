# SPDX-License-Identifier: Apache-2.0
"""Options of the search for the best spread of memory (BWAP): section ``[bwap]``."""

from dataclasses import dataclass
from typing import ClassVar

from placement_traits.errors import InvalidValueError
from placement_traits.options import Section, option


@dataclass(frozen=True, slots=True)
class BwapOptions(Section):
    """``[bwap]``."""

    section: ClassVar = "bwap"
    title: ClassVar = "Search for the best spread of memory (BWAP)"

    samples: int = option(
        20,
        "n: stall rates that make one measurement.",
        minimum=1,
        change="measurements contradict each other (raise), at the price of longer searches",
        leave="phases of servers are shorter than a search",
    )
    drop: int = option(
        5,
        "c: lowest and highest of them that are dropped; less than half of samples.",
        minimum=0,
        change="measurements contradict each other (raise), at the price of longer searches",
        leave="phases of servers are shorter than a search",
    )
    interval_s: float = option(
        0.2,
        "t: seconds between two stall rates.",
        minimum=0.02,
        change="measurements contradict each other (raise), at the price of longer searches",
        leave="phases of servers are shorter than a search",
    )
    interval_is_period: bool = option(
        False,
        "Take interval_s for the length of a whole measurement, the other reading of the source.",
        change="measurements contradict each other (raise), at the price of longer searches",
        leave="phases of servers are shorter than a search",
    )
    step_percent: float = option(
        10.0,
        "x: part of all pages that one step brings to the nodes of the vCPUs.",
        minimum=1.0,
        maximum=100.0,
        change="the optimum is stepped over (lower)",
        leave="a search must end soon",
    )
    undo: bool = option(
        True,
        "Take a step back that made it worse.",
        change="you want BWAP's own search, which keeps the last step",
        leave="none of this applies",
    )
    noise_sigmas: float = option(
        1.0,
        "Standard errors below which two measurements count as equal.",
        minimum=0.0,
        change="measurements contradict each other (raise), at the price of longer searches",
        leave="phases of servers are shorter than a search",
    )
    plateau_steps: int = option(
        2,
        "Equal steps in a row that are walked over; 0 ends the search at the first.",
        minimum=0,
        change="searches end on a plateau before the optimum (raise)",
        leave="each step moves much memory",
    )
    memory_intensive_mapi: float = option(
        0.002,
        "Memory accesses per instruction below which a server's memory is brought to its vCPUs instead of being "
        "spread.",
        minimum=0.0,
        change="servers are spread that gain nothing (raise), or not spread that would (lower)",
        leave="you have not looked at the journal's figures of your servers",
    )
    stable_samples: int = option(
        10,
        "Readings that are looked at to find a steady phase.",
        minimum=2,
        change="searches start in phases that pass (raise)",
        leave="phases are short",
    )
    stable_variation: float = option(
        0.25,
        "Largest coefficient of variation in a steady phase.",
        minimum=0.0,
        change="searches start in phases that pass (raise)",
        leave="phases are short",
    )
    phase_change: float = option(
        0.3,
        "Relative change of memory accesses or stalls that starts a new search.",
        minimum=0.01,
        change="searches start again without need (raise)",
        leave="programs change what they do",
    )
    blind_samples: int = option(
        50,
        "Missing readings in a row after which a search is given up.",
        minimum=1,
        change="counters fail for longer than that now and then (raise)",
        leave="none of this applies",
    )
    stuck_s: float = option(
        60.0,
        "Seconds after which a search is given up whose pages have come no nearer, by half a percent of the "
        "server's memory. Longer for very large servers, and where [memory]rate_mbps is low.",
        minimum=1.0,
        change="servers have hundreds of GiB, or [memory]rate_mbps is low, and the journal shows "
        "search_given_up_stuck (raise)",
        leave="pages arrive within seconds",
    )
    at_once: int = option(
        16,
        "Searches that may run on a host at a time; the others wait for their turn, first come, first served. Counters "
        "of servers that search are read every interval_s, all others every [counters]sample_s.",
        minimum=1,
        change="many servers search at once: the agent uses too much CPU time (lower), or the last ones wait for too "
        "long (raise)",
        leave="fewer servers search at a time",
    )

    @property
    def step(self) -> float:
        """x of the source: part of all pages that moves to the workers in one step."""
        return self.step_percent / 100

    @property
    def sample_interval_s(self) -> float:
        """Seconds between two samples."""
        return self.interval_s / self.samples if self.interval_is_period else self.interval_s

    def check(self) -> None:
        """See :meth:`~placement_traits.options.Section.check`."""
        if not 0 <= 2 * self.drop < self.samples:
            raise InvalidValueError("[bwap]drop", self.drop, f"0 to {(self.samples - 1) // 2}")
