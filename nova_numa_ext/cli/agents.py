# SPDX-License-Identifier: Apache-2.0
"""Is a host's agent there? What Placement shows of that, for commands."""

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from placement_traits import beats, names
from placement_traits.client import PlacementClient
from placement_traits.fleet import HostView
from placement_traits.names import TierTrait
from placement_traits.snapshot import FleetSnapshot


class AgentState(StrEnum):
    """What Placement shows of a host's agent."""

    REPORTING = "reporting"
    WITHDRAWN = "withdrawn"  # it has ended, and the host's tiers were withdrawn
    SILENT = "silent"  # its tiers are there, but no beat for three intervals
    DRAINED = "drained"  # it is there, and operators keep new servers with a tier away


HERE: Final = frozenset({AgentState.REPORTING, AgentState.DRAINED})
"""Those of an agent that is there."""


def states(
    client: PlacementClient, fleet: FleetSnapshot, clock: Callable[[], float] = time.time
) -> dict[str, AgentState]:
    """Return the state of each agent by its host's name.

    :param fleet: hosts that an agent has published
    """
    living = beats.living(client, clock)
    return {host.name: _state(host, living) for host in fleet.hosts.values()}


def _state(host: HostView, living: frozenset[str] | None) -> AgentState:
    silent = beats.is_silent(host.name, living)
    if names.DRAINED in host.traits and not silent:
        return AgentState.DRAINED
    if host.traits.isdisjoint(TierTrait):
        return AgentState.WITHDRAWN
    return AgentState.SILENT if silent else AgentState.REPORTING


def last_beats(
    client: PlacementClient, found: Mapping[str, AgentState], most: int
) -> dict[str, str]:
    """Return when each of some agents that are not there has beaten last, by host's name, as text.

    :param most: how many are looked up, two requests each; the first by name
    """
    gone = sorted(host for host, state in found.items() if state not in HERE)
    found_beats = ((host, beats.last(client, host)) for host in gone[:most])
    return {host: moment(beat.minute) if beat else "never" for host, beat in found_beats}


def moment(minute: int) -> str:
    """Return a minute since 1970 as text."""
    return f"{datetime.fromtimestamp(60 * minute, UTC):%Y-%m-%d %H:%M} UTC"
