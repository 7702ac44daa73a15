# SPDX-License-Identifier: Apache-2.0
"""Glue from the agent's wishes to the RDT plan and its executor, on the privileged side.

The plan is made here, next to the kernel's state it is made of; only wishes come in and only what was written goes out.
Every thread of a server's process belongs into its group, emulator, IO and vhost threads too: they touch the same data
for the same server, and a thread left in root would fill the ways that root shares with everybody.
"""

from collections.abc import Sequence

from host_agent.conf.paths import HostPaths
from host_agent.decide.partitions.plan import (
    PartitionPlan,
    PartitionSettings,
    VmPartition,
    plan,
)
from host_agent.machine.privileged import processes
from host_agent.machine.rdt.errors import ResctrlError, ResctrlUnavailableError
from host_agent.machine.rdt.files import OsFiles
from host_agent.machine.rdt.pqos import PqosFiles
from host_agent.machine.rdt.resctrl import Resctrl
from host_agent.machine.rdt.root_masks import RootMemory
from host_agent.machine.rdt.writer import DryRun, Executor, RdtActuator
from host_agent.model.partition import PartitionPlace, PartitionRequest
from host_agent.model.process import GroupLevel, PartitionReport
from host_agent.model.rdt import GROUP_PREFIX, ROOT_GROUP, BandwidthControl, BandwidthUnit
from placement_traits.errors import NumaExtError


def tree(paths: HostPaths) -> Resctrl:
    """Return the resctrl tree of a host, by the backend that the operator has chosen.

    libpqos is started by the first change, so looking needs neither it nor rights.
    """
    if paths.rdt_backend == "pqos":
        return Resctrl(PqosFiles(paths.state, paths.proc))
    return Resctrl(OsFiles(str(paths.resctrl)))


def _actuator(paths: HostPaths, resctrl: Resctrl, write: bool) -> RdtActuator:
    proc = str(paths.proc)
    return Executor(resctrl, proc=proc) if write else DryRun(resctrl, proc=proc)


def partition(
    paths: HostPaths,
    wishes: Sequence[PartitionRequest],
    shrink_root: bool,
    shared_ways_min: int,
    write: bool,
    *,
    known: processes.PidFiles | None = None,
) -> PartitionReport:
    """Make groups, masks and membership of threads what the wishes ask for; a second call writes nothing.

    :param shrink_root: take the LC servers' ways from the default group, too
    :param shared_ways_min: ways per L3 domain that stay shared
    :param write: false: only say what would be written
    :param known: see :func:`host_agent.machine.privileged.processes.opened`
    :returns: the commands and where each server is; a problem instead of an error, so that one server's never hides
        another's
    """
    resctrl = tree(paths)
    actuator = _actuator(paths, resctrl, write)
    memory = RootMemory(paths.state, paths.proc)
    settings = PartitionSettings(shrink_root=shrink_root, shared_ways_min=shared_ways_min)
    try:
        if not wishes and not resctrl.available():
            return PartitionReport((), (), "")
        found = memory.recall()
        decided = plan(resctrl.capabilities(), resctrl.actual(), wishes, settings, found=found)
        if write:
            memory.keep_both(found or {}, decided.found)
        writes = actuator.apply(decided)
        if write:
            memory.keep(decided.found)
    except (NumaExtError, OSError) as error:
        places = tuple(PartitionPlace(w.uuid, "", "", False, (), 0, str(error)) for w in wishes)
        return PartitionReport((), places, str(error))
    refused = {refusal.uuid: refusal.sentence for refusal in decided.refused}
    known = {} if known is None else known
    places = tuple(_place(paths, actuator, wish, decided, refused, known=known) for wish in wishes)
    return PartitionReport(tuple(map(str, writes)), places, "")


