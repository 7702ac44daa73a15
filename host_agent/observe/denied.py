# SPDX-License-Identifier: Apache-2.0
"""Servers of this host that are never touched, whatever their flavors say: a file with a UUID a line."""

import logging
import os
import uuid
from pathlib import Path

from placement_traits.oslo_options import ConfigurationError

LOG = logging.getLogger(__name__)


class DenyList:
    """The file, read again when it changes; ``#`` begins a comment, and a file that was never there names no server.

    :param path: of it
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, ...] | None = None
        self._servers: frozenset[str] = frozenset()
        self._problem = ""

    def servers(self) -> frozenset[str]:
        """Return the servers that the file names now.

        While it cannot be read, is gone, or holds a line that is no UUID, those that it named before are left alone,
        too: an editor takes the file away for a moment, and what is done to a server then is not undone. An empty file
        frees them.
        """
        stamp = self._look()
        if stamp != self._stamp:
            found, problem = self._read()
            self._servers = found | self._servers if problem else found
            self._stamp = stamp
            if problem and problem != self._problem:
                LOG.warning("%s; servers that were left alone stay so", problem)
            self._problem = problem
        return self._servers

    def check(self) -> None:
        """Read it.

        :raises ConfigurationError: it cannot be read, or a line is no UUID
        """
        self.servers()
        if self._problem:
            raise ConfigurationError(self._problem)

    def _look(self) -> tuple[int, ...]:
        try:
            found = os.stat(self._path)
        except OSError as error:
            return (error.errno or 0,)
        return (found.st_mtime_ns, found.st_size, found.st_ino)

    def _read(self) -> tuple[frozenset[str], str]:
        try:
            lines = self._path.read_text().splitlines()
        except FileNotFoundError:
            gone = f"[agent]deny_servers: {self._path} is gone: leave an empty file to free servers"
            return frozenset(), gone if self._servers else ""
        except (OSError, UnicodeDecodeError) as error:
            return frozenset(), f"[agent]deny_servers: {self._path} cannot be read: {error}"
        servers, problem = set(), ""
        for number, line in enumerate(lines, 1):
            text = line.partition("#")[0].strip()
            try:
                servers |= {str(uuid.UUID(text))} if text else set()
            except ValueError:
                where = f"[agent]deny_servers: {self._path}, line {number}"
                problem = (
                    problem
                    or f"{where}: {text[:80]!r} is not allowed; allowed: the UUID of a server"
                )
        return frozenset(servers), problem
