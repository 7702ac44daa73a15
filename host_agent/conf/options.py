# SPDX-License-Identifier: Apache-2.0
"""All that the operator decides about the agent: a field a section."""

from dataclasses import dataclass, field
from typing import Final

from host_agent.conf.agent import AgentOptions, PinningOptions
from host_agent.conf.bwap import BwapOptions
from host_agent.conf.cables import CableOptions
from host_agent.conf.counters import CounterOptions
from host_agent.conf.helper import HelperOptions
from host_agent.conf.host import HostOptions, LibvirtOptions
from host_agent.conf.lanes import LaneOptions
from host_agent.conf.mapping import MappingOptions
from host_agent.conf.memory import MemoryOptions
from host_agent.conf.network import NetworkUseOptions
from host_agent.conf.paths import HostPaths
from host_agent.conf.placement import PlacementOptions
from host_agent.conf.rdt import RdtOptions
from host_agent.conf.remote_gpus import RemoteGpuOptions
from host_agent.conf.slo import SloOptions

_ROUNDS_MISSED: Final = 3  # so that one slow round is no silence


@dataclass(frozen=True, slots=True)
class Options:
    """The agent's options, each field named like its section."""

    agent: AgentOptions = field(default_factory=AgentOptions)
    libvirt_host: LibvirtOptions = field(default_factory=LibvirtOptions)
    host: HostOptions = field(default_factory=HostOptions)
    helper: HelperOptions = field(default_factory=HelperOptions)
    pinning: PinningOptions = field(default_factory=PinningOptions)
    memory: MemoryOptions = field(default_factory=MemoryOptions)
    rdt: RdtOptions = field(default_factory=RdtOptions)
    placement: PlacementOptions = field(default_factory=PlacementOptions)
    slo: SloOptions = field(default_factory=SloOptions)
    counters: CounterOptions = field(default_factory=CounterOptions)
    mapping: MappingOptions = field(default_factory=MappingOptions)
    bwap: BwapOptions = field(default_factory=BwapOptions)
    remote_gpus: RemoteGpuOptions = field(default_factory=RemoteGpuOptions)
    cables: CableOptions = field(default_factory=CableOptions)
    network: NetworkUseOptions = field(default_factory=NetworkUseOptions)
    lanes: LaneOptions = field(default_factory=LaneOptions)

    @property
    def release_after_s(self) -> float:
        """Seconds without a round after which best-effort servers get everything back."""
        return max(self.rdt.release_after_s, _ROUNDS_MISSED * self.agent.interval_s)

    @property
    def paths(self) -> HostPaths:
        """Where the host's files are."""
        return HostPaths(
            proc=self.host.proc,
            sys=self.host.sys,
            resctrl=self.host.resctrl,
            pid_dir=self.libvirt_host.pid_dir,
            state=self.agent.state_dir,
            helper_state=self.helper.state_dir,
            rdt_backend=self.rdt.backend,
            full_bandwidth_mbps=self.rdt.full_bandwidth_mbps,
        )
