# SPDX-License-Identifier: Apache-2.0
"""Put the agent together from its configuration: the one place that knows all parts."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from oslo_config import cfg

from host_agent.apply.executor import Executor, ignore_places
from host_agent.apply.partitions import Partitions
from host_agent.conf import agent as agent_conf
from host_agent.conf.paths import HostPaths
from host_agent.control.agent import Agent, Listener
from host_agent.control.balancing_parts import build_steering
from host_agent.control.escalation import Escalation, bus, nova
from host_agent.control.heartbeat import SignOfLife
from host_agent.control.journal import PrintedJournal
from host_agent.control.parts import build_observer, open_journal
from host_agent.control.pipeline import Refiner, Refiners
from host_agent.control.slo import BandwidthQos, SloHost
from host_agent.control.slo_report import SloReport
from host_agent.control.slo_store import SloStore
from host_agent.decide.partitions.plan import PartitionSettings
from host_agent.machine.libvirt import DomainSource, LibvirtSource
from host_agent.machine.privileged.api import Privileged
from host_agent.machine.privileged.partitions import foreign_groups, tree
from host_agent.machine.privileged.seam import open_seam
from host_agent.model.journal import ActionJournal
from host_agent.model.levels import mba_levels, quota_levels
from host_agent.observe.bandwidth import BandwidthReader
from host_agent.observe.latency import feeds as latency_feeds
from host_agent.observe.latency.channel import ChannelFeed
from host_agent.observe.latency.feeds import CounterReader, LatencyFeed
from host_agent.observe.latency.ports import SloPorts
from host_agent.observe.latency.sockets import PortSockets
from host_agent.observe.latency.sources import SloSources
from host_agent.observe.snapshot import Observer
from host_agent.report.metrics import Metrics
from host_agent.report.publisher import (
    Publisher,
    make_adapter,
    make_pressure,
    make_rehomer,
    make_reporter,
    publish_settings,
)
from host_agent.report.rehome import Settled
from host_agent.util.background import Errands
from placement_traits.topology import HostTopology


@dataclass(frozen=True, slots=True)
class Parts:
    """The agent's parts that others (commands, tests) use, too."""

    paths: HostPaths
    source: DomainSource
    privileged: Privileged
    observer: Observer
    journal: ActionJournal
    metrics: Metrics
    publisher: Publisher | None
    qos: BandwidthQos | None
    agent: Agent


def build_publisher(
    conf: cfg.ConfigOpts,
    source: DomainSource,
    metrics: Metrics,
    journal: ActionJournal,
    unsatisfiable: Callable[[], frozenset[str]] = frozenset,
) -> Publisher:
    """Return what tells Placement, not yet started.

    :param unsatisfiable: says which servers' objectives cannot be kept here
    """
    paths = agent_conf.paths(conf)

    return Publisher(
        lambda: publish_settings(conf, conf.host.name or source.hostname()),
        lambda: make_reporter(conf),
        lambda: foreign_groups(paths),
        metrics,
        pressure=make_pressure(conf, tree(paths)),
        unsatisfiable=unsatisfiable,
        settled=Settled(conf.placement.rehome_after_s),
        make_rehomer=(lambda root: make_rehomer(conf, root, journal))
        if conf.placement.rehome
        else None,
    )


