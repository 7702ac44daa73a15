# SPDX-License-Identifier: Apache-2.0
"""Put NUMA balancing together from the configuration: its sensors, its guard, its files."""

from collections.abc import Callable, Mapping, Sequence

from oslo_config import cfg

from host_agent.conf import agent as agent_conf
from host_agent.conf import balancing
from host_agent.control.balancing import BalancingChoices, BalancingRefiner
from host_agent.control.calibration_store import CalibrationFile
from host_agent.control.pipeline import RefinerHost
from host_agent.decide.inputs import BalancingSettings
from host_agent.machine.libvirt import DomainSource
from host_agent.machine.privileged.api import Privileged
from host_agent.machine.privileged.partitions import tree
from host_agent.model.counters import ServerCounters
from host_agent.observe.counters import registry
from host_agent.observe.counters.source import CounterHost, CounterSource
from host_agent.observe.counters.stacks import Shared
from host_agent.observe.foreign_balancers import Guard
from host_agent.observe.latency.feeds import CounterReader


def build(host: RefinerHost) -> BalancingRefiner:
    """Return the refiner; the feeds that need counters take its readings, too."""
    also = [feed.take for feed in host.feeds if isinstance(feed, CounterReader)]
    return build_balancing(host.conf, host.source, host.privileged, host.metrics.lost, also)


def build_balancing(
    conf: cfg.ConfigOpts,
    source: DomainSource,
    privileged: Privileged,
    lost: Callable[[str], None],
    also: Sequence[Callable[[Mapping[str, ServerCounters], float], None]] = (),
) -> BalancingRefiner:
    """Return the refiner for cores and memory shares.

    :param lost: called for each state file that could not be written
    :param also: take its readings of the counters, see :class:`~host_agent.observe.counters.stacks.Shared`
    """
    paths = agent_conf.paths(conf)
    return BalancingRefiner(
        Shared(_counters(conf, source, privileged), also),
        choices(conf),
        CalibrationFile(paths.calibration).weights,
        Guard(paths.proc, conf.agent.resync_s),
        file=None if conf.dry_run else paths.balancing,
        lost=lost,
    )


def choices(conf: cfg.ConfigOpts) -> BalancingChoices:
    """Read the operator's choices."""
    settings = agent_conf.settings(conf)
    return BalancingChoices(
        BalancingSettings(
            map_cores=conf.mapping.enabled,
            mapper=balancing.mapper(conf.mapping),
            search=balancing.search(conf.bwap),
            be_mba_percent=settings.rdt.be_mba_percent,
            margin_mb=settings.memory.margin_mb,
            # The executor stops at its dead band; a search must not wait for the last page.
            dead_band=2 * settings.memory.dead_band,
        ),
        use_siblings=conf.mapping.use_siblings,
        sample_s=conf.counters.sample_s,
        keep_s=settings.resync_s,
    )


def _counters(conf: cfg.ConfigOpts, source: DomainSource, privileged: Privileged) -> CounterSource:
    wanted = balancing.counters(conf.counters)
    options = {
        "seed": wanted.model_seed,
        "noise_share": wanted.model_noise,
        "programs": wanted.model_programs,
    }
    resctrl = tree(agent_conf.paths(conf))
    return registry.build(
        wanted.source, CounterHost(privileged, source.perf_totals, resctrl, options)
    )
