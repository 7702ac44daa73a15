# SPDX-License-Identifier: Apache-2.0
"""Which servers an agent that begins to enforce takes over one after the other. Pure."""

from collections.abc import Collection

from host_agent.conf.options import Options
from host_agent.model.assignment import Assignment, Decision, Guest, Observation, difference
from host_agent.model.modes import Feature, Modes
from placement_traits.names import Tier


def order(
    decision: Decision,
    observation: Observation,
    held: Collection[int],
    options: Options,
    modes: Modes,
) -> tuple[str, ...]:
    """Return the servers for which something would be done, latency-critical ones first, then by name.

    A server of which a thread is in a group of ours was taken over before: it must not lose the group while it waits.

    :param held: threads in groups of ours
    :param modes: what a feature that observes would do is nothing to wait for
    """
    found = []
    for assignment in decision.assignments:
        guest = observation.get(assignment.uuid)
        if guest is None or guest.blocked_by or guest.process is None:
            continue
        if any(thread.tid in held for thread in guest.process.threads):
            continue
        if _differs(assignment, guest, observation, options, modes):
            key = (guest.workload.tier is not Tier.LC, guest.workload.title, guest.uuid)
            found.append((key, guest.uuid))
    return tuple(uuid for _, uuid in sorted(found))


def _differs(
    assignment: Assignment, guest: Guest, observation: Observation, options: Options, modes: Modes
) -> bool:
    todo = difference(assignment, guest, options.memory.dead_band)
    pinned = options.pinning.enabled and modes.act(Feature.PINNING)
    moved = options.memory.enabled and modes.act(Feature.MEMORY) and not guest.pages_stay
    partitioned = options.rdt.enabled and modes.act(Feature.RDT)
    has_groups = partitioned and observation.topology.rdt is not None
    return bool(
        (pinned and todo.pins)
        or (moved and todo.targets)
        or (has_groups and assignment.partition is not None)
    )
