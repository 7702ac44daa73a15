# SPDX-License-Identifier: Apache-2.0
"""The way from the RDT groups there are to those there should be, as ordered commands. Pure."""

from collections.abc import Mapping, Sequence

from host_agent.decide.partitions.layout import steps
from host_agent.decide.partitions.plan import GroupPlan, PartitionPlan, vm_monitor
from host_agent.model.partition import Write, WriteKind, schemata_write
from host_agent.model.rdt import ROOT_GROUP, Actual, GroupState, Schemata


def changes(actual: Actual, desired: PartitionPlan) -> tuple[Write, ...]:
    """List the commands that lead from what is to what should be, and nothing that is already so.

    Order: move threads out of what goes, remove (frees CLOSIDs), create, take ways and bandwidth away from those who
    share, move LCs one by one (never two of them overlap, none ever has less than the smaller of its old and new
    amount), give the rest to those who share, monitor. A new group's default mask counts for nothing, for no thread is
    in it yet.
    """
    planned = {group.name: group for group in desired.groups}
    writes: list[Write] = []
    now: dict[str, dict[str, dict[int, int]]] = {}
    for state in actual.groups:
        writes += _evacuations(state, actual, desired)
        if state.ours and state.name not in planned:
            writes.append(Write(WriteKind.REMOVE_GROUP, state.name))
            continue
        keep = planned[state.name].monitors if state.ours else ()
        if state.ours or state.name == ROOT_GROUP:
            gone = [monitor for monitor in state.our_monitors if monitor not in keep]
            writes += [Write(WriteKind.REMOVE_MONITOR, state.name, monitor) for monitor in gone]
            now[state.name] = {name: dict(values) for name, values in state.schemata.items()}
    existing = set(now)
    for name in planned.keys() - existing:
        now[name] = {}
    writes += [Write(WriteKind.CREATE_GROUP, name) for name in sorted(planned.keys() - existing)]

    targets = {ROOT_GROUP: GroupPlan(ROOT_GROUP, desired.root), **dict(sorted(planned.items()))}
    for name, group in targets.items():
        if name in existing:
            writes += _write(now, name, _narrowed(now[name], group, desired.anchors))
    for domain, anchor in desired.anchors.items():
        writes += _lc_moves(
            now, [g for g in desired.groups if domain in g.exclusive], domain, anchor
        )
    for name, group in targets.items():
        writes += _write(now, name, group.schemata)
    for name, group in sorted(planned.items()):
        state_now = actual.get(name)
        have = state_now.monitors if state_now else ()
        writes += [
            Write(WriteKind.CREATE_MONITOR, name, m) for m in group.monitors if m not in have
        ]
    return tuple(writes)


def _evacuations(state: GroupState, actual: Actual, desired: PartitionPlan) -> list[Write]:
    """Move the threads of each server that does not stay in a group before its monitoring group, or all of it, goes.

    They go straight to the server's other class if that is there, else they would run in root without a limit
    meanwhile; and to root when the server is not managed any more, else they would stay in a class that is others' now.
    Without a monitoring group (too few RMIDs) it is not known which threads are whose: then a class that goes leaves
    its threads in root until the agent moves them, and a server that is let go stays in a class that others keep.
    """
    group_of = {vm_monitor(place.uuid): place.group for place in desired.places}
    there = {group.name for group in actual.groups}
    writes = []
    for monitor in state.our_monitors if state.ours else ():
        target = group_of.get(monitor, ROOT_GROUP)
        if target != state.name and target in there:
            writes.append(Write(WriteKind.MOVE_THREADS, state.name, monitor, target=target))
    return writes


def _write(now: dict[str, dict[str, dict[int, int]]], group: str, target: Schemata) -> list[Write]:
    """Return the write of what differs, and take it as done in ``now``."""
    have = now[group]
    write = schemata_write(group, have, target)
    for name, values in write.schemata.items() if write else ():
        have.setdefault(name, {}).update(values)
    return [write] if write else []


def _narrowed(old: Schemata, group: GroupPlan, anchors: Mapping[int, int]) -> Schemata:
    """Return what a group that shares must give up first: ways outside its new mask, bandwidth above its new level."""
    result: dict[str, dict[int, int]] = {}
    for name, values in group.schemata.items():
        if name.startswith("L2"):  # no group is shrunk there
            continue
        for domain, new in values.items():
            before = old.get(name, {}).get(domain)
            if before is None or (domain in group.exclusive and name != "MB"):
                continue
            if name == "MB":
                narrow = min(before, new)
            else:
                both = before & new
                anchor = anchors[domain]
                narrow = both if both in (before, new) or both & anchor == anchor else anchor
            result.setdefault(name, {})[domain] = narrow
    return result


def _lc_moves(
    now: dict[str, dict[str, dict[int, int]]], lcs: Sequence[GroupPlan], domain: int, anchor: int
) -> list[Write]:
    caches = [name for name in (lcs[0].schemata if lcs else {}) if name.startswith("L3")]
    target = {group.name: group.schemata[caches[0]][domain] for group in lcs}
    current = {
        name: mask
        for name in target
        if (mask := now[name].get(caches[0], {}).get(domain, 0)) and not mask & anchor
    }
    order = steps(current, target)
    if order is None:
        # Other software made LCs overlap; then no order is better than another.
        order = sorted(target)
    return [
        write
        for name in order
        for write in _write(now, name, {cache: {domain: target[name]} for cache in caches})
    ]
