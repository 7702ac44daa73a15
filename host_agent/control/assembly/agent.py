# SPDX-License-Identifier: Apache-2.0
"""Put the agent together from its configuration: the one place that knows all parts."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from host_agent.apply.executor import Executor, RoundHooks
from host_agent.apply.partitions import Partitions
from host_agent.apply.report import ActionReport
from host_agent.apply.resource_control import ResourceControl
from host_agent.conf.configuration import Configuration
from host_agent.conf.paths import HostPaths
from host_agent.control.agent import Agent, AgentFiles, Listener, Listeners, Stages
from host_agent.control.assembly import publisher as placement
from host_agent.control.assembly import refiners
from host_agent.control.assembly.observer import build_observer
from host_agent.control.in_control import InControl
from host_agent.control.journal import BackgroundJournal, PrintedJournal, open_journal
from host_agent.control.pipeline import Refiner, RefinerHost, Refiners
from host_agent.control.rollout import Rollout
from host_agent.control.slo import SloController
from host_agent.control.takeover import Takeover
from host_agent.control.topology_store import KnownTopology
from host_agent.machine.libvirt import DomainSource, LibvirtSource
from host_agent.machine.privileged.api import Privileged
from host_agent.machine.privileged.seam import open_seam
from host_agent.machine.rdt.backend import our_threads, tree
from host_agent.model.journal import OwnedJournal
from host_agent.observe.denied import DenyList
from host_agent.observe.foreign_balancers import Guard
from host_agent.observe.latency import feeds as latency_feeds
from host_agent.observe.snapshot import Observer
from host_agent.report.clients import make_peers
from host_agent.report.costs import Costs
from host_agent.report.groups import GroupMetrics
from host_agent.report.metrics import Measured, Metrics
from host_agent.report.network import KnownPeers, NetworkUse
from host_agent.report.publisher import Publisher
from placement_traits.service_manager import ServiceManager


@dataclass(frozen=True, slots=True)
class Parts:
    """The agent's parts that others (commands, tests) use, too."""

    paths: HostPaths
    source: DomainSource
    privileged: Privileged
    observer: Observer
    journal: OwnedJournal
    metrics: Metrics
    service_manager: ServiceManager
    publisher: Publisher | None
    slo: SloController | None
    agent: Agent


@dataclass(frozen=True, slots=True)
class _Ground:
    """What the other parts stand on."""

    conf: Configuration
    source: DomainSource
    privileged: Privileged
    journal: OwnedJournal
    metrics: Metrics
    rollout: Rollout
    in_control: InControl

    @property
    def throttles(self) -> bool:
        """Bandwidth levels may be written."""
        return self.conf.rdt.enabled and not self.conf.dry_run

    @property
    def progress(self) -> Callable[[], None]:
        """What is called while a round goes on."""
        return self.in_control.progress if self.throttles else lambda: None


