# SPDX-License-Identifier: Apache-2.0
"""``numa-host-agent-leases``: what a host does for leases of remote GPUs, beside the agent and without it.

It publishes what the host lends, has each lease of its GPUs served by a process of its own, and reports these and the
servers of this host to the job service. On SIGTERM it ends; the processes of leases run on, and its next start finds
them.

It ends with 78 (``EX_CONFIG``) where the configuration cannot be used.
"""

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from host_agent.cmd.daemon import run_daemon
from host_agent.conf.configuration import Configuration
from host_agent.conf.remote_gpus import FAKE, RemoteGpuOptions
from host_agent.machine.libvirt import DomainSource, LibvirtSource, ListedDomain
from host_agent.machine.privileged.devices import VSOCK_ALIAS
from host_agent.machine.privileged.seam import open_seam
from host_agent.model import workload
from host_agent.model.workload import Activity, Workload
from host_agent.remote_gpu import isolation
from host_agent.remote_gpu.answer import RunningServers
from host_agent.remote_gpu.checkpoint import NOTHING_AROUND, Around
from host_agent.remote_gpu.doors import Doors, DoorsThread, GuestDomain, vsock
from host_agent.remote_gpu.gpu_host import GpuHost
from host_agent.remote_gpu.groups import GroupBounds, LeaseGroups, divided, own_group
from host_agent.remote_gpu.link_files import LinkFiles, LinkPaths
from host_agent.remote_gpu.moves import HostMoves, MoveTools, try_out
from host_agent.remote_gpu.processes import LeaseBounds, LeaseCommand, LeaseProcesses
from host_agent.remote_gpu.publishing import Publishing
from host_agent.remote_gpu.turns import HttpAnswer, LeaseTurns, Request
from host_agent.remote_gpu.use import UseMeter
from host_agent.report.clients import make_adapter
from host_agent.transports.registry import Transports
from host_agent.transports.transport import RemoteGpuTransport
from host_agent.util.single_instance import single_instance
from placement_traits.amounts import MAX_AMOUNT
from placement_traits.client import PlacementClient
from placement_traits.command_line import add_version
from placement_traits.errors import (
    LONGEST_TEXT,
    CapabilityMissingError,
    InvalidValueError,
    NumaExtError,
    ServiceUnavailableError,
    cut,
)
from placement_traits.oslo_options import ConfigurationError
from placement_traits.pool_reporter import PoolReporter, gpu_uuids
from placement_traits.pool_tree import LentPool
from placement_traits.remote_gpu_request import RemoteGpuRequest
from placement_traits.service_manager import ServiceManager

