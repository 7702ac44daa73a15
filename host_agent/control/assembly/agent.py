# SPDX-License-Identifier: Apache-2.0
"""Put the agent together from its configuration: the one place that knows all parts."""

import os
from collections.abc import Callable
from dataclasses import dataclass

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
from host_agent.control.pipeline import RefinerHost, Refiners
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
from host_agent.report.costs import Costs
from host_agent.report.groups import GroupMetrics
from host_agent.report.metrics import Measured, Metrics
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
    dry_run = conf.dry_run
    DenyList(conf.agent.deny_servers).check()  # before anything is touched
    source = source or LibvirtSource(conf.libvirt_host.uri, conf.libvirt_host.timeout_s)
    privileged = privileged or open_seam(conf, dry_run=dry_run)
    metrics = Metrics()
    journal: OwnedJournal = (
        PrintedJournal(out)
        if dry_run
        else BackgroundJournal(open_journal(conf, metrics.lost), metrics.lost)
    )
    rollout = Rollout(
        conf,
        follows_placement=conf.placement.enabled and not dry_run,
        file=None if dry_run else paths.rollout,
        wake=source.wake,
        lost=metrics.lost,
        dry_run=dry_run,
        takeover=Takeover(conf, journal, lambda: our_threads(tree(paths))),
    )
    metrics.include(rollout)
    in_control = InControl(privileged, conf.release_after_s)
    throttles = conf.rdt.enabled and not dry_run
    progress = in_control.progress if throttles else lambda: None
    known = KnownTopology(paths.topology, keep=not dry_run, lost=metrics.lost)
    observer = build_observer(conf, source, privileged, known=known, progress=progress)
    feeds = latency_feeds.build(conf.slo) if conf.slo.enabled and throttles else ()
    refined_by = refiners.build(
        RefinerHost(
            conf,
            source,
            privileged,
            journal,
            metrics,
            feeds,
            throttles,
            lapsed=in_control.lapsed,
            acts=rollout.acts,
            balancers=Guard(paths.proc, conf.agent.resync_s),
        )
    )
    for refiner in refined_by:
        if isinstance(refiner, Measured):
            metrics.include(refiner)
    slo = next((found for found in refined_by if isinstance(found, SloController)), None)
    report = ActionReport(journal, metrics.count)
    partitions = Partitions(privileged, conf.rdt)
    executor = Executor(
        privileged,
        ResourceControl(partitions, privileged, report, conf.rdt, slo),
        report,
        conf,
        RoundHooks(source.migrating, observer.moved, progress),
    )
    causes = slo.causes if slo else dict
    costs = Costs(None if dry_run else paths.costs, metrics.lost, causes=causes)
    publisher = None
    if conf.placement.enabled and not dry_run:
        unsatisfiable = slo.unsatisfiable if slo else frozenset
        publisher = placement.build(
            conf,
            source,
            metrics,
            unsatisfiable,
            follower=rollout,
            costs=lambda: costs.paid,
        )
    done: list[Listener] = [metrics, *(one for one in refined_by if isinstance(one, Listener))]
    done += [in_control] if throttles else []
    done += [publisher] if publisher else []
    groups = GroupMetrics(tree(paths))
    metrics.include(groups)
    if throttles:
        metrics.include(in_control)
    metrics.include(costs)
    done += [rollout, groups, costs]
    service_manager = ServiceManager.of(os.environ)
    done.append(service_manager)
    metrics.begin(
        refiners=[one.name for one in refined_by], listeners=[type(one).__name__ for one in done]
    )
    agent = Agent(
        Stages(source, observer, executor, Refiners(refined_by, metrics.failed_refiner)),
        conf,
        AgentFiles(
            None if dry_run else paths.home_nodes,
            paths.paused,
            metrics.lost,
            None if dry_run else paths.acting,
        ),
        Listeners(
            tuple(done),
            (metrics.failed_round, in_control.failed),
            metrics.failed_listener,
            metrics.without_libvirt,
        ),
        rollout=rollout,
        write=not dry_run,
    )
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
