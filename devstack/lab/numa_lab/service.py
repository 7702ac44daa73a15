# SPDX-License-Identifier: Apache-2.0
"""A service: a process with what it is started with and a way to see that it serves.

``ensure`` is what makes ``lab up`` idempotent: a service that runs with the same command, environment, configuration
and code is left alone; one whose files have changed since is started again.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .process import Process, wait_for
from .terminal import Progress


@dataclass(frozen=True, slots=True)
class Service:
    """What a service is and needs.

    :param argv: the command.
    :param environment: its whole environment.
    :param reads: configuration files and code folders whose change asks for a restart.
    :param ready: whether it serves now.
    :param ready_within_s: how long that may take after the start.
    :param also: further facts that ask for a restart when they change.
    """

    process: Process
    argv: tuple[str | Path, ...]
    environment: Mapping[str, str]
    reads: tuple[Path, ...] = ()
    ready: Callable[[], bool] = lambda: True
    ready_within_s: float = 120.0
    also: str = ""

    @property
    def name(self) -> str:
        return self.process.name

    def ensure(self, progress: Progress) -> None:
        """Make it run as described and wait until it serves.

        :raises LabError: it cannot be started, ended, or does not serve in time.
        """
        stamp = self.process.pid_file.with_suffix(".started-with")
        expected = self.fingerprint()
        running = self.process.alive()
        current = running and stamp.exists() and stamp.read_text() == expected
        if current and self.ready():
            return
        verb = "waiting for" if current else "restarting" if running else "starting"
        with progress.step(f"{verb} {self.name}", self.process.log):
            if not current:
                self.process.stop()
                stamp.parent.mkdir(parents=True, exist_ok=True)
                stamp.write_text(expected)
                self.process.start(self.argv, self.environment)
            wait_for(f"{self.name} serves", self.ready, self.ready_within_s, self.process)

    def fingerprint(self) -> str:
        """A hash of all that the running process was made from."""
        digest = hashlib.sha256()
        words = [str(word) for word in self.argv]
        digest.update(repr((words, sorted(self.environment.items()), self.also)).encode())
        for path in self.reads:
            for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
                digest.update(f"{file}\n".encode())
                digest.update(file.read_bytes() if file.exists() else b"-")
        return digest.hexdigest()
