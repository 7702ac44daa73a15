# SPDX-License-Identifier: Apache-2.0
"""From the controller's targets to the levels of control groups. Pure.

The simple rule gives best-effort servers a fixed level in the L3 domains of latency-critical ones. In a domain where
the latency of *every* latency-critical server is known the controller's level stands instead; in others the lower of
the two, so that a server without a feed keeps its protection – but for best-effort servers that are at their
:mod:`floor <host_agent.decide.slo.floor>`, which beats that rule, too.
"""

from collections.abc import Mapping

from host_agent.decide.slo.shapes import BeTarget, Levels, SloView
from host_agent.model.partition import PartitionPlace
from host_agent.model.process import GroupLevel


def of_servers(
    view: SloView,
    targets: Mapping[str, BeTarget],
    reporting: frozenset[str],
    spared: frozenset[str],
) -> dict[str, dict[int, int]]:
    """Return best-effort server -> level in each L3 domain of its CPUs.

    :param targets: by best-effort server; empty while no latency is known or guessed
    :param reporting: latency-critical servers whose latency is known, not guessed
    :param spared: best-effort servers that may not be throttled now, and those in their classes
    """
    unknown = {domain for lc in view.lcs if lc.uuid not in reporting for domain in lc.domains}
    found = {}
    for be in view.bes:
        target = targets.get(be.uuid)
        found[be.uuid] = {
            domain: fixed
            if target is None
            else min(fixed, target.level)
            if domain in unknown and be.uuid not in spared
            else target.level
            for domain, fixed in be.fixed.items()
        }
    return found


def of_groups(
    by_server: Mapping[str, Levels], places: Mapping[str, PartitionPlace]
) -> tuple[GroupLevel, ...]:
    """Return the level of each control group of best-effort servers: the lowest of its members that run there."""
    groups: dict[str, dict[int, int]] = {}
    for uuid, levels in by_server.items():
        place = places.get(uuid)
        if place is None or not place.group:
            continue
        held = groups.setdefault(place.group, {})
        for domain, level in levels.items():
            held[domain] = min(held.get(domain, level), level)
    return tuple(
        GroupLevel(group, tuple(sorted(held.items()))) for group, held in sorted(groups.items())
    )
