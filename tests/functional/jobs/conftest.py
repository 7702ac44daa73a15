# SPDX-License-Identifier: Apache-2.0
"""Databases of the job service: SQLite in a file, and a MariaDB of the tests' own where it is installed."""

from pathlib import Path

import pytest
from sqlalchemy import delete, update

from benchmarks import mariadb
from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.database import Database

_KINDS = ("sqlite", "mariadb")


@pytest.fixture(scope="session")
def server():
    """A MariaDB server."""
    if not Path(mariadb.SERVER).exists():
        pytest.skip(f"{mariadb.SERVER} is not installed")
    with mariadb.mariadb() as server:
        yield server


@pytest.fixture(scope="session")
def shared_url(server):
    """A MariaDB database with our tables, for one test after the other."""
    mariadb.create(server, "jobs")
    url = server.url.format("jobs")
    Database(url).sync()
    return url


@pytest.fixture(params=_KINDS)
def empty_url(request, tmp_path):
    """An empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    server = request.getfixturevalue("server")
    mariadb.create(server, "empty")
    return server.url.format("empty")


@pytest.fixture(params=_KINDS)
def url(request, tmp_path):
    """With our tables, and nothing in them."""
    if request.param == "mariadb":
        url = request.getfixturevalue("shared_url")
        with Database(url).transaction() as connection:
            connection.execute(delete(tables.job))
            connection.execute(update(tables.leader).values(holder="", term=0, expires_at=0.0))
        return url
    url = f"sqlite:///{tmp_path}/jobs.db"
    Database(url).sync()
    return url


@pytest.fixture
def database(url):
    """The same, open."""
    return Database(url)
