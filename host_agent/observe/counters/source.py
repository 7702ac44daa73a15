# SPDX-License-Identifier: Apache-2.0
"""What a source of performance counters is, and what it gets and gives."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from host_agent.machine.privileged.api import Privileged
from host_agent.machine.rdt.reader import ResctrlReader
from host_agent.model.assignment import Guest, Observation
from host_agent.model.counters import ServerCounters
from host_agent.model.workload import Activity


@dataclass(frozen=True, slots=True)
class Readings:
    """What one look at the counters gave.

    :param counters: UUID -> counters since the last look; a server that was not measured is missing
    :param source: where they come from, ``""`` for nowhere
    :param problem: why servers are missing, ``""`` when nothing went wrong
    """

    counters: Mapping[str, ServerCounters] = field(default_factory=dict)
    source: str = ""
    problem: str = ""


class CounterSource(Protocol):
    """Where counters come from."""

    def read(
        self, observation: Observation, now_s: float, only: Collection[str] | None = None
    ) -> Readings:
        """Return what was counted of each server since it was read last; must not block.

        :param observation: the servers and their threads
        :param now_s: monotonic time, seconds
        :param only: UUIDs of servers that are asked for, the others go on to be counted; None: all
        """


@dataclass(frozen=True, slots=True)
class CounterHost:
    """What a source is made of.

    :param privileged: the seam
    :param libvirt_totals: UUID -> event -> total, as libvirt names them
    :param resctrl: the tree
    :param options: options of group ``[counters]`` for sources, by name
    """

    privileged: Privileged
    libvirt_totals: Callable[[], Mapping[str, Mapping[str, int]]]
    resctrl: ResctrlReader
    options: Mapping[str, Any] = field(default_factory=dict)


def measured(guest: Guest, only: Collection[str] | None = None) -> bool:
    """Tell whether a server is to be measured: managed and running.

    :param only: UUIDs of servers that are asked for; None: all
    """
    if only is not None and guest.uuid not in only:
        return False
    managed = guest.workload.request is not None
    return managed and guest.workload.activity is Activity.RUNNING and guest.process is not None
