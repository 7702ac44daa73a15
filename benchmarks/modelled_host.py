# SPDX-License-Identifier: Apache-2.0
"""The modelled host of the mapping's benchmarks, the load on it, and the agent's decisions closed over both."""

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from emulation.physics import published
from emulation.physics.model import Guest, HostModel, Signals
from emulation.physics.programs import MAPPING_MIX, WORKLOADS, Workload
from host_agent.conf.mapping import MappingOptions, PerformanceMetric
from host_agent.decide.cores import mapping
from host_agent.decide.cores.choose import exact_slots
from host_agent.decide.cores.mapping_state import MappingObservation, MappingState
from host_agent.decide.cores.slots import CoreLayout, MappedServer, Occupancy, Slot
from placement_traits.names import InterferenceClass

NOISE = 0.03
"""Standard deviation of what sensors show, as part of it."""


@dataclass(frozen=True)
class Load:
    """Servers in order of arrival and what runs in them."""

    servers: Mapping[str, MappedServer]
    programs: Mapping[str, Workload]

    def shuffled(self, chance: random.Random) -> "Load":
        names = list(self.servers)
        chance.shuffle(names)
        return Load({name: self.servers[name] for name in names}, self.programs)

    def labelled(self, labels: Mapping[str, InterferenceClass]) -> "Load":
        relabelled = {
            name: replace(server, interference_class=labels[name])
            for name, server in self.servers.items()
        }
        return Load(relabelled, self.programs)


def draw_load(chance: random.Random) -> Load:
    """Draw the 20-server mix: Neo4j in the huge ones, every other program at least once, as in Lakew et al."""
    others = [name for name in MAPPING_MIX if name != "neo4j"]
    names = [
        f"{kind}{number}" for kind, row in published.VM_TYPES.items() for number in range(row[2])
    ]
    free = [name for name in names if not name.startswith("huge")]
    chance.shuffle(free)
    programs = dict.fromkeys(
        (name for name in names if name.startswith("huge")), WORKLOADS["neo4j"]
    )
    for position, name in enumerate(free):
        chosen = others[position] if position < len(others) else chance.choice(others)
        programs[name] = WORKLOADS[chosen]
    servers = {}
    for name in names:
        cores, memory_gb, _ = published.VM_TYPES[name.rstrip("0123456789")]
        servers[name] = mapped_server(name, cores, memory_gb * 1024, programs[name])
    return Load(servers, programs).shuffled(chance)


def mapped_server(name: str, vcpus: int, memory_mb: int, program: Workload) -> MappedServer:
    """Return a server whose flavor declares the class of its program."""
    return MappedServer(
        name, vcpus, memory_mb, program.interference_class, program.remote_sensitive
    )


class ModelledHost:
    """One draw: a model and the progress of every server alone."""

    def __init__(self, layout: CoreLayout, load: Load, model: HostModel) -> None:
        self.layout, self.load, self.model = layout, load, model
        self.alone: dict[str, float] = {}
        self._signals: dict[tuple[Any, ...], dict[str, Signals]] = {}
        known: dict[tuple[str, int], float] = {}
        for name, server in load.servers.items():
            key = (load.programs[name].name, server.vcpus)
            if key not in known:
                slot = exact_slots(Occupancy(layout, {name: server}, {}), server)[0][1]
                known[key] = self.progress({name: slot})[name]
            self.alone[name] = known[key]

    def signals(self, slots: Mapping[str, Slot]) -> dict[str, Signals]:
        """Return exact signals; a host that does not change is computed once."""
        key = tuple(sorted((n, slot.cpus, *slot.shares.items()) for n, slot in slots.items()))
        if key not in self._signals:
            guests = [
                Guest(name, self.load.programs[name], slot.cpus, slot.shares)
                for name, slot in slots.items()
            ]
            self._signals[key] = self.model.measure(guests)
        return self._signals[key]

    def sensed(
        self, slots: Mapping[str, Slot], metric: PerformanceMetric, chance: random.Random
    ) -> dict[str, float]:
        """Return IPC or MPI of every server as a noisy sensor shows it."""
        return {
            name: chance.gauss(1.0, NOISE)
            * (signals.ipc if metric is PerformanceMetric.IPC else signals.mpi)
            for name, signals in self.signals(slots).items()
        }

    def progress(self, slots: Mapping[str, Slot]) -> dict[str, float]:
        return {name: signals.progress for name, signals in self.signals(slots).items()}

    def scores(self, slots: Mapping[str, Slot]) -> dict[str, float]:
        return {name: value / self.alone[name] for name, value in self.progress(slots).items()}


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(fmean(math.log(value) for value in values))


def overbooked(slots: Mapping[str, Slot]) -> int:
    """Return how many cores run more than one vCPU."""
    load = Counter(cpu for slot in slots.values() for cpu in slot.cpus)
    return sum(count > 1 for count in load.values())


class MappedRun:
    """Servers on a host that the agent's mapping places and moves.

    :param layout: the host's cells
    :param options: the operator's
    """

    def __init__(self, layout: CoreLayout, options: MappingOptions) -> None:
        self.layout, self.options = layout, options
        self.state = MappingState()
        self.moves = 0
        self._now_s = 0.0
        self._present: dict[str, MappedServer] = {}

    @property
    def slots(self) -> Mapping[str, Slot]:
        """Where the servers are."""
        return self.state.slots

    def arrive(self, servers: Mapping[str, MappedServer]) -> None:
        """Place servers, one a round."""
        for name, server in servers.items():
            self._present[name] = server
            self._decide({})

    def end(self, names: Iterable[str]) -> None:
        """Take servers off the host; the next round knows."""
        for name in names:
            del self._present[name]

    def round(self, measured: Mapping[str, float]) -> None:
        """Decide once; what moves counts as moved at run time.

        :param measured: IPC or MPI by server; without it nothing that runs is moved
        """
        before = self.state.slots
        self._decide(measured)
        self.moves += sum(
            name in self.state.slots and self.state.slots[name] != slot
            for name, slot in before.items()
        )

    def _decide(self, measured: Mapping[str, float]) -> None:
        self._now_s += self.options.interval_s
        seen = MappingObservation(self._now_s, dict(self._present), {}, measured)
        self.state, _ = mapping.decide(seen, self.state, self.options, self.layout)
