# SPDX-License-Identifier: Apache-2.0
"""The agent with NUMA balancing over a fake host and the host model: closed loops, in a time that only waits pass."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from emulation.counters import ModelledCounters
from emulation.physics.model import Guest as ModelGuest
from emulation.physics.model import HostModel, Signals
from emulation.physics.parameters import frozen
from emulation.physics.programs import WORKLOADS, representative
from emulation.physics.sensor import ModelSensor
from emulation.servers import Server
from host_agent.conf.options import Options
from host_agent.conf.rdt import RdtOptions
from host_agent.control.agent import Agent, AgentFiles, Listeners, Stages
from host_agent.control.balancing import BalancingRefiner
from host_agent.control.pipeline import Refiners
from host_agent.model.assignment import Guest
from host_agent.model.journal import Entry
from host_agent.model.round import Round
from host_agent.observe.counters.source import CounterSource
from host_agent.observe.machine_files import MachineFiles
from host_agent.observe.snapshot import Observer
from host_agent.report.metrics import Metrics
from placement_traits.topology import HostTopology
from tests.support.executors import make_executor
from tests.support.fake_host import FakeHost

Weights = Mapping[frozenset[int], Mapping[int, float]]


class _Memory:
    """How memory is spread on the host of an agent, as a test says now."""

    def __init__(self, agent: "BalancedAgent") -> None:
        self._agent = agent

    def canonical(self, _topology: HostTopology) -> Weights:
        return self._agent.weights

    def refused(self) -> str:
        return self._agent.refused

    def kernel_balances(self) -> bool:
        return self._agent.kernel_balances


class BalancedAgent:
    """An agent that balances.

    :param folder: for its files
    :param topology: of the host
    :param programs: server name -> program of the model
    :param weights: calibrated weights
    :param options: the operator's
    :param counters: sensors, by default the host model over the fake host
    """

    def __init__(
        self,
        folder: Path,
        topology: HostTopology,
        *,
        programs: Mapping[str, str] | None = None,
        weights: Weights | None = None,
        options: Options | None = None,
        counters: CounterSource | None = None,
        use_siblings: bool = False,
        free_mb: int = 2000,
    ) -> None:
        self.folder = folder
        self.host = FakeHost(topology)
        self.host.waited = self._waited
        self.programs = dict(programs or {})
        self.weights = weights or {}
        options = options or Options()
        self.options = replace(
            options,
            memory=replace(options.memory, margin_mb=0),
            mapping=replace(options.mapping, use_siblings=use_siblings),
        )
        self.counters = counters
        self.refused = ""
        self.kernel_balances = False
        self.journal: list[Entry] = []
        self.metrics = Metrics()
        self.now_s = 0.0
        self.each_wait: Callable[[], None] = lambda: None
        self.rounds: list[Round] = []
        for node in topology.node_ids:
            meminfo = folder / "nodes" / f"node{node}" / "meminfo"
            meminfo.parent.mkdir(parents=True)
            meminfo.write_text(f"Node {node} MemFree: {free_mb * 1024} kB\n")
        self.start()

    def start(self) -> None:
        """A new agent process, the old one is gone without a word; host and files stay."""
        options = Options(rdt=RdtOptions(verify_s=1e9))
        observer = Observer(
            self.host,
            self.host,
            MachineFiles(lambda: self.host.topology, self.folder / "nodes"),
            clock=lambda: self.now_s,
        )
        executor = make_executor(self.host, self, options, observer.moved, clock=lambda: self.now_s)
        self.refiner = BalancingRefiner(
            self.counters or ModelledCounters(self._model, lambda _observation: {}),
            self.options,
            _Memory(self),
            file=self.folder / "balancing.json",
            clock=lambda: self.now_s,
        )
        self.agent = Agent(
            Stages(
                self.host,
                observer,
                executor,
                Refiners((self.refiner,), self.metrics.failed_refiner),
            ),
            options,
            AgentFiles(self.folder / "state.json", self.folder / "paused"),
            Listeners((self,)),
            write=False,
            clock=lambda: self.now_s,
        )

    def _model(self, topology: HostTopology) -> ModelSensor:
        return ModelSensor(topology, 1, 0.02, programs=self.programs)

    def write(self, entry: Entry) -> None:
        """Take a line of the journal."""
        self.journal.append(entry)

    def on_round(self, done: Round) -> None:
        """Take note of a round."""
        self.rounds.append(done)

    def run(self, seconds: float) -> None:
        """Let the loop turn for so long."""
        self._stop = threading.Event()
        self._until_s = self.now_s + seconds
        self.agent.run(self._stop)

    def _waited(self, seconds: float) -> None:
        self.now_s += max(seconds, 0.001)
        self.each_wait()
        if self.now_s >= self._until_s:
            self._stop.set()

    def shares(self, server: Server) -> dict[int, float]:
        """Node -> share of a server's memory, as it really is."""
        held = self.host.running[server.uuid].memory_kb
        total = sum(held.values())
        return {node: kb / total for node, kb in sorted(held.items())}

    def cpus(self, server: Server) -> list[int]:
        """The CPU of each vCPU; all are pinned to one."""
        return [int(text) for text in self.host.vcpu_cpus(server)]

    def nodes(self, server: Server) -> set[int]:
        """The nodes of a server's vCPUs."""
        return {self.host.topology.node_of_cpu(cpu) for cpu in self.cpus(server)}

    def entries(self, action: str, server: Server) -> list[Entry]:
        """Lines of the journal."""
        return [e for e in self.journal if e.action == action and e.server == server.uuid]

    def measure(self, server: Server, shares: Mapping[int, float] | None = None) -> Signals:
        """Exact signals of a server, with its pages where they are or somewhere else."""
        guests = []
        for other in self.rounds[-1].observation.guests:
            pages = self.shares(other_server(self, other))
            if other.uuid == server.uuid and shares is not None:
                pages = dict(shares)
            program = self.programs.get(other.workload.title)
            request = other.workload.request
            assert request is not None
            guests.append(
                ModelGuest(
                    other.uuid,
                    WORKLOADS[program] if program else representative(request.interference_class),
                    tuple(self.cpus(other_server(self, other))),
                    pages,
                )
            )
        return HostModel(self.host.topology, frozen()).measure(guests)[server.uuid]


def other_server(bench: BalancedAgent, guest: Guest) -> Server:
    """The server behind a guest."""
    return bench.host.running[guest.uuid].server
