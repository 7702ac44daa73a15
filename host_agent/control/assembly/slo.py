# SPDX-License-Identifier: Apache-2.0
"""Put the SLO controller together from the configuration: latencies, levels, files, the way to a higher layer."""

import os
from collections.abc import Sequence

from host_agent.control.escalation import Escalation, bus, nova
from host_agent.control.pipeline import RefinerHost
from host_agent.control.slo import SloController, SloHost
from host_agent.control.slo_report import SloReport
from host_agent.control.slo_store import SloStore
from host_agent.machine.rdt.backend import tree
from host_agent.model.levels import mba_levels, quota_levels
from host_agent.model.modes import Feature
from host_agent.observe.bandwidth import BandwidthReader
from host_agent.observe.latency.channel import ChannelFeed, PortSockets
from host_agent.observe.latency.ports import SloPorts
from host_agent.observe.latency.sources import SloSources
from host_agent.report.clients import make_adapter
from host_agent.util.background import BackgroundTasks
from placement_traits.topology import HostTopology


def build(host: RefinerHost) -> SloController | None:
    """Return the SLO controller, not yet started; None where it may not act."""
    conf = host.conf
    paths, slo = conf.paths, conf.slo
    if not (slo.enabled and host.throttles):
        return None
    resctrl = tree(paths)

    def levels(topology: HostTopology) -> tuple[int, ...]:
        if topology.rdt and topology.rdt.mba:
            return mba_levels(resctrl.bandwidth())
        return quota_levels() if conf.rdt.cpu_time_fallback else ()

    def limit(by_server: Sequence[tuple[str, int]]) -> list[str]:
        return [problem for _, problem in host.privileged.limit_cpu_time(by_server, True).problems]

    ports = SloPorts(
        host.privileged.plug_latency_port,
        host.journal,
        BackgroundTasks("slo-ports"),
        host.source.wake,
    )
    return SloController(
        slo,
        SloSources(ChannelFeed(slo.feed, PortSockets()), host.feeds),
        SloHost(
            host.privileged.throttle,
            limit,
            BandwidthReader(resctrl).servers,
            levels,
            host.source.wake,
            plug=ports.serve if slo.channel else lambda _lcs: None,
            paused=paths.paused.exists,
            lapsed=host.lapsed,
            acts=lambda: host.acts(Feature.SLO),
            balancers=host.balancers,
            margin_mb=conf.memory.margin_mb,
        ),
        SloStore(paths.slo, host.metrics.lost),
        SloReport(slo, host.journal, count=host.metrics.count, escalate=_escalation(host)),
    )


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
