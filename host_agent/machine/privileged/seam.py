# SPDX-License-Identifier: Apache-2.0
"""Three ways to the privileged operations, all made of their table: over the helper, in process, and reading only."""

from pathlib import Path
from typing import cast

from host_agent.conf.options import Options
from host_agent.machine.privileged import client, edition
from host_agent.machine.privileged.api import Privileged
from host_agent.machine.privileged.devices import Devices
from host_agent.machine.privileged.operations import OPERATIONS, HostOperations
from host_agent.machine.privileged.rights import has_rights
from host_agent.machine.privileged.table import Way


def open_seam(options: Options, *, dry_run: bool) -> Privileged:
    """Return the way to the operations: the helper, or none of it where root asks and no helper answers.

    :param dry_run: reading only
    """
    rights = has_rights(Path("/proc/self/status").read_text())
    real: Privileged
    own = edition.of(options)
    if rights and not client.serves(options.helper.socket, own):
        real = HostOperations(options.paths, devices=devices_of(options))
    else:
        real = client.over_socket(options.helper.socket, own)
    return read_only(real) if dry_run else real


def devices_of(options: Options) -> Devices:
    """Return what plugs devices, over the configured libvirt."""
    return Devices(options.libvirt_host.uri, options.libvirt_host.timeout_s)


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
