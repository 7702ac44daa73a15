# SPDX-License-Identifier: Apache-2.0
"""Which writes the privileged side carries out: what it is asked for is checked before the first of them. Pure.

The planner has no rights, and what it planned for may have changed since. A change passes when the groups are still
those that it was planned for, when it touches nothing but root's masks and groups of ours, and when every value is one
that this host's kernel takes. Memory bandwidth levels are not compared: the bandwidth controller writes them meanwhile.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from host_agent.machine.rdt.errors import RdtChangedError
from host_agent.model.partition import RdtChange, Write, WriteKind
from host_agent.model.rdt import (
    GROUP_PREFIX,
    ROOT_GROUP,
    SHAREABLE_MODE,
    Actual,
    Capabilities,
    GroupState,
    Schemata,
    is_bandwidth,
    validate,
    validate_budget,
)
from placement_traits.errors import ConflictError, InvalidValueError

_OURS: Final = f"root, or a group whose name starts with {GROUP_PREFIX!r}"


def check(capabilities: Capabilities, actual: Actual, change: RdtChange) -> None:
    """Refuse a change that must not or cannot be carried out, as a whole.

    :raises RdtChangedError: the groups are not those any more that it was planned for
    :raises InvalidValueError: names group, domain, value and what is allowed
    """
    refuse_outdated(change.seen, actual)
    validate(capabilities, ROOT_GROUP, change.root_found)
    now = actual
    for write in change.writes:
        validate(capabilities, write.group, write.schemata)
        now = after(now, write)
    control = [group for group in now.groups if group.name != ROOT_GROUP]
    validate_budget(capabilities, len(control), sum(len(group.monitors) for group in now.groups))
    for member in change.members:
        _ours(member.group, member.monitor)


def refuse_outdated(seen: Actual, now: Actual) -> None:
    """Refuse to go on when groups, modes or masks are not those that were seen.

    :raises RdtChangedError: says what differs
    """
    found = list(differences(seen, now))
    if found:
        raise RdtChangedError("RDT groups have changed since they were read: " + "; ".join(found))


def differences(seen: Actual, now: Actual, *, levels: bool = False) -> Iterator[str]:
    """Yield what differs, one sentence each; values that were not seen count as equal.

    :param levels: compare bandwidth levels, too
    """
    before = {group.name: group for group in seen.groups}
    there = {group.name: group for group in now.groups}
    for name in sorted(before.keys() ^ there.keys()):
        yield f"group {name} has {'gone' if name in before else 'appeared'}"
    for name in sorted(before.keys() & there.keys()):
        yield from _different_group(before[name], there[name], levels=levels)


def _different_group(seen: GroupState, now: GroupState, *, levels: bool) -> Iterator[str]:
    name = seen.name or "(root)"
    if seen.mode != now.mode:
        yield f"group {name} is {now.mode}, not {seen.mode}"
    for monitor in sorted(set(seen.monitors) ^ set(now.monitors)):
        what = "gone" if monitor in seen.monitors else "appeared"
        yield f"monitoring group {name}/{monitor} has {what}"
    for resource, values in seen.schemata.items():
        if is_bandwidth(resource) and not levels:
            continue
        style = "d" if is_bandwidth(resource) else "x"
        for domain, value in values.items():
            there = now.schemata.get(resource, {}).get(domain)
            if there != value:
                has = "nothing" if there is None else f"{there:{style}}"
                yield f"group {name} has {resource}:{domain}={has}, not {value:{style}}"


def after(now: Actual, write: Write) -> Actual:
    """Return the groups as a write leaves them; of a new group only what was written to it is known.

    :raises InvalidValueError: it touches what is not ours, or what is not there
    :raises RdtChangedError: it was planned for another value
    """
    _ours(write.group, write.monitor)
    groups = {group.name: group for group in now.groups}
    if write.kind is WriteKind.CREATE_GROUP:
        _expect(write, write.group not in groups, "a group that is not there yet")
        return Actual((*now.groups, GroupState(write.group, SHAREABLE_MODE, {})))
    _expect(write, write.group in groups, "a group that is there")
    group = groups[write.group]
    match write.kind:
        case WriteKind.REMOVE_GROUP:
            _expect(write, write.group != ROOT_GROUP, "a group of ours")
            return Actual(tuple(each for each in now.groups if each is not group))
        case WriteKind.SCHEMATA:
            groups[group.name] = replace(group, schemata=_written(group, write))
        case WriteKind.MOVE_THREADS:
            _ours(write.target)
            _expect(write, write.monitor in group.monitors, "a monitoring group that is there")
            _expect(write, write.target in groups, "a target that is there")
        case WriteKind.CREATE_MONITOR:
            _expect(write, write.monitor not in group.monitors, "one that is not there yet")
            groups[group.name] = replace(group, monitors=(*group.monitors, write.monitor))
        case WriteKind.REMOVE_MONITOR:
            _expect(write, write.monitor in group.monitors, "a monitoring group that is there")
            left = tuple(monitor for monitor in group.monitors if monitor != write.monitor)
            groups[group.name] = replace(group, monitors=left)
    return Actual(tuple(groups.values()))


def _written(group: GroupState, write: Write) -> Schemata:
    if write.group == ROOT_GROUP:
        levels = [resource for resource in write.schemata if is_bandwidth(resource)]
        _expect(write, not levels, "root's masks only: its bandwidth is the host's")
    planned_for = GroupState(group.name, group.mode, write.before, group.monitors)
    for sentence in _different_group(planned_for, group, levels=False):
        raise RdtChangedError(f"{write} was planned for another value: {sentence}")
    names = sorted(group.schemata.keys() | write.schemata.keys())
    return {
        name: {**group.schemata.get(name, {}), **write.schemata.get(name, {})} for name in names
    }


def _ours(group: str, monitor: str = "") -> None:
    for name in filter(None, (group, monitor)):
        if not name.startswith(GROUP_PREFIX) or "/" in name:
            raise InvalidValueError("RDT group to change", name, _OURS)


def _expect(write: Write, fits: bool, allowed: str) -> None:
    if not fits:
        raise InvalidValueError("write to resctrl", str(write), allowed)


def refuse_lost(wanted: Actual, now: Actual) -> None:
    """Refuse to call done what is not there: groups of ours and root, levels too, for the lock is held meanwhile.

    :raises ConflictError: says what differs
    """
    lost = list(differences(_own(wanted), _own(now), levels=True))
    if lost:
        raise ConflictError("resctrl did not keep what was written: " + "; ".join(lost))


def _own(actual: Actual) -> Actual:
    groups = (actual.root, *actual.ours)
    return Actual(tuple(replace(group, monitors=group.our_monitors) for group in groups))
