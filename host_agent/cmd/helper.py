# SPDX-License-Identifier: Apache-2.0
"""``numa-host-agent-helper [--config-file FILE]``: the part of the agent that has rights.

It serves the agent's user and root on a unix socket (``[helper]socket``), and takes throttles off when the agent is
gone (``[rdt]release_after_s``). systemd and the supervisor make the socket and start the helper with the first
connection (``LISTEN_FDS``); such a helper ends when it has had no client for a minute and no agent is in control, and
when an agent connects after an upgrade or a change of options, to be started again. Started otherwise it makes the
socket itself and serves until SIGTERM.

It runs as root with no capabilities but CAP_SYS_NICE (affinities, pages), CAP_SYS_PTRACE (page tables) and, for
hardware counters, CAP_PERFMON. It decides nothing, needs no network, plugs latency ports into domains through libvirt,
and writes: resctrl, libvirt's control groups of vCPUs, and its own folder ``[helper]state_dir``. Of the agent's folder
it reads what a version without a helper has left there, and no more. Where the configuration cannot be used it answers
everything with the reason, for ten seconds, and ends with 78.
"""

import logging
import os
import signal
import stat
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from host_agent.conf import configuration
from host_agent.conf.options import Options
from host_agent.machine.privileged import edition, former_state, own_paths, server
from host_agent.machine.privileged.operations import HostOperations
from host_agent.machine.privileged.rights import missing
from host_agent.machine.privileged.seam import devices_of
from host_agent.util import logs
from placement_traits.command_line import version
from placement_traits.errors import InvalidValueError, NumaExtError
from placement_traits.json_store import remove_drafts

LOG = logging.getLogger("numa-host-agent-helper")

_IDLE_S: Final = 60.0
_REFUSAL_S: Final = 10.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the helper; return the exit status."""
    logs.to_stderr(LOG.name)
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        options: Options = configuration.load(arguments, version=version())
        agent = own_paths.agent_id(options.helper.agent_user)
        _prepare(options.paths.helper_state)
        own_paths.check_way("[helper]state_dir", options.paths.helper_state, agent)
        own_paths.check_way("[helper]socket", options.helper.socket, agent)
    except NumaExtError as error:
        LOG.error("%s", error)
        _refuse(error)
        return os.EX_CONFIG
    remove_drafts(options.paths.helper_state)
    former_state.take_over(options.paths)
    lacking = missing(Path("/proc/self/status").read_text())
    if lacking:
        LOG.error("%s missing: what needs it will be refused", ", ".join(lacking))
    try:
        _serve(options, arguments, agent)
    except (NumaExtError, OSError) as error:
        LOG.error("%s", error)
        return 1
    return 0


def _refuse(error: NumaExtError) -> None:
    """Say to those who wait on the socket why they are not served; it was made for a helper that is started by them."""
    with suppress(InvalidValueError):
        listening = server.inherited(os.environ)
        if listening is not None:
            server.refuse(listening, error, _REFUSAL_S)


def _serve(options: Options, arguments: Sequence[str], agent: int) -> None:
    own = edition.of(options)
    operations = HostOperations(
        options.paths, release_after_s=options.release_after_s, devices=devices_of(options)
    )
    inherited = server.inherited(os.environ)
    listening = inherited or server.listen(options.helper.socket)
    succession = edition.Succession(
        own, (lambda: edition.of(configuration.load(arguments))) if inherited else None
    )
    idle_s = _IDLE_S if inherited else None
    served = server.Server(listening, operations, {own_paths.ROOT, agent}, succession, idle_s)
    stopped, woken = _until_signal()
    served.run(woken, stopped)


def _until_signal() -> tuple[threading.Event, int]:
    """Return what SIGTERM and SIGINT set, and a descriptor that is readable then."""
    stopped = threading.Event()
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stopped.set())
    return stopped, woken


def _prepare(folder: Path) -> None:
    """Make the helper's folder where it is missing.

    :raises InvalidValueError: others could write there, and have root follow a link of theirs
    """
    try:
        with suppress(FileExistsError):
            folder.mkdir(parents=True, mode=0o755)
        found = folder.lstat()
    except OSError as error:
        raise InvalidValueError(
            "[helper]state_dir", str(folder), f"a folder that can be made ({error.strerror})"
        ) from error
    others = stat.S_IWGRP | stat.S_IWOTH
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & others:
        raise InvalidValueError(
            "[helper]state_dir", str(folder), "a folder of root's that only root can write"
        )


if __name__ == "__main__":
    sys.exit(main())
