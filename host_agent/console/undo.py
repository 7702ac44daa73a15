# SPDX-License-Identifier: Apache-2.0
"""Take back what the agent did, or only its throttles."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

from host_agent.conf.configuration import Configuration
from host_agent.conf.paths import HostPaths
from host_agent.control import slo_store
from host_agent.control.assembly.observer import build_observer
from host_agent.control.journal import open_journal
from host_agent.machine.libvirt import LibvirtSource
from host_agent.machine.privileged.seam import open_seam
from host_agent.model import cpus
from host_agent.model.assignment import Guest
from host_agent.model.journal import Entry, Result
from host_agent.model.process import Pin, Role
from host_agent.util.acting import at_rest
from host_agent.util.single_instance import single_instance
from placement_traits.errors import ConflictError, NumaExtError

LOG = logging.getLogger(__name__)

_LOOK_S: Final = 0.1
_PATIENCE_ROUNDS: Final = 3
_NOT_BESIDE: Final = "it would make everything again; stop it, or run numa-host-agent-ctl pause"
_NOT_BESIDE_ANY: Final = "its state is in use; stop it (systemctl disable --now numa-host-agent)"
_KEPT: Final = "kept: it is needed to undo what failed; do this again"


def reset(conf: Configuration, *, dry_run: bool) -> list[dict[str, Any]]:
    """Undo what can be undone: RDT groups and masks, and the pins of floating servers.

    Pages stay where they are, for no place was theirs before, and latency ports until nova starts the server again: its
    guest may have them open. libvirt may be down: then pins stay, which is reported.

    :param dry_run: only say what would be done
    :raises ConflictError: an agent runs and is not paused: it would make everything again
    """
    paths = conf.paths
    with nullcontext() if dry_run else _no_agent_writes(conf, paths):
        return _reset(conf, paths, dry_run=dry_run)


def reset_all(conf: Configuration, *, dry_run: bool) -> list[dict[str, Any]]:
    """Undo what can be undone, as :func:`reset` does, and then remove what the agent has kept, its journals included.

    State stays where something could not be undone. Files of others in the state folder, the folder itself, and
    ``/etc/numa-host-agent`` stay in any case.

    :param dry_run: only say what would be done
    :raises ConflictError: an agent runs, be it paused
    """
    paths = conf.paths
    if not dry_run:
        paths.state.mkdir(parents=True, exist_ok=True, mode=0o750)
    with nullcontext() if dry_run else single_instance(paths.lock, _NOT_BESIDE_ANY):
        rows = _reset(conf, paths, dry_run=dry_run)
        if any(row["result"] == "failed" for row in rows):
            return [*rows, {"what": "state", "result": "failed", "detail": _KEPT}]
        return [*rows, *_forget(paths, dry_run=dry_run)]


def _forget(paths: HostPaths, *, dry_run: bool) -> Iterator[dict[str, Any]]:
    """Remove the files that are there, rotated journals and drafts of a crash too; yield a row for each."""
    beside = [file for kept in paths.kept for file in sorted(paths.state.glob(f"{kept.name}.*"))]
    for file in filter(Path.exists, (*beside, *paths.kept)):
        row = {"what": "state", "result": str(Result.WOULD), "detail": str(file)}
        if not dry_run:
            try:
                file.unlink()
                row["result"] = str(Result.DONE)
            except OSError as error:
                row |= {"result": "failed", "detail": f"{file}: {error.strerror}"}
        yield row


def release(conf: Configuration, *, dry_run: bool) -> list[dict[str, Any]]:
    """Take all throttles of best-effort servers off; masks, pins and pages stay.

    :param dry_run: only say what would be done
    :raises ConflictError: an agent runs and is not paused: it would make everything again
    """
    paths = conf.paths
    with nullcontext() if dry_run else _no_agent_writes(conf, paths):
        return _release(conf, paths, dry_run=dry_run)


@contextmanager
def _no_agent_writes(conf: Configuration, paths: HostPaths) -> Iterator[None]:
    """Wait for a paused agent to come to rest, or keep any other from starting meanwhile.

    :raises ConflictError: an agent runs and is not paused
    """
    patience_s = _PATIENCE_ROUNDS * conf.agent.interval_s
    if paths.paused.exists():
        with at_rest(paths.acting, patience_s) as rests:
            if not (rests and _balm_rests(conf, paths, patience_s)):
                LOG.warning("the agent has not noticed the pause yet and may undo this")
            yield
        return
    paths.state.mkdir(parents=True, exist_ok=True, mode=0o750)
    with single_instance(paths.lock, _NOT_BESIDE):
        yield


def _balm_rests(conf: Configuration, paths: HostPaths, patience_s: float) -> bool:
    """Wait until the SLO controller of an agent that was just paused has noticed it: its thread acts beside rounds."""
    if not (conf.slo.enabled and paths.slo.exists() and _runs(paths)):
        return True
    end = time.monotonic() + patience_s
    while slo_store.load(paths.slo).report.get("phase") != slo_store.PAUSED:
        if time.monotonic() >= end:
            return False
        time.sleep(_LOOK_S)
    return True


def _runs(paths: HostPaths) -> bool:
    try:
        with single_instance(paths.lock, _NOT_BESIDE):
            return False
    except ConflictError:
        return True


def _release(conf: Configuration, paths: HostPaths, *, dry_run: bool) -> list[dict[str, Any]]:
    privileged = open_seam(conf, dry_run=dry_run)
    result = Result.WOULD if dry_run else Result.DONE
    rows = _written(privileged.release_throttles, "throttle", result)
    if not dry_run:
        _note(conf, "release", result, rows)
    return rows


def _written(
    command: Callable[[bool], Sequence[str]], what: str, result: Result
) -> list[dict[str, Any]]:
    """Run a command of the seam that answers with what it wrote."""
    try:
        writes = command(result is Result.DONE)
    except (NumaExtError, OSError) as error:
        return [{"what": what, "result": "failed", "detail": str(error)}]
    return [{"what": what, "result": str(result), "detail": write} for write in writes]


def _note(conf: Configuration, action: str, result: Result, rows: list[dict[str, Any]]) -> None:
    journal = open_journal(conf)
    journal.write(Entry(action, result, what={"rows": rows}))
    journal.close()


def _reset(conf: Configuration, paths: HostPaths, *, dry_run: bool) -> list[dict[str, Any]]:
    privileged = open_seam(conf, dry_run=dry_run)
    result = Result.WOULD if dry_run else Result.DONE
    rows = _written(privileged.release_throttles, "throttle", result)
    rows += _written(privileged.reset_partitions, "rdt", result)
    try:
        with closing(LibvirtSource(conf.libvirt_host.uri, conf.libvirt_host.timeout_s)) as source:
            observer = build_observer(conf, source, privileged)
            observation = observer.observe(full=True, relist=True)
    except NumaExtError as error:
        rows.append({"what": "pins", "result": "failed", "detail": str(error)})
    else:
        online = frozenset(observation.topology.cpus)
        for guest in observation.guests:
            rows += _unpin(guest, online, privileged, str(result))
    if not dry_run:
        _note(conf, "reset", result, rows)
    return rows


def _unpin(
    guest: Guest, online: frozenset[int], privileged: Any, result: str
) -> list[dict[str, Any]]:
    """Give a floating server's threads all CPUs that nova lets them share; but for vCPUs only GPUs had any pinned."""
    domain = guest.workload.domain
    if guest.process is None or not guest.workload.floating:
        return []
    free = online if domain.vcpu_cpuset is None else domain.vcpu_cpuset & online
    others = free if domain.emulator_pin is None else domain.emulator_pin & online
    pins = []
    for thread in guest.process.threads:
        vcpu = thread.role == Role.VCPU
        desired = free if vcpu else others
        if (vcpu or guest.gpus) and cpus.parse(thread.cpus) != desired:
            pins.append(Pin(thread.tid, cpus.text(desired)))
    if not pins:
        return []
    try:
        failures = privileged.pin(guest.uuid, pins)
    except (NumaExtError, OSError) as error:
        return [{"what": "pins", "result": "failed", "detail": f"{guest.uuid}: {error}"}]
    detail = f"{guest.workload.title}: {len(pins)} threads to CPUs {cpus.text(free)}"
    if failures:
        return [{"what": "pins", "result": "failed", "detail": f"{detail}: {failures[0].problem}"}]
    return [{"what": "pins", "result": result, "detail": detail}]
