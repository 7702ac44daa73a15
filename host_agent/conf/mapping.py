# SPDX-License-Identifier: Apache-2.0
"""What the operator decides about the mapping of servers, apart from it: reading a configuration loads no more."""

from dataclasses import dataclass, field
from enum import StrEnum

from placement_traits.errors import InvalidValueError


class Metric(StrEnum):
    """What tells how well a server runs."""

    IPC = "ipc"
    MPI = "mpi"


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of reshuffling: of one search for servers to be moved.

    :param moves: most servers that are moved for one
    :param operations: most rankings
    :param vcpu_cost_mb: one moved vCPU costs as much as that much moved memory, MiB
    """

    moves: int = 3
    operations: int = 1500
    vcpu_cost_mb: int = 64


@dataclass(frozen=True, slots=True)
class Settings:
    """The operator's choices.

    :param metric: IPC or MPI (the source's variants SM-IPC and SM-MPI)
    :param threshold: T, tolerated relative deviation from the expectation
    :param interval_s: time between two decisions about running servers, seconds
    :param quiet_samples: samples of a quiet window that make an expectation
    :param smooth_samples: samples whose median is compared with the expectation
    :param blind_samples: missing samples in a row after which what was measured is forgotten; until then the server is
        not judged
    :param settle_s: time after a move in which nothing is learnt or judged, seconds
    :param cooldown_s: time a moved server rests, seconds
    :param memory_s: time in which a server does not return to nodes it left, seconds
    :param moves_per_round: most servers that move in one round
    :param least_benefit: expected benefit, 1 to 10, below which nothing is moved
    :param benefit_keep: weight of the old value when the benefit matrix learns
    :param reserve_share: part of a node's memory per core that is kept for each free core beside a server
    :param limits: bounds of reshuffling
    """

    metric: Metric = Metric.IPC
    threshold: float = 0.10
    interval_s: float = 5.0
    quiet_samples: int = 6
    smooth_samples: int = 3
    blind_samples: int = 5
    settle_s: float = 15.0
    cooldown_s: float = 60.0
    memory_s: float = 900.0
    moves_per_round: int = 2
    least_benefit: float = 2.0
    benefit_keep: float = 0.8
    reserve_share: float = 0.25
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not 0.0 < self.threshold < 1.0:
            raise InvalidValueError("threshold", self.threshold, "between 0.0 and 1.0")
        if not 0.0 <= self.benefit_keep <= 1.0:
            raise InvalidValueError("benefit_keep", self.benefit_keep, "0.0 to 1.0")
