# SPDX-License-Identifier: Apache-2.0
"""``numa-host-agent-lanes``: lanes of this host's uplinks, beside the agent and without it.

It has CAP_NET_ADMIN and nothing else. What it writes follows from its configuration, from the servers that libvirt
names, and from their ports in Neutron; with ``throttle`` or ``tune`` the agent may order how best-effort servers are
held, and nothing else. On SIGTERM it ends; its unit then takes all off again.

It ends with 78 (``EX_CONFIG``) where the configuration cannot be used.
"""

import argparse
import logging
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

from host_agent.cmd.daemon import run_daemon
from host_agent.conf.configuration import Configuration
from host_agent.conf.lanes import LaneOptions
from host_agent.control.lanes import LaneKeeper, LaneTurn
from host_agent.decide.lanes import switches
from host_agent.decide.lanes.planning import LanePlan, LaneSettings, checked, planned
from host_agent.machine.lane_door import LaneDoor
from host_agent.machine.libvirt import DomainSource, LibvirtSource
from host_agent.machine.uplink_watch import QueueWatch
from host_agent.machine.uplinks import UplinkPrograms, Uplinks
from host_agent.model import workload
from host_agent.model.lanes import LaneOrder, LanePort, LaneQueue, UplinkFacts
from host_agent.model.workload import Activity
from host_agent.observe.ports import Get, NetworkPort, ports_of
from host_agent.report.clients import make_neutron, make_reporter
from host_agent.report.lanes import LaneTrait
from host_agent.util.background import BackgroundTasks
from host_agent.util.last_answer import LastAnswer
from host_agent.util.single_instance import single_instance
from placement_traits.command_line import add_version, whole_from
from placement_traits.errors import (
    InvalidValueError,
    NumaExtError,
)
from placement_traits.names import Tier
from placement_traits.oslo_options import ConfigurationError
from placement_traits.service_manager import ServiceManager

