# SPDX-License-Identifier: Apache-2.0
"""What a job requests of GPUs, and what is known of how it runs.

A :class:`GpuJob` is the request: tasks (one task = one GPU), the weight of the communication between any two of them
(4 = smallest batch, 0 = none), and limits. A :class:`Profile` is the measured behaviour: run time with its GPUs close
together (*pack*), on different sockets (*spread*) and beside other jobs. Profiles are measured off line and kept in a
:class:`ProfileStore`; what is not in the store is neutral, it neither suffers nor disturbs (Amaral 2019, sections
4.1.1.1, 4.1.2 and 4.3.1).
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Self, TypeGuard

from placement_traits.errors import InvalidValueError

MIN_RUNS: Final = 5
ANY: Final = "*"


@dataclass(frozen=True, slots=True)
class JobGraph:
    """Tasks of a job that are placed on one host, and their communication.

    :param tasks: number of tasks, one GPU each
    :param edges: (task, task, weight) with weight > 0; tasks that do not communicate have no edge
    :raises InvalidValueError: for an edge that leads nowhere, to itself, or has no weight
    """

    tasks: int
    edges: tuple[tuple[int, int, float], ...] = ()
    total: float = field(init=False)
    uniform: bool = field(init=False)

    def __post_init__(self) -> None:
        if self.tasks < 1:
            raise InvalidValueError("tasks", self.tasks, "at least one")
        for a, b, weight in self.edges:
            if not (0 <= a < self.tasks and 0 <= b < self.tasks and a != b and weight > 0):
                raise InvalidValueError(
                    "edge", (a, b, weight), f"two of {self.tasks} tasks and a weight > 0"
                )
        pairs = {frozenset((a, b)) for a, b, _ in self.edges}
        if len(pairs) != len(self.edges):
            raise InvalidValueError("edges", self.edges, "each pair of tasks once")
        complete = len(pairs) == self.tasks * (self.tasks - 1) // 2
        equal = len({weight for _, _, weight in self.edges}) <= 1
        object.__setattr__(self, "total", float(sum(weight for _, _, weight in self.edges)))
        object.__setattr__(self, "uniform", not self.edges or (complete and equal))

    @classmethod
    def complete(cls, tasks: int, weight: float) -> Self:
        """All pairs of tasks communicate with one weight: data-parallel training; weight 0 is no communication."""
        pairs = [(a, b, float(weight)) for a in range(tasks) for b in range(a + 1, tasks)]
        return cls(tasks, tuple(pairs) if weight > 0 else ())


@dataclass(frozen=True, slots=True)
class GpuJob:
    """What a job requests; equal requests are equal objects, so that decisions can be cached.

    :param parts: graphs that are placed on *different* hosts (section 4.2: anti-collocation by disconnected
        graphs); mostly one
    :param profile: name in the profile store
    :param min_utility: utility in [0, 1] below which a placement does not satisfy the job
    :param single_node: a part may not span hosts
    :param bandwidth_mbps: memory bandwidth that each part needs on its host, MB/s
    """

    parts: tuple[JobGraph, ...]
    profile: str = ""
    min_utility: float = 0.0
    single_node: bool = True
    bandwidth_mbps: int = 0

    def __post_init__(self) -> None:
        if not self.parts:
            raise InvalidValueError("parts", self.parts, "at least one graph")
        if not 0.0 <= self.min_utility <= 1.0:
            raise InvalidValueError("min_utility", self.min_utility, "0.0 to 1.0")

    @property
    def graph(self) -> JobGraph:
        """The graph of a job of one part."""
        if len(self.parts) != 1:
            raise InvalidValueError("parts", len(self.parts), "one graph, to be placed on one host")
        return self.parts[0]

    @property
    def gpus(self) -> int:
        """GPUs over all parts."""
        return sum(part.tasks for part in self.parts)


def flavor_job(
    gpus: int,
    comm: int = 0,
    min_utility: float = 0.0,
    bandwidth_mbps: int = 0,
    profile: str | None = None,
) -> GpuJob:
    """Return the job that a flavor describes (``numa_ext:gpu_comm``, ``numa_ext:min_utility``).

    :param profile: name in the profile store; default the one of :data:`COMM_PROFILES` for its weight
    """
    return GpuJob(
        (JobGraph.complete(gpus, comm),),
        profile or comm_profile(comm),
        min_utility,
        bandwidth_mbps=bandwidth_mbps,
    )


@dataclass(frozen=True, slots=True)
class Profile:
    """How a job runs.

    :param name: key in the store
    :param solo_s: run time alone with its GPUs close together (the best known case), seconds
    :param spread: run time on different sockets divided by ``solo_s``, >= 1
    :param beside: run time beside a job divided by ``solo_s``, by the other's profile name; ``*`` is any other
    """

    name: str
    solo_s: float = 1.0
    spread: float = 1.0
    beside: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class ProfileStore:
    """Profiles by name; hashed by identity, so that decisions can be remembered per store."""

    profiles: Mapping[str, Profile] = field(default_factory=dict)

    def get(self, name: str) -> Profile:
        """Return a profile; an unknown name gives the neutral default (cost 1 in every surrounding)."""
        return self.profiles.get(name) or Profile(name)

    def slowdown(self, victim: str, aggressor: str) -> float:
        """Run time of ``victim`` beside ``aggressor`` relative to alone, 1 where nothing is known."""
        beside = self.get(victim).beside
        return beside.get(aggressor, beside.get(ANY, 1.0))


def p95(runs: object, where: str = "runs") -> float:
    """Return the 95th percentile by nearest rank; of five runs that is the slowest.

    :raises InvalidValueError: for what is not a list of numbers, fewer than five runs, or a time that is not > 0
    """
    times = [float(run) for run in runs if _is_time(run)] if isinstance(runs, list) else []
    if not isinstance(runs, list) or len(times) < max(MIN_RUNS, len(runs)):
        raise InvalidValueError(where, runs, f"a list of at least {MIN_RUNS} times > 0")
    return sorted(times)[math.ceil(0.95 * len(times)) - 1]


def _is_time(run: object) -> bool:
    return is_number(run) and run > 0


def is_number(found: object) -> TypeGuard[int | float]:
    """Tell whether what a file holds is a number that a float can be; ``true``, NaN and infinity are none."""
    if not isinstance(found, int | float) or isinstance(found, bool):
        return False
    return -sys.float_info.max <= found <= sys.float_info.max


def parse_profiles(document: object, where: str = "profiles") -> ProfileStore:
    """Build a store from measured runs, the decoded JSON or YAML of a profile file::

        alexnet-tiny:
          pack_s: [118, 120, 119, 121, 120]       # at least five runs, seconds
          spread_s: [152, 151, 153, 150, 152]     # optional
          beside_s:                               # optional, packed and beside another job
            alexnet-tiny: [155, 154, 156, 155, 153]
            "*": [125, 124, 126, 125, 125]

    Each list becomes its 95th percentile. A job that ran faster in a worse place counts as not slowed down.

    :raises InvalidValueError: naming the key that is wrong
    """
    profiles = {}
    for name, found in _mapping(document, where).items():
        at = f"{where}.{name}"
        entry = _mapping(found, at)
        unknown = sorted(entry.keys() - {"pack_s", "spread_s", "beside_s"})
        if unknown:
            raise InvalidValueError(at, unknown[0], "pack_s, spread_s, beside_s")
        solo = p95(entry.get("pack_s"), f"{at}.pack_s")
        spread = p95(entry["spread_s"], f"{at}.spread_s") if "spread_s" in entry else solo
        beside = {
            other: max(1.0, p95(runs, f"{at}.beside_s.{other}") / solo)
            for other, runs in _mapping(entry.get("beside_s", {}), f"{at}.beside_s").items()
        }
        profiles[name] = Profile(name, solo, max(1.0, spread / solo), MappingProxyType(beside))
    return ProfileStore(MappingProxyType(profiles))


def _mapping(found: object, where: str) -> dict[str, Any]:
    if not isinstance(found, Mapping):
        raise InvalidValueError(where, found, "a mapping of names")
    return {str(name): value for name, value in found.items()}


# Figure 13: a job of tiny batches (weight 4) suffers up to 30 % beside another, one of big batches (weight 1)
# nothing; a big-batch job still takes 24 % and 21 % from tiny and small ones. Other points are interpolated (weight
# 2: 5 %).
SUFFERS: Final[Mapping[int, float]] = MappingProxyType({4: 0.30, 3: 0.26, 2: 0.05, 1: 0.0, 0: 0.0})
DISTURBS: Final[Mapping[int, float]] = MappingProxyType({4: 1.0, 3: 0.95, 2: 0.85, 1: 0.8, 0: 0.0})


def comm_profile(comm: int) -> str:
    """Name of the built-in profile of a communication weight."""
    return f"comm-{comm}"


COMM_PROFILES: Final = ProfileStore(
    MappingProxyType(
        {
            comm_profile(victim): Profile(
                comm_profile(victim),
                beside=MappingProxyType(
                    {
                        comm_profile(other): 1.0 + SUFFERS[victim] * DISTURBS[other]
                        for other in DISTURBS
                    }
                ),
            )
            for victim in SUFFERS
        }
    )
)
