# SPDX-License-Identifier: Apache-2.0
"""The view of Placement that nova-scheduler keeps, over nova's own ``[placement]`` credentials."""

import functools
import logging
import os
from pathlib import Path
from typing import Final, Protocol

from oslo_config import cfg

from nova_numa_ext import endpoints
from nova_numa_ext.conf import SchedulerOptions, view_settings
from nova_numa_ext.metrics import WorkerMetrics
from nova_numa_ext.scheduler import shared_view
from placement_traits.snapshot import FleetSnapshot
from placement_traits.view import FleetView

LOG = logging.getLogger(__name__)

FOLDER: Final = "numa-ext"  # in nova's state_path


class ViewSource(Protocol):
    """What decisions need of the view."""

    def snapshot(self) -> FleetSnapshot:
        """Return the fleet as last read, without waiting longer than configured."""


def from_nova(conf: cfg.ConfigOpts, options: SchedulerOptions) -> ViewSource:
    """Return the view over the credentials and the endpoint that nova-scheduler itself uses for Placement.

    All workers share one reader by files in nova's ``state_path``; where these cannot be, each worker reads for itself.
    """
    settings = view_settings(options)
    adapter = endpoints.placement(conf)
    folder = Path(conf.state_path) / FOLDER
    try:
        _make(folder)
    except OSError as error:
        LOG.warning("Each worker of nova-scheduler reads Placement for itself: %s", error)
        return FleetView(adapter, settings)
    stem = shared_view.stem(conf, folder, settings)
    return shared_view.SharedView(
        stem, settings, functools.partial(shared_view.start_reader, conf, stem)
    )


def worker_metrics(conf: cfg.ConfigOpts, options: SchedulerOptions) -> WorkerMetrics | None:
    """Return what counts for this worker, None where metrics are switched off or have no folder.

    :param conf: as :func:`from_nova` leaves it
    """
    if not options.metrics_port:
        return None
    folder = Path(conf.state_path) / FOLDER
    try:
        _make(folder)
    except OSError as error:
        LOG.warning("There are no metrics of this worker of nova-scheduler: %s", error)
        return None
    found = WorkerMetrics(shared_view.stem(conf, folder, view_settings(options)))
    found.save()
    return found


def _make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o750)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{folder} cannot be written")
