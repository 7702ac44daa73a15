# SPDX-License-Identifier: Apache-2.0
"""The counted host with a run-time controller, in a time that only waits pass: one that keeps an objective by levels
and pages, or one that searches the best spread of a server's memory.

Latency follows at once from levels and pages as they are on the host; counters are the host model's (*modelled*).
"""

import threading
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path

import pytest

from emulation.counters import ModelledCounters
from emulation.kernel.shape import Shape
from emulation.physics.sensor import ModelSensor
from emulation.servers import BE_SPECS, LC_SPECS, Server
from host_agent.apply.resource_control import LevelWriter
from host_agent.conf.options import Options
from host_agent.conf.slo import SloOptions
from host_agent.control import balancing_store
from host_agent.control.balancing import BalancingRefiner
from host_agent.control.pipeline import Refiner
from host_agent.control.slo import SloController
from host_agent.control.slo_host import SloHost
from host_agent.control.slo_report import SloReport
from host_agent.control.slo_store import SloStore
from host_agent.decide.pages.bwap import BwapPhase
from host_agent.model.journal import ActionJournal
from host_agent.model.latency import LatencyReading, LcServer
from host_agent.model.levels import FULL, mba_levels, quota_levels
from host_agent.model.pages import Shares
from host_agent.model.partition import PartitionPlace
from host_agent.model.traffic import Traffic
from host_agent.observe.bandwidth import Bandwidth
from host_agent.observe.latency.channel import ChannelFeed, PortSockets
from host_agent.observe.latency.sources import SloSources
from placement_traits.topology import HostTopology
from tests.support.counted_host import CountedHost

SLO_US = 1000.0
STEP_S = 0.1
FEW_MB = 4
LOW_LEVEL = 10
MOVE_KB = 32 << 10
LOCAL = 0.95
LONGEST_S = 150.0
KEPT = "aaaaaaaa-0000-4000-8000-000000000000"
BEST_EFFORT = "bbbbbbbb-0000-4000-8000-000000000000"
PROGRAM = "sc"
WEIGHTS = {frozenset({n}): {m: 0.4 if m == n else 0.2 for m in range(4)} for n in range(4)}


class Controller(Enum):
    """Which one runs."""

    SLO = "objectives"
    BALANCING = "balancing"


class _LatencyFeed:
    """Latency as it is at that moment, for an action's judgement a moment after it."""

    name, guess = "channel", False

    def __init__(self, host: "ControlledHost") -> None:
        self._host = host

    def serve(self, lcs: Iterable[LcServer]) -> None:
        """Look after them."""

    def read(self, lc: LcServer, now_s: float, since_s: float) -> LatencyReading:
        """Return it; unknown before the time that is asked for."""
        ratio = self._host.ratio() if now_s > since_s else None
        p99_us = None if ratio is None else ratio * SLO_US
        return LatencyReading(p99_us, 1000, 1000 if (ratio or 0.0) > 1.0 else 0, since_s)

    def close(self) -> None:
        """Nothing is held."""


