# SPDX-License-Identifier: Apache-2.0
"""The engine and the options of one nova-scheduler process, for filter and weigher, which nova makes by itself.

Nova makes both in its parent process, which then forks the workers. What has threads is made in the workers only: right
after the fork, so that the first request finds a view of Placement.
"""

import logging
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from nova import conf as nova_conf
from nova import utils
from oslo_config import cfg

from nova_numa_ext import endpoints
from nova_numa_ext.conf import GROUP, SchedulerOptions, read, register_opts, view_settings
from nova_numa_ext.fabrics import PlacementFabrics
from nova_numa_ext.gpu_options import rules
from nova_numa_ext.job_hint import hint_keys
from nova_numa_ext.policy.network.planner import plan
from nova_numa_ext.scheduler import fleet
from nova_numa_ext.scheduler.group_plan import GroupPlanner
from nova_numa_ext.scheduler.measures import Measures
from nova_numa_ext.scheduler.remote_gpus import RemoteGpuSource
from nova_numa_ext.scheduler.session import BeyondHosts, Engine
from nova_numa_ext.scheduler.single_leafs import SingleLeafs
from placement_traits.client import PlacementClient, RetrySettings
from placement_traits.errors import NumaExtError
from placement_traits.journal import Journal

LOG = logging.getLogger(__name__)

_SECONDS_BETWEEN_STARTS: Final = 60.0


def configuration() -> SchedulerOptions:
    """Read our options as nova-scheduler starts; from then on they follow its files at SIGHUP.

    :raises SystemExit: one of them cannot be used; the sentence says which, and what is allowed
    """
    conf = nova_conf.CONF
    register_opts(conf)
    try:
        options = read(conf)
        rules(options.gpu, GROUP)
        LOG.info("Keys of jobs' hints: %s", hint_keys(options.job_hint_keys, GROUP))
    except NumaExtError as error:
        LOG.critical("%s", error)
        raise SystemExit(f"nova-scheduler cannot start: {error}") from None
    _process.start(options)
    conf.register_mutate_hook(_changed)
    return options


def _changed(conf: cfg.ConfigOpts, changes: Mapping[tuple[str | None, str], Any]) -> None:
    """Take mutable options that nova's files give another value now: all of them, or with a mistake in one, none."""
    if not any(group == GROUP for group, _ in changes):
        return
    try:
        _process.configure(read(conf))
    except NumaExtError as error:
        LOG.error("All options of [%s] stay as they were: %s", GROUP, error)


class _Process:
    """The engine of this process: made after the fork, at the latest at the first decision."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._configured_in = 0  # process id
        self._engine: Engine | None = None
        self._options: SchedulerOptions | None = None
        self._tried_s = -_SECONDS_BETWEEN_STARTS

    def engine(self) -> Engine | None:
        """Return the engine; None where it cannot be made, which is logged, and tried again after a minute."""
        if self._engine is not None:
            return self._engine
        with self._lock:
            if self._engine is None and time.monotonic() - self._tried_s >= _SECONDS_BETWEEN_STARTS:
                self._tried_s = time.monotonic()
                try:
                    self._engine = _made()
                except Exception:
                    LOG.exception("NumaExt cannot start; it is tried again in a minute.")
            return self._engine

    def options(self) -> SchedulerOptions:
        """Return the options that were last read without a mistake, perhaps before this worker was forked."""
        return self._options or configuration()

    def start(self, options: SchedulerOptions) -> None:
        """Take the options of the start, for the engine that is made later, here or in workers."""
        self._options = options
        self._configured_in = os.getpid()

    def forked(self) -> None:
        """Make the engine and begin to keep the view, in a thread, where this process is a new worker.

        Processes that a worker forks are none. Under eventlet, of which nova's older releases can make use, a thread
        would switch to one of the parent's: there all begins with the first request.
        """
        self._lock = threading.RLock()  # a thread of the parent may have held it
        if os.getppid() == self._configured_in and utils.concurrency_mode_threading():
            threading.Thread(target=self._begin, name="numa-ext-begin", daemon=True).start()

    def _begin(self) -> None:
        engine = self.engine()
        if engine is not None:
            engine.begin()

    def configure(self, options: SchedulerOptions) -> None:
        """Take options that have changed."""
        with self._lock:
            self._options = options
            if self._engine is not None:
                self._engine.configure(options)

    def use(self, replacement: Engine | None) -> None:
        """Replace the engine; None: a new one is made at the next decision, with options read again."""
        with self._lock:
            self._engine, self._tried_s = replacement, -_SECONDS_BETWEEN_STARTS
            self._options, self._configured_in = None, 0


def _made() -> Engine:
    conf, options = nova_conf.CONF, _process.options()
    view = fleet.from_nova(conf, options)
    measures = Measures(fleet.worker_metrics(conf, options))
    journal = (
        Journal(
            Path(options.journal_path),
            options.journal_max_mb * 1024 * 1024,
            options.journal_backups,
            name=f"decision journal {options.journal_path}",
            lost=measures.lost,
        )
        if options.journal_path
        else None
    )
    groups = GroupPlanner(
        lambda: PlacementFabrics(PlacementClient(endpoints.placement(conf))),
        plan,
        options.net.plan_options,
    )
    settings = view_settings(options)
    prompt = RetrySettings(attempts=2)
    singles = SingleLeafs(
        lambda: PlacementFabrics(PlacementClient(endpoints.placement(conf), prompt)),
        settings.interval_s,
        believed_s=settings.max_age_s,
    )
    remote = RemoteGpuSource(endpoints.placement(conf), settings.interval_s, settings.max_age_s)
    beyond = BeyondHosts(groups, remote, singles)
    return Engine(conf, options, view, journal, measures=measures, beyond=beyond)


_process = _Process()
os.register_at_fork(after_in_child=_process.forked)


def engine() -> Engine | None:
    """Return the engine of this process, None while it cannot be made."""
    return _process.engine()


def options() -> SchedulerOptions:
    """Return our options as they are now."""
    return _process.options()


def use(replacement: Engine | None) -> None:
    """Make nova's filter and weigher use another engine; None makes a new one at the next decision."""
    _process.use(replacement)
