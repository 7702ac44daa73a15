# SPDX-License-Identifier: Apache-2.0
"""The privileged operations on RDT groups: what there is is read, checked changes are carried out.

Plans are made without rights (:mod:`host_agent.decide.partitions`). A server is named by its UUID, and its threads are
found here. Every thread of its process belongs into its group, emulator, IO and vhost threads too: they touch the same
data for the same server, and a thread left in root would fill the ways that root shares with all.
"""

from collections.abc import Sequence

from host_agent.conf.paths import HostPaths
from host_agent.machine.privileged import processes
from host_agent.machine.privileged.dead_man_switch import DeadManSwitch
from host_agent.machine.privileged.kernel_threads import KernelThreads
from host_agent.machine.privileged.libvirt_state import LibvirtState
from host_agent.machine.privileged.table import reads, writes, writes_if_asked
from host_agent.machine.rdt.backend import tree
from host_agent.machine.rdt.errors import ResctrlUnavailableError
from host_agent.machine.rdt.pqos import PqosFiles
from host_agent.machine.rdt.resctrl import Resctrl
from host_agent.machine.rdt.root_masks import RootMemory
from host_agent.machine.rdt.writer import GroupWriter
from host_agent.model.partition import Joined, Membership, RdtChange, RdtState
from host_agent.model.process import GroupLevel
from placement_traits.errors import NumaExtError


def _writer(paths: HostPaths, resctrl: Resctrl) -> GroupWriter:
    return GroupWriter(resctrl, proc=str(paths.proc))


class RdtOperations:
    """The operations on RDT groups: the part of :class:`~.operations.HostOperations` that knows resctrl.

    :param paths: where the host's files are

    :ivar dead_man_switch: takes throttles off behind an agent that is gone; None where nothing outlives the agent
    """

    def __init__(self, paths: HostPaths) -> None:
        self._paths = paths
        self._libvirt = LibvirtState(paths.pid_dir)
        self._kernel_threads = KernelThreads(paths.proc)
        self.dead_man_switch: DeadManSwitch | None = None

    @reads
    def rdt_state(self) -> RdtState:
        """Read what planning needs to know: capabilities, groups, and root's masks as found.

        :raises ResctrlUnavailableError: nothing is mounted
        """
        resctrl = tree(self._paths)
        found = RootMemory(self._paths.helper_state, self._paths.proc).recall()
        return RdtState(resctrl.capabilities(), resctrl.actual(), found)

    @writes_if_asked
    def apply_partitions(self, change: RdtChange, write: bool) -> tuple[Joined, ...]:
        """Check a change, carry it out, and move the threads of servers to their groups.

        :param write: false: check, and say which threads would be moved
        :returns: one entry per membership; a problem instead of an error, so that one server's never hides another's
        :raises RdtChangedError: the groups are not those any more that it was planned for; read and plan again
        :raises InvalidValueError: it is not legal on this host; nothing was written
        :raises ResctrlError: the kernel refused a command
        :raises ConflictError: what was read back is not what was written
        """
        writer = _writer(self._paths, tree(self._paths))
        writer.check(change)
        if write:
            memory = RootMemory(self._paths.helper_state, self._paths.proc)
            memory.keep_both(memory.recall() or {}, change.root_found)
            writer.carry_out(change)
            memory.keep(change.root_found)
        joined = tuple(self._join(writer, member, write) for member in change.members)
        self._watch(write)
        return joined

    def _join(self, writer: GroupWriter, member: Membership, write: bool) -> Joined:
        try:
            with processes.opened(self._paths, member.uuid, self._libvirt) as domain:
                outside = self._kernel_threads.of(domain.pid)
                result = writer.move_process(
                    member.group, member.monitor, domain.pid, outside, write=write
                )
        except (NumaExtError, OSError) as error:
            return Joined(member.uuid, 0, str(error))
        return Joined(member.uuid, len(result.moved))

    @writes(lambda levels: ("",) * len(levels))
    def throttle(self, levels: Sequence[GroupLevel]) -> tuple[str, ...]:
        """Write bandwidth levels of groups; see :meth:`host_agent.machine.rdt.resctrl.Resctrl.set_levels`."""
        problems = tree(self._paths).set_levels(levels)
        self._watch(True)
        return problems

    def _watch(self, written: bool) -> None:
        """No throttle without the switch, not even one that was asked for by an agent that has gone meanwhile."""
        if written and self.dead_man_switch is not None:
            self.dead_man_switch.throttled()

    @writes_if_asked
    def reset_partitions(self, write: bool) -> tuple[str, ...]:
        """Remove all our groups and give root back what it was found with, all ways where that is not known any more.

        :returns: the commands, none where no resctrl is mounted
        :raises ResctrlError: the kernel refused one
        """
        memory = RootMemory(self._paths.helper_state, self._paths.proc)
        try:
            done = _writer(self._paths, tree(self._paths)).reset(memory.recall(), write=write)
        except ResctrlUnavailableError:
            return ()
        if write:
            memory.keep({})
            if self._paths.rdt_backend == "pqos":
                PqosFiles(self._paths.helper_state, self._paths.proc).give_up()
        return tuple(map(str, done))


def release(paths: HostPaths, write: bool) -> tuple[str, ...]:
    """Give all our groups all memory bandwidth; masks and threads stay.

    :returns: the commands, none where no resctrl is mounted
    :raises ResctrlError: the kernel refused one
    """
    try:
        done = _writer(paths, tree(paths)).release_bandwidth(write=write)
    except ResctrlUnavailableError:
        return ()
    return tuple(map(str, done))
