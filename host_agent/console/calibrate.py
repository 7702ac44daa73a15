# SPDX-License-Identifier: Apache-2.0
"""``numa-host-agent-ctl calibrate``: check, measure, keep, show; ``calibrate levels``: what bandwidth levels mean."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Final

from host_agent.conf.configuration import Configuration
from host_agent.control import calibration_store
from host_agent.control.assembly.observer import topology_reader
from host_agent.control.calibration import (
    Profiler,
    calibrate,
    default_megabytes,
    free_megabytes,
)
from host_agent.control.journal import utc_now
from host_agent.machine.libvirt import LibvirtSource
from host_agent.machine.rdt.backend import tree
from host_agent.machine.rdt.calibration import CalibrationGroups
from host_agent.observe.calibration.counters import CountedProfiler, refused
from host_agent.observe.calibration.levels import calibrate_levels
from host_agent.observe.calibration.timing import TimingProfiler, TimingSettings
from host_agent.util.single_instance import single_instance
from placement_traits.errors import CapabilityMissingError
from placement_traits.topology import HostTopology
from placement_traits.words import counted

_NOT_BESIDE: Final = (
    "it would take the measurement's groups away; stop it (systemctl stop numa-host-agent)"
)
As = Callable[[], AbstractContextManager[None]]


def run(
    conf: Configuration,
    *,
    as_owner: As,
    settings: TimingSettings,
    keep: bool,
    progress: Callable[[str], object],
    force: bool = False,
) -> list[dict[str, Any]]:
    """Measure this host; return one row per worker set with its weights.

    :param as_owner: makes root the owner of the agent's folder, to write there; counters need root's rights
    :param settings: ``megabytes`` 0: chosen by the caches
    :param keep: write the file that the agent reads
    :param force: measure beside running servers
    :raises CapabilityMissingError: servers run here, a node has too little free memory, or the file cannot be written
    :raises ConflictError: an agent runs here
    :raises ServiceUnavailableError: libvirt does not tell whether servers run here
    """
    with _no_agent(conf, as_owner):
        if not force:
            _check_idle(conf)
        return _run(conf, as_owner, settings, progress, keep=keep)


def _run(
    conf: Configuration,
    as_owner: As,
    settings: TimingSettings,
    progress: Callable[[str], object],
    *,
    keep: bool,
) -> list[dict[str, Any]]:
    topology = topology_reader(conf)()
    paths = conf.paths
    settings = replace(settings, megabytes=settings.megabytes or default_megabytes(topology))
    _check_room(conf, topology, settings.megabytes)
    cpus = {node: topology.cpus_of_node(node) for node in topology.node_ids}
    profiler = _profiler(conf, topology, TimingProfiler(cpus, settings), progress)
    found = calibrate(topology, profiler, now=utc_now(), progress=progress)
    progress(f"measured {found.measured}")
    if keep:
        try:
            with as_owner():
                calibration_store.store(paths.calibration).save(found)
        except OSError as error:
            raise CapabilityMissingError(
                f"{paths.calibration} cannot be written: {error.strerror}; see [agent]state_dir"
            ) from error
    weights = found.weights()
    return [
        {
            "workers": ",".join(map(str, sorted(workers))),
            "weights": {node: round(share, 4) for node, share in sorted(weights[workers].items())},
            "mbps": {
                node: {worker: round(mbps) for worker, mbps in sorted(to_worker.items())}
                for node, to_worker in sorted(found.sets[workers].items())
            },
        }
        for workers in found.sets
    ]


def run_levels(
    conf: Configuration,
    *,
    as_owner: As,
    settings: TimingSettings,
    progress: Callable[[str], object],
    force: bool = False,
) -> list[dict[str, Any]]:
    """Measure what bandwidth levels are shares of; return one row per measurement.

    The figure goes into the configuration: the agent and its privileged helper read it from there.

    :param as_owner: makes root the owner of the agent's folder, to write there; limits need root's rights
    :param settings: ``megabytes`` 0: chosen by the caches; ``cpus_per_node`` of each L3 domain
    :param force: measure beside running servers
    :raises CapabilityMissingError: servers run here, or levels cannot be calibrated here
    :raises ConflictError: an agent runs here
    :raises ResctrlError: the kernel refused a group
    :raises ServiceUnavailableError: libvirt does not tell whether servers run here
    """
    with _no_agent(conf, as_owner):
        if not force:
            _check_idle(conf)
        return _run_levels(conf, settings, progress)


def _run_levels(
    conf: Configuration, settings: TimingSettings, progress: Callable[[str], object]
) -> list[dict[str, Any]]:
    topology = topology_reader(conf)()
    settings = replace(settings, megabytes=settings.megabytes or default_megabytes(topology))
    _check_room(conf, topology, settings.megabytes)
    cpus = {
        domain.id: [cpu for core in topology.cores if core.l3 == domain.id for cpu in core.cpus]
        for domain in topology.l3_domains
    }
    load = TimingProfiler(cpus, settings)
    resctrl = tree(conf.paths)
    full_mbps, found = calibrate_levels(
        resctrl.bandwidth(), topology, load, CalibrationGroups(resctrl), progress=progress
    )
    progress(f"put into the agent's configuration: [rdt] full_bandwidth_mbps = {full_mbps}")
    return [{"l3": each.l3, "percent": each.percent, "mbps": round(each.mbps)} for each in found]


@contextmanager
def _no_agent(conf: Configuration, as_owner: As) -> Iterator[None]:
    """Keep agents from this host: one takes groups that no server needs away, those of the measurement, too."""
    with ExitStack() as held:
        with as_owner():
            conf.paths.state.mkdir(parents=True, exist_ok=True, mode=0o750)
            held.enter_context(single_instance(conf.paths.lock, _NOT_BESIDE))
        yield


def _profiler(
    conf: Configuration,
    topology: HostTopology,
    timing: TimingProfiler,
    progress: Callable[[str], object],
) -> Profiler:
    """Return what measures: the CPU's counters where they can tell, else timing alone."""
    resctrl = tree(conf.paths)
    why_not = refused(resctrl, topology)
    if why_not:
        progress(f"by timing: {why_not}")
        return timing
    return CountedProfiler(timing, CalibrationGroups(resctrl).counted, topology, progress=progress)


def _check_idle(conf: Configuration) -> None:
    """The readers take all CPUs, those of latency-critical servers, too."""
    source = LibvirtSource(conf.libvirt_host.uri, conf.libvirt_host.timeout_s)
    try:
        running = len(source.domains())
    finally:
        source.close()
    if running:
        raise CapabilityMissingError(
            f"The measurement shares the CPUs and memory bandwidth of this host with {counted(running, 'server')}: "
            "move what runs here away first, or measure beside it with --force"
        )


def _check_room(conf: Configuration, topology: HostTopology, megabytes: int) -> None:
    root = conf.paths.sys / "devices/system/node"
    margin = conf.memory.margin_mb
    for node in calibration_store.distances(topology):
        free = free_megabytes(root, node)
        if free < megabytes + margin:
            raise CapabilityMissingError(
                f"node {node} has {free} MiB free; {megabytes} are needed and {margin} stay free "
                "([memory]margin_mb): choose less with --megabytes"
            )
