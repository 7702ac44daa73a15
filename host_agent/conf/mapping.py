# SPDX-License-Identifier: Apache-2.0
"""Options of the mapping of servers to cores: section ``[mapping]``."""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from placement_traits.options import Section, option


class PerformanceMetric(StrEnum):
    """What tells how well a server runs (variants SM-IPC and SM-MPI of Lakew et al.)."""

    IPC = "ipc"
    MPI = "mpi"


@dataclass(frozen=True, slots=True)
class MappingOptions(Section):
    """``[mapping]``."""

    section: ClassVar = "mapping"
    title: ClassVar = "A core for each vCPU, repaired at run time"

    enabled: bool = option(
        True,
        "Give each vCPU of a floating server a core of its own, keep classes that disturb each other apart, and "
        "move servers that run worse than expected. Off: they float on the CPUs of their home nodes. Where nova "
        "overcommits the host, servers that find no core float in any case.",
        change="floating servers shall float freely on the CPUs of their home nodes",
        leave="interference classes are in use",
    )
    metric: PerformanceMetric = option(
        PerformanceMetric.IPC,
        "What tells how well a server runs.",
        choices={
            PerformanceMetric.IPC: "instructions per cycle",
            PerformanceMetric.MPI: "misses per instruction",
        },
        change="servers spin while they wait, so that instructions mean nothing: mpi",
        leave="IPC shows how well your servers run",
    )
    threshold_percent: float = option(
        10.0,
        "Deviation from the expectation that is tolerated. Lower ones react to less and move more.",
        minimum=1.0,
        maximum=99.0,
        change="servers are moved for small reasons (raise)",
        leave="slow servers are found too late",
    )
    interval_s: float = option(
        5.0,
        "Seconds between two decisions about running servers; arrivals are placed at once.",
        minimum=0.1,
        change="moves follow each other too fast (raise)",
        leave="slow servers are found too late",
    )
    use_siblings: bool = option(
        False,
        "Put vCPUs on all hardware threads of a core. Off: one per core, siblings stay idle.",
        change="the host is full: twice the vCPUs fit",
        leave="servers disturb each other on the core's own caches",
    )
    quiet_samples: int = option(
        6,
        "Readings without a disturbing neighbour that make an expectation.",
        minimum=2,
        change="expectations are made from too little, and servers are moved back and forth (raise)",
        leave="servers live for minutes only",
    )
    smooth_samples: int = option(
        3,
        "Readings whose median is compared with the expectation.",
        minimum=1,
        change="expectations are made from too little, and servers are moved back and forth (raise)",
        leave="servers live for minutes only",
    )
    blind_samples: int = option(
        5,
        "Missing readings in a row after which what was measured of a server is forgotten. A server is not judged "
        "while readings are missing.",
        minimum=1,
        change="counters fail for longer than that now and then (raise)",
        leave="what was measured long ago must not count",
    )
    settle_s: float = option(
        15.0,
        "Seconds after a move in which nothing is learnt or judged.",
        minimum=0.0,
        change="servers need longer to warm up after a move (raise)",
        leave="servers are small",
    )
    cooldown_s: float = option(
        60.0,
        "Seconds for which a moved server is left in peace.",
        minimum=0.0,
        change="servers need longer to warm up after a move (raise)",
        leave="servers are small",
    )
    memory_s: float = option(
        900.0,
        "Seconds for which a server does not return to nodes that it left.",
        minimum=0.0,
        change="servers need longer to warm up after a move (raise)",
        leave="servers are small",
    )
    moves_per_round: int = option(
        2,
        "Most servers that are moved by one decision.",
        minimum=1,
        change="a move disturbs all others (lower to 1)",
        leave="the host is large",
    )
    least_benefit: float = option(
        2.0,
        "Expected benefit (1 to 10, from the learnt matrix) below which nothing is moved.",
        minimum=1.0,
        maximum=10.0,
        change="moves bring too little (raise)",
        leave="the benefit matrix has not been learnt yet",
    )
    benefit_keep: float = option(
        0.8,
        "Weight of the old value when the benefit matrix learns from a move; 1.0 learns nothing.",
        minimum=0.0,
        maximum=1.0,
        change="programs change often (lower)",
        leave="measurements are noisy",
    )
    reserve_share: float = option(
        0.25,
        "Part of a node's memory per core that a server with much memory leaves for each free core beside it.",
        minimum=0.0,
        maximum=1.0,
        change="large and small servers come in an unlucky order and large ones find no node (raise)",
        leave="all servers have about the same memory per vCPU",
    )
    reshuffle_moves: int = option(
        3,
        "Most servers that make room for one that finds no good place; 0 never moves one for another.",
        minimum=0,
        change="running servers must not be moved for a new one (0), or large ones find no place on a mixed host "
        "(raise)",
        leave="few servers come and go",
    )
    reshuffle_operations: int = option(
        1500,
        "Steps after which such a search, and all searches of one decision about running servers, end without an "
        "answer: a limit of time, counted so that the same host always gives the same answer. 1000 take some "
        "tenths of a second on a host of 36 nodes.",
        minimum=1,
        change="the journal shows search_limit and the agent may take more CPU time (raise)",
        leave="the host has eight nodes or fewer: the search ends long before",
    )
    vcpu_cost_mb: int = option(
        64,
        "Memory, MiB, whose move costs as much as that of one vCPU, where servers to be moved are compared.",
        minimum=0,
        change="moving many small servers disturbs more than moving one with much memory (raise)",
        leave="all servers have about the same memory per vCPU",
    )

    @property
    def threshold(self) -> float:
        """T of the source: tolerated relative deviation from the expectation."""
        return self.threshold_percent / 100
