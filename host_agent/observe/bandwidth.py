# SPDX-License-Identifier: Apache-2.0
"""Memory traffic of servers and of the whole host, from bandwidth monitoring (MBM).

resctrl counts bytes since a group was made, per group and L3 domain. A rate is the difference of two readings of the
same *generation*: the group is still the one it was (a new one's RMID may have served others), both readings were
numbers, and the counter did not go back. Everything else begins a new generation: a gap is unknown, never 0 and never
a jump.

MBM counts where the *cores* are: a server's traffic in an L3 domain is that of its threads there, "local" what went to
the memory beside that cache.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from host_agent.machine.rdt.errors import ResctrlError, ResctrlGoneError
from host_agent.machine.rdt.reader import CounterReading, ResctrlReader
from host_agent.model.partition import PartitionPlace
from host_agent.model.traffic import Traffic
from placement_traits.errors import NumaExtError

LOG = logging.getLogger(__name__)

INTERVAL_S: Final = 0.2
STALE_S: Final = 3.0
_TOTAL: Final = "mbm_total_bytes"
_LOCAL: Final = "mbm_local_bytes"
_MEGA: Final = 1e6


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Memory traffic over the last interval.

    :ivar domains: L3 domain -> traffic, MB/s (10^6 bytes)
    :ivar age_s: seconds since the newer of the two readings that it was computed from
    """

    domains: Mapping[int, Traffic]
    age_s: float = 0.0

    @property
    def traffic(self) -> Traffic:
        """Traffic in all L3 domains together."""
        return Traffic(
            sum(traffic.local_mbps for traffic in self.domains.values()),
            sum(traffic.total_mbps for traffic in self.domains.values()),
        )


@dataclass(frozen=True, slots=True)
class _Sample:
    """What the counters of a group showed: L3 domain -> (local, total) bytes."""

    at: float
    generation: int
    counted: Mapping[int, tuple[int, int]]


class Meter:
    """Rates of one group.

    :param interval_s: shortest time between two readings; counters that are read sooner show little
    :param stale_s: a rate that is older is unknown
    """

    def __init__(self, interval_s: float = INTERVAL_S, stale_s: float = STALE_S) -> None:
        self._interval_s = interval_s
        self._stale_s = stale_s
        self._base: _Sample | None = None
        self._rate: tuple[float, Mapping[int, Traffic]] | None = None

    def due(self, now: float) -> bool:
        """Tell whether the counters should be read now."""
        return self._base is None or now - self._base.at >= self._interval_s

    def take(self, readings: Iterable[CounterReading], now: float) -> None:
        """Take a reading of all L3 domains."""
        sample = _sample(tuple(readings), now)
        base, self._base = self._base, sample
        if sample is None or base is None or base.generation != sample.generation:
            return
        grown = _growth(base, sample)
        if grown is not None:
            seconds = sample.at - base.at
            rates = {
                domain: Traffic(local / seconds / _MEGA, total / seconds / _MEGA)
                for domain, (local, total) in grown.items()
            }
            self._rate = now, rates

    def lose(self) -> None:
        """The counters could not be read: what is read next begins a new generation."""
        self._base = None

    def rate(self, now: float) -> Bandwidth | None:
        """Return the newest rate; None when there is none that is fresh."""
        if self._rate is None or now - self._rate[0] > self._stale_s:
            return None
        at, domains = self._rate
        return Bandwidth(domains, now - at)


def _sample(readings: tuple[CounterReading, ...], now: float) -> _Sample | None:
    """Return the counters as numbers; None when one of them is not known."""
    counted: dict[int, tuple[int, int]] = {}
    for reading in readings:
        local, total = reading.events.get(_LOCAL), reading.events.get(_TOTAL)
        if not isinstance(local, int) or not isinstance(total, int):
            return None
        counted[reading.domain] = local, total
    return _Sample(now, readings[0].generation, counted) if readings else None


