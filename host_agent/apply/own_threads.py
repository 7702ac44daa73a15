# SPDX-License-Identifier: Apache-2.0
"""Keep the agent itself off the CPUs of dedicated servers and the cores of latency-critical ones."""

import logging
import os
from collections.abc import Iterable
from pathlib import Path

from host_agent.model.assignment import Observation
from placement_traits.names import Tier

LOG = logging.getLogger(__name__)


def quiet_cpus(observation: Observation, allowed: frozenset[int]) -> frozenset[int]:
    """Return the CPUs for the agent: none that nova gave to one server alone, nor a core of a latency-critical one.

    :param allowed: CPUs that the agent was started on (systemd's CPUAffinity, taskset); never left
    :returns: the best that is left: without both, without the exclusive CPUs, else all that is allowed
    """
    topology = observation.topology
    online = frozenset(topology.cpus) & allowed
    exclusive = {
        cpu
        for guest in observation.guests
        if guest.workload.domain.cells or guest.workload.domain.vcpu_cpuset is None
        for chosen in guest.workload.domain.vcpu_pins.values()
        for cpu in chosen
    }
    critical = {
        sibling
        for guest in observation.guests
        if guest.workload.tier is Tier.LC
        for chosen in guest.workload.domain.vcpu_pins.values()
        for cpu in chosen & frozenset(topology.cpus)
        for sibling in topology.siblings(cpu)
    }
    return online - exclusive - critical or online - exclusive or online or allowed


def stay_on(cpus: Iterable[int], tasks: Path = Path("/proc/self/task")) -> bool:
    """Move all threads of this process to the CPUs; return whether any was elsewhere. New threads inherit it."""
    desired = set(cpus)
    changed = False
    for entry in tasks.iterdir():
        tid = int(entry.name)
        try:
            if os.sched_getaffinity(tid) != desired:
                os.sched_setaffinity(tid, desired)
                changed = True
        except OSError as error:
            LOG.debug("thread %s of the agent stays where it is: %s", tid, error)
    return changed
