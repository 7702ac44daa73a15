# SPDX-License-Identifier: Apache-2.0
"""What systemd's socket unit does for the privileged helper, where there is no systemd.

The supervisor holds the helper's socket and starts a helper with the first connection, and again with the next one
after it has ended. One that has failed is started again at once: an agent may have died with it, behind which throttles
have to be released. One that cannot use its configuration (78) waits for the next connection. The helper outlives the
supervisor: it has to release throttles when both agent and supervisor are killed, and ends by itself then, when it is
idle. A command of root that gives its rights up has a helper of its own where none listens: it ends with the command.

Source: sd_listen_fds(3).
"""

import logging
import os
import socket
import subprocess
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Final

from host_agent.conf.options import Options
from host_agent.machine.privileged import own_paths, server
from placement_traits.command_line import SAFE_FOLDER, module

LOG = logging.getLogger(__name__)

RESTART_S: Final = 1.0


class Activation:
    """Holds the socket of one helper.

    :param command: the helper's
    :param path: of the socket
    :raises OSError: the socket cannot be made

    :ivar due: when a helper that has failed is started again; infinite when none has
    """

    def __init__(self, command: Sequence[str], path: Path) -> None:
        self._command = command
        self._listening: socket.socket = server.listen(path)
        self._process: subprocess.Popen[bytes] | None = None
        self.due = inf

    def watched(self) -> list[int]:
        """Return the descriptors that become readable when a helper is needed."""
        return [self._listening.fileno()] if self._process is None and self.due == inf else []

    def turn(self, now: float, readable: Sequence[int]) -> None:
        """Start a helper when a client has connected; take note of its end.

        :param readable: descriptors that are
        """
        if self._process is not None and self._process.poll() is not None:
            if self._process.returncode:
                LOG.error("the helper has ended with status %d", self._process.returncode)
                if self._process.returncode != os.EX_CONFIG:
                    self.due = now + RESTART_S
            self._process = None
        if self._listening.fileno() in readable or now >= self.due:
            self.start()
            self.due = inf

    def start(self) -> None:
        """Start a helper now."""
        self._process = self._started()

    def _started(self) -> "subprocess.Popen[bytes]":
        descriptor = self._listening.fileno()

        def hand_over() -> None:
            os.dup2(descriptor, server.FIRST_DESCRIPTOR)
            os.set_inheritable(server.FIRST_DESCRIPTOR, True)
            os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))

        # There is one thread only. A session of its own: what the terminal sends to the agent does not reach it.
        return subprocess.Popen(
            self._command,
            cwd=SAFE_FOLDER,
            preexec_fn=hand_over,  # noqa: PLW1509
            pass_fds=(server.FIRST_DESCRIPTOR,),
            start_new_session=True,
        )

    def stop(self, *, graceful: bool) -> None:
        """Close the socket.

        :param graceful: the agent has left everything in order, so that the helper is not needed any more
        """
        self._listening.close()
        if self._process is not None and graceful:
            self._process.terminate()
            self._process.wait()


def of_helper(files: Sequence[str], options: Options) -> Activation:
    """Return what starts our helper.

    :param files: options of the command line that name configuration files, by absolute paths
    :param options: what these say
    :raises InvalidValueError: others could replace the socket
    :raises OSError: the socket cannot be made
    """
    agent, path = own_paths.agent_id(options.helper.agent_user), options.helper.socket
    own_paths.check_way("[helper]socket", path, agent)
    return Activation(module("host_agent.cmd.helper", *files), path)
