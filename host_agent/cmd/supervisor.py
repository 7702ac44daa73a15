# SPDX-License-Identifier: Apache-2.0
"""``numa-host-agent-supervisor``: what systemd does for the agent, where there is no systemd (containers, the lab).

It starts the agent, ends one that finishes no round in time (SIGABRT, which leaves its stacks in the log, then
SIGKILL), starts one that has failed again, and withdraws the host's tiers from Placement when there has been no agent
for so long::

    start ──► agent ──READY──► agent with rounds ──────────┐
                │                    │                     │ no WATCHDOG in time: it is ended
                └─ it ends ──────────┴─► no agent ◄────────┘
                                           ├─ after --restart-after: start, unless it has ended with 0 or 78
                                           └─ after --max-silence since the last agent with rounds, or since the start:
                                              numa-host-agent-ctl withdraw, ended by the next READY

The rules and their figures are those of the units in ``etc/systemd``. It also holds the socket of the privileged
helper and starts that when it is asked for (:mod:`.activation`); with ``--user`` the agent runs as another user than
root. SIGTERM and SIGINT end the agent and then the supervisor, which leaves the tiers: who stops a container for good
withdraws them. If the supervisor is killed, the kernel kills the agent.
"""

import argparse
import logging
import os
import pwd
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from host_agent.cmd.activation import Activation, of_helper
from host_agent.conf import configuration
from host_agent.util import logs
from host_agent.util.parent import die_with_parent
from placement_traits import notify
from placement_traits.command_line import SAFE_FOLDER, add_version, module, number_from
from placement_traits.errors import NumaExtError

LOG = logging.getLogger("numa-host-agent-supervisor")

_LONGEST_S: Final = 86_400.0
_ABORT_S: Final = 10.0  # from SIGABRT to SIGKILL
_NOT_AGAIN: Final = (os.EX_OK, os.EX_CONFIG)

User = pwd.struct_passwd | None


@dataclass(frozen=True, slots=True)
class Patience:
    """Times, seconds.

    :param silence_s: without an agent, until tiers are withdrawn
    :param round_s: between two finished rounds
    :param first_round_s: from an agent's start to its first finished round
    :param restart_s: from an agent's failure to the next start
    :param stop_s: from an agent's SIGTERM to its end
    """

    silence_s: float = 120.0
    round_s: float = 180.0
    first_round_s: float = 300.0
    restart_s: float = 2.0
    stop_s: float = 90.0  # systemd's DefaultTimeoutStopSec


class _Withdrawal:
    """Withdraws tiers once there has been no agent for so long.

    :ivar due: when the command is started; infinite when it is not
    """

    def __init__(self, command: Sequence[str], silence_s: float, user: User) -> None:
        self._command = command
        self._silence_s = silence_s
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None
        self._done = False
        self.due = inf

    def agent_gone(self, now: float) -> None:
        """Begin to wait; an agent that has come to no round in between does not begin it again."""
        if not self._done:
            self.due = min(self.due, now + self._silence_s)

    def agent_there(self) -> None:
        """Stop waiting or withdrawing: the agent puts tiers back."""
        self.due, self._done = inf, False
        self.stop()

    def turn(self, now: float) -> None:
        """Start the command when it is time, take note of its end."""
        if now >= self.due:
            LOG.warning("no agent for %g s: this host's tiers are withdrawn", self._silence_s)
            self._process = _spawn(self._command, self._user)
            self.due, self._done = inf, True
        if self._process is not None and self._process.poll() is not None:
            if self._process.returncode:
                LOG.error("tiers were not withdrawn (status %d)", self._process.returncode)
            self._process = None

    @property
    def over(self) -> bool:
        """Nothing is going on, and nothing will by itself."""
        return self.due == inf and self._process is None

    def stop(self) -> None:
        """End the command."""
        self.due = inf
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None


class _Agent:
    """One run of the agent.

    :ivar due: when it is ended for want of a finished round or of its end, or killed when that did not help
    """

    def __init__(self, command: Sequence[str], patience: Patience, now: float, user: User) -> None:
        self._patience = patience
        self._receiver = notify.Receiver()
        self._process = _spawn(command, user, {notify.VARIABLE: self._receiver.address})
        self._aborted = self._stopping = False
        self.due = now + patience.first_round_s

    def fileno(self) -> int:
        """Return the descriptor that is readable when it has reported something."""
        return self._receiver.fileno()

    def ready(self, now: float) -> bool:
        """Take note of what it has reported; tell whether its first round has just been finished."""
        states = self._receiver.received(self._process.pid)
        if notify.WATCHDOG in states and not (self._aborted or self._stopping):
            self.due = now + self._patience.round_s
        if notify.STOPPING in states:
            self._expect_end(now)
        return notify.READY in states

    def status(self) -> int | None:
        """Return its status once it has ended."""
        status = self._process.poll()
        if status is not None:
            self._receiver.close()
        return status

    def turn(self, now: float) -> None:
        """End it when it has not finished a round, or shut down, in time."""
        if now < self.due:
            return
        if self._aborted:
            self._process.kill()
            self.due = inf
            return
        missing = "not shut down" if self._stopping else "finished no round"
        LOG.error("the agent has %s in time: it is ended", missing)
        self._process.send_signal(signal.SIGABRT)
        self._aborted, self.due = True, now + _ABORT_S

    def stop(self, now: float) -> None:
        """Ask it to shut down."""
        self._expect_end(now)
        self._process.terminate()

    def _expect_end(self, now: float) -> None:
        """Give it time once: what it says meanwhile, or a second signal, gives it no more."""
        if not (self._aborted or self._stopping):
            self._stopping, self.due = True, now + self._patience.stop_s


