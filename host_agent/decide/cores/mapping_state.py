# SPDX-License-Identifier: Apache-2.0
"""What the mapping sees, remembers and goes by in one decision."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from host_agent.conf.mapping import MappingOptions
from host_agent.decide.cores.slots import CoreLayout, MappedServer, Occupancy, Slot
from placement_traits.interference import INITIAL_BENEFIT, Benefits, IsolationLevel


@dataclass(frozen=True, slots=True)
class MappingObservation:
    """The host at one moment.

    :param now_s: monotonic time, seconds
    :param servers: all servers on the host, those that may not be moved included
    :param actual: where servers are; one without a CPU of its own for each vCPU is missing
    :param measured: IPC or MPI of each server; missing when not known
    :param sampled: a sample was due: a server that is missing in ``measured`` could not be measured
    """

    now_s: float
    servers: Mapping[str, MappedServer]
    actual: Mapping[str, Slot] = field(default_factory=dict)
    measured: Mapping[str, float] = field(default_factory=dict)
    sampled: bool = True


@dataclass(frozen=True, slots=True)
class Expectation:
    """What is known of a server's performance.

    :param value: expected performance; None until learnt
    :param recent: last samples
    :param quiet: samples of the quiet window so far
    :param blind: missing samples in a row
    """

    value: float | None = None
    recent: tuple[float, ...] = ()
    quiet: tuple[float, ...] = ()
    blind: int = 0


@dataclass(frozen=True, slots=True)
class MoveTrial:
    """A move whose gain is not known yet.

    :param domain: what the server got for itself
    :param before: deviation before the move
    :param due_s: when the gain is looked at
    """

    server: str
    domain: IsolationLevel
    before: float
    due_s: float


@dataclass(frozen=True, slots=True)
class LeftNodes:
    """Nodes that a server left, which it shall not return to before ``until_s``."""

    server: str
    nodes: tuple[int, ...]
    until_s: float


@dataclass(frozen=True, slots=True)
class MappingSituation:
    """All that the search for a better configuration depends on."""

    servers: Mapping[str, MappedServer]
    slots: Mapping[str, Slot]
    resting: frozenset[str]
    left: tuple[LeftNodes, ...]
    benefit: Benefits
    layout: CoreLayout


@dataclass(frozen=True, slots=True)
class ArrivalAttempt:
    """All that the search for a first slot depends on."""

    server: MappedServer
    slots: Mapping[str, Slot]
    layout: CoreLayout


@dataclass(frozen=True, slots=True)
class Searched:
    """What the searches have found out.

    :param situation: the last one
    :param alone: servers that no single move helps in it
    :param exhausted: servers for which there is nothing better in it
    :param unsatisfiable: servers for which nothing better was found when they were looked at last
    """

    situation: MappingSituation | None = None
    alone: frozenset[str] = frozenset()
    exhausted: frozenset[str] = frozenset()
    unsatisfiable: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class MappingState:
    """What the mapping remembers; the desired slots, expectations and the benefit matrix are kept over restarts.

    :param slots: desired slot of every server
    :param expectations: what is known of each server's performance
    :param benefit: learnt benefit matrix
    :param trials: moves whose gain is not known yet
    :param left: nodes that servers left
    :param moved_s: time of each server's last move
    :param decided_s: time of the last round
    :param searched: what is known to be no use
    :param unplaced: servers for which there was no room, with all that this depended on
    """

    slots: Mapping[str, Slot] = field(default_factory=dict)
    expectations: Mapping[str, Expectation] = field(default_factory=dict)
    benefit: Benefits = field(default_factory=lambda: INITIAL_BENEFIT)
    trials: tuple[MoveTrial, ...] = ()
    left: tuple[LeftNodes, ...] = ()
    moved_s: Mapping[str, float] = field(default_factory=dict)
    decided_s: float = float("-inf")
    searched: Searched = field(default_factory=Searched)
    unplaced: Mapping[str, "ArrivalAttempt"] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MappingTurn:
    """What one decision goes by.

    :param observation: the host
    :param options: the operator's
    :param occupancy: where servers are, as far as it has been decided
    """

    observation: MappingObservation
    options: MappingOptions
    occupancy: Occupancy

    def resting(self, state: MappingState, name: str) -> bool:
        """Tell whether a server was moved so lately that it stays."""
        since_s = self.observation.now_s - state.moved_s.get(name, float("-inf"))
        return since_s < self.options.cooldown_s
