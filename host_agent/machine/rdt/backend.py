# SPDX-License-Identifier: Apache-2.0
"""The resctrl tree of this host, by the backend that the operator has chosen; reading it needs no rights."""

from contextlib import suppress

from host_agent.conf.paths import HostPaths
from host_agent.machine.rdt.errors import ResctrlError, ResctrlGoneError
from host_agent.machine.rdt.files import OsFiles
from host_agent.machine.rdt.pqos import PqosFiles
from host_agent.machine.rdt.resctrl import Resctrl
from host_agent.model.rdt import GROUP_PREFIX, ROOT_GROUP


def tree(paths: HostPaths) -> Resctrl:
    """Return the resctrl tree of a host.

    libpqos is started by the first change, so looking needs neither it nor rights.
    """
    pqos = paths.rdt_backend == "pqos"
    files = PqosFiles(paths.helper_state, paths.proc) if pqos else OsFiles(str(paths.resctrl))
    return Resctrl(files, full_mbps=paths.full_bandwidth_mbps)


def foreign_groups(resctrl: Resctrl) -> tuple[str, ...]:
    """Return the control groups of other software, none where nothing is mounted; each holds a class of service."""
    try:
        names = resctrl.control_groups()
    except ResctrlError:
        return ()
    return tuple(n for n in names if n != ROOT_GROUP and not n.startswith(GROUP_PREFIX))


def our_threads(resctrl: Resctrl) -> frozenset[int]:
    """Return the threads in control groups of ours; a group that goes meanwhile has none."""
    if not resctrl.available():
        return frozenset()
    found: set[int] = set()
    for group in resctrl.control_groups():
        if group.startswith(GROUP_PREFIX):
            with suppress(ResctrlGoneError):
                found |= resctrl.tasks(group)
    return frozenset(found)
