# SPDX-License-Identifier: Apache-2.0
"""NUMA balancing in the agent's loop: cores and memory shares; state and sensors around pure code.

In a round (:meth:`BalancingRefiner.refine`) new servers are placed and all is decided again. Between rounds
(:meth:`BalancingRefiner.turn`) the counters are read: of all servers every ``[counters]sample_s``, and in between of
those that search (``[bwap]at_once``) and of the latency-critical ones, which guide searches. Every sample goes to
BWAP's searches, the mean over ``[counters]sample_s`` to the mapping. A turn thinks about the host as it was seen last
and asks for another look only when it wants something else, or when a search waits for pages to arrive.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final, Protocol

from host_agent.conf.options import Options
from host_agent.control import balancing_store
from host_agent.decide import balancing
from host_agent.decide.cores import performance
from host_agent.decide.cores.slots import CoreLayout
from host_agent.decide.pages.turns import read_often
from host_agent.model.assignment import Decision, Observation
from host_agent.model.balancing import BalancingInputs
from host_agent.model.counters import ServerCounters
from host_agent.model.pages import Shares
from host_agent.observe.counters.source import CounterSource
from placement_traits.best_effort import BestEffortWriter, ignore_loss
from placement_traits.names import MemoryPolicy
from placement_traits.topology import HostTopology

_LEARNT: Final = "mapping"

Canonical = Mapping[frozenset[int], Shares]


class MemoryHost(Protocol):
    """What of a host decides how memory is spread."""

    def canonical(self, topology: HostTopology) -> Canonical:
        """Return the calibrated weights of a host, as they are now."""

    def refused(self) -> str:
        """Return why no memory may be spread now, ``""`` when it may."""

    def kernel_balances(self) -> bool:
        """Return whether the kernel's automatic NUMA balancing is on."""


