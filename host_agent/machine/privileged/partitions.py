# SPDX-License-Identifier: Apache-2.0
"""Resource control on the privileged side: what there is is read, checked changes are carried out.

Plans are made without rights (:mod:`host_agent.decide.partitions`). A server is named by its UUID, and its threads are
found here. Every thread of its process belongs into its group, emulator, IO and vhost threads too: they touch the same
data for the same server, and a thread left in root would fill the ways that root shares with all.
"""

from collections.abc import Callable, Collection, Sequence

from host_agent.conf.paths import HostPaths
from host_agent.machine.privileged import processes
from host_agent.machine.privileged.libvirt_state import LibvirtState
from host_agent.machine.rdt.backend import tree
from host_agent.machine.rdt.errors import ResctrlUnavailableError
from host_agent.machine.rdt.pqos import PqosFiles
from host_agent.machine.rdt.resctrl import Resctrl
from host_agent.machine.rdt.root_masks import RootMemory
from host_agent.machine.rdt.writer import GroupWriter
from host_agent.model.partition import Joined, Membership, RdtChange, RdtState
from host_agent.model.process import GroupLevel
from placement_traits.errors import NumaExtError

OutsideThreads = Callable[[int], Collection[int]]


def _writer(paths: HostPaths, resctrl: Resctrl) -> GroupWriter:
    return GroupWriter(resctrl, proc=str(paths.proc))


def state(paths: HostPaths) -> RdtState:
    """Read what planning needs to know.

    :raises ResctrlUnavailableError: nothing is mounted
    """
    resctrl = tree(paths)
    found = RootMemory(paths.helper_state, paths.proc).recall()
    return RdtState(resctrl.capabilities(), resctrl.actual(), found)


def apply(
    paths: HostPaths,
    change: RdtChange,
    write: bool,
    *,
    libvirt: LibvirtState | None = None,
    outside: OutsideThreads = lambda _pid: (),
) -> tuple[Joined, ...]:
    """Check a change, carry it out, and move the threads of servers to their groups.

    :param write: false: check, and say which threads would be moved
    :param libvirt: see :func:`host_agent.machine.privileged.processes.opened`
    :param outside: threads outside a process that work for it
    :returns: one entry per membership; a problem instead of an error, so that one server's never hides another's
    :raises RdtChangedError: the groups are not those any more that it was planned for; read and plan again
    :raises InvalidValueError: it is not legal on this host; nothing was written
    :raises ResctrlError: the kernel refused a command
    :raises ConflictError: what was read back is not what was written
    """
    writer = _writer(paths, tree(paths))
    writer.check(change)
    if write:
        memory = RootMemory(paths.helper_state, paths.proc)
        memory.keep_both(memory.recall() or {}, change.root_found)
        writer.carry_out(change)
        memory.keep(change.root_found)
    libvirt = libvirt or LibvirtState(paths.pid_dir)
    return tuple(
        _join(paths, writer, member, write, libvirt=libvirt, outside=outside)
        for member in change.members
    )


def _join(
    paths: HostPaths,
    writer: GroupWriter,
    member: Membership,
    write: bool,
    *,
    libvirt: LibvirtState,
    outside: OutsideThreads,
) -> Joined:
    try:
        with processes.opened(paths, member.uuid, libvirt) as domain:
            result = writer.move_process(
                member.group, member.monitor, domain.pid, outside(domain.pid), write=write
            )
    except (NumaExtError, OSError) as error:
        return Joined(member.uuid, 0, str(error))
    return Joined(member.uuid, len(result.moved))


def throttle(paths: HostPaths, levels: Sequence[GroupLevel]) -> tuple[str, ...]:
    """Write bandwidth levels of groups on this host; see :meth:`host_agent.machine.rdt.resctrl.Resctrl.set_levels`."""
    return tree(paths).set_levels(levels)


def release(paths: HostPaths, write: bool) -> tuple[str, ...]:
    """Give all our groups all memory bandwidth; masks and threads stay.

    :returns: the commands, none where no resctrl is mounted
    :raises ResctrlError: the kernel refused one
    """
    try:
        writes = _writer(paths, tree(paths)).release_bandwidth(write=write)
    except ResctrlUnavailableError:
        return ()
    return tuple(map(str, writes))


def reset(paths: HostPaths, write: bool) -> tuple[str, ...]:
    """Remove all our groups and give root back what it was found with, all ways where that is not known any more.

    :returns: the commands, none where no resctrl is mounted
    :raises ResctrlError: the kernel refused one
    """
    memory = RootMemory(paths.helper_state, paths.proc)
    try:
        writes = _writer(paths, tree(paths)).reset(memory.recall(), write=write)
    except ResctrlUnavailableError:
        return ()
    if write:
        memory.keep({})
        if paths.rdt_backend == "pqos":
            PqosFiles(paths.helper_state, paths.proc).give_up()
    return tuple(map(str, writes))
