# SPDX-License-Identifier: Apache-2.0
"""The resctrl tree of this host, by the backend that the operator has chosen; reading it needs no rights."""

from host_agent.conf.paths import HostPaths
from host_agent.machine.rdt.errors import ResctrlError
from host_agent.machine.rdt.files import OsFiles
from host_agent.machine.rdt.pqos import PqosFiles
from host_agent.machine.rdt.resctrl import Resctrl
from host_agent.model.rdt import GROUP_PREFIX, ROOT_GROUP


def tree(paths: HostPaths) -> Resctrl:
    """Return the resctrl tree of a host.

    libpqos is started by the first change, so looking needs neither it nor rights.
    """
    if paths.rdt_backend == "pqos":
        return Resctrl(PqosFiles(paths.state, paths.proc))
    return Resctrl(OsFiles(str(paths.resctrl)))


def foreign_groups(resctrl: Resctrl) -> tuple[str, ...]:
    """Return the control groups of other software, none where nothing is mounted; each holds a class of service."""
    try:
        names = resctrl.control_groups()
    except ResctrlError:
        return ()
    return tuple(n for n in names if n != ROOT_GROUP and not n.startswith(GROUP_PREFIX))