def build_qos(
    conf: cfg.ConfigOpts,
    source: DomainSource,
    privileged: Privileged,
    journal: ActionJournal,
    metrics: Metrics,
    *,
    feeds: Sequence[LatencyFeed] = (),
) -> BandwidthQos:
    """Return the bandwidth controller, not yet started.

    :param feeds: sources of latencies beside the ports, best first
    """
    paths, settings = agent_conf.paths(conf), agent_conf.settings(conf)
    slo = settings.slo
    resctrl = tree(paths)

    def levels(topology: HostTopology) -> tuple[int, ...]:
        if topology.rdt and topology.rdt.mba:
            return mba_levels(resctrl.bandwidth())
        return quota_levels() if settings.rdt.cpu_time_fallback else ()

    def limit(by_server: Sequence[tuple[str, int]]) -> list[str]:
        return [problem for _, problem in privileged.limit_cpu_time(by_server, True).problems]

    host = conf.host.name or os.uname().nodename
    ports = SloPorts(source.attach, journal, Errands("slo-ports"), source.wake)
    qos = BandwidthQos(
        slo,
        SloSources(ChannelFeed(slo.feed, PortSockets()), feeds),
        SloHost(
            privileged.throttle,
            limit,
            BandwidthReader(resctrl).servers,
            levels,
            source.wake,
            plug=ports.serve if slo.channel else lambda _lcs: None,
            paused=paths.paused.exists,
            margin_mb=settings.memory.margin_mb,
        ),
        SloStore(paths.slo, metrics.lost),
        SloReport(
            slo,
            journal,
            count=metrics.count,
            escalate=Escalation(
                Errands("slo-escalation"),
                journal,
                host,
                notify=bus(conf, slo.notify_url, host) if slo.notify_url else None,
                migrate=nova(make_adapter(conf, "compute")) if slo.live_migrate else None,
            ),
        ),
    )
    metrics.include(qos.samples)
    return qos


def build(
    conf: cfg.ConfigOpts,
    *,
    out: Callable[[str], object],
    source: DomainSource | None = None,
    privileged: Privileged | None = None,
) -> Parts:
    """Build the agent.

    :param conf: loaded configuration
    :param out: takes the journal's lines of a dry run
    :param source: libvirt; by default the configured one
    :param privileged: the privileged side; by default what fits this process's rights
    """
    paths = agent_conf.paths(conf)
    settings = agent_conf.settings(conf)
    dry_run = conf.dry_run
    source = source or LibvirtSource(conf.libvirt_host.uri)
    privileged = privileged or open_seam(paths, conf, dry_run=dry_run)
    metrics = Metrics()
    sign = SignOfLife(privileged, settings.rdt.release_after_s)
    guarded = settings.rdt.enabled and not dry_run
    progress = sign.progress if guarded else lambda: None
    observer = build_observer(conf, source, privileged, progress=progress)
    journal: ActionJournal = PrintedJournal(out) if dry_run else open_journal(conf, metrics.lost)
    acts = settings.slo.enabled and guarded
    feeds = latency_feeds.build(settings.slo) if acts else ()
    qos = build_qos(conf, source, privileged, journal, metrics, feeds=feeds) if acts else None
    executor = Executor(
        privileged,
        Partitions(
            privileged,
            PartitionSettings(
                shrink_root=settings.rdt.shrink_root,
                shared_ways_min=settings.rdt.shared_ways_min,
            ),
        ),
        journal,
        settings,
        migrating=source.migrating,
        moved=observer.forget_memory,
        placed=qos.placed if qos else ignore_places,
        overtaken=qos.superseded if qos else frozenset,
        doubted=qos.suspect if qos else bool,
        count=metrics.count,
        progress=progress,
        dry_run=dry_run,
    )
    also = [feed.take for feed in feeds if isinstance(feed, CounterReader)]
    steering = build_steering(conf, source, privileged, metrics.lost, also)
    metrics.include(steering.samples)
    refiners: list[Refiner] = [steering]
    listeners: list[Listener] = [metrics]
    if qos is not None:
        refiners.append(qos)
        listeners.append(qos)
    if guarded:
        listeners.append(sign)
    if conf.placement.enabled and not dry_run:
        unsatisfiable = qos.unsatisfiable if qos else frozenset
        publisher = build_publisher(conf, source, metrics, journal, unsatisfiable)
        listeners.append(publisher)
    else:
        publisher = None

    def failed() -> None:
        metrics.failed_round()
        sign.failed()

    agent = Agent(
        source,
        observer,
        executor,
        settings,
        homes_file=None if dry_run else paths.homes,
        paused_mark=paths.paused,
        refiners=Refiners(refiners, metrics.failed_refiner),
        listeners=tuple(listeners),
        on_failure=failed,
        lost=metrics.lost,
        write=not dry_run,
    )
    return Parts(paths, source, privileged, observer, journal, metrics, publisher, qos, agent)
