# SPDX-License-Identifier: Apache-2.0
"""The view of Placement that nova-scheduler keeps, over nova's own ``[placement]`` credentials."""

from typing import Protocol

from oslo_config import cfg

from nova_numa_ext.conf import SchedulerOptions
from nova_numa_ext.scheduler import endpoints
from placement_traits.snapshot import FleetSnapshot
from placement_traits.view import FleetView, ViewSettings


class Fleet(Protocol):
    """What decisions need of the view."""

    def snapshot(self) -> FleetSnapshot:
        """Return the fleet as last read, without waiting longer than configured."""


def from_nova(conf: cfg.ConfigOpts, options: SchedulerOptions) -> FleetView:
    """Return the view over the credentials and the endpoint that nova-scheduler itself uses for Placement."""
    settings = ViewSettings(
        interval_s=options.view_refresh_interval,
        max_age_s=options.view_max_age,
        wait_s=options.view_wait,
    )
    return FleetView(endpoints.placement(conf), settings)
