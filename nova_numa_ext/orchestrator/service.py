# SPDX-License-Identifier: Apache-2.0
"""``numa-ext-engine [--config-file FILE]``: the engine of the job service, doing rounds until SIGTERM or SIGINT.

Any number may run; one leads, the others wait for its end. A process that is stopped begins nothing more and lets
another one lead at once; where it waits for the answer of another service then, it ends all the same, within five
seconds, and its term ends by itself. One that is killed is followed after fifteen seconds. Servers run on in any case.

systemd learns of each finished round (:mod:`placement_traits.service_manager`), whether the engine leads or not, and
whether the database answers or not: that is what it waits for. Of a round that hangs systemd learns nothing.

It ends with 78 (``EX_CONFIG``) where its configuration cannot be used, or the tables are not of its release: starting
it again would not help.
"""

import argparse
import faulthandler
import logging
import os
import random
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from oslo_config import cfg

from nova_numa_ext import endpoints, metrics
from nova_numa_ext.job_hint import hint_keys
from nova_numa_ext.orchestrator import conf as jobs_conf
from nova_numa_ext.orchestrator import decide, known_options, notify, startup
from nova_numa_ext.orchestrator.cloud.uplinks import LeafUplinks
from nova_numa_ext.orchestrator.conf import EngineOptions, FlavorSource
from nova_numa_ext.orchestrator.engine import EngineServices, JobEngine, JobPlanning
from nova_numa_ext.orchestrator.hints import PlanHints
from nova_numa_ext.orchestrator.metrics import METRICS
from nova_numa_ext.orchestrator.server_requests import FlavorOf
from nova_numa_ext.orchestrator.store.database import Database
from nova_numa_ext.orchestrator.store.recovery import Recovery, seen_in
from placement_traits.command_line import add_version
from placement_traits.errors import NumaExtError
from placement_traits.oslo_options import ConfigurationError
from placement_traits.service_manager import ServiceManager

_LOG: Final = logging.getLogger(__name__)

_PROGRAM: Final = "numa-ext-engine"
_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT})
_LOOK_S: Final = 1.0
_WAKE_S: Final = 0.25
_STOPPED_S: Final = 4.0
_UNDER_WAY_S: Final = 3.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the engine; return the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        conf = startup.configured(arguments.config_file)
        startup.log_to(conf)
        known_options.report(conf)
        options = jobs_conf.read(conf).engine
        engine = made(conf, options)
    except NumaExtError as error:
        return startup.failed(_PROGRAM, error)
    return run(
        engine, options.round_interval_s, ServiceManager.of(os.environ), _metrics(engine, options)
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM, description="Carry on jobs: one engine leads, any number wait to follow it."
    )
    startup.add_config_file(parser)
    add_version(parser)
    return parser


def _metrics(engine: JobEngine, options: EngineOptions) -> Callable[[], None] | None:
    """Return what begins to serve metrics, None where no port is configured."""
    if not options.metrics_port:
        return None
    exporter = metrics.Exporter(engine.samples, metrics=METRICS)
    return partial(metrics.keep_serving, exporter, options.metrics_address, options.metrics_port)


def made(conf: cfg.ConfigOpts, options: EngineOptions) -> JobEngine:
    """Return the engine that a configuration asks for.

    :raises ConfigurationError: an option cannot be used, or the tables are not of this release
    :raises CapabilityMissingError: no database is named
    :raises ServiceUnavailableError: it does not answer
    """
    trusts = startup.trusts(conf)
    database = Database.configured(conf)
    found, newest = database.version()
    if found != newest:
        there = f"have version {found}" if found else "are not there"
        raise ConfigurationError(
            f"The tables of [database]connection {there}; this release wants version {newest}: run numa-ext-manage "
            "db sync."
        )
    keys = hint_keys(options.job_hint_keys, jobs_conf.GROUP)
    _LOG.info("keys of jobs' hints: %s", keys)
    return JobEngine(
        f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex}",
        database,
        EngineServices(
            trusts,
            startup.claims(endpoints.placement(conf)),
            startup.hosts(endpoints.placement(conf)),
            startup.lent(endpoints.placement(conf)),
            notify.configured(conf, jobs_conf.read(conf).notify, socket.gethostname()),
            _flavors(conf, options),
            startup.room(endpoints.placement(conf)),
            _uplinks(conf, options),
        ),
        JobPlanning(
            decide.made(conf, endpoints.placement(conf)).decide,
            PlanHints(keys, jobs_conf.read(conf).planning.planner.most_postponements),
            jobs_conf.read(conf).queue,
        ),
        options,
        recovery=Recovery(database, seen_in(options.mark_file)),
    )


