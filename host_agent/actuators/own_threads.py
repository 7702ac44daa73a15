# SPDX-License-Identifier: Apache-2.0
"""Keep the agent itself off the cores of latency-critical servers."""

import logging
import os
from collections.abc import Iterable
from pathlib import Path

from host_agent.assignment import Observation
from placement_traits.names import Tier

LOG = logging.getLogger(__name__)


def quiet_cpus(observation: Observation) -> frozenset[int]:
    """Return the online CPUs whose core holds no vCPU of a latency-critical server; all where none is left."""
    topology = observation.topology
    online = frozenset(topology.cpus)
    busy = {
        sibling
        for guest in observation.guests
        if guest.workload.tier is Tier.LC
        for chosen in guest.workload.domain.vcpu_pins.values()
        for cpu in chosen & online
        for sibling in topology.siblings(cpu)
    }
    return online - busy or online


def stay_on(cpus: Iterable[int], tasks: Path = Path("/proc/self/task")) -> bool:
    """Move all threads of this process to the CPUs; tell whether any was elsewhere. New threads inherit it."""
    wanted = set(cpus)
    changed = False
    for entry in tasks.iterdir():
        tid = int(entry.name)
        try:
            if os.sched_getaffinity(tid) != wanted:
                os.sched_setaffinity(tid, wanted)
                changed = True
        except OSError as error:
            LOG.debug("thread %s of the agent stays where it is: %s", tid, error)
    return changed
