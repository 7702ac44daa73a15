# SPDX-License-Identifier: Apache-2.0
"""The process that reads Placement for all workers of nova-scheduler on one controller.

One worker starts it, with the lock already taken: :mod:`nova_numa_ext.scheduler.shared_view`. It reads nova's own
configuration files, keeps the view and writes each new state into the snapshot file. It ends

* when its standard input ends, that is with the worker that started it, however that ends;
* when Placement has not answered for so long that it must hang: its own watchdog shows where, and ends it;
* when that worker sees no beat on its standard output any more: the whole process has been stopped.

The kernel then frees the lock, and another worker starts the next one. It imports nothing of nova.
"""

import argparse
import faulthandler
import functools
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from oslo_config import cfg
from oslo_log import log

from nova_numa_ext import conf as our_conf
from nova_numa_ext import endpoints, metrics
from placement_traits import oslo_options
from placement_traits.boot_clock import boot_time_s
from placement_traits.client import REQUEST_TIMEOUT_S, HttpAdapter
from placement_traits.errors import NumaExtError
from placement_traits.snapshot import FleetSnapshot, ViewState
from placement_traits.snapshot_file import MappedSnapshot, SnapshotWriter
from placement_traits.view import FleetView, ViewSettings

LOG = logging.getLogger(__name__)

# One request may be sent twice, and may need a new token first; building the arrays of a large fleet takes seconds.
_REQUESTS_OF_SILENCE: Final = 6
BEAT_S: Final = 1.0


class _Watched:
    """Placement, whose every answer proves that this process does not hang.

    :param adapter: Placement
    :param alive: called with each request
    """

    def __init__(self, adapter: HttpAdapter, alive: Callable[[], None]) -> None:
        self._adapter = adapter
        self._alive = alive

    def request(self, url: str, method: str, **kwargs: Any) -> Any:
        """Send one request."""
        self._alive()
        return self._adapter.request(url, method, **kwargs)


class Reader:
    """Keeps the snapshot file.

    :param path: the file
    :param view: reads the fleet, by the clock of :func:`boot_time_s`
    """

    def __init__(self, path: Path, view: FleetView) -> None:
        self._file = SnapshotWriter(path)
        self._view = view
        self._full = False
        self._failing = False

    def refresh(self) -> float:
        """Read, and write what was read; returns the seconds until the next time."""
        pause_s = self._view.try_refresh()
        error = self._view.stats.last_error
        if error and not self._failing:
            LOG.warning("Placement cannot be read, which is tried again and again: %s", error)
        self._failing = bool(error)
        shown = self._view.snapshot()
        if shown.state is not ViewState.EMPTY:
            try:
                self._file.write(shown.arrays, shown.version, self._view.as_of_s)
                self._full = False
            except OSError as trouble:
                if not self._full:
                    LOG.error(
                        "The snapshot of the fleet cannot be written, so it ages: %s", trouble
                    )
                self._full = True
        return pause_s


def last_seen(path: Path) -> FleetSnapshot | None:
    """Return what the reader before this one wrote, None when that is of no use."""
    try:
        mapped = MappedSnapshot(path)
    except (OSError, NumaExtError):
        return None
    return FleetSnapshot(mapped.arrays, 0.0, ViewState.STALE, mapped.version)


def run(
    path: Path,
    adapter: HttpAdapter,
    settings: ViewSettings,
    hung_after_s: float,
    serve: Callable[[metrics.View], None] = lambda _view: None,
) -> None:
    """Keep the file for ever.

    :param settings: of the view
    :param hung_after_s: the process ends itself when a request and what follows it take longer
    :param serve: serves metrics of the view
    """

    def alive() -> None:
        faulthandler.dump_traceback_later(hung_after_s, exit=True)

    view = FleetView(
        _Watched(adapter, alive), settings, boot_time_s, background=False, before=last_seen(path)
    )
    reader = Reader(path, view)
    serve(view)
    while True:
        alive()
        pause_s = reader.refresh()
        faulthandler.cancel_dump_traceback_later()
        time.sleep(pause_s)


def _end_with_the_worker() -> None:
    """Wait until standard input ends; then end this process at once: it owes nothing to any other."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(0)


def _beat() -> None:
    """Show the worker that this process runs: it ends one that does not."""
    with suppress(BrokenPipeError):  # the worker has gone
        while True:
            os.write(sys.stdout.fileno(), b".")
            time.sleep(BEAT_S)


def _log_to_stderr() -> None:
    """Log with oslo.log's fields to the standard error of nova-scheduler, whatever nova.conf says of its own log."""
    conf = cfg.ConfigOpts()
    log.register_options(conf)
    conf([], default_config_files=[], default_config_dirs=[])
    conf.set_override("use_stderr", True)
    # keystoneauth warns of each try.
    conf.set_override("default_log_levels", [*log.get_default_log_levels(), "keystoneauth=ERROR"])
    log.setup(conf, "numa-ext-view")


def configuration(files: Sequence[str], folders: Sequence[str]) -> cfg.ConfigOpts:
    """Read nova's configuration, as far as we need it."""
    conf = cfg.ConfigOpts()
    our_conf.register_opts(conf)
    endpoints.register_opts(conf)
    conf([], project="nova", default_config_files=list(files), default_config_dirs=list(folders))
    return conf


def _serve(stem: Path, options: our_conf.SchedulerOptions, view: metrics.View) -> None:
    """Serve the metrics of view and workers from a thread; the view is kept whatever happens to it."""
    if not options.metrics_port:
        return
    exporter = metrics.Exporter(lambda: metrics.of_view(view), lambda: metrics.of_workers(stem))
    where = options.metrics_address, options.metrics_port
    threading.Thread(target=metrics.keep_serving, args=(exporter, *where), daemon=True).start()


def _mistake(error: oslo_options.ConfigurationError) -> None:
    """Go on with the default: nova-scheduler, which started without the mistake, goes on, too."""
    LOG.error("%s; its default counts for the view", error)


def main(arguments: Sequence[str] | None = None) -> int:
    """Read until the worker has gone."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--config-file", action="append", default=[], help="nova's, in order")
    parser.add_argument("--config-dir", action="append", default=[], help="nova's")
    parser.add_argument("snapshot", type=Path, help="the file to keep")
    given = parser.parse_args(arguments)
    _log_to_stderr()
    # nova-scheduler passes it on to its whole process group; this process ends with its worker.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_worker, daemon=True).start()
    threading.Thread(target=_beat, daemon=True).start()
    conf = configuration(given.config_file, given.config_dir)
    options = oslo_options.read(our_conf.SchedulerOptions, conf, mistake=_mistake)
    adapter = endpoints.placement(conf)
    timeout_s = max(REQUEST_TIMEOUT_S, conf[endpoints.SECTION].timeout or 0.0)
    run(
        given.snapshot,
        adapter,
        our_conf.view_settings(options),
        _REQUESTS_OF_SILENCE * timeout_s,
        functools.partial(_serve, given.snapshot.with_suffix(""), options),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
