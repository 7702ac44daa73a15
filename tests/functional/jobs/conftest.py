# SPDX-License-Identifier: Apache-2.0
"""What the job service works with: SQLite in a file, a MariaDB of the tests' own where it is installed, Placement."""

import uuid
from pathlib import Path

import pytest
from sqlalchemy import delete, update
from werkzeug.routing import Rule

from benchmarks import mariadb
from emulation.made_once import FilesOpenedOnce, StatementsCompiledOnce
from emulation.placement_service import PlacementInProcess
from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.database import Database
from placement_traits.claim_store import ClaimStore
from placement_traits.claims import emptied
from placement_traits.names import OWNER
from placement_traits.pool_reporter import PoolReporter
from tests.support.filled_placement import FilledPlacement
from tests.support.jobs_database import with_tables
from tests.support.pools import pool as lent_pool

_KINDS = ("sqlite", "mariadb")


@pytest.fixture(scope="session", autouse=True)
def cheap_databases():
    """SQLite is opened once a database, and not learnt anew by each one."""
    with FilesOpenedOnce(), StatementsCompiledOnce():
        yield


@pytest.fixture(scope="session", autouse=True)
def no_addresses_made():
    """Each API would compile how to make the address of each of its routes, which it never does."""

    def refuse(_rule, **_values):
        raise AssertionError("the API makes an address")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rule, "_compile_builder", lambda _rule, _append_unknown: refuse)
        yield


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
    """A database without tables: a file of SQLite, or one of its own on the MariaDB of all tests."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    server = request.getfixturevalue("server")
    name = f"empty_{uuid.uuid4().hex}"
    mariadb.create(server, name)
    return server.url.format(name)


@pytest.fixture(params=_KINDS)
def url(request, tmp_path):
    """A database with our tables and nothing in them, on SQLite and on MariaDB::

    sqlite     jobs.db in the test's folder
    mariadb    jobs on the server of all tests; job, trust, lease, lease_host, wake, scaling_group and leader emptied
    """
    if request.param == "mariadb":
        url = request.getfixturevalue("shared_url")
        with Database(url).transaction() as connection:
            connection.execute(delete(tables.job))
            connection.execute(delete(tables.trust))
            connection.execute(delete(tables.lease))
            connection.execute(delete(tables.lease_host))
            connection.execute(delete(tables.wake))
            connection.execute(delete(tables.scaling_group))
            nobody = {"holder": "", "term": 0, "expires_at": 0.0, "mark": 0}
            nobody |= {"recover_at": None, "recover_why": ""}
            connection.execute(update(tables.leader).values(nobody))
        return url
    with_tables(tmp_path / "jobs.db")
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def database(url):
    """The same, open."""
    return Database(url)


@pytest.fixture(scope="module")
def placement():
    """Placement in this process, for all tests of a module; providers come with fixtures like ``pool``."""
    with PlacementInProcess() as running:
        filled = FilledPlacement(running.adapter)
        filled.image, filled.restore = running.image, running.restore
        yield filled


@pytest.fixture(scope="module")
def lent(placement):
    """The database of ``lending``, written once."""
    PoolReporter(placement.client).sync(lent_pool("g1"))
    return placement.image()


@pytest.fixture
def lending(placement, lent):
    """Placement with the pool of g1, and nothing that the test before has left::

    rgpu:g1             fabric main
    ├─ rgpu:g1:cpu      CUSTOM_RGPU_CORE 4
    ├─ rgpu:g1:nic-eth1 CUSTOM_RGPU_NET_MBPS 1000
    └─ rgpu:g1:gpu-a    CUSTOM_RGPU_MEM_MB 8000; OPENCL
    """
    placement.restore(lent)
    return placement


@pytest.fixture
def pool(placement):
    """A provider of ours with four slots; what consumers of ours hold of it ends with the test::

    <a uuid>    VCPU 8, MEMORY_MB 8192, CUSTOM_SLOT 4; HW_CPU_X86_AVX2, CUSTOM_NUMA_EXT_OWNER
    """
    provider = placement.compute(str(uuid.uuid4()), CUSTOM_SLOT=4)
    placement.traits(provider, OWNER)
    yield provider
    claims = ClaimStore(placement.client)
    for each in claims.of_provider(provider):
        claims.write(emptied(each))


@pytest.fixture
def configure(tmp_path):
    """Write a configuration; return the option that names it."""

    def write(text):
        file = tmp_path / "jobs.conf"
        file.write_text(text)
        return f"--config-file={file}"

    return write
