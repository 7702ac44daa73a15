# SPDX-License-Identifier: Apache-2.0
"""Three ways to the privileged operations, all made of their table: in process, in a helper, and reading only."""

from pathlib import Path
from typing import TYPE_CHECKING, cast

from host_agent.conf.paths import HostPaths
from host_agent.machine.privileged.api import Privileged
from host_agent.machine.privileged.operations import OPERATIONS, HostOperations
from host_agent.machine.privileged.rights import has_rights
from host_agent.machine.privileged.table import Way

if TYPE_CHECKING:
    from oslo_config import cfg


def open_seam(paths: HostPaths, conf: "cfg.ConfigOpts", *, dry_run: bool) -> Privileged:
    """Return the way to the operations that fits this process.

    :param conf: the loaded configuration, which the helper reads, too
    :param dry_run: reading only
    """
    real: Privileged
    if has_rights(Path("/proc/self/status").read_text()):
        real = HostOperations(paths)
    else:
        from host_agent.machine.privileged.privsep import over_privsep

        real = over_privsep(conf)
    return read_only(real) if dry_run else real


def read_only(real: Privileged) -> Privileged:
    """Return the way of a dry run: reads pass, writes are answered as if nothing had to be done, or foretold."""
    return cast(
        "Privileged",
        Way(
            OPERATIONS,
            lambda operation, arguments: operation.dry_run(
                getattr(real, operation.name), arguments
            ),
        ),
    )