_LOG: Final = logging.getLogger(__name__)
_PROGRAM: Final = "numa-host-agent-leases"
_SERVICE: Final = "numa-ext"
_TRIED_MB: Final = 64


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal, or for one turn; return the exit status."""
    options = _parser().parse_args(arguments)
    files = [f"--config-file={file}" for file in options.config_file]
    return run_daemon(_PROGRAM, files, lambda conf: _run(conf, once=options.once))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM, description="Serve and use leases of remote GPUs on this host."
    )
    parser.add_argument(
        "--config-file", action="append", default=[], metavar="FILE", help="of numa-host-agent"
    )
    parser.add_argument("--once", action="store_true", help="one turn, then end")
    add_version(parser)
    return parser


def _run(conf: Configuration, *, once: bool) -> int:
    stop = threading.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_arguments: stop.set())
    folder = conf.paths.state / "leases"
    folder.mkdir(mode=0o750, parents=True, exist_ok=True)
    libvirt = LibvirtSource(conf.libvirt_host.uri, conf.libvirt_host.timeout_s)
    host = conf.host.name or libvirt.hostname()
    pool = lent(conf.remote_gpus, host)
    tools = move_tools(conf.remote_gpus)
    with single_instance(folder / "lock", "stop it first"):
        if tools is not None and not _can_move(conf.remote_gpus, folder / "tried", pool, tools):
            tools = None
        if tools is not None:
            pool = replace(pool, gpus=tuple(replace(each, migratable=True) for each in pool.gpus))
        run = folder / "run"
        processes = _processes(conf.remote_gpus, run, pool, tools)
        turns = LeaseTurns(
            host,
            requests(make_adapter(conf, _SERVICE)),
            GpuHost(processes, folder / "epochs.json", HostMoves(processes, run, tools)),
            lambda: servers(libvirt) if conf.remote_gpus.uses else RunningServers(),
            folder / "answer.json",
            rest_s=0.0 if conf.remote_gpus.gpus else conf.remote_gpus.rest_s,
        )
        reporter = PoolReporter(PlacementClient(make_adapter(conf)))
        publishing = Publishing(pool, reporter, conf.placement.interval_s)
        if once:
            answered = turns.turn()
            publishing.turn()
            return 0 if answered else 1
        publishing.start(stop)
        if conf.remote_gpus.guests:
            doors = Doors(
                open_seam(conf, dry_run=False),
                lambda: guest_domains(libvirt),
                transport_of(conf.remote_gpus),
                folder / "attachments.json",
            )
            DoorsThread(doors, turns.attaches, conf.remote_gpus.interval_s).start(stop)
        manager = ServiceManager.of(os.environ)
        take_turns(turns, conf.remote_gpus.interval_s, stop, manager.on_round)
        manager.stopping()
    return 0


def take_turns(
    turns: LeaseTurns, interval_s: float, stop: threading.Event, after: Callable[[], None]
) -> None:
    """Take turns until the end is asked for.

    :param interval_s: seconds between two of them, about, where nothing is awaited
    :param after: called after each
    """
    while not stop.is_set():
        turns.turn()
        after()
        stop.wait(turns.pause_s(interval_s))


def move_tools(options: RemoteGpuOptions) -> MoveTools | None:
    """Return by what leases of this host move with all that they have; None: they do not.

    :raises ConfigurationError: CRIU is no program
    """
    if not (options.gpus and options.criu):
        return None
    if not os.access(options.criu, os.X_OK):
        raise ConfigurationError(f"[remote_gpus]criu: {options.criu} is no program.")
    return MoveTools(
        Path(options.criu),
        options.link,
        link_paths(options),
        options.address,
        Around(options.words("gpu_suspend"), options.words("gpu_resume")),
    )


def _can_move(options: RemoteGpuOptions, place: Path, pool: LentPool, tools: MoveTools) -> bool:
    """Try it with a lease of no server; where it cannot be done, say why."""
    gpu = min(gpu_uuids(pool))
    memory_mb = min(_TRIED_MB, *(each.memory_mb for each in pool.gpus))
    try:
        try_out(_processes(options, place, pool, tools), place, tools, gpu, memory_mb)
    except (NumaExtError, OSError) as error:
        _LOG.warning("leases of this host move with nothing that they have: %s", error)
        return False
    return True


def _processes(
    options: RemoteGpuOptions, run: Path, pool: LentPool, tools: MoveTools | None
) -> LeaseProcesses:
    """Return what starts and ends the processes of leases.

    :param run: where their sockets are
    """
    by = certificates(options)
    command = LeaseCommand(
        options.transport,
        options.transports,
        options.address,
        gpu_uuids(pool),
        options.nodes(),
        None if by is None else options.link,
        LeaseBounds(options.tasks_per_lease, options.folder_mb_per_lease),
        None if tools is None else tools.criu,
        NOTHING_AROUND if tools is None else tools.around,
        bool(options.gpus) and transport_of(options).capabilities().enforced,
    )
    meter = UseMeter(options.use_window_s)
    return LeaseProcesses(run, command, apart(options, run), by, meter)


def lent(options: RemoteGpuOptions, host: str) -> LentPool:
    """Return what this host lends, by a transport that can serve here.

    :param host: its name
    :raises ConfigurationError: there is no transport of that name, or something of it is missing
    """
    if not options.gpus:
        return options.lent(host)
    transport = transport_of(options)
    findings = transport.findings()
    if findings:
        raise ConfigurationError("; ".join(findings))
    if options.transport == FAKE:
        _LOG.warning("transport fake: leases of this host have no GPU behind them")
    can = transport.capabilities()
    return options.lent(host, can.apis, enforced=can.enforced, movable=can.movable)


def transport_of(options: RemoteGpuOptions) -> RemoteGpuTransport:
    """Return the transport of this host.

    :raises ConfigurationError: there is none of that name
    """
    try:
        return Transports(options.transports).named(options.transport)
    except InvalidValueError as error:
        raise ConfigurationError(str(error)) from error


def apart(options: RemoteGpuOptions, folder: Path) -> LeaseGroups | None:
    """Return the control groups of leases on a host that lends GPUs, if they are to be kept apart.

    :param folder: of the processes of leases
    :raises ConfigurationError: this host, or the unit, does not let them be kept apart
    """
    if not options.gpus:
        return None
    if not options.isolated:
        _LOG.warning("isolated is off: the servers of leases reach each other")
        return None
    try:
        isolation.check()
        bounds = GroupBounds(options.memory_mb_per_lease, options.cores_per_lease)
        return LeaseGroups(folder, divided(own_group()), bounds)
    except CapabilityMissingError as error:
        raise ConfigurationError(str(error)) from error


def certificates(options: RemoteGpuOptions) -> LinkFiles | None:
    """Return by which certificates clients of this host's leases come, None where they come by plain TCP.

    :raises ConfigurationError: they cannot be read, or the program that takes clients by them is not there
    """
    if not options.gpus:
        return None
    if not options.certificate:
        _LOG.warning("certificate is not set: clients of leases come by plain TCP")
        return None
    if not os.access(options.link, os.X_OK):
        raise ConfigurationError(
            f"[remote_gpus]link: {options.link} is no program. Build it (make link) and install it there."
        )
    found = LinkFiles(link_paths(options))
    try:
        found.read()
    except ServiceUnavailableError as error:
        raise ConfigurationError(str(error)) from error
    return found


def link_paths(options: RemoteGpuOptions) -> LinkPaths:
    """Return where the certificates of this host are."""
    return LinkPaths(Path(options.certificate), options.key, options.authorities, options.revoked)


def servers(libvirt: DomainSource) -> RunningServers:
    """Return the servers that run; one that is paused, or comes by a live migration, does not yet.

    :raises ServiceUnavailableError: libvirt does not answer
    """
    running = [each for each in libvirt.domains() if each.activity is Activity.RUNNING]
    known = {each.uuid: found for each in running if (found := _understood(each)) is not None}
    requests = {uuid: asked for uuid, each in known.items() if (asked := _requested(each))}
    domains = {uuid: each.domain.number for uuid, each in known.items() if each.domain.number}
    return RunningServers(frozenset(each.uuid for each in running), requests, domains)


def guest_domains(libvirt: DomainSource) -> list[GuestDomain]:
    """Return the servers that run or are paused, with their vsock devices; one whose XML makes no sense is left out.

    :raises ServiceUnavailableError: libvirt does not answer
    """
    found = []
    for each in libvirt.domains():
        if each.activity not in (Activity.RUNNING, Activity.PAUSED):
            continue
        try:
            cid, ours = vsock(each.xml, VSOCK_ALIAS)
        except InvalidValueError as error:
            _LOG.warning("server %s reaches no lease: %s", each.uuid, error)
            continue
        server = _understood(each)
        request = None if server is None else _requested(server)
        vgpus = 1 if request is None else request.vgpus_per_gpu
        runs = each.activity is Activity.RUNNING
        found.append(GuestDomain(each.uuid, cid, ours, runs, vgpus))
    return found


def _understood(domain: ListedDomain) -> Workload | None:
    """Return a server, None where its XML makes no sense."""
    try:
        return workload.parse(domain.xml, domain.activity)
    except InvalidValueError as error:
        _LOG.warning("server %s asks for no remote GPU: %s", domain.uuid, error)
        return None


def _requested(server: Workload) -> RemoteGpuRequest | None:
    """Return the GPUs of other hosts that a server's flavor asks for, None where it asks for none.

    A flavor that cannot be understood asks for none: the agent reports it. Neither does one that asks for more than
    Placement counts: with it the service would refuse all that this host reports, and take the host for silent.
    """
    asked = None if server.request is None else server.request.remote_gpus
    if asked is not None and max(asked.memory_mb, asked.network_mbps) > MAX_AMOUNT:
        _LOG.warning(
            "server %s gets no remote GPU: its flavor asks for more than %d of something",
            server.uuid,
            MAX_AMOUNT,
        )
        return None
    return asked


def requests(adapter: Any) -> Request:
    """Return what sends a request to the job service.

    :param adapter: keystoneauth's, with the credential of this host
    """
    from keystoneauth1 import exceptions

    def request(method: str, path: str, **given: Any) -> HttpAnswer:
        try:
            found: HttpAnswer = adapter.request(path, method, raise_exc=False, **given)
        except exceptions.ClientException as error:
            why = cut(str(error), LONGEST_TEXT)
            raise ServiceUnavailableError(f"The job service cannot be reached: {why}") from error
        return found

    return request


if __name__ == "__main__":
    sys.exit(main())
