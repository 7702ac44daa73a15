# SPDX-License-Identifier: Apache-2.0
"""``numa-host-agent [--dry-run] [--once] [--config-file FILE]``: the daemon of a compute host.

On SIGTERM or SIGINT it ends after the round; pins, pages and RDT groups stay as they are, so that servers do not feel
an upgrade. ``numa-host-agent-ctl reset`` takes everything back.

It ends with 78 (``EX_CONFIG``) where the configuration cannot be used: starting it again would not help. The service
manager learns of each finished round (:mod:`placement_traits.service_manager`); the SIGABRT by which it ends an agent
that hangs leaves the stacks of all threads in the log.
"""

import faulthandler
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Final

from host_agent.cmd.daemon import run_daemon
from host_agent.conf import configuration
from host_agent.conf.configuration import Configuration
from host_agent.control.assembly import agent as assembly
from host_agent.machine.privileged.api import Privileged
from host_agent.report.metrics import Metrics, serve
from host_agent.util.single_instance import single_instance
from placement_traits.errors import NumaExtError
from placement_traits.json_store import remove_drafts

LOG = logging.getLogger("host_agent")

_ENDED: Final = b"\0"  # no signal has this number


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the agent; return the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    return run_daemon("numa-host-agent", arguments, _run)


def _run(conf: Configuration) -> int:
    for key in configuration.unknown_keys(conf):
        LOG.warning("unknown in the configuration: %s", key)
    parts = assembly.build(conf, out=sys.stdout.write)
    try:
        if conf.dry_run:
            return _turn(conf, parts)
        with single_instance(parts.paths.lock, "stop it first"):
            remove_drafts(parts.paths.state)
            if conf.rdt.enabled and not conf.once:  # before the first throttle is written
                parts.privileged.in_control()
            return _turn(conf, parts)
    finally:
        parts.journal.close()


def _turn(conf: Configuration, parts: assembly.Parts) -> int:
    if conf.once:
        _once(parts)
        return 0  # no agent is in control then: the dead-man switch takes off what it throttled
    stop = threading.Event()
    woken, wake = os.pipe()
    os.set_blocking(wake, False)

    def turn() -> None:
        try:
            parts.agent.run(stop)
        finally:
            os.write(wake, _ENDED)

    # Not in this thread: a handler of Python waits for the call that its thread is in, and for the locks that it holds.
    rounds = threading.Thread(target=turn, name="rounds", daemon=True)

    def end(_number: int, _frame: object) -> None:
        stop.set()
        parts.source.end()
        parts.source.wake()

    # The kernel may give a signal to any thread, but handlers run in this one, and only once it is woken.
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    if conf.agent.metrics_port and not conf.dry_run:
        _expose(parts.metrics, conf.agent.metrics_address, conf.agent.metrics_port)
    if parts.publisher is not None:
        parts.publisher.start()
    if parts.slo is not None:
        parts.slo.start()
    faulthandler.enable()
    LOG.info("numa-host-agent runs%s", " dry" if conf.dry_run else "")
    rounds.start()
    while _ENDED not in os.read(woken, 4096):  # numbers of signals, whose handlers have run
        pass
    rounds.join()
    parts.service_manager.stopping()
    if parts.slo is not None:
        parts.slo.close()
    _leave(parts.privileged)
    LOG.info("numa-host-agent ends; pins, pages and RDT groups stay as they are")
    return 0


def _leave(privileged: Privileged) -> None:
    """Report the end to the dead-man switch, if the helper is still there: as the host goes down it may have ended."""
    try:
        privileged.graceful_shutdown()
    except (NumaExtError, OSError) as error:
        LOG.warning("throttles will be released: the helper does not learn of this end: %s", error)


def _expose(metrics: Metrics, address: str, port: int) -> None:
    """Start the endpoint; servers are worth more than figures, so a port that is taken is only logged."""
    try:
        serve(metrics, address, port)
    except ImportError:
        LOG.warning("no metrics: prometheus_client is not installed (nova-numa-ext[agent])")
    except OSError as error:
        reason = error.strerror or error
        LOG.warning("no metrics on %s:%s, see [agent]metrics_port: %s", address, port, reason)


def _once(parts: assembly.Parts) -> None:
    """One round, and more of them only while pages are left to be moved."""
    if parts.publisher is not None:
        parts.publisher.look()
    done = parts.agent.round(full=True, relist=True)
    while done.unfinished:
        done = parts.agent.round(full=False, relist=False)
    if parts.publisher is not None:
        parts.publisher.publish_once()


if __name__ == "__main__":
    sys.exit(main())
