# SPDX-License-Identifier: Apache-2.0
"""What the kernel shows of RDT groups, read when metrics are asked for: occupancy and traffic, levels, what is left.

Each counter read interrupts a CPU of its L3 domain, so only latency-critical servers' are read, and only for a scrape.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator

from host_agent.machine.rdt.errors import ResctrlGoneError
from host_agent.machine.rdt.reader import ResctrlReader
from host_agent.model.assignment import Guest
from host_agent.model.partition import PartitionPlace
from host_agent.model.rdt import Actual, is_bandwidth
from host_agent.model.round import Round
from host_agent.observe.bandwidth import BandwidthReader
from host_agent.report.metrics import Sample
from placement_traits.errors import NumaExtError
from placement_traits.names import Tier

LOG = logging.getLogger(__name__)

_OCCUPANCY = "llc_occupancy"


class GroupMetrics:
    """A :class:`~host_agent.control.agent.Listener` that has metrics.

    :param resctrl: the tree
    """

    def __init__(self, resctrl: ResctrlReader, clock: Callable[[], float] = time.monotonic) -> None:
        self._resctrl = resctrl
        # Between two scrapes, whatever their interval.
        self._traffic = BandwidthReader(resctrl, stale_s=math.inf, clock=clock)
        self._reading = threading.Lock()
        self._last: Round | None = None
        self._problem = ""

    def on_round(self, done: Round) -> None:
        """Take note where servers are."""
        if not done.paused:
            self._last = done

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics; what cannot be read now is left out."""
        done = self._last
        if done is None or done.observation.topology.rdt is None:
            return
        with self._reading:
            try:
                actual = self._resctrl.actual()
                found = [*self._left(actual), *self._servers(done, actual)]
                problem = ""
            except (NumaExtError, OSError) as error:
                found, problem = [], str(error)
            if problem and problem != self._problem:
                LOG.warning("no metrics of RDT groups: %s", problem)
            self._problem = problem
        yield from found

    def _left(self, actual: Actual) -> Iterator[Sample]:
        capabilities = self._resctrl.capabilities()
        yield "numa_ext_closids_left", (), capabilities.num_closids - len(actual.groups)
        if capabilities.monitoring is not None:
            used = sum(1 + len(group.monitors) for group in actual.groups)
            yield "numa_ext_rmids_left", (), capabilities.monitoring.num_rmids - used

    def _servers(self, done: Round, actual: Actual) -> Iterator[Sample]:
        critical: list[tuple[Guest, PartitionPlace]] = []
        for guest in done.observation.guests:
            outcome, assignment = done.outcomes.get(guest.uuid), done.decision.get(guest.uuid)
            if not outcome or not outcome.place or not outcome.place.group or not assignment:
                continue
            domains = assignment.partition.domains if assignment.partition else ()
            yield from _levels(guest, outcome.place.group, domains, actual)
            if guest.workload.tier is Tier.LC:
                critical.append((guest, outcome.place))
        traffic = self._traffic.servers(place for _, place in critical)
        for guest, place in critical:
            who = (guest.uuid, guest.workload.title)
            yield from self._occupancy(who, place)
            rates = traffic[guest.uuid].domains if guest.uuid in traffic else {}
            for l3, rate in rates.items():
                yield "numa_ext_server_memory_mbps", (*who, str(l3), "local"), rate.local_mbps
                yield "numa_ext_server_memory_mbps", (*who, str(l3), "total"), rate.total_mbps

    def _occupancy(self, who: tuple[str, str], place: PartitionPlace) -> Iterator[Sample]:
        try:
            readings = self._resctrl.counters(place.group, place.monitor)
        except ResctrlGoneError:
            return  # it has left since the last round
        for reading in readings:
            value = reading.events.get(_OCCUPANCY)
            if isinstance(value, int):
                yield "numa_ext_server_llc_occupancy_bytes", (*who, str(reading.domain)), value


def _levels(guest: Guest, group: str, domains: tuple[int, ...], actual: Actual) -> Iterator[Sample]:
    state = actual.get(group)
    for resource, values in (state.schemata if state else {}).items():
        for l3 in set(domains) & set(values) if is_bandwidth(resource) else ():
            labels = (guest.uuid, guest.workload.title, str(l3))
            yield "numa_ext_server_mb_level", labels, values[l3]
