# SPDX-License-Identifier: Apache-2.0
"""The fleet at one moment, as scheduling decisions see it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from placement_traits.fleet import HostView
from placement_traits.fleet_arrays import FleetArrays


class ViewState(StrEnum):
    """How far the view can be trusted."""

    EMPTY = "empty"  # nothing was ever read
    FRESH = "fresh"
    STALE = "stale"  # older than the configured bound


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """The fleet at one moment; never changes, a refresh makes a new one.

    :param arrays: all hosts
    :param age_s: seconds since the read that it comes from began; infinite when nothing was ever read
    :param state: whether ``age_s`` is within the configured bound
    :param version: counts refreshes that changed something
    """

    arrays: FleetArrays
    age_s: float
    state: ViewState
    version: int = 0

    @property
    def hosts(self) -> Mapping[str, HostView]:
        """Hosts by root provider uuid; a view is made each time that it is asked for."""
        return self.arrays.views

    def host(self, root_uuid: str) -> HostView | None:
        """Return the host with this root provider, None when it publishes nothing of ours."""
        return self.hosts.get(root_uuid)