def _growth(base: _Sample, sample: _Sample) -> dict[int, tuple[int, int]] | None:
    """Return L3 domain -> bytes since ``base``; None when a counter went back or a domain came or went."""
    if base.counted.keys() != sample.counted.keys():
        return None
    grown = {
        domain: (local - base.counted[domain][0], total - base.counted[domain][1])
        for domain, (local, total) in sample.counted.items()
    }
    return None if any(min(values) < 0 for values in grown.values()) else grown


class BandwidthReader:
    """Reads traffic of servers and of the host. It needs no rights: the counters are readable for all users.

    :param resctrl: the tree
    :param interval_s: shortest time between two readings of a group; a call that comes sooner gets the last rate
    :param stale_s: a rate that is older is unknown
    """

    def __init__(
        self,
        resctrl: ResctrlReader,
        *,
        interval_s: float = INTERVAL_S,
        stale_s: float = STALE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._resctrl = resctrl
        self._interval_s = interval_s
        self._stale_s = stale_s
        self._clock = clock
        self._servers: dict[tuple[str, str, str], Meter] = {}
        self._groups: dict[str, Meter] = {}
        self._problem = ""

    def servers(self, places: Iterable[PartitionPlace]) -> dict[str, Bandwidth]:
        """Return the traffic of servers; one whose traffic is not known now has no entry.

        :param places: where resource control has put the servers. A server that shares a class and got no monitoring
            group (too few RMIDs) cannot be distinguished from the others.
        """
        listed = tuple(places)
        members = [place.group for place in listed]
        keys = {
            (place.uuid, place.group, place.monitor)
            for place in listed
            if place.group and (place.monitor or members.count(place.group) == 1)
        }
        self._servers = {key: self._servers.get(key) or self._meter() for key in sorted(keys)}
        problems: list[str] = []
        found = {}
        for (uuid, group, monitor), meter in self._servers.items():
            rate = self._read(meter, group, monitor, problems)
            if rate is not None:
                found[uuid] = rate
        self._log(problems)
        return found

    def host(self) -> Bandwidth | None:
        """Return the traffic of everything on this host: root, our groups and others'; None when not all is known."""
        try:
            names = self._resctrl.control_groups()
        except (ResctrlError, OSError) as error:
            self._groups = {}
            self._log([str(error)])
            return None
        self._groups = {name: self._groups.get(name) or self._meter() for name in names}
        problems: list[str] = []
        rates = [self._read(meter, name, "", problems) for name, meter in self._groups.items()]
        self._log(problems)
        known = [rate for rate in rates if rate is not None]
        if len(known) < len(rates):
            return None
        return Bandwidth(_sum(known), max(rate.age_s for rate in known))

    def _meter(self) -> Meter:
        return Meter(self._interval_s, self._stale_s)

    def _read(
        self, meter: Meter, group: str, monitor: str, problems: list[str]
    ) -> Bandwidth | None:
        now = self._clock()
        if meter.due(now):
            try:
                meter.take(self._resctrl.counters(group, monitor, events=(_LOCAL, _TOTAL)), now)
            except (NumaExtError, OSError) as error:
                meter.lose()
                # A group that is gone has made room for another plan, which will show where the server is.
                problems += [] if isinstance(error, ResctrlGoneError) else [str(error)]
        return meter.rate(now)

    def _log(self, problems: Sequence[str]) -> None:
        """Log what stops monitoring when it begins, changes and ends."""
        problem = problems[0] if problems else ""
        if problem and problem != self._problem:
            LOG.warning("memory traffic is unknown: %s", problem)
        if self._problem and not problem:
            LOG.info("memory traffic can be read again")
        self._problem = problem


def _sum(rates: Sequence[Bandwidth]) -> dict[int, Traffic]:
    """Add up, by L3 domain."""
    domains = sorted({domain for rate in rates for domain in rate.domains})
    parts = {d: [rate.domains[d] for rate in rates if d in rate.domains] for d in domains}
    return {
        domain: Traffic(sum(t.local_mbps for t in traffic), sum(t.total_mbps for t in traffic))
        for domain, traffic in parts.items()
    }
