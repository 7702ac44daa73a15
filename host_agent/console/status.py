# SPDX-License-Identifier: Apache-2.0
"""Where each server is, read from libvirt and the kernel now."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any, Final

from host_agent.conf.configuration import Configuration
from host_agent.console.history import last_decisions
from host_agent.console.text import NOTHING, cell, known
from host_agent.control import rollout_store, slo_store
from host_agent.control.assembly.observer import build_observer
from host_agent.machine.libvirt import LibvirtSource
from host_agent.machine.privileged.seam import open_seam
from host_agent.machine.rdt.backend import tree
from host_agent.machine.rdt.errors import ResctrlError
from host_agent.machine.rdt.reader import ResctrlReader
from host_agent.model import cpus
from host_agent.model.assignment import Guest
from host_agent.model.process import Role
from host_agent.model.rdt import ROOT_GROUP, Actual, is_bandwidth
from host_agent.model.workload import Unmanaged
from host_agent.report import costs_store
from placement_traits.names import Tier
from placement_traits.topology import HostTopology

_LONG_COLUMNS: Final = frozenset({"uuid", "managed", "memory_mb", "threads", "why"})


def status(conf: Configuration) -> list[dict[str, Any]]:
    """Return one row per server, read from libvirt and the kernel now.

    :raises ServiceUnavailableError: libvirt does not answer
    """
    paths = conf.paths
    with closing(LibvirtSource(conf.libvirt_host.uri, conf.libvirt_host.timeout_s)) as source:
        privileged = open_seam(conf, dry_run=True)
        observer = build_observer(conf, source, privileged, read_all=True)
        observation = observer.observe(full=True, relist=True)
    groups = _Groups(tree(paths))
    reasons = last_decisions(conf)
    report = slo_store.load(paths.slo).report
    kept = rollout_store.store(paths.rollout).load()
    paid = costs_store.store(paths.costs).load() or {}
    return [
        _row(guest, observation.topology, groups, reasons.get(guest.uuid, ()))
        | {"slo": slo_store.of_server(report, guest.uuid), "control": _control(guest, kept)}
        | {"withheld": _withheld(paid.get(guest.uuid))}
        for guest in sorted(observation.guests, key=lambda found: found.workload.title)
    ]


class _Groups:
    """Which group holds a thread, and what the group has; one reading of the tree."""

    def __init__(self, resctrl: ResctrlReader) -> None:
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


def _control(guest: Guest, kept: rollout_store.RolloutState | None) -> str | None:
    """Return what the agent does for a server, as it kept it last; None where it does nothing."""
    if guest.workload.unmanaged is Unmanaged.DENIED:
        return "denied"
    if kept is None or guest.workload.request is None:
        return None
    return "waits" if guest.uuid in kept.waiting else kept.text


def _withheld(cost: costs_store.Cost | None) -> str | None:
    """Return the part of its bandwidth that throttling has withheld since the agent's start; None where none was."""
    return f"{cost.withheld_percent:.1f} %" if cost is not None and cost.withheld_s else None


def brief(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of :func:`status` for a terminal: without long columns, and without what is empty."""
    kept = [
        column
        for column in (rows[0] if rows else ())
        if column not in _LONG_COLUMNS and any(cell(row[column]) != NOTHING for row in rows)
    ]
    return [{column: _known(row[column]) for column in kept} for row in rows]


def _known(value: Any) -> Any:
    return known(value) if isinstance(value, Mapping) else value