def build(
    conf: Configuration,
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
    :raises ConfigurationError: the list of servers that must not be touched, or the credentials for Placement, cannot
        be used
    """
    paths = conf.paths
    DenyList(conf.agent.deny_servers).check()  # before anything is touched
    source = source or LibvirtSource(conf.libvirt_host.uri, conf.libvirt_host.timeout_s)
    privileged = privileged or open_seam(conf, dry_run=conf.dry_run)
    metrics = Metrics()
    journal = _journal(conf, out, metrics)
    rollout = _rollout(conf, source, journal, metrics)
    in_control = InControl(privileged, conf.release_after_s)
    ground = _Ground(conf, source, privileged, journal, metrics, rollout, in_control)
    known = KnownTopology(paths.topology, keep=not conf.dry_run, lost=metrics.lost)
    observer = build_observer(conf, source, privileged, known=known, progress=ground.progress)
    refined_by = _refiners(ground)
    slo = next((found for found in refined_by if isinstance(found, SloController)), None)
    executor = _executor(ground, observer, slo)
    causes = slo.causes if slo else dict
    costs = Costs(_kept(conf, paths.costs), metrics.lost, causes=causes)
    publisher = _publisher(ground, slo, costs)
    service_manager = ServiceManager.of(os.environ)
    listeners = _listeners(ground, refined_by, publisher, costs, service_manager)
    stages = Stages(source, observer, executor, Refiners(refined_by, metrics.failed_refiner))
    agent = _agent(ground, stages, listeners)
    return Parts(
        paths,
        source,
        privileged,
        observer,
        journal,
        metrics,
        service_manager,
        publisher,
        slo,
        agent,
    )


def _kept(conf: Configuration, path: Path) -> Path | None:
    """Return a state file, None in a dry run, which keeps nothing."""
    return None if conf.dry_run else path


def _journal(conf: Configuration, out: Callable[[str], object], metrics: Metrics) -> OwnedJournal:
    if conf.dry_run:
        return PrintedJournal(out)
    return BackgroundJournal(open_journal(conf, metrics.lost), metrics.lost)


def _rollout(
    conf: Configuration, source: DomainSource, journal: OwnedJournal, metrics: Metrics
) -> Rollout:
    paths = conf.paths
    rollout = Rollout(
        conf,
        follows_placement=conf.placement.enabled and not conf.dry_run,
        file=_kept(conf, paths.rollout),
        wake=source.wake,
        lost=metrics.lost,
        dry_run=conf.dry_run,
        takeover=Takeover(conf, journal, lambda: our_threads(tree(paths))),
    )
    metrics.include(rollout)
    return rollout


def _refiners(ground: _Ground) -> tuple[Refiner, ...]:
    conf = ground.conf
    feeds = latency_feeds.build(conf.slo) if conf.slo.enabled and ground.throttles else ()
    built = refiners.build(
        RefinerHost(
            conf,
            ground.source,
            ground.privileged,
            ground.journal,
            ground.metrics,
            feeds,
            ground.throttles,
            lapsed=ground.in_control.lapsed,
            acts=ground.rollout.acts,
            balancers=Guard(conf.paths.proc, conf.agent.resync_s),
        )
    )
    for refiner in built:
        if isinstance(refiner, Measured):
            ground.metrics.include(refiner)
    return built


def _executor(ground: _Ground, observer: Observer, slo: SloController | None) -> Executor:
    conf, privileged = ground.conf, ground.privileged
    report = ActionReport(ground.journal, ground.metrics.count)
    partitions = Partitions(privileged, conf.rdt)
    return Executor(
        privileged,
        ResourceControl(partitions, privileged, report, conf.rdt, slo),
        report,
        conf,
        RoundHooks(ground.source.migrating, observer.moved, ground.progress),
    )


def _publisher(ground: _Ground, slo: SloController | None, costs: Costs) -> Publisher | None:
    conf = ground.conf
    if not conf.placement.enabled or conf.dry_run:
        return None
    return placement.build(
        conf,
        ground.source,
        ground.metrics,
        slo.unsatisfiable if slo else frozenset,
        follower=ground.rollout,
        costs=lambda: costs.paid,
    )


def _agent(ground: _Ground, stages: Stages, listeners: Listeners) -> Agent:
    conf, paths = ground.conf, ground.conf.paths
    files = AgentFiles(
        _kept(conf, paths.home_nodes), paths.paused, ground.metrics.lost, _kept(conf, paths.acting)
    )
    rollout, write = ground.rollout, not conf.dry_run
    return Agent(stages, conf, files, listeners, rollout=rollout, write=write)


def _peers(ground: _Ground) -> KnownPeers | None:
    """Return what knows where the peers of servers are, None where nothing is to be estimated."""
    conf = ground.conf
    if not (conf.network.levels and conf.placement.enabled):
        return None
    return KnownPeers(make_peers(conf, lambda: conf.host.name or ground.source.hostname()))


def _listeners(
    ground: _Ground,
    refined_by: Sequence[Refiner],
    publisher: Publisher | None,
    costs: Costs,
    service_manager: ServiceManager,
) -> Listeners:
    metrics, in_control = ground.metrics, ground.in_control
    groups = GroupMetrics(tree(ground.conf.paths))
    done: list[Listener] = [metrics, *(one for one in refined_by if isinstance(one, Listener))]
    done += [in_control] if ground.throttles else []
    done += [publisher] if publisher else []
    network = NetworkUse(ground.conf.network, ground.conf.paths.sys, ground.journal, _peers(ground))
    done += [ground.rollout, groups, costs, network, service_manager]
    metrics.include(groups)
    metrics.include(network)
    if ground.throttles:
        metrics.include(in_control)
    metrics.include(costs)
    metrics.begin(
        refiners=[one.name for one in refined_by], listeners=[type(one).__name__ for one in done]
    )
    return Listeners(
        tuple(done),
        (metrics.failed_round, in_control.failed),
        metrics.failed_listener,
        metrics.without_libvirt,
    )
