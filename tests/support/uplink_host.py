# SPDX-License-Identifier: Apache-2.0
"""A host whose uplink is arithmetic: its unit of lanes, the kernel's counters and a journal, for one throttle."""

from collections import Counter
from collections.abc import Callable, Mapping

from host_agent.conf.slo import SloOptions
from host_agent.control.slo_report import SloReport
from host_agent.decide.slo.shapes import BeServer, SloView
from host_agent.model.journal import Entry
from host_agent.model.lanes import LaneOrder, UplinkReport
from host_agent.model.latency import LatencyReading, LcServer
from host_agent.model.network import TrafficBytes
from placement_traits.names import Tier

SLO_US = 1000.0
REQUESTS = 1000


def seen(ratio: float, best_effort: tuple[str, ...], *, is_fresh: bool = True) -> SloView:
    """Return the view of a host with the latency-critical server ``lc`` and some best-effort ones.

    :param ratio: latency over objective
    :param is_fresh: something was received since the last action
    """
    above = REQUESTS if ratio > 1.0 else 0
    reading = LatencyReading(ratio * SLO_US if is_fresh else None, REQUESTS, above, 0.0)
    lc = LcServer("lc", frozenset({0}), SLO_US, reading)
    bes = tuple(BeServer(uuid, frozenset({0}), {0: 1.0}, {0: 1.0}) for uuid in best_effort)
    return SloView((lc,), bes, (0,))


def until(is_so: Callable[[], bool], run: Callable[[float], object], step_s: float) -> None:
    """Let time go on until something is so; fails where it is not within ten minutes.

    :param run: lets some seconds go on
    """
    for _ in range(round(600.0 / step_s)):
        if is_so():
            return
        run(step_s)
    raise AssertionError("it was never so")


class UplinkHost:
    """It; a subclass says what is sent.

    :ivar now: seconds, by which its report goes
    :ivar held: the last order
    :ivar uplinks: those with lanes, with their speed, Mbit/s
    """

    def __init__(self, speed_mbps: int, taps: Mapping[str, Tier]) -> None:
        self.now = 1000.0
        self.held = LaneOrder()
        self.uplinks = {"eth0": speed_mbps}
        self.journal: list[Entry] = []
        self.report = SloReport(SloOptions(), self, clock=lambda: self.now)
        self._taps = dict(taps)
        self._answer: UplinkReport | None = None
        self._sent: Counter[str] = Counter()

    # -- what it is to the throttle --

    def order(self, order: LaneOrder) -> None:
        self.held = order
        self._answer = UplinkReport(self.uplinks, self._taps, order)

    def answer(self) -> UplinkReport | None:
        answer, self._answer = self._answer, None
        return answer

    def close(self) -> None:
        """Nothing is open."""

    def write(self, entry: Entry) -> None:
        self.journal.append(entry)

    def counted(self, device: str) -> TrafficBytes:
        """Return what the kernel counts: what servers send it receives at their taps, and sends by the uplink."""
        count = self._sent[device]
        return TrafficBytes(count, 0) if device in self._taps else TrafficBytes(0, count)

    # -- what it is --

    def send(self, rates: Mapping[str, float], seconds: float) -> None:
        """Let time go on, and so much be sent by taps and uplinks, Mbit/s."""
        self.now = round(self.now + seconds, 6)
        for device, mbps in rates.items():
            self._sent[device] += round(mbps * seconds * 1e6 / 8)