class BalancingRefiner:
    """A :class:`~host_agent.control.pipeline.Refiner`.

    :param counters: the sensors
    :param options: the operator's
    :param memory: what decides how memory is spread
    :param file: state file; None keeps nothing (dry run)
    :param lost: called with "balancing state" for each state file that could not be written
    """

    name = "balancing"

    def __init__(
        self,
        counters: CounterSource,
        options: Options,
        memory: MemoryHost,
        *,
        file: Path | None,
        lost: Callable[[str], None] = ignore_loss,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._counters = counters
        self._options = options
        self._memory = memory
        self._store = balancing_store.store(file) if file else None
        self._writer = BestEffortWriter("balancing state", lost)
        self._clock = clock
        self._state = (self._store.load() if self._store else None) or balancing.BalancingState()
        self._kept: dict[str, Any] = balancing_store.to_plain(self._state)
        self._kept_s = clock()
        self._layout: CoreLayout | None = None
        self._inputs: BalancingInputs | None = None
        self._coarse = Decision()
        self._desired = Decision()
        self._read: Mapping[str, ServerCounters] = {}
        self._often: frozenset[str] = frozenset()
        self._samples: dict[str, list[ServerCounters]] = defaultdict(list)
        self._sampled_s = clock()
        self._turn_due_s = clock()

    def refine(self, decision: Decision, observation: Observation) -> Decision:
        """See :class:`~host_agent.control.pipeline.Refiner`."""
        self._coarse = decision
        self._inputs = BalancingInputs(
            self._clock(),
            observation,
            canonical=self._memory.canonical(observation.topology),
            spreading_refused=self._memory.refused(),
            kernel_balances=_any_left_to_the_kernel(observation) and self._memory.kernel_balances(),
        )
        self._desired = self._think(self._inputs)
        return self._desired

    def turn(self, now_s: float) -> bool:
        """See :class:`~host_agent.control.pipeline.Refiner`."""
        if self._inputs is None or now_s < self._turn_due_s:
            return False
        only = self._asked(now_s)
        found = self._counters.read(self._inputs.observation, now_s, only).counters
        if only is None:
            self._read = found
        else:
            self._read = {u: c for u, c in self._read.items() if u not in only} | dict(found)
        before = self._desired
        desired = self._think(
            replace(
                self._inputs,
                now_s=now_s,
                counters=found,
                read=only,
                performance=self._mean(found, now_s),
            )
        )
        self._turn_due_s = now_s + self._pause_s()
        return desired != before or any(known.moving for known in self._state.memory.values())

    def pause_s(self, now_s: float) -> float:
        """See :class:`~host_agent.control.pipeline.Refiner`."""
        return max(0.0, self._turn_due_s - now_s)

    def samples(self) -> Iterator[tuple[str, tuple[str, ...], float]]:
        """Yield name, labels and value of metrics; called from the exporter's thread: only whole objects are read."""
        inputs, read, state = self._inputs, self._read, self._state
        if inputs is None:
            return
        titles = {guest.uuid: guest.workload.title for guest in inputs.observation.guests}
        for uuid, counters in sorted(read.items()):
            for name in ("ipc", "mpi", "stall_rate"):
                value = getattr(counters, name)
                if value is not None:
                    yield f"numa_ext_server_{name}", (uuid, titles.get(uuid, "")), value
        for domain, by_class in state.mapper.benefit.items():
            for kind, value in by_class.items():
                yield "numa_ext_mapping_benefit", (domain, kind), value
        worse = performance.deviations(state.mapper, self._options.mapping)
        for uuid, value in sorted(worse.items()):
            yield "numa_ext_server_deviation", (uuid, titles.get(uuid, "")), value
        for uuid, known in sorted(state.memory.items()):
            if known.search is not None and known.search.started:
                yield "numa_ext_server_dwp", (uuid, titles.get(uuid, "")), known.search.dwp

    def _think(self, inputs: BalancingInputs) -> Decision:
        layout = self._layout
        if layout is None or layout.topology != inputs.observation.topology:
            layout = CoreLayout(inputs.observation.topology, self._options.mapping.use_siblings)
            self._layout = layout
        options = self._options
        desired, self._state = balancing.refine(self._coarse, inputs, self._state, options, layout)
        self._often = read_often(self._state.memory, options.bwap)
        self._keep(inputs.now_s)
        return desired

    def _asked(self, now_s: float) -> frozenset[str] | None:
        """Return UUIDs of servers whose counters are asked for now; None: all."""
        inputs, often = self._inputs, self._often
        if inputs is None or not often or self._sample_due(now_s):
            return None
        return often | inputs.critical

    def _sample_due(self, now_s: float) -> bool:
        """Tell whether a sample of the mapping is complete."""
        return now_s - self._sampled_s >= self._options.counters.sample_s

    def _pause_s(self) -> float:
        """A search that gets counters wants them at its own rate."""
        searching = self._options.bwap.sample_interval_s
        return searching if self._often else self._options.counters.sample_s

    def _mean(
        self, found: Mapping[str, ServerCounters], now_s: float
    ) -> dict[str, ServerCounters] | None:
        """Return the mean of each server's readings when a sample of the mapping is complete."""
        for uuid, counters in found.items():
            self._samples[uuid].append(counters)
        if not self._sample_due(now_s):
            return None
        means = {
            uuid: ServerCounters(
                _mean(one.ipc for one in readings),
                _mean(one.mpi for one in readings),
                _mean(one.stall_rate for one in readings),
            )
            for uuid, readings in self._samples.items()
        }
        self._samples.clear()
        self._sampled_s = now_s
        return means

    def _keep(self, now_s: float) -> None:
        """Write what was learnt: where searches stand at once, figures now and then."""
        store = self._store
        if store is None:
            return
        content = balancing_store.to_plain(self._state)
        if content == self._kept:
            return
        changed = {**content, _LEARNT: None} != {**self._kept, _LEARNT: None}
        if not changed and now_s - self._kept_s < self._options.agent.resync_s:
            return
        if self._writer.attempt(lambda: store.save(self._state)):
            self._kept, self._kept_s = content, now_s


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _any_left_to_the_kernel(observation: Observation) -> bool:
    return any(
        guest.workload.request is not None
        and guest.workload.request.memory_policy is MemoryPolicy.AUTONUMA
        for guest in observation.guests
    )
