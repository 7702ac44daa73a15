# SPDX-License-Identifier: Apache-2.0
"""Put the sensors together, for the agent and for the commands of ``numa-host-agent-ctl`` that look at the host."""

from collections.abc import Callable
from pathlib import Path

from host_agent.conf.configuration import Configuration
from host_agent.control.calibration_store import CalibrationFile
from host_agent.control.topology_store import KnownTopology
from host_agent.machine.libvirt import DomainSource
from host_agent.machine.privileged.api import Privileged
from host_agent.machine.rdt.backend import tree
from host_agent.observe.denied import DenyList
from host_agent.observe.machine_files import MachineFiles
from host_agent.observe.snapshot import Observer, ServerScope
from host_agent.observe.topology.host import discover
from host_agent.observe.topology.sysfs import Given
from placement_traits.topology import HostTopology


def topology_reader(
    conf: Configuration, known: KnownTopology | None = None
) -> Callable[[], HostTopology]:
    """Return the function that reads this host's topology; bandwidths are the operator's, else the measured ones.

    :param known: what is known of offline CPUs; by default what the agent has kept
    """
    paths = conf.paths
    known = known or KnownTopology(paths.topology)
    per_node = conf.placement.bandwidth_mbps_per_node
    calibration = CalibrationFile(paths.calibration)
    gpus = conf.host.gpu_products
    matrix = Path(conf.host.gpu_matrix) if conf.host.gpu_matrix else None
    chassis = conf.host.server_node_of_socket

    def given(seen: HostTopology) -> Given:
        mbps = (
            dict.fromkeys(seen.node_ids, per_node)
            if per_node
            else calibration.local_bandwidth_mbps(seen)
        )
        return Given(chassis, mbps, calibration.read_bandwidth_mbps(seen))

    return lambda: discover(paths.sys, tree(paths), given, gpus, matrix, complete=known.complete)


def build_observer(
    conf: Configuration,
    source: DomainSource,
    privileged: Privileged,
    *,
    known: KnownTopology | None = None,
    read_all: bool = False,
    progress: Callable[[], None] = lambda: None,
) -> Observer:
    """Return the sensors; see :class:`~host_agent.observe.snapshot.Observer` and :func:`topology_reader`."""
    kernel = conf.paths.sys
    machine = MachineFiles(
        topology_reader(conf, known),
        kernel / "devices/system/node",
        kernel / "bus/pci/devices",
        kernel / "devices/system/cpu/online",
    )
    scope = ServerScope(
        manage_untagged=conf.agent.manage_untagged,
        denied=DenyList(conf.agent.deny_servers).servers,
        read_all=read_all,
    )
    return Observer(
        source,
        privileged,
        machine,
        scope=scope,
        sample_pages=conf.memory.sample_pages,
        progress=progress,
    )