def _flavors(conf: cfg.ConfigOpts, options: EngineOptions) -> FlavorOf | None:
    """Return what asks nova for servers' flavors, None where their hosts' word counts."""
    if options.remote_gpu_flavors is FlavorSource.HOSTS:
        return None
    return startup.flavors(endpoints.compute(conf)).remote_gpus


def _uplinks(conf: cfg.ConfigOpts, options: EngineOptions) -> LeafUplinks | None:
    """Return what says on leafs what best-effort servers may send, None where nothing is to."""
    if not options.leaf_uplinks:
        return None
    return startup.uplinks(endpoints.placement(conf), options.leaf_uplinks_kept)


def run(
    engine: JobEngine,
    interval_s: float,
    manager: ServiceManager,
    beside: Callable[[], None] | None = None,
) -> int:
    """Do rounds until a signal; return the exit status.

    :param interval_s: seconds between two rounds, about, where nothing wakes the engine
    :param beside: called in a thread of its own
    """
    # Threads inherit it: whichever one the kernel would choose, the signal waits until this one takes it.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    faulthandler.enable()
    stop = threading.Event()
    rounds = threading.Thread(
        target=_rounds, args=(engine, interval_s, manager, stop), name="rounds", daemon=True
    )
    if beside:
        threading.Thread(target=beside, name="metrics", daemon=True).start()
    engine.start()
    rounds.start()
    while not _ended(_LOOK_S):
        if not rounds.is_alive():
            _LOG.critical("the thread of the rounds is gone: this process ends")
            return 1
    manager.stopping()
    stop.set()
    closing = threading.Thread(target=_stop, args=(engine,), name="stop", daemon=True)
    closing.start()
    closing.join(_STOPPED_S)
    return 0


def _ended(timeout_s: float) -> bool:
    """Return whether a signal to end has come within a time.

    A process that was stopped and continued is interrupted in its wait; where the time is over then, CPython returns a
    ``siginfo`` that was never filled.
    """
    found = signal.sigtimedwait(_SIGNALS, timeout_s)
    return found is not None and found.si_signo in _SIGNALS


def _rounds(
    engine: JobEngine, interval_s: float, manager: ServiceManager, stop: threading.Event
) -> None:
    trouble = ""
    while not stop.is_set():
        began_s = time.monotonic()
        try:
            engine.round()
            trouble = ""
        except Exception as error:  # noqa: BLE001 - the outermost guard: logged, and the next round is done
            found = f"{type(error).__name__}: {error}"
            if found != trouble:
                foreseen = isinstance(error, NumaExtError)
                _LOG.error("no round: %s", error, exc_info=None if foreseen else error)
            trouble = found
        manager.on_round()
        until_s = time.monotonic() + interval_s * random.uniform(0.9, 1.1)
        try:
            _pause(engine, began_s, until_s, stop)
        except Exception as error:  # noqa: BLE001 - a guard as above: the next round comes in its time
            _LOG.warning("nothing wakes the engine until the next round: %s", error, exc_info=error)
            stop.wait(max(until_s - time.monotonic(), 0.0))


def _pause(engine: JobEngine, began_s: float, until_s: float, stop: threading.Event) -> None:
    """Wait for the time of the next round, or until something wakes the engine.

    It is not woken for as long as the last round took: half of the time at most goes into rounds, however much happens.
    """
    now_s = time.monotonic()
    stop.wait(min(max(now_s - began_s, _WAKE_S), until_s - now_s))
    while not stop.is_set() and (left_s := until_s - time.monotonic()) > 0 and not engine.woken():
        stop.wait(min(_WAKE_S, left_s))


def _stop(engine: JobEngine) -> None:
    try:
        resigned = engine.stop(_UNDER_WAY_S)
    except NumaExtError as error:
        _LOG.warning("another engine leads when the term has ended: %s", error)
        return
    if not resigned:
        _LOG.warning("another engine leads when the term has ended: a request is still under way")


if __name__ == "__main__":
    sys.exit(main())
