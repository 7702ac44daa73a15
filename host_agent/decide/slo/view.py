# SPDX-License-Identifier: Apache-2.0
"""What the bandwidth controller sees of the agent's observation and decision, and what its answer does to them. Pure.

The simple rule gives best-effort servers a fixed level in the L3 domains of latency-critical ones. In a domain where
the latency of *every* latency-critical server is known the controller's level stands instead; in others the lower of
the two, so that a server without a feed keeps its protection.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from host_agent.decide.cores.home_nodes import free_for_floating
from host_agent.decide.pages.policy import Room
from host_agent.decide.slo import shapes as balm
from host_agent.decide.slo.violation import LcServer
from host_agent.model.assignment import Assignment, Decision, Guest, Observation
from host_agent.model.levels import FULL
from host_agent.model.process import GroupLevel, PartitionPlace, PartitionWish
from host_agent.model.traffic import Traffic
from host_agent.observe.latency.window import LatencyReading
from placement_traits.names import SloSource, Tier
from placement_traits.reason import Reason

PORT: Final = "org.numa_ext.slo.0"

Levels = Mapping[int, int]
"""L3 domain -> memory bandwidth level, per cent."""


@dataclass(frozen=True, slots=True)
class Lc:
    """One latency-critical server that runs.

    :param uuid: of the server
    :param title: its name
    :param flavor: name of its flavor
    :param nodes: where its memory is
    :param domains: L3 domains of its CPUs
    :param slo_p99_us: objective; None where its flavor has none
    :param source: where its latency is read
    :param socket: host's end of its port, "" without one
    :param pluggable: a port can be plugged in
    """

    uuid: str
    title: str
    flavor: str
    nodes: frozenset[int]
    domains: frozenset[int]
    slo_p99_us: int | None
    source: SloSource
    socket: str
    pluggable: bool

    @property
    def wants_port(self) -> bool:
        """Its latency may come through a port."""
        return self.slo_p99_us is not None and self.source in (SloSource.AUTO, SloSource.CHANNEL)

    @property
    def wants_query(self) -> bool:
        """Its latency may come from Prometheus."""
        return self.slo_p99_us is not None and self.source in (SloSource.AUTO, SloSource.PROMETHEUS)


@dataclass(frozen=True, slots=True)
class Be:
    """One best-effort server that runs.

    :param uuid: of the server
    :param title: its name
    :param coarse: level by the simple rule
    :param seen: as the controller sees it, but for traffic
    """

    uuid: str
    title: str
    coarse: Levels
    seen: balm.BeServer


@dataclass(frozen=True, slots=True)
class View:
    """The host for the controller.

    :param lcs: latency-critical servers that run, with an objective or without
    :param bes: best-effort servers that run
    :param nodes: memory nodes of the host
    """

    lcs: tuple[Lc, ...] = ()
    bes: tuple[Be, ...] = ()
    nodes: tuple[int, ...] = ()


def look(decision: Decision, observation: Observation, margin_mb: float) -> View:
    """Return the controller's view of a coarse decision.

    :param margin_mb: MiB that stay free on every node
    """
    lcs: list[Lc] = []
    bes: list[Be] = []
    room = Room(free_for_floating(observation), margin_mb)
    for wanted in decision.assignments:
        guest = observation.get(wanted.uuid)
        if guest is None or guest.hands_off or wanted.partition is None:
            continue
        if guest.workload.tier is Tier.LC:
            lcs.append(_lc(guest, wanted, wanted.partition))
        else:
            bes.append(_be(guest, wanted, wanted.partition, room))
    return View(tuple(lcs), tuple(bes), observation.topology.node_ids)


def _lc(guest: Guest, wanted: Assignment, wish: PartitionWish) -> Lc:
    domain, request = guest.workload.domain, guest.workload.request
    assert request is not None, "only managed servers have an assignment"
    return Lc(
        guest.uuid,
        guest.workload.title,
        guest.workload.flavor,
        frozenset(wanted.nodes),
        frozenset(wish.domains),
        request.slo_p99_us,
        request.slo_source,
        domain.ports.get(PORT, ""),
        domain.serial_controller and PORT not in domain.ports,
    )


def _be(guest: Guest, wanted: Assignment, wish: PartitionWish, room: Room) -> Be:
    coarse = dict(wish.mba_percent)
    shares = guest.memory_shares
    preferred = dict(wanted.memory_shares or shares)
    resident = guest.resident_mb
    total = sum(resident.values())
    limits = room.limits_mb(resident) if total else {}
    seen = balm.BeServer(
        guest.uuid,
        frozenset(wanted.nodes),
        shares,
        preferred,
        min(coarse.values(), default=FULL),
        None,
        guest.workload.floating
        and not guest.pages_stay
        and wanted.memory_shares is not None
        and bool(total),
        {node: min(1.0, mb / total) for node, mb in limits.items()},
    )
    return Be(guest.uuid, guest.workload.title, coarse, seen)


def observe(
    view: View,
    readings: Mapping[str, LatencyReading],
    traffic: Mapping[str, Traffic],
    levels: tuple[int, ...],
) -> balm.Observation:
    """Return what the controller sees.

    :param readings: latency of the servers that are listened to
    :param traffic: of best-effort servers, where known
    :param levels: legal levels, per cent, ascending; empty when nothing can be throttled
    """
    return balm.Observation(
        tuple(
            LcServer(lc.uuid, lc.nodes, lc.slo_p99_us, readings[lc.uuid])
            for lc in view.lcs
            if lc.slo_p99_us is not None and lc.uuid in readings
        ),
        tuple(replace(be.seen, traffic=traffic.get(be.uuid)) for be in view.bes),
        view.nodes,
        levels,
    )


def levels(
    view: View, wanted: Mapping[str, balm.Wanted], fed: frozenset[str], *, acts: bool = True
) -> dict[str, dict[int, int]]:
    """Return best-effort server -> level in each L3 domain of its CPUs.

    :param wanted: by the controller
    :param fed: latency-critical servers whose latency is known, not guessed
    :param acts: false: nobody's latency is known or guessed, and the controller wants nothing
    """
    unknown = {domain for lc in view.lcs if lc.uuid not in fed for domain in lc.domains}
    found = {}
    for be in view.bes:
        wish = wanted.get(be.uuid) if acts else None
        found[be.uuid] = {
            domain: coarse
            if wish is None
            else min(coarse, wish.level)
            if domain in unknown
            else wish.level
            for domain, coarse in be.coarse.items()
        }
    return found


def of_groups(
    by_server: Mapping[str, Levels], places: Mapping[str, PartitionPlace]
) -> tuple[GroupLevel, ...]:
    """Return the level of each control group of best-effort servers: the lowest of its members that run there."""
    groups: dict[str, dict[int, int]] = {}
    for uuid, wanted in by_server.items():
        place = places.get(uuid)
        if place is None or not place.group:
            continue
        held = groups.setdefault(place.group, {})
        for domain, level in wanted.items():
            held[domain] = min(held.get(domain, level), level)
    return tuple(
        GroupLevel(group, tuple(sorted(held.items()))) for group, held in sorted(groups.items())
    )


def refined(
    decision: Decision,
    by_server: Mapping[str, Levels],
    shares: Mapping[str, balm.Shares],
    phase: str,
) -> Decision:
    """Return a decision with the controller's levels and shares of pages.

    :param shares: best-effort servers whose pages the controller has an opinion about
    """

    def one(wanted: Assignment) -> Assignment:
        if wanted.partition is None or wanted.uuid not in by_server:
            return wanted
        mba = tuple(sorted(by_server[wanted.uuid].items()))
        if mba == wanted.partition.mba_percent and wanted.uuid not in shares:
            return wanted
        return replace(
            wanted,
            partition=wanted.partition._replace(mba_percent=mba),
            memory_shares=shares.get(wanted.uuid, wanted.memory_shares),
            reasons=(*wanted.reasons, Reason("balm", phase, "bandwidth objectives")),
        )

    return replace(decision, assignments=tuple(map(one, decision.assignments)))