class Supervisor:
    """Keeps one agent.

    :param agent: its command
    :param withdraw: the command that withdraws tiers
    :param patience: how long is waited for what
    :param user: who runs these commands; None: who runs the supervisor
    :param helper: the socket of the privileged helper; None: it is not the supervisor's to hold
    """

    def __init__(
        self,
        agent: Sequence[str],
        withdraw: Sequence[str],
        patience: Patience,
        *,
        user: User = None,
        helper: Activation | None = None,
    ) -> None:
        self._command = agent
        self._patience = patience
        self._user = user
        self._helper = helper
        self._agent: _Agent | None = None
        self._withdrawal = _Withdrawal(withdraw, patience.silence_s, user)
        self._start_at = -inf
        self._status = os.EX_OK
        self._stopping = False

    def run(self) -> int:
        """Supervise until a signal ends it or the agent has ended for good; return the agent's last status."""
        woken, wake = os.pipe()
        for end in (woken, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        self._withdrawal.agent_gone(time.monotonic())
        while self._turn(time.monotonic()):
            due = min(self._start_at, self._withdrawal.due, self._agent.due if self._agent else inf)
            due = min(due, self._helper.due if self._helper else inf)
            pause_s = None if due == inf else max(0.0, due - time.monotonic())
            watched = [self._agent.fileno()] if self._agent else []
            watched += self._helper.watched() if self._helper else []
            readable, _, _ = select.select([woken, *watched], [], [], pause_s)
            if self._helper is not None:
                self._helper.turn(time.monotonic(), readable)
            with suppress(BlockingIOError):
                os.read(woken, 4096)
        self._withdrawal.stop()
        if self._helper is not None:
            self._helper.stop(graceful=self._status == os.EX_OK)
        return self._status

    def _stop(self, _number: int, _frame: object) -> None:
        self._stopping = True
        if self._agent is not None:
            self._agent.stop(time.monotonic())

    def _turn(self, now: float) -> bool:
        """Do what is due; tell whether there is more to come."""
        if self._agent is not None:
            self._look_at(self._agent, now)
        self._withdrawal.turn(now)
        if self._stopping and self._agent is None:
            return False
        if now >= self._start_at:
            self._agent = _Agent(self._command, self._patience, now, self._user)
            self._start_at = inf
            if self._stopping:  # since a moment ago
                self._agent.stop(now)
        return self._agent is not None or self._start_at != inf or not self._withdrawal.over

    def _look_at(self, agent: _Agent, now: float) -> None:
        if agent.ready(now):
            self._withdrawal.agent_there()
        status = agent.status()
        if status is None:
            agent.turn(now)
            return
        LOG.warning("the agent has ended with status %d", status)
        self._agent, self._status = None, status
        self._withdrawal.agent_gone(now)
        if status not in _NOT_AGAIN:
            self._start_at = now + self._patience.restart_s


def _spawn(
    command: Sequence[str], user: User, environment: Mapping[str, str] = MappingProxyType({})
) -> subprocess.Popen[bytes]:
    """Start a process that the kernel kills when the supervisor dies, whatever it dies of."""
    identity: dict[str, Any] = {}
    if user is not None:
        environment = {**environment, "HOME": user.pw_dir, "USER": user.pw_name}
        groups = os.getgrouplist(user.pw_name, user.pw_gid)
        identity = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": groups}
    return subprocess.Popen(
        command,
        cwd=SAFE_FOLDER,
        env={**os.environ, **environment},
        # There is one thread only. It is called as the other user: a change of users would undo it.
        preexec_fn=die_with_parent,  # noqa: PLW1509
        **identity,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Supervise one agent; return its last status."""
    given = _parser().parse_args(arguments)
    logs.to_stderr(LOG.name)
    files = [f"--config-file={Path(file).absolute()}" for file in given.config_file]
    return Supervisor(
        module("host_agent.cmd.agent", *files),
        module("host_agent.cmd.ctl", *files, "withdraw"),
        Patience(given.max_silence, given.watchdog, given.start, given.restart_after),
        user=given.user,
        helper=_helper(files),
    ).run()


def _helper(files: Sequence[str]) -> Activation | None:
    """Hold the helper's socket; what is wrong with the configuration is the agent's to report."""
    try:
        return of_helper(files, configuration.load(files, mistake=lambda _error: None))
    except (NumaExtError, OSError) as error:
        LOG.error("no helper is started: %s", error)
        return None


def _user(name: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise argparse.ArgumentTypeError(f"there is no user {name}") from None


def _parser() -> argparse.ArgumentParser:
    usual = Patience()
    parser = argparse.ArgumentParser(
        prog="numa-host-agent-supervisor",
        description="Start numa-host-agent, keep it alive, and publish its absence, where there is no systemd.",
    )
    parser.add_argument(
        "--config-file", action="append", default=[], help="the agent's configuration file"
    )
    parser.add_argument(
        "--user", type=_user, help="who runs the agent (default: who runs the supervisor)"
    )
    for option, default, text in (
        ("--max-silence", usual.silence_s, "without an agent, until tiers are withdrawn"),
        ("--watchdog", usual.round_s, "without a finished round, until the agent is ended"),
        ("--start", usual.first_round_s, "that the first round may take"),
        ("--restart-after", usual.restart_s, "from the agent's failure to its next start"),
    ):
        parser.add_argument(
            option,
            type=number_from(0.1, _LONGEST_S),
            default=default,
            help=f"seconds {text} (default: {default:g})",
        )
    add_version(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
