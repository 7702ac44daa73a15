# SPDX-License-Identifier: Apache-2.0
"""What ``numa-host-agent-ctl`` shows and does: rows of plain values, and a table made of them."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from host_agent import assembly, cpus, qos_store
from host_agent import conf as agent_conf
from host_agent.assignment import Guest
from host_agent.events import LibvirtSource
from host_agent.journal import Entry, Result, read
from host_agent.only_one import only_one
from host_agent.paths import HostPaths
from host_agent.privileged.partitions import tree
from host_agent.privileged.seam import open_seam
from host_agent.privileged.shapes import Pin, Role
from host_agent.rdt.errors import ResctrlError
from host_agent.rdt.resctrl import Resctrl
from host_agent.rdt.shapes import ROOT_GROUP, Actual, is_bandwidth
from placement_traits.errors import ConflictError, NumaExtError
from placement_traits.names import Tier
from placement_traits.topology import HostTopology

LOG = logging.getLogger(__name__)

_LONG_COLUMNS: Final = frozenset({"uuid", "managed", "memory_mb", "threads", "why"})

# -- status ------------------------------------------------------------------------------------------------------------


def status(conf: agent_conf.Conf) -> list[dict[str, Any]]:
    """Return one row per server, read from libvirt and the kernel now.

    :raises ServiceUnavailableError: libvirt does not answer
    """
    source = LibvirtSource(conf.libvirt_host.uri)
    paths = agent_conf.paths(conf)
    privileged = open_seam(paths, conf, dry_run=True)
    observer = assembly.build_observer(conf, source, privileged, read_all=True)
    observation = observer.observe(full=True, relist=True)
    resctrl = tree(paths)
    groups = _Groups(resctrl)
    reasons = last_decisions(conf)
    source.close()
    told = qos_store.load(paths.slo).told
    return [
        _row(guest, observation.topology, groups, reasons.get(guest.uuid, ()))
        | {"slo": qos_store.of_server(told, guest.uuid)}
        for guest in sorted(observation.guests, key=lambda found: found.workload.title)
    ]


class _Groups:
    """Which group holds a thread, and what the group has; one reading of the tree."""

    def __init__(self, resctrl: Resctrl) -> None:
        self.actual: Actual | None = None
        self._group_of: dict[int, str] = {}
        if not resctrl.available():
            return
        with resctrl.lock(exclusive=False):
            self.actual = resctrl.actual()
            for group in self.actual.groups:
                try:
                    for tid in resctrl.tasks(group.name):
                        self._group_of[tid] = group.name
                except ResctrlError:
                    continue  # removed while we read

    def of(self, tid: int) -> str | None:
        """Return the group of a thread, None where nothing is mounted."""
        return None if self.actual is None else self._group_of.get(tid, ROOT_GROUP)

    def values(self, name: str, domains: Iterable[int]) -> tuple[dict[int, str], dict[int, int]]:
        """Return masks and bandwidth of a group, by L3 domain."""
        group = self.actual.get(name) if self.actual else None
        masks, bandwidth = {}, {}
        for resource, values in (group.schemata if group else {}).items():
            for domain in set(domains) & set(values):
                if resource.startswith("L3"):
                    masks[domain] = f"{values[domain]:x}"
                elif is_bandwidth(resource):
                    bandwidth[domain] = values[domain]
        return dict(sorted(masks.items())), dict(sorted(bandwidth.items()))


def exclusive(actual: Actual | None, name: str | None, domains: Sequence[int]) -> bool:
    """Tell whether no other group, root's and foreign ones included, may use the L3 ways of a group.

    :param actual: the groups as they are, None where nothing is mounted
    :param domains: L3 domains of the server's CPUs
    """
    group = actual.get(name) if actual and name else None
    if actual is None or group is None:
        return False
    return not any(
        values.get(domain, 0) & other.schemata.get(resource, {}).get(domain, 0)
        for other in actual.groups
        if other.name != name
        for resource, values in group.schemata.items()
        if resource.startswith("L3")
        for domain in domains
    )


def _row(
    guest: Guest, topology: HostTopology, groups: _Groups, reasons: Sequence[str]
) -> dict[str, Any]:
    workload = guest.workload
    pinned = guest.vcpu_cpus
    every = frozenset[int]().union(*pinned.values()) if pinned else frozenset[int]()
    online = every & frozenset(topology.cpus)
    domains = sorted({l3 for cpu in online if (l3 := topology.l3_of_cpu(cpu)) is not None})
    threads = guest.process.threads if guest.process else ()
    held = Counter(group for t in threads if (group := groups.of(t.tid)) is not None)
    of_vcpus = {groups.of(thread.tid) for thread in threads if thread.role == Role.VCPU}
    group = of_vcpus.pop() if len(of_vcpus) == 1 else None
    masks, bandwidth = groups.values(group, domains) if group is not None else ({}, {})
    critical = workload.tier is Tier.LC
    why = str(workload.unmanaged) if workload.unmanaged else "; ".join(reasons)
    return {
        "server": workload.title,
        "uuid": guest.uuid,
        "flavor": workload.flavor,
        "tier": workload.tier.value if workload.tier else None,
        "state": workload.activity.value,
        "managed": workload.request is not None,
        "nodes": sorted({topology.node_of_cpu(cpu) for cpu in online}),
        "cpus": {vcpu: cpus.text(chosen) for vcpu, chosen in sorted(pinned.items())},
        "memory": {node: round(share, 4) for node, share in guest.memory_shares.items()},
        "memory_mb": {node: round(mb) for node, mb in sorted(guest.resident_mb.items())},
        "rdt_group": "(root)" if group == ROOT_GROUP else group,
        "l3_mask": masks,
        "exclusive": exclusive(groups.actual, group, domains) if critical else None,
        "mba": bandwidth,
        "threads": {name or "(root)": number for name, number in sorted(held.items())},
        "gpus": guest.gpu_rows,
        "problem": guest.problem or workload.problem,
        "why": why,
    }


# -- journal -----------------------------------------------------------------------------------------------------------


def entries(conf: agent_conf.Conf, server: str | None = None) -> list[dict[str, Any]]:
    """Return the journal, oldest first; of one server (UUID or name) where one is named."""
    found = list(read(agent_conf.paths(conf).journal))
    if server is None:
        return found
    return [entry for entry in found if server in (entry.get("server"), entry.get("title"))]


def last_decisions(conf: agent_conf.Conf) -> dict[str, tuple[str, ...]]:
    """Return the reasons of the newest decision about each server."""
    return {
        entry["server"]: tuple(entry.get("reasons", ()))
        for entry in entries(conf)
        if entry.get("action") == "decide" and "server" in entry
    }


def explain(conf: agent_conf.Conf, server: str) -> dict[str, Any]:
    """Return the newest decision about a server and what was done since.

    A server that the journal does not know is looked at instead: key ``now`` is its row of :func:`status`, whose
    ``why`` and ``problem`` say why it is left alone.

    :param server: UUID or name
    """
    found = entries(conf, server)
    newest = max(
        (index for index, entry in enumerate(found) if entry.get("action") == "decide"),
        default=None,
    )
    if newest is None:
        rows = () if found else status(conf)
        now = next((row for row in rows if server in (row["uuid"], row["server"])), None)
        return {"server": server, "decision": None, "actions": found, "now": now}
    told = qos_store.load(agent_conf.paths(conf).slo).told
    slo = qos_store.of_server(told, found[newest].get("server", ""))
    return {
        "server": server,
        "decision": found[newest],
        "actions": found[newest + 1 :],
        **({"slo": slo} if slo else {}),
    }


def told(story: Mapping[str, Any]) -> str:
    """Return what :func:`explain` found, for a reader."""
    lines = []
    decision = story["decision"]
    if decision:
        lines.append(f"{decision.get('title') or decision['server']}, decided {decision['time']}:")
        lines += [f"  {key}: {_cell(value)}" for key, value in decision.get("what", {}).items()]
        lines.append("because")
        lines += [f"  {reason}" for reason in decision.get("reasons", ())]
        lines += [f"  {decision['problem']}"] if decision.get("problem") else []
    if story.get("slo"):
        lines.append("bandwidth, as the agent last told")
        lines += [f"  {key}: {_cell(value)}" for key, value in story["slo"].items()]
    now = story.get("now")
    if now:
        lines.append(f"{now['server']}, never decided about, as it is now:")
        lines += [f"  {key}: {_cell(value)}" for key, value in now.items()]
    lines.append("then")
    lines += [f"  {line(entry)}" for entry in story["actions"]] or ["  nothing had to be done"]
    return "\n".join(lines) + "\n"


def line(entry: Mapping[str, Any]) -> str:
    """Return a journal entry in one line."""
    what = " ".join(f"{key}={_cell(value)}" for key, value in entry.get("what", {}).items())
    words = [
        entry.get("time", ""),
        entry.get("title") or entry.get("server") or "host",
        entry.get("action", ""),
        entry.get("result", ""),
        what,
        entry.get("problem", ""),
    ]
    return " ".join(filter(None, words))


_LOOK_S: Final = 0.1
_PATIENCE_ROUNDS: Final = 3
_NOT_BESIDE: Final = "it would make everything again; stop it, or run numa-host-agent-ctl pause"

# -- reset -------------------------------------------------------------------------------------------------------------


def reset(conf: agent_conf.Conf, *, dry_run: bool) -> list[dict[str, Any]]:
    """Undo what can be undone: RDT groups and masks, and the pins of floating servers.

    Pages stay where they are, for no place was theirs before. libvirt may be down: then pins stay, and it is said.

    :param dry_run: only say what would be done
    :raises ConflictError: an agent runs and is not paused: it would make everything again
    """
    paths = agent_conf.paths(conf)
    if dry_run:
        return _reset(conf, paths, dry_run=True)
    with _no_agent_writes(conf, paths):
        return _reset(conf, paths, dry_run=False)


def release(conf: agent_conf.Conf, *, dry_run: bool) -> list[dict[str, Any]]:
    """Take all throttles of best-effort servers off; masks, pins and pages stay.

    :param dry_run: only say what would be done
    :raises ConflictError: an agent runs and is not paused: it would make everything again
    """
    paths = agent_conf.paths(conf)
    if dry_run:
        return _release(conf, paths, dry_run=True)
    with _no_agent_writes(conf, paths):
        return _release(conf, paths, dry_run=False)


@contextmanager
def _no_agent_writes(conf: agent_conf.Conf, paths: HostPaths) -> Iterator[None]:
    """Wait for a paused agent to come to rest, or keep any other from starting meanwhile.

    :raises ConflictError: an agent runs and is not paused
    """
    if paths.paused.exists():
        _come_to_rest(conf, paths)
        yield
        return
    paths.state.mkdir(parents=True, exist_ok=True, mode=0o750)
    with only_one(paths.lock, _NOT_BESIDE):
        yield


def _come_to_rest(conf: agent_conf.Conf, paths: HostPaths) -> None:
    """Wait until an agent that was just paused writes nothing any more: it would undo what is done here."""
    if not (conf.slo.enabled and paths.slo.exists() and _runs(paths)):
        return
    end = time.monotonic() + _PATIENCE_ROUNDS * conf.agent.interval_s
    while qos_store.load(paths.slo).told.get("phase") != qos_store.PAUSED:
        if time.monotonic() >= end:
            LOG.warning("the agent has not noticed the pause yet and may undo this")
            return
        time.sleep(_LOOK_S)


def _runs(paths: HostPaths) -> bool:
    try:
        with only_one(paths.lock, _NOT_BESIDE):
            return False
    except ConflictError:
        return True


def _release(conf: agent_conf.Conf, paths: HostPaths, *, dry_run: bool) -> list[dict[str, Any]]:
    privileged = open_seam(paths, conf, dry_run=dry_run)
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


def _note(conf: agent_conf.Conf, action: str, result: Result, rows: list[dict[str, Any]]) -> None:
    journal = assembly.open_journal(conf)
    journal.write(Entry(action, result, what={"rows": rows}))
    journal.close()


def _reset(conf: agent_conf.Conf, paths: HostPaths, *, dry_run: bool) -> list[dict[str, Any]]:
    privileged = open_seam(paths, conf, dry_run=dry_run)
    result = Result.WOULD if dry_run else Result.DONE
    rows = _written(privileged.release_throttles, "throttle", result)
    rows += _written(privileged.reset_partitions, "rdt", result)
    source = LibvirtSource(conf.libvirt_host.uri)
    try:
        observer = assembly.build_observer(conf, source, privileged)
        observation = observer.observe(full=True, relist=True)
    except NumaExtError as error:
        rows.append({"what": "pins", "result": "failed", "detail": str(error)})
    else:
        online = frozenset(observation.topology.cpus)
        for guest in observation.guests:
            rows += _unpin(guest, online, privileged, str(result))
    source.close()
    if not dry_run:
        _note(conf, "reset", result, rows)
    return rows


def _unpin(
    guest: Guest, online: frozenset[int], privileged: Any, result: str
) -> list[dict[str, Any]]:
    """Give a floating server's vCPU threads all CPUs that nova lets them share."""
    allowed = guest.workload.domain.vcpu_cpuset
    free = online if allowed is None else allowed & online
    if guest.process is None or not guest.workload.floating:
        return []
    pins = [
        Pin(thread.tid, cpus.text(free))
        for thread in guest.process.threads
        if thread.role == Role.VCPU and cpus.parse(thread.cpus) != free
    ]
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


# -- tables ------------------------------------------------------------------------------------------------------------


def brief(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of :func:`status` for a terminal: without long columns and those that are empty everywhere."""
    kept = [
        column
        for column in (rows[0] if rows else ())
        if column not in _LONG_COLUMNS and any(_cell(row[column]) != "-" for row in rows)
    ]
    return [{column: row[column] for column in kept} for row in rows]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a table with aligned columns; the columns of the first row."""
    if not rows:
        return "nothing\n"
    columns = list(rows[0])
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(text) for text in column) for column in zip(columns, *cells, strict=True)]
    lines = [columns, ["-" * width for width in widths], *cells]
    return "".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        + "\n"
        for row in lines
    )


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, Mapping) and set(value) == {"address", "node"}:
        return f"{value['address']}@{_cell(value['node'])}"
    if isinstance(value, Mapping):
        return " ".join(f"{key}:{_cell(item)}" for key, item in value.items()) or "-"
    if isinstance(value, (list, tuple, set, frozenset)):
        return ",".join(map(_cell, value)) or "-"
    return str(value)
