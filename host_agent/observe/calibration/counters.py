# SPDX-License-Identifier: Apache-2.0
"""Bandwidths by the CPU's own traffic counters (resctrl's MBM), where the timing's traversal is the load.

Timing takes each line that was read for traffic; a counter knows what really came from memory. MBM shows two figures
for the readers of a worker: what came from memory of its own node, and all. So the worker's own node is as counted,
and the rest is shared out among the other nodes in the ratios that were timed (of two nodes the other one gets it all).

Counters are believed only where they can be right; otherwise the timed figures stand, and the result gives the reason:

* every L3 domain belongs to one node (with sub-NUMA clusters one counter would cover several);
* no figure is zero, and no worker's sum is further than a factor of four from the timed one: prefetching and page walks
  add traffic, caches and a counter that works for other code (a virtual machine's) take some away.

Sources: Gureya 2021, section 4.3, step 3; Linux Documentation/filesystems/resctrl.rst, "MBM".
"""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final

from host_agent.machine.rdt.errors import ResctrlError
from host_agent.machine.rdt.reader import CounterReading, ResctrlReader
from host_agent.model.traffic import NodeBandwidth, Traffic
from host_agent.observe.bandwidth import Meter
from host_agent.observe.calibration.timing import TimingProfiler
from placement_traits.errors import NumaExtError
from placement_traits.topology import HostTopology

_EVENTS: Final = {"mbm_total_bytes", "mbm_local_bytes"}
_BELIEVED: Final = 4.0
# Of the time of a measurement: when the counters are read last (all readers still run), and how long they are watched.
_END: Final = 0.8
_LEAST: Final = 0.4


Counted = Callable[
    [Sequence[int]], AbstractContextManager[Callable[[], tuple[CounterReading, ...]]]
]


class UnbelievableError(NumaExtError):
    """What the counters say cannot be the traffic of the readers."""


class CountedProfiler:
    """A :class:`~host_agent.control.calibration.Profiler` by counters, by timing where they cannot be believed.

    :param timing: makes the load
    :param counted: gives what reads the counters of threads,
        :meth:`~host_agent.machine.rdt.calibration.CalibrationGroups.counted`
    :param topology: of the host
    :param progress: called with the reason why timed figures stand
    """

    def __init__(
        self,
        timing: TimingProfiler,
        counted: Counted,
        topology: HostTopology,
        *,
        progress: Callable[[str], object] = lambda _line: None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timing, self._counted, self._progress = timing, counted, progress
        self._sleep, self._clock = sleep, clock
        self._node_of = {domain.id: domain.nodes[0] for domain in topology.l3_domains}
        self._profiles = self._believed = 0

    @property
    def method(self) -> str:
        """See :class:`~host_agent.control.calibration.Profiler`."""
        if not self._believed:
            return self._timing.method
        return f"resctrl's counters ({self._believed} of {self._profiles} measurements)"

    def profile(self, workers: Collection[int], nodes: Collection[int]) -> NodeBandwidth:
        """See :class:`~host_agent.control.calibration.Profiler`."""
        self._profiles += 1
        seen: dict[int, Traffic] = {}
        problems: list[str] = []

        def watch(readers: Sequence[int], seconds: float) -> None:
            try:
                seen.update(self._watch(readers, seconds))
            except (ResctrlError, UnbelievableError) as error:
                problems.append(str(error))

        timed = self._timing.profile(workers, nodes, watch)
        try:
            found = timed if problems else by_counters(timed, seen)
        except UnbelievableError as error:
            problems.append(str(error))
        if problems:
            self._progress(f"by timing, the counters cannot be believed: {problems[0]}")
            return timed
        self._believed += 1
        return found

    def _watch(self, readers: Sequence[int], seconds: float) -> dict[int, Traffic]:
        """Return the readers' traffic by the node that they run on, while they run."""
        end_s = self._clock() + _END * seconds
        with self._counted(readers) as counters:
            meter = Meter(0.0)
            meter.take(counters(), self._clock())
            left_s = end_s - self._clock()
            if left_s < _LEAST * seconds:
                raise UnbelievableError("the readers were in their monitoring group too late")
            self._sleep(left_s)
            now = self._clock()
            meter.take(counters(), now)
        rate = meter.rate(now)
        if rate is None:
            raise UnbelievableError("a counter could not be read, or ran backwards")
        sums: dict[int, list[Traffic]] = defaultdict(list)
        for domain, traffic in rate.domains.items():
            sums[self._node_of[domain]].append(traffic)
        return {
            node: Traffic(sum(t.local_mbps for t in found), sum(t.total_mbps for t in found))
            for node, found in sums.items()
        }


def by_counters(timed: NodeBandwidth, seen: Mapping[int, Traffic]) -> NodeBandwidth:
    """Return the counted bandwidths: memory node -> worker -> MB/s.

    :param timed: the same by timing
    :param seen: worker -> what its readers moved
    :raises UnbelievableError: the counters cannot be right
    """
    found: dict[int, dict[int, float]] = {node: {} for node in timed}
    for worker in sorted({worker for row in timed.values() for worker in row}):
        rates = {node: row[worker] for node, row in timed.items()}
        traffic = seen.get(worker, Traffic(0.0, 0.0))
        counted, expected = traffic.total_mbps, sum(rates.values())
        if not expected / _BELIEVED <= counted <= expected * _BELIEVED:
            raise UnbelievableError(
                f"worker {worker} moved {counted:.0f} MB/s by the counters, {expected:.0f} by timing"
            )
        remote = expected - rates.get(worker, 0.0)
        for node, rate in rates.items():
            local = node == worker
            share = 1.0 if local else rate / remote
            mbps = traffic.local_mbps if local else traffic.total_mbps - traffic.local_mbps
            found[node][worker] = mbps * share
            if mbps <= 0.0:
                where = "its own node" if local else "other nodes"
                raise UnbelievableError(
                    f"worker {worker} read nothing from {where} by the counters"
                )
    return found


def refused(resctrl: ResctrlReader, topology: HostTopology) -> str:
    """Return why this host's counters cannot measure the bandwidths, "" when they can."""
    if not resctrl.available():
        return "resctrl is not mounted"
    monitoring = resctrl.capabilities().monitoring
    if monitoring is None or not set(monitoring.features) >= _EVENTS:
        return "the CPU does not count memory traffic (MBM)"
    for domain in topology.l3_domains:
        if len(domain.nodes) != 1:
            nodes = ",".join(map(str, domain.nodes))
            return f"L3 domain {domain.id} spans the nodes {nodes}: its counter cannot distinguish them"
    return ""
