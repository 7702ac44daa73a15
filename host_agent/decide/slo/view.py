# SPDX-License-Identifier: Apache-2.0
"""A round's part in keeping objectives: what the controller sees of it, and what its answer changes. Pure."""

from collections.abc import Mapping
from dataclasses import replace

from host_agent.decide.cores.nova_cpus import free_for_floating
from host_agent.decide.pages.policy import Room
from host_agent.decide.slo.shapes import BeServer, Levels, SloView
from host_agent.model.assignment import Assignment, Decision, Guest, Observation
from host_agent.model.latency import PORT, LcServer
from host_agent.model.levels import FULL
from host_agent.model.pages import Shares
from host_agent.model.partition import PartitionRequest
from host_agent.model.terms import Term
from placement_traits.names import Tier
from placement_traits.reason import Reason


def look(
    decision: Decision,
    observation: Observation,
    margin_mb: float,
    levels: tuple[int, ...],
    *,
    moves: bool = True,
) -> SloView:
    """Return the controller's view of a coarse decision.

    :param margin_mb: MiB that stay free on every node
    :param levels: legal levels, per cent, ascending
    :param moves: pages may be moved; others that move them would bring them back
    """
    lcs: list[LcServer] = []
    bes: list[BeServer] = []
    room = Room(free_for_floating(observation), margin_mb)
    for assignment in decision.assignments:
        guest = observation.get(assignment.uuid)
        if guest is None or guest.blocked_by or assignment.partition is None:
            continue
        if guest.workload.tier is Tier.LC:
            lcs.append(_lc(guest, assignment, assignment.partition))
        else:
            be = _be(guest, assignment, assignment.partition, room)
            bes.append(be if moves else replace(be, movable=False))
    topology = observation.topology
    capacity = {
        node.id: float(node.bandwidth_mbps)
        for node in topology.nodes
        if node.bandwidth_mbps is not None
    }
    return SloView(tuple(lcs), tuple(bes), topology.node_ids, levels, capacity)


def _lc(guest: Guest, assignment: Assignment, partition: PartitionRequest) -> LcServer:
    domain, request = guest.workload.domain, guest.workload.request
    assert request is not None, "only managed servers have an assignment"
    return LcServer(
        guest.uuid,
        frozenset(assignment.nodes),
        request.slo_p99_us,
        title=guest.workload.title,
        flavor=guest.workload.flavor,
        project=guest.workload.project,
        domains=frozenset(partition.domains),
        source=request.slo_source,
        socket=domain.ports.get(PORT, ""),
        pluggable=domain.serial_controller and PORT not in domain.ports,
        declared_mbps=float(request.bandwidth_mbps),
    )


def _be(guest: Guest, assignment: Assignment, partition: PartitionRequest, room: Room) -> BeServer:
    fixed = dict(partition.mba_percent)
    shares = guest.memory_shares
    resident = guest.resident_mb
    total = sum(resident.values())
    limits = room.limits_mb(resident) if total else {}
    movable = (
        guest.workload.floating
        and not guest.pages_stay
        and assignment.memory_shares is not None
        and bool(total)
    )
    return BeServer(
        guest.uuid,
        frozenset(assignment.nodes),
        shares,
        dict(assignment.memory_shares or shares),
        min(fixed.values(), default=FULL),
        movable=movable,
        room={node: min(1.0, mb / total) for node, mb in limits.items()},
        title=guest.workload.title,
        fixed=fixed,
    )


def refined(
    decision: Decision,
    by_server: Mapping[str, Levels],
    shares: Mapping[str, Shares],
    phase: str,
) -> Decision:
    """Return a decision with the controller's levels and shares of pages.

    :param shares: best-effort servers whose pages the controller has an opinion about
    """

    def one(assignment: Assignment) -> Assignment:
        if assignment.partition is None or assignment.uuid not in by_server:
            return assignment
        mba = dict(sorted(by_server[assignment.uuid].items()))
        if mba == assignment.partition.mba_percent and assignment.uuid not in shares:
            return assignment
        return replace(
            assignment,
            partition=replace(assignment.partition, mba_percent=mba),
            memory_shares=shares.get(assignment.uuid, assignment.memory_shares),
            why=replace(
                assignment.why, objective=(Reason(Term.BALM, phase, "bandwidth objectives"),)
            ),
        )

    return replace(decision, assignments=tuple(map(one, decision.assignments)))
