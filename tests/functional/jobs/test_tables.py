# SPDX-License-Identifier: Apache-2.0
"""Migrations make the tables that the code uses, once, and say which version they have."""

import time

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from nova_numa_ext.orchestrator.store.database import Database
from nova_numa_ext.orchestrator.store.tables import METADATA
from placement_traits.errors import ServiceUnavailableError


def test_migrations_make_what_the_code_uses(database):
    with database.transaction() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, METADATA) == []


def test_a_second_sync_changes_nothing(empty_url):
    database = Database(empty_url)
    assert database.version() == (None, "0001")
    for _ in range(2):
        database.sync()
        assert database.version() == ("0001", "0001")


def test_the_databases_clock_is_in_seconds_since_1970(database):
    assert database.now() == pytest.approx(time.time(), abs=5)


def test_a_database_that_is_not_there_is_a_sentence(tmp_path):
    nowhere = Database(f"sqlite:///{tmp_path}/none/jobs.db", max_retries=0)
    with pytest.raises(ServiceUnavailableError, match="The job service's database"):
        nowhere.now()
