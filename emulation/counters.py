# SPDX-License-Identifier: Apache-2.0
"""The host model in place of performance counters; imported only where it is asked for, because numpy is large."""

from collections.abc import Callable, Collection, Mapping

from emulation.physics.sensor import ModelSensor, Partition
from host_agent.machine.rdt.reader import ResctrlReader
from host_agent.model.assignment import Observation
from host_agent.model.counters import ServerCounters
from host_agent.model.levels import FULL
from host_agent.model.rdt import is_bandwidth
from host_agent.observe.counters.source import CounterHost, CounterSource, Readings, measured
from placement_traits.topology import HostTopology


def build(host: CounterHost) -> CounterSource:
    """Return the source: the entry point ``model`` of group ``numa_ext.counter_sources``.

    :param host: its options are arguments of :class:`~emulation.physics.sensor.ModelSensor`
    """
    return ModelledCounters(
        lambda topology: ModelSensor(topology, **host.options),
        lambda observation: effective_partitions(host.resctrl, observation),
    )


class ModelledCounters:
    """The host model in place of counters (``[counters]source = model``), for machines without any: the lab.

    :param make: makes the model of a topology
    :param partitions: reads the effective resource control, UUID -> partition
    """

    def __init__(
        self,
        make: Callable[[HostTopology], ModelSensor],
        partitions: Callable[[Observation], Mapping[str, Partition]],
    ) -> None:
        self._make = make
        self._partitions = partitions
        self._topology: HostTopology | None = None
        self._sensor: ModelSensor | None = None

    def read(
        self, observation: Observation, now_s: float, only: Collection[str] | None = None
    ) -> Readings:
        """See :class:`CounterSource`; every figure is *modelled*, of the whole host."""
        if self._sensor is None or observation.topology != self._topology:
            self._topology = observation.topology
            self._sensor = self._make(observation.topology)
        signals = self._sensor.read(observation, self._partitions(observation))
        managed = {guest.uuid for guest in observation.guests if measured(guest, only)}
        counters = {
            uuid: ServerCounters(found.ipc, found.mpi, found.stall_rate)
            for uuid, found in signals.items()
            if uuid in managed
        }
        return Readings(counters, "model (all figures are modelled)")


def effective_partitions(
    resctrl: ResctrlReader, observation: Observation
) -> Mapping[str, Partition]:
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
                if level <= FULL
            }
            found[guest.uuid] = Partition(ways, levels)
    return found
