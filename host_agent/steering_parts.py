# SPDX-License-Identifier: Apache-2.0
"""Put steering together from the configuration: its sensors, its guard, its files."""

from collections.abc import Callable, Mapping

from oslo_config import cfg

from host_agent import conf as agent_conf
from host_agent import steering_conf
from host_agent.assignment import Observation
from host_agent.calibration_file import CalibrationFile
from host_agent.controllers.steering_shapes import Settings
from host_agent.events import DomainSource
from host_agent.foreign_balancers import Guard
from host_agent.hostmodel.sensor import ModelSensor, Partition
from host_agent.paths import HostPaths
from host_agent.privileged.partitions import tree
from host_agent.privileged.seam import Privileged
from host_agent.rdt.resctrl import Resctrl
from host_agent.rdt.shapes import is_bandwidth
from host_agent.sensors.counters import (
    CounterSource,
    FirstOf,
    LibvirtCounters,
    ModelledCounters,
    NoCounters,
    PerfCounters,
    ToldOnce,
)
from host_agent.steering_refiner import Choices, SteeringRefiner
from placement_traits.topology import HostTopology

_FULL_PERCENT = 100


def build_steering(
    conf: cfg.ConfigOpts,
    source: DomainSource,
    privileged: Privileged,
    lost: Callable[[str], None],
) -> SteeringRefiner:
    """Return the refiner for cores and memory shares.

    :param lost: told about each state file that could not be written
    """
    paths = agent_conf.paths(conf)
    return SteeringRefiner(
        build_counters(conf, source, privileged),
        choices(conf),
        CalibrationFile(paths.calibration).weights,
        Guard(paths.proc, conf.agent.resync_s),
        file=None if conf.dry_run else paths.steering,
        lost=lost,
    )


def choices(conf: cfg.ConfigOpts) -> Choices:
    """Read the operator's choices."""
    settings = agent_conf.settings(conf)
    return Choices(
        Settings(
            map_cores=conf.mapping.enabled,
            mapper=steering_conf.mapper(conf.mapping),
            search=steering_conf.search(conf.bwap),
            be_mba_percent=settings.rdt.be_mba_percent,
            margin_mb=settings.memory.margin_mb,
            # The executor stops at its dead band; a search must not wait for the last page.
            dead_band=2 * settings.memory.dead_band,
        ),
        use_siblings=conf.mapping.use_siblings,
        sample_s=conf.counters.sample_s,
        keep_s=settings.resync_s,
    )


def build_counters(
    conf: cfg.ConfigOpts, source: DomainSource, privileged: Privileged
) -> CounterSource:
    """Return the configured source of performance counters."""
    wanted = steering_conf.counters(conf.counters)
    if wanted.source == "none":
        return NoCounters()
    perf, libvirt = PerfCounters(privileged), LibvirtCounters(source.perf_totals)
    sources: dict[str, CounterSource] = {
        "auto": FirstOf(perf, libvirt),
        "perf": perf,
        "libvirt": libvirt,
        "model": _modelled(wanted, agent_conf.paths(conf)),
    }
    return ToldOnce(sources[wanted.source])


def _modelled(wanted: steering_conf.CounterSettings, paths: HostPaths) -> ModelledCounters:
    def make(topology: HostTopology) -> ModelSensor:
        return ModelSensor(
            topology, wanted.model_seed, wanted.model_noise, programs=wanted.model_programs
        )

    resctrl = tree(paths)
    return ModelledCounters(make, lambda observation: partitions_in_force(resctrl, observation))


def partitions_in_force(resctrl: Resctrl, observation: Observation) -> Mapping[str, Partition]:
    """Return UUID -> masks and levels of the group that each server's process is in; empty without resctrl."""
    if not resctrl.available():
        return {}
    with resctrl.lock(exclusive=False):
        groups = {group.name: group for group in resctrl.actual().groups}
        group_of = {tid: name for name in groups if name for tid in resctrl.tasks(name)}
    found = {}
    for guest in observation.guests:
        group = groups.get(group_of.get(guest.process.pid, "")) if guest.process else None
        if group is not None:
            ways = {
                domain: mask
                for resource, values in group.schemata.items()
                if resource.startswith("L3")
                for domain, mask in values.items()
            }
            levels = {
                domain: level
                for resource, values in group.schemata.items()
                if is_bandwidth(resource)
                for domain, level in values.items()
                if level <= _FULL_PERCENT
            }
            found[guest.uuid] = Partition(ways, levels)
    return found
