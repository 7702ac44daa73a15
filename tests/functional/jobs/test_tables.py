# SPDX-License-Identifier: Apache-2.0
"""Migrations make the tables that the code uses, once, and say which version they have."""

import time

import pymysql
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import event, inspect, select, text

from nova_numa_ext.orchestrator.store.database import Database
from nova_numa_ext.orchestrator.store.tables import METADATA, Now, leader
from placement_traits.errors import ConflictError, ServiceUnavailableError


class CutOffError(Exception):
    """The process is gone."""


def test_migrations_make_what_the_code_uses(database):
    with database.transaction() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, METADATA) == []


def test_a_second_sync_changes_nothing(empty_url):
    database = Database(empty_url)
    assert database.version() == (None, "0017")
    for _ in range(2):
        database.sync()
        assert database.version() == ("0017", "0017")


def test_the_tables_of_another_service_are_left_alone(empty_url):
    database = Database(empty_url)
    with database.transaction() as connection:
        connection.execute(text("CREATE TABLE leader (id INTEGER PRIMARY KEY, elected VARCHAR(9))"))
    with pytest.raises(ConflictError, match=r"a table leader without .* a database of its own"):
        database.sync()
    with database.transaction() as connection:
        columns = {each["name"] for each in inspect(connection).get_columns("leader")}
    assert columns == {"id", "elected"}


def one_statement_more(database):
    """Sync, cut off before the second statement that makes something: MariaDB has committed the first one by then."""
    left = 1

    def cut_off(_connection, _cursor, statement, *_rest):
        nonlocal left
        if statement.split()[0] in ("CREATE", "ALTER"):
            left -= 1
            if left < 0:
                raise CutOffError

    engine = database._engine()
    event.listen(engine, "before_cursor_execute", cut_off)
    try:
        database.sync()
    finally:
        event.remove(engine, "before_cursor_execute", cut_off)


@pytest.mark.parametrize("empty_url", ["mariadb"], indirect=True)
def test_a_sync_that_is_cut_off_after_any_statement_goes_on_from_there(empty_url):
    database, cuts = Database(empty_url), 0
    for _ in range(200):
        try:
            one_statement_more(database)
        except CutOffError:
            cuts += 1
        else:
            break
    (_, newest) = database.version()
    assert database.version() == (newest, newest)
    assert cuts > len(METADATA.tables)
    with database.transaction() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, METADATA) == []
        assert len(connection.execute(select(leader)).all()) == 1


def test_the_databases_clock_is_in_seconds_since_1970(database):
    assert database.now() == pytest.approx(time.time(), abs=5)


@pytest.mark.parametrize("url", ["mariadb"], indirect=True)
def test_the_databases_clock_knows_no_summer_time(database, server):
    """In a zone that puts its clocks back by an hour, one hour of the local time is there twice."""
    back_at = 1_793_000_000
    zone = (
        "DELETE FROM mysql.time_zone WHERE Time_zone_id = 77",
        "REPLACE INTO mysql.time_zone VALUES (77, 'N')",
        "REPLACE INTO mysql.time_zone_name VALUES ('test/zone', 77)",
        "REPLACE INTO mysql.time_zone_transition_type VALUES (77, 0, 7200, 1, 'S'), (77, 1, 3600, 0, 'W')",
        f"REPLACE INTO mysql.time_zone_transition VALUES (77, 0, 0), (77, {back_at}, 1)",
    )
    with pymysql.connect(unix_socket=server.socket, user="root") as connection:
        for statement in zone:
            connection.cursor().execute(statement)
        connection.commit()
    at = [back_at - 1800.0, back_at + 1800.0]
    with database.transaction() as connection:
        connection.execute(text("SET time_zone = 'test/zone'"))
        found = []
        for second in at:
            connection.execute(text(f"SET timestamp = {second}"))
            found.append(connection.execute(select(Now())).scalar_one())
        connection.execute(text("SET timestamp = DEFAULT, time_zone = DEFAULT"))
    assert found == at


def test_a_database_that_is_not_there_is_a_sentence(tmp_path):
    nowhere = Database(f"sqlite:///{tmp_path}/none/jobs.db", max_retries=0)
    with pytest.raises(ServiceUnavailableError, match="The job service's database"):
        nowhere.now()