_LOG: Final = logging.getLogger(__name__)
_PROGRAM: Final = "numa-host-agent-lanes"
_SLICE_S: Final = 1.0  # how late a signal is seen
_ASKING_S: Final = 0.1  # how late an answer is
_LAST_TIMEOUT_S: Final = 5.0  # of each request when the unit ends, which systemd bounds


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal, or for one turn; return the exit status."""
    options = _parser().parse_args(arguments)
    files = [f"--config-file={file}" for file in options.config_file]
    return run_daemon(_PROGRAM, files, lambda conf: _run(conf, options), as_owner=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM, description="Keep lanes of this host's uplinks."
    )
    parser.add_argument(
        "--config-file", action="append", default=[], metavar="FILE", help="of numa-host-agent"
    )
    parser.add_argument("--once", action="store_true", help="one turn, then end; all stays")
    parser.add_argument(
        "--dry-run", action="store_true", help="one turn, print what would be written to tc and nft"
    )
    parser.add_argument("--reset", action="store_true", help="take all lanes and marks off")
    parser.add_argument(
        "--switch",
        choices=["opensm", "sonic"],
        help="print the same lanes for switches, and do nothing else",
    )
    parser.add_argument(
        "--ports",
        default="Ethernet0",
        metavar="PORT[,...]",
        help="of the switch of SONiC (default: %(default)s)",
    )
    parser.add_argument(
        "--speed-mbps",
        type=whole_from(1, 10_000_000),
        default=10_000,
        metavar="N",
        help="of these ports (default: %(default)s)",
    )
    parser.add_argument(
        "--check",
        type=Path,
        metavar="FILE",
        help="with --switch: print what this file has otherwise",
    )
    add_version(parser)
    return parser


def _for_switch(options: argparse.Namespace, settings: LaneSettings) -> int:
    """Print the lanes for a switch, or what a file has otherwise; return 1 where it has.

    :raises InvalidValueError: the ports, or the file, make no sense
    """
    facts = UplinkFacts("switch", options.speed_mbps, "noqueue")
    plan = planned(facts, LaneQueue, replace(settings, is_forced=True))
    assert isinstance(plan, LanePlan)  # with a known speed, forced, and no queues of others
    made = (
        switches.opensm(plan)
        if options.switch == "opensm"
        else switches.sonic(plan, options.ports.split(","))
    )
    if options.check is None:
        sys.stdout.write(made)
        return 0
    try:
        given = options.check.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValueError("--check", str(options.check), f"a file ({error})") from error
    found = switches.differences(made, given)
    sys.stdout.writelines(f"{each}\n" for each in found)
    return 1 if found else 0


def _run(conf: Configuration, options: argparse.Namespace) -> int:
    if options.switch:
        return _for_switch(options, LaneSettings.of(conf.lanes))
    keeper = keeper_of(conf.lanes, conf, dry_run=options.dry_run)
    if options.dry_run:
        return _once(conf, keeper)
    with single_instance(conf.paths.state / "lanes.lock", "stop it first"):
        if options.reset or not conf.lanes.uplinks:
            keeper.reset()
            _LOG.info("no lanes and no marks of ours are left")
            if conf.placement.enabled:
                _trait(conf, _LAST_TIMEOUT_S).write(has_lanes=False)
            if not options.reset:
                # What ends without having been ready the service manager starts again and again.
                manager = ServiceManager.of(os.environ)
                manager.on_round()
                manager.stopping()
            return 0
        keeper.forget_others()
        if options.once:
            return _once(conf, keeper)
        stop = threading.Event()
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, lambda *_arguments: stop.set())
        _loop(conf, keeper, stop)
    return 0


def keeper_of(options: LaneOptions, conf: Configuration, *, dry_run: bool) -> LaneKeeper:
    """Return what keeps the lanes of this host.

    :raises ConfigurationError: an uplink has no name of a device
    """
    try:
        for name in options.uplinks:
            checked(name)
    except InvalidValueError as error:
        raise ConfigurationError(f"[lanes]uplinks: {error}") from error
    programs = UplinkPrograms(options.tc, options.nft, options.ovs_vsctl)
    return LaneKeeper(
        Uplinks(programs, conf.paths.sys, options.speeds_mbps),
        options.uplinks,
        options.queue,
        LaneSettings.of(options),
        sys.stdout.write if dry_run else None,
    )


def _trait(conf: Configuration, timeout_s: float | None = None) -> LaneTrait:
    """Return what shows lanes in Placement; nova's root has the name that libvirt has for the host.

    :param timeout_s: of each request, which has one attempt then; None: as usual
    """

    def named() -> str:
        if conf.host.name:
            return conf.host.name
        return LibvirtSource(conf.libvirt_host.uri, conf.libvirt_host.timeout_s).hostname()

    return LaneTrait(
        lambda: make_reporter(conf, timeout_s), named, BackgroundTasks("lanes-trait", 1)
    )


def _once(conf: Configuration, keeper: LaneKeeper) -> int:
    done = keeper.turn(Servers.of(conf).ports(time.monotonic()), time.monotonic())
    for sentence in done.sentences():
        sys.stderr.write(f"{sentence}\n")
    return 1 if done.troubles else 0


def _loop(conf: Configuration, keeper: LaneKeeper, stop: threading.Event) -> None:
    """Keep lanes until a signal.

    Nothing here waits for libvirt, Neutron or Placement: limits lapse in time, and the agent hears that the unit lives.
    """
    servers = Servers.of(conf)
    ports = LastAnswer("lanes-ports", lambda: servers.ports(time.monotonic()))
    trait = _trait(conf) if conf.placement.enabled else None
    manager = ServiceManager.of(os.environ)
    logged: LaneTurn | None = None
    due_s = -math.inf
    with ExitStack() as stack:
        watch = stack.enter_context(QueueWatch())
        door = (
            stack.enter_context(LaneDoor(conf.paths.lane_door)) if conf.lanes.takes_orders else None
        )
        heard: list[QueueWatch | LaneDoor] = [watch, *([door] if door else [])]
        while not stop.is_set():
            if is_due := time.monotonic() >= due_s:
                ports.ask()
            known = ports.answer
            if known is not None:
                done = keeper.turn(known, time.monotonic())
                logged = _log_new(done, logged)
                if trait:
                    trait.show(has_lanes=bool(done.lanes))
            manager.on_round()
            if is_due:
                due_s = time.monotonic() + conf.lanes.interval_s
            while not stop.is_set() and (left := due_s - time.monotonic()) > 0:
                slice_s = _ASKING_S if ports.is_asking else _SLICE_S
                ready = select.select(heard, [], [], min(left, slice_s))[0]
                if door:
                    door.serve(
                        lambda order: keeper.order(allowed(order, conf.lanes), time.monotonic())
                    )
                    keeper.lapse(time.monotonic())
                if watch in ready and watch.changed(0.0) & keeper.indexes:
                    break
                if ports.answer != known:
                    break
    manager.stopping()


def allowed(order: LaneOrder, options: LaneOptions) -> LaneOrder:
    """Return what of an order is taken: what this unit's configuration says, whatever the agent's does."""
    return LaneOrder(
        order.limits if options.throttle else {},
        order.shares if options.tune and not options.throttle else {},
    )


def _log_new(done: LaneTurn, before: LaneTurn | None) -> LaneTurn:
    """Log what is another one than in the turn before."""
    if before is None or done.lanes != before.lanes:
        shown = ", ".join(f"{name} ({queue})" for name, queue in done.lanes.items())
        _LOG.info("uplinks with lanes: %s", shown or "none")
    known = () if before is None else before.sentences()
    for sentence in done.sentences():
        if sentence not in known:
            _LOG.warning("%s", sentence)
    return done


class Servers:
    """The ports of servers that run here.

    :param libvirt: of this host
    :param get: asks Neutron
    :param host: as Neutron names it
    :param every_s: seconds after which Neutron is asked again
    """

    def __init__(self, libvirt: DomainSource, get: Get, host: str, every_s: float) -> None:
        self._libvirt, self._get, self._host, self._every_s = libvirt, get, host, every_s
        self._known: Mapping[str, NetworkPort] = {}
        self._asked_for: frozenset[str] = frozenset()
        self._due_s = 0.0
        self._silent = ""

    @classmethod
    def of(cls, conf: Configuration) -> "Servers":
        """Return those of a configuration.

        :raises NumaExtError: libvirt, or the credentials, cannot be used
        """
        libvirt = LibvirtSource(conf.libvirt_host.uri, conf.libvirt_host.timeout_s)
        host = conf.lanes.neutron_host or conf.host.name or libvirt.hostname()
        return cls(libvirt, make_neutron(conf), host, conf.lanes.ports_every_s)

    def ports(self, now_s: float) -> tuple[LanePort, ...]:
        """Return the ports that Neutron names; without an answer of it those of its last one.

        :param now_s: monotonic clock
        :raises ServiceUnavailableError: libvirt does not answer
        """
        tiers = dict(self._taps())
        if now_s >= self._due_s or not tiers.keys() <= self._asked_for:
            self._ask(now_s, frozenset(tiers))
        return tuple(
            _port(tap, tiers[tap], self._known[tap])
            for tap in sorted(tiers.keys() & self._known.keys())
        )

    def _taps(self) -> Iterator[tuple[str, Tier | None]]:
        for each in self._libvirt.domains():
            if each.activity is Activity.OFF:
                continue
            try:
                found = workload.parse(each.xml, each.activity)
            except InvalidValueError as error:
                _LOG.debug("server %s gets no mark: %s", each.uuid, error)
                continue
            for tap in found.domain.interfaces:
                yield tap, found.tier

    def _ask(self, now_s: float, taps: frozenset[str]) -> None:
        try:
            self._known = ports_of(self._get, self._host)
        except NumaExtError as error:  # it is asked again in the next turn
            if str(error) != self._silent:
                _LOG.warning("ports are those of Neutron's last answer: %s", error)
            self._silent = str(error)
            return
        self._silent = ""
        self._asked_for = taps
        self._due_s = now_s + self._every_s


def _port(tap: str, tier: Tier | None, port: NetworkPort) -> LanePort:
    return LanePort(tap, tier, port.network, port.has_policy, port.is_behind_veth, port.bypasses)


if __name__ == "__main__":
    sys.exit(main())
