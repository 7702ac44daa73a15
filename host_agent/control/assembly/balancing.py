# SPDX-License-Identifier: Apache-2.0
"""Put NUMA balancing together from the configuration: its sensors, its guard, its files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from host_agent.conf.configuration import Configuration
from host_agent.control.balancing import BalancingRefiner, Canonical
from host_agent.control.calibration_store import CalibrationFile
from host_agent.control.pipeline import RefinerHost
from host_agent.machine.libvirt import DomainSource
from host_agent.machine.privileged.api import Privileged
from host_agent.machine.rdt.backend import tree
from host_agent.model.counters import ServerCounters
from host_agent.model.modes import Feature
from host_agent.observe import foreign_balancers
from host_agent.observe.counters import registry
from host_agent.observe.counters.source import CounterHost, CounterSource
from host_agent.observe.counters.stacks import Shared
from host_agent.observe.latency.feeds import CounterReader
from placement_traits.topology import HostTopology


def build(host: RefinerHost) -> BalancingRefiner:
    """Return the refiner; the feeds that need counters take its readings, too."""
    also = [feed.take for feed in host.feeds if isinstance(feed, CounterReader)]
    return build_balancing(
        host.conf,
        host.source,
        host.privileged,
        host.metrics.lost,
        also,
        acts=partial(host.acts, Feature.MEMORY),
        balancers=host.balancers,
    )


def build_balancing(
    conf: Configuration,
    source: DomainSource,
    privileged: Privileged,
    lost: Callable[[str], None],
    also: Sequence[Callable[[Mapping[str, ServerCounters], float], None]] = (),
    *,
    acts: Callable[[], bool] = lambda: True,
    balancers: Callable[[], str] = lambda: "",
) -> BalancingRefiner:
    """Return the refiner for cores and memory shares.

    :param lost: called for each state file that could not be written
    :param acts: returns whether pages are moved: a search for the best spread of memory waits for them
    :param balancers: see :class:`~host_agent.control.pipeline.RefinerHost`
    :param also: take its readings of the counters, see :class:`~host_agent.observe.counters.stacks.Shared`
    """
    paths = conf.paths
    return BalancingRefiner(
        Shared(_counters(conf, source, privileged), also),
        conf,
        _Memory(CalibrationFile(paths.calibration), paths.proc, acts, balancers),
        file=None if conf.dry_run else paths.balancing,
        lost=lost,
    )


@dataclass(frozen=True, slots=True)
class _Memory:
    """:class:`~host_agent.control.balancing.MemoryHost` of the configured host."""

    calibration: CalibrationFile
    proc: Path
    acts: Callable[[], bool]
    balancers: Callable[[], str]

    def canonical(self, topology: HostTopology) -> Canonical:
        """Return the weights that calibration has kept."""
        return self.calibration.weights(topology)

    def refused(self) -> str:
        """Return the other software that moves pages, or that memory only observes."""
        return self.balancers() if self.acts() else "[memory] only observes"

    def kernel_balances(self) -> bool:
        """Return what the kernel's own file says."""
        return foreign_balancers.numa_balancing(self.proc)


def _counters(conf: Configuration, source: DomainSource, privileged: Privileged) -> CounterSource:
    counters = conf.counters
    options = {
        "seed": counters.model_seed,
        "noise_share": counters.model_noise,
        "programs": counters.model_programs,
    }
    resctrl = tree(conf.paths)
    return registry.build(
        counters.source, CounterHost(privileged, source.perf_totals, resctrl, options)
    )
