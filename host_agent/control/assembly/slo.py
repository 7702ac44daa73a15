# SPDX-License-Identifier: Apache-2.0
"""Put the SLO controller together from the configuration: latencies, levels, files, the way to a higher layer."""

import os
from dataclasses import dataclass

from host_agent.conf.lanes import LaneOptions
from host_agent.control.escalation import Escalation, bus, nova
from host_agent.control.pipeline import RefinerHost
from host_agent.control.slo import SloController
from host_agent.control.slo_host import SloHost
from host_agent.control.slo_report import SloReport
from host_agent.control.slo_store import SloStore
from host_agent.control.uplink_throttle import UplinkThrottle
from host_agent.decide.lanes.planning import LaneSettings
from host_agent.decide.slo.uplink import Ceiling, UplinkKnob
from host_agent.decide.slo.weights import Weights
from host_agent.machine.lane_door import LaneDoorCaller
from host_agent.machine.rdt.backend import tree
from host_agent.machine.rdt.resctrl import Resctrl
from host_agent.model.levels import mba_levels, quota_levels
from host_agent.model.modes import Feature
from host_agent.model.network import TrafficBytes
from host_agent.observe.bandwidth import BandwidthReader
from host_agent.observe.latency.channel import ChannelFeed, PortSockets
from host_agent.observe.latency.ports import SloPorts
from host_agent.observe.latency.sources import SloSources
from host_agent.observe.network import traffic
from host_agent.report.clients import make_adapter, make_leaf_sides
from host_agent.report.leaf import LeafExchange, Listening, Sayer
from host_agent.util.background import BackgroundTasks
from placement_traits.topology import HostTopology


def build(host: RefinerHost) -> SloController | None:
    """Return the SLO controller, not yet started; None where it may not act."""
    conf = host.conf
    paths, slo = conf.paths, conf.slo
    if not (slo.enabled and host.throttles):
        return None
    resctrl = tree(paths)

    ports = SloPorts(
        host.privileged.plug_latency_port,
        host.journal,
        BackgroundTasks("slo-ports"),
        host.source.wake,
    )
    report = SloReport(slo, host.journal, count=host.metrics.count, escalate=_escalation(host))
    uplink = None
    if conf.lanes.takes_orders:
        unit = LaneDoorCaller(paths.lane_door)

        def counted(device: str) -> TrafficBytes | None:
            return traffic(paths.sys, (device,))

        uplink = UplinkThrottle(
            slo.balm,
            _knob(conf.lanes),
            unit,
            counted,
            report,
            leaf=_leaf(host),
            protected=conf.lanes.strict_cap,
        )
    return SloController(
        slo,
        SloSources(ChannelFeed(slo.feed, PortSockets()), host.feeds),
        SloHost(
            host.privileged,
            BandwidthReader(resctrl),
            _HostLevels(resctrl, cpu_time=conf.rdt.cpu_time_fallback),
            host.source,
            _Permitted(host),
            ports if slo.channel else None,
            margin_mb=conf.memory.margin_mb,
        ),
        SloStore(paths.slo, host.metrics.lost),
        report,
        uplink=uplink,
    )


def _knob(options: LaneOptions) -> UplinkKnob:
    """Return what is tried on uplinks: with a limit, what is taken of best-effort servers is lent to the others."""
    if options.throttle:
        return Ceiling(options.strict_cap)
    return Weights(options.strict_cap, LaneSettings.of(options).best_effort)


def _leaf(host: RefinerHost) -> LeafExchange | None:
    """Return the way to this host's leaf, None where it is not to be used."""
    conf = host.conf
    if not (conf.lanes.throttle and conf.lanes.leaf and conf.placement.enabled):
        return None

    def sides() -> tuple[Sayer, Listening]:
        return make_leaf_sides(conf, conf.host.name or host.source.hostname())

    return LeafExchange(sides, BackgroundTasks("slo-leaf", 2))


@dataclass(frozen=True, slots=True)
class _HostLevels:
    """:class:`~host_agent.control.slo_host.LegalLevels` of bandwidth, or of CPU time where that is allowed."""

    resctrl: Resctrl
    cpu_time: bool

    def of(self, topology: HostTopology) -> tuple[int, ...]:
        """Return them, per cent, ascending."""
        if topology.rdt and topology.rdt.mba:
            return mba_levels(self.resctrl.bandwidth())
        return quota_levels() if self.cpu_time else ()


@dataclass(frozen=True, slots=True)
class _Permitted:
    """:class:`~host_agent.control.slo_host.Permission` of a host's refiners."""

    host: RefinerHost

    def paused(self) -> bool:
        """An operator's mark is there."""
        return self.host.conf.paths.paused.exists()

    def lapsed(self) -> bool:
        """See :class:`~host_agent.control.pipeline.RefinerHost`."""
        return self.host.lapsed()

    def acts(self) -> bool:
        """See :class:`~host_agent.control.pipeline.RefinerHost`."""
        return self.host.acts(Feature.SLO)

    def balancers(self) -> str:
        """See :class:`~host_agent.control.pipeline.RefinerHost`."""
        return self.host.balancers()


def _escalation(host: RefinerHost) -> Escalation:
    conf, slo = host.conf, host.conf.slo
    name = conf.host.name or os.uname().nodename
    return Escalation(
        BackgroundTasks("slo-escalation"),
        host.journal,
        name,
        notify=bus(conf.oslo, slo.notify_url, name) if slo.notify_url else None,
        migrate=nova(make_adapter(conf, "compute")) if slo.live_migrate else None,
    )