class ControlledHost(CountedHost):
    """The counted host and one of the controllers.

    :param controller: which one
    :ivar be: the best-effort server
    :ivar busy: the latency-critical server has much to do, and its neighbours' traffic harms it
    """

    def __init__(
        self,
        folder: Path,
        shape: Shape,
        options: Options,
        patch: pytest.MonkeyPatch,
        controller: Controller,
    ) -> None:
        self.busy = False
        self._kind = controller
        self._slo: SloController | None = None
        self._stop, self._until_s = threading.Event(), 0.0
        super().__init__(folder, shape, options, patch)
        self.move_kb = MOVE_KB
        self.waited = self._pass

    def controllers(self, journal: ActionJournal) -> tuple[tuple[Refiner, ...], LevelWriter | None]:
        """Make the controller of a new agent; what the one before knew is in its files."""
        if self._kind is Controller.BALANCING:
            counters = ModelledCounters(self._model, lambda _observation: {})
            file = self.paths.balancing
            return (
                BalancingRefiner(counters, self._options, self, file=file, clock=self.clock),
            ), None
        options = SloOptions()
        self._slo = SloController(
            options,
            SloSources(ChannelFeed(options.feed, PortSockets(self.clock)), (_LatencyFeed(self),)),
            SloHost(self, self, self, self, self),
            SloStore(self.paths.slo),
            SloReport(options, journal, clock=self.clock),
            clock=self.clock,
        )
        return (self._slo,), self._slo

    def _model(self, topology: HostTopology) -> ModelSensor:
        return ModelSensor(topology, 1, 0.02, programs={"be1": PROGRAM})

    def run(self, seconds: float) -> None:
        """Let the loop turn for so long, and the SLO controller's thread between."""
        self._stop, self._until_s = threading.Event(), self._seconds + seconds
        self.agent.run(self._stop)

    def _pass(self, seconds: float) -> None:
        end_s = self._seconds + max(seconds, STEP_S / 100)
        while self._seconds < end_s:
            self._seconds = min(end_s, self._seconds + STEP_S)
            if self._slo is not None:
                self._slo.poll()
        if self._seconds >= self._until_s:
            self._stop.set()

    def begin(self) -> Server:
        """Boot a latency-critical server that is well and a best-effort one, and give the agent time; return the first.

        The best-effort one is the host's ``be``.
        """
        slo = {**LC_SPECS, "numa_ext:slo_p99_us": f"{SLO_US:.0f}"}
        kept = self.boot(Server("lc1", slo, cpus=(1,), node=0, uuid=KEPT))
        if self._kind is Controller.SLO:
            spread = {**BE_SPECS, "numa_ext:memory_policy": "uniform_all"}
            be = Server("be1", spread, shared="0,2,4,6", uuid=BEST_EFFORT)
            self.be = self.boot(be, dict.fromkeys(range(4), 16))
        self.run(4.0)
        return kept

    def disturb(self) -> None:
        """Give the controller what it is for."""
        self.busy = True
        if self._kind is Controller.BALANCING:
            searched = {**BE_SPECS, "numa_ext:memory_policy": "bwap"}
            be = Server("be1", searched, vcpus=2, memory_mb=512, shared="0,2-7", uuid=BEST_EFFORT)
            self.be = self.boot(be, {3: 512})

    def settled(self) -> bool:
        """Whether the controller has reached its end: the objective is kept and nobody throttled for it, or the
        memory is where the program runs best, which the search has found and kept.
        """
        if self._kind is Controller.SLO:
            return self.ratio() <= 1.0 and self.level(self.be) == FULL
        found = balancing_store.store(self.paths.balancing).load()
        search = found.memory[BEST_EFFORT].search if found and BEST_EFFORT in found.memory else None
        memory = self.running[BEST_EFFORT].memory_kb
        ended = search is not None and search.phase is BwapPhase.FOUND
        return ended and max(memory.values()) > LOCAL * sum(memory.values())

    def settles(self) -> bool:
        """Run until the controller has reached its end; tell whether it has."""
        until_s = self._seconds + LONGEST_S
        while self._seconds < until_s and not self.settled():
            self.run(2.0)
        return self.settled()

    # -- what the controllers ask --------------------------------------------------------------------------------------

    def of(self, _topology: HostTopology) -> tuple[int, ...]:
        """Return the legal levels."""
        return mba_levels(self._resctrl.bandwidth()) or quota_levels()

    def servers(self, _places: Iterable[PartitionPlace]) -> Mapping[str, Bandwidth]:
        """Return the traffic of best-effort servers, which is as much as their levels allow."""
        return {
            uuid: Bandwidth({0: Traffic(5000.0 * part, 9000.0 * part)})
            for uuid, found in self.running.items()
            if not found.server.cpus
            for part in (self.level(found.server) / FULL,)
        }

    def paused(self) -> bool:
        """Nobody has paused the agent."""
        return False

    def lapsed(self) -> bool:
        """The dead-man switch has no reason to act."""
        return False

    def acts(self) -> bool:
        """Objectives are acted for."""
        return True

    def balancers(self) -> str:
        """Nobody else moves pages."""
        return ""

    def canonical(self, _topology: HostTopology) -> Mapping[frozenset[int], Shares]:
        """Return the calibrated weights."""
        return WEIGHTS

    def refused(self) -> str:
        """Memory may be spread."""
        return ""

    def kernel_balances(self) -> bool:
        """The kernel moves no pages."""
        return False

    # -- how the host is -----------------------------------------------------------------------------------------------

    def level(self, server: Server) -> int:
        """The strongest level, per cent, of bandwidth or CPU time, on the latency-critical server's node."""
        threads = self.running[server.uuid].process.threads
        groups = self._resctrl.control_groups()
        tids = {thread.tid for thread in threads}
        held = [self._resctrl.schemata(n) for n in groups if tids & self._resctrl.tasks(n)]
        levels = [found["MB"][0] for found in held if "MB" in found]
        for thread in threads:
            quota, period = self._quota(threads[0].tid, thread.vcpu).read_text().split()
            levels += [] if quota == "max" else [round(100 * int(quota) / int(period))]
        return min(levels, default=FULL)

    def ratio(self) -> float:
        """Latency over objective: kept while neighbours are throttled far down, or have left the node."""
        harms = any(
            self.level(found.server) > LOW_LEVEL and found.memory_kb.get(0, 0) > FEW_MB << 10
            for found in self.running.values()
            if not found.server.cpus
        )
        if not self.busy:
            return 0.7
        return 1.5 if harms else 0.8
