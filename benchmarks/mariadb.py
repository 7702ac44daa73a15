# SPDX-License-Identifier: Apache-2.0
"""A MariaDB of a benchmark's own, in a temporary directory, reached through its socket only."""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pymysql

from placement_traits.errors import NumaExtError

SERVER = "/usr/sbin/mariadbd"
_START_S = 120.0


class DatabaseMissingError(NumaExtError):
    """There is no MariaDB, or it does not start."""


@dataclass(frozen=True)
class Database:
    """A server.

    :param url: of a database of it for SQLAlchemy, with {} for its name
    :param socket: where it listens
    :param pid: of its process
    """

    url: str
    socket: str
    pid: int


@contextmanager
def mariadb() -> Iterator[Database]:
    """Start a server, and end it with all it holds.

    :raises DatabaseMissingError: it is not installed, or does not start
    """
    if not Path(SERVER).exists():
        raise DatabaseMissingError(f"{SERVER} is missing: apt-get install mariadb-server")
    directory = Path(tempfile.mkdtemp(prefix="bench-mariadb-"))
    data, socket, log = directory / "data", directory / "socket", directory / "log"
    try:
        with log.open("w") as output:
            subprocess.run(
                [
                    *("mariadb-install-db", "--no-defaults", f"--datadir={data}"),
                    *("--auth-root-authentication-method=normal", "--skip-test-db", "--user=root"),
                ],
                stdout=output,
                stderr=output,
                check=True,
            )
            server = subprocess.Popen(
                [
                    *(SERVER, "--no-defaults", f"--datadir={data}", f"--socket={socket}"),
                    *("--user=root", "--skip-networking", "--skip-log-bin"),
                    *("--character-set-server=utf8mb4", "--innodb-buffer-pool-size=512M"),
                    *("--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0"),
                ],
                stdout=output,
                stderr=output,
            )
        try:
            _wait(server, socket, log)
            url = f"mysql+pymysql://root@localhost/{{}}?unix_socket={socket}"
            yield Database(url, str(socket), server.pid)
        finally:
            server.terminate()
            server.wait()
    finally:
        shutil.rmtree(directory)


def create(server: Database, name: str) -> None:
    """Create a database."""
    with pymysql.connect(unix_socket=server.socket, user="root") as connection:
        connection.cursor().execute(f"CREATE DATABASE {name}")


def _wait(server: subprocess.Popen[bytes], socket: Path, log: Path) -> None:
    until = time.monotonic() + _START_S
    while not socket.exists():
        if server.poll() is not None or time.monotonic() > until:
            raise DatabaseMissingError(f"{SERVER} does not start: {log.read_text()[-2000:]}")
        time.sleep(0.1)
