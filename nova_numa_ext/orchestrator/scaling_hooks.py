# SPDX-License-Identifier: Apache-2.0
"""Hooks of elastic groups: an operator's program that lets a service take members in and lets them go.

A program in the engines' folder is called as ``PROGRAM EVENT SERVER``, with JSON on its standard input: ``event``,
``group``, ``project``, ``server`` (uuids) and ``name``. Events of a member, in this order:

==========  =====================================================================
``add``     nova has made its server: the service takes it in
``ready``   whether it carries load
``drain``   it is to leave: the service gives its work and data to others
``delete``  its server is gone: the service forgets it
==========  =====================================================================

It ends with 0 when that is done, and with 75 (``EX_TEMPFAIL``) when it is not yet: then it is called again in a later
round. Anything else is trouble: it is said, and called again, too. An engine that dies makes a call come twice.

A program that takes too long is killed. One that cannot be killed, because it runs as another user or hangs in the
kernel, is left behind: it holds up its own member alone, and is not called a second time while it runs.
"""

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Final

from placement_traits.errors import NumaExtError, cut

_NOT_YET: Final = 75
_ENDS_S: Final = 1.0  # that a program may take to end when it was killed


class HookEvent(StrEnum):
    """What a hook is called for."""

    ADD = "add"
    READY = "ready"
    DRAIN = "drain"
    DELETE = "delete"


class HookError(NumaExtError):
    """A hook cannot be called, takes too long, or fails; the sentence says which."""


_Call = tuple[str, HookEvent, str]


class ScalingHooks:
    """Calls hooks.

    :param folder: the engines' folder of hooks; no other program is called
    :param timeout_s: seconds that one call may take; what takes longer is killed, with what it has started
    """

    def __init__(self, folder: Path, timeout_s: float) -> None:
        self._folder, self._timeout_s = folder, timeout_s
        self._left: dict[_Call, subprocess.Popen[str]] = {}

    def call(self, hook: str, event: HookEvent, server: str, about: Mapping[str, str]) -> bool:
        """Return whether what a hook is called for is done; without a hook it is.

        :param hook: name of a file in the folder, '' for none
        :param about: what the hook gets beside event and server
        :raises HookError: see there
        """
        if not hook:
            return True
        message = json.dumps({"event": event, "server": server, **about}) + "\n"
        what = f"hook {hook} {event} of server {server}"
        self._left = {key: each for key, each in self._left.items() if each.poll() is None}
        before = self._left.get((hook, event, server))
        if before is not None:
            raise HookError(f"{what} still runs as process {before.pid}, which could not be killed")
        process = self._started(self._folder / hook, event, server)
        try:
            _, said = process.communicate(message, timeout=self._timeout_s)
        except subprocess.TimeoutExpired as error:
            late = f"was not done after {self._timeout_s:g} s"
            if not _killed(process):
                self._left[hook, event, server] = process
                late = f"{late}, and its process {process.pid} cannot be killed"
            raise HookError(f"{what} {late}") from error
        if process.returncode in (0, _NOT_YET):
            return process.returncode == 0
        words = cut(said.strip().rpartition("\n")[2])
        raise HookError(f"{what} ended with {process.returncode}: {words}")

    @staticmethod
    def _started(program: Path, event: HookEvent, server: str) -> subprocess.Popen[str]:
        try:
            return subprocess.Popen(
                [program, event, server],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env={"PATH": os.environ.get("PATH", os.defpath)},  # no secret of the engine's
                start_new_session=True,
            )
        except OSError as error:
            raise HookError(f"hook {program} cannot be called: {error.strerror}") from error


def _killed(process: subprocess.Popen[str]) -> bool:
    """Kill a program with what it has started; return whether it has ended, without waiting for it for long."""
    with suppress(OSError):  # it may run as another user by now
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdin, process.stderr):
        if pipe is not None:
            with suppress(OSError):  # what was not written yet is not read any more
                pipe.close()
    try:
        process.wait(_ENDS_S)
    except subprocess.TimeoutExpired:
        return False
    return True