def _place(
    paths: HostPaths,
    actuator: RdtActuator,
    wish: PartitionRequest,
    decided: PartitionPlan,
    refused: dict[str, str],
    *,
    known: processes.PidFiles,
) -> PartitionPlace:
    vm = decided.get(wish.uuid)
    if vm is None:
        sentence = refused.get(wish.uuid, "it has no place in the plan")
        return PartitionPlace(wish.uuid, "", "", False, (), 0, sentence)
    moved, problem = (0, "") if not wish.running else _move(paths, actuator, vm, known)
    reasons = tuple(map(str, vm.reasons))
    return PartitionPlace(vm.uuid, vm.group, vm.monitor, vm.exclusive, reasons, moved, problem)


def _move(
    paths: HostPaths, actuator: RdtActuator, vm: VmPartition, known: processes.PidFiles
) -> tuple[int, str]:
    try:
        with processes.opened(paths, vm.uuid, known) as pid:
            outside = processes.kernel_vhost(paths, pid)
            result = actuator.move_process(vm.group, vm.monitor, pid, outside)
    except (ResctrlError, processes.ProcessGoneError) as error:
        return 0, str(error)
    return len(result.moved), ""


def throttle(paths: HostPaths, levels: Sequence[GroupLevel]) -> tuple[str, ...]:
    """Write bandwidth levels of groups on this host; see :func:`set_levels`."""
    return set_levels(tree(paths), levels)


def set_levels(resctrl: Resctrl, levels: Sequence[GroupLevel]) -> tuple[str, ...]:
    """Write bandwidth levels of groups and nothing else: the short way of a control loop.

    Only what differs is written, and read back. No group is made and no thread moved: that is :func:`partition`'s.

    :returns: one sentence per entry about what went wrong, "" where nothing did
    """
    try:
        with resctrl.lock():
            control = resctrl.bandwidth()
            if control is None or control.unit is BandwidthUnit.MBPS:
                return ("memory bandwidth is not allocated by us on this host",) * len(levels)
            return tuple(_set_level(resctrl, control, level) for level in levels)
    except (NumaExtError, OSError) as error:
        return (str(error),) * len(levels)


def _set_level(resctrl: Resctrl, control: BandwidthControl, level: GroupLevel) -> str:
    wanted = {domain: control.from_percent(percent) for domain, percent in level.mba_percent}
    try:
        now = resctrl.schemata(level.group).get("MB", {})
        differs = {domain: value for domain, value in wanted.items() if now.get(domain) != value}
        if not differs:
            return ""
        resctrl.write_schemata(level.group, {"MB": differs})
        kept = resctrl.schemata(level.group).get("MB", {})
    except (NumaExtError, OSError) as error:
        return str(error)
    lost = {
        domain: kept.get(domain) for domain, value in differs.items() if kept.get(domain) != value
    }
    return f"group {level.group} did not keep {differs}: it has {lost}" if lost else ""


def foreign_groups(paths: HostPaths) -> int:
    """Count the control groups of other software; each holds a class of service."""
    try:
        names = tree(paths).control_groups()
    except ResctrlError:
        return 0  # nothing is mounted
    return sum(not name.startswith(GROUP_PREFIX) for name in names if name != ROOT_GROUP)


def release(paths: HostPaths, write: bool) -> tuple[str, ...]:
    """Give all our groups all memory bandwidth; masks and threads stay.

    :returns: the commands, none where no resctrl is mounted
    :raises ResctrlError: the kernel refused one
    """
    try:
        writes = _actuator(paths, tree(paths), write).release_bandwidth()
    except ResctrlUnavailableError:
        return ()
    return tuple(map(str, writes))


def reset(paths: HostPaths, write: bool) -> tuple[str, ...]:
    """Remove all our groups and give root back what it was found with, all ways where that is not known any more.

    :returns: the commands, none where no resctrl is mounted
    :raises ResctrlError: the kernel refused one
    """
    memory = RootMemory(paths.state, paths.proc)
    try:
        writes = _actuator(paths, tree(paths), write).reset(memory.recall())
    except ResctrlUnavailableError:
        return ()
    if write:
        memory.keep({})
        if paths.rdt_backend == "pqos":
            PqosFiles(paths.state, paths.proc).give_up()
    return tuple(map(str, writes))
