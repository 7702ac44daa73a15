# SPDX-License-Identifier: Apache-2.0
"""``reserved`` in Placement follows the memory traffic that was measured and not declared."""

from emulation.hosts import four_nodes
from host_agent.decide.amounts.claims import DomainPart, ServerClaim
from host_agent.decide.amounts.reserved_bandwidth import ReservationSettings
from host_agent.model.traffic import Traffic
from host_agent.observe.bandwidth import Bandwidth
from host_agent.report.reserved_bandwidth import BandwidthReservation
from placement_traits.rdt_capability import RdtCapability

HOST = four_nodes()  # 10,000 MB/s per L3 domain
CALM = ReservationSettings(dead_band=0.05, rise_per_s=0.10, fall_per_s=0.01)


class Clock:
    """Stands still until told."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Counters:
    """Measured traffic of the four domains, MB/s; None while it is not known."""

    def __init__(self, *mbps: float) -> None:
        self.mbps: tuple[float, ...] | None = mbps
        self.looks = 0

    def __call__(self) -> Bandwidth | None:
        self.looks += 1
        if self.mbps is None:
            return None
        return Bandwidth({l3: Traffic(0.0, value) for l3, value in enumerate(self.mbps)})


def test_what_is_measured_and_not_declared_is_held_back() -> None:
    declared = [ServerClaim("lc", "lc", (DomainPart(1, 4, 2_000),))]
    reservation = BandwidthReservation(Counters(0, 8_000, 3_000, 0), CALM, 10.0, Clock())
    assert reservation.reserved_mbps(HOST, declared) == {0: 0, 1: 6_000, 2: 3_000, 3: 0}


def test_it_looks_no_more_often_than_asked_and_falls_slowly() -> None:
    clock, counters = Clock(), Counters(5_000, 0, 0, 0)
    reservation = BandwidthReservation(counters, CALM, 10.0, clock)
    assert reservation.reserved_mbps(HOST, ())[0] == 5_000
    counters.mbps = (1_000, 0, 0, 0)
    clock.now += 9.9
    assert (reservation.reserved_mbps(HOST, ())[0], counters.looks) == (5_000, 1)
    clock.now += 0.1
    assert (reservation.reserved_mbps(HOST, ())[0], counters.looks) == (4_000, 2)


def test_small_moves_are_not_told() -> None:
    clock, counters = Clock(), Counters(3_000, 0, 0, 0)
    reservation = BandwidthReservation(counters, CALM, 10.0, clock)
    reservation.reserved_mbps(HOST, ())
    counters.mbps = (3_400, 0, 0, 0)
    clock.now += 10
    assert reservation.reserved_mbps(HOST, ())[0] == 3_000


def test_while_traffic_is_unknown_nothing_changes() -> None:
    clock, counters = Clock(), Counters(3_000, 0, 0, 0)
    reservation = BandwidthReservation(counters, CALM, 10.0, clock)
    reservation.reserved_mbps(HOST, ())
    counters.mbps = None
    clock.now += 1_000
    assert reservation.reserved_mbps(HOST, ())[0] == 3_000
    never = BandwidthReservation(counters, CALM, 10.0, clock)
    assert never.reserved_mbps(HOST, ()) == {}, "what an earlier agent has published stays"


def test_without_mbm_nothing_is_held_back() -> None:
    """What an earlier agent or kernel has published does not stay for ever."""
    blind = four_nodes(rdt=RdtCapability())
    counters = Counters(3_000, 0, 0, 0)
    reservation = BandwidthReservation(counters, CALM, 10.0, Clock())
    assert reservation.reserved_mbps(blind, ()) == dict.fromkeys(range(4), 0)
    assert counters.looks == 0
