# SPDX-License-Identifier: Apache-2.0
"""What libraries below services in process make again for each request or each database, made once a process.

Answers are the same. Together it is about a third of what a request to Placement, or a round over a database in a file,
takes of a processor.
"""

import functools
import inspect
from types import SimpleNamespace
from typing import Any

import fixtures
import jsonschema
import sqlalchemy
import sqlalchemy.pool
from oslo_db.sqlalchemy import engines
from sqlalchemy import Connection, Dialect, Engine, event


class SchemasCheckedOnce(fixtures.Fixture):  # type: ignore[misc]
    """Placement checks bodies and queries as ever, but each of its own schemas once instead of at every request.

    ``jsonschema.validate`` checks the schema itself at each call, a third of the time that a request takes.
    """

    def setUp(self) -> None:
        """Take the place of the library in Placement."""
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch("placement.util.jsonschema.validate", _validate))


# Holds the schemas, so that no other one gets the id of one that is gone.
_CHECKED: dict[int, object] = {}


def _validate(instance: object, schema: Any, **options: Any) -> None:
    validator = jsonschema.validators.validator_for(schema)
    if id(schema) not in _CHECKED:
        validator.check_schema(schema)
        _CHECKED[id(schema)] = schema
    error = jsonschema.exceptions.best_match(validator(schema, **options).iter_errors(instance))
    if error is not None:
        raise error


class AliasesMadeOnce(fixtures.Fixture):  # type: ignore[misc]
    """Placement takes the same alias of a table for the same name in all its statements.

    Each new one makes all its columns, a sixth of the time that a request takes. None of Placement's statements has a
    part that would be joined to the rest by an alias that both name.
    """

    def setUp(self) -> None:
        """Take the place of the function in SQLAlchemy."""
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch("sqlalchemy.alias", _alias))


_new_alias = sqlalchemy.alias
_table_alias = functools.cache(_new_alias)


def _alias(selectable: Any, name: str | None = None, flat: bool = False) -> Any:
    if name is None or not isinstance(selectable, sqlalchemy.Table):
        return _new_alias(selectable, name, flat)
    return _table_alias(selectable, name, flat)


class SignaturesReadOnce(fixtures.Fixture):  # type: ignore[misc]
    """Oslo's libraries look once at which arguments a function takes, instead of at each part of a rule.

    That is a twelfth of the time that a request takes.
    """

    def setUp(self) -> None:
        """Take the place of the function where Placement's requests come by."""
        super().setUp()
        looks = SimpleNamespace(getfullargspec=_argspec)
        self.useFixture(fixtures.MonkeyPatch("oslo_policy._checks.inspect", looks))
        self.useFixture(fixtures.MonkeyPatch("oslo_middleware.base.getfullargspec", _argspec))


def _argspec(function: Any) -> inspect.FullArgSpec:
    return _argspec_of(getattr(function, "__func__", function))


_argspec_of = functools.cache(inspect.getfullargspec)


class FilesOpenedOnce(fixtures.Fixture):  # type: ignore[misc]
    """oslo.db keeps connections to a file of SQLite as it keeps others, instead of opening it for each transaction."""

    def setUp(self) -> None:
        """Take the place of the pool that keeps none."""
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch("sqlalchemy.pool.NullPool", sqlalchemy.pool.QueuePool))


class StatementsCompiledOnce(fixtures.Fixture):  # type: ignore[misc]
    """Databases of SQLite share their statements as they were compiled, and ``BEGIN`` is none of them.

    Each engine compiles all of its own: a fifth of the time of a test that has a database of its own.
    """

    def setUp(self) -> None:
        """Take the place of the function in oslo.db that makes engines."""
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch("oslo_db.sqlalchemy.engines.create_engine", _engine))


_COMPILED: dict[object, object] = {}
_new_engine = engines.create_engine


def _engine(*arguments: Any, **options: Any) -> Engine:
    engine: Engine = _new_engine(*arguments, **options)
    if engine.dialect.name != "sqlite":
        return engine
    engine.dialect = _dialect()
    engine.update_execution_options(compiled_cache=_COMPILED)
    (begins,) = engine.dispatch.begin
    event.remove(engine, "begin", begins)
    event.listen(engine, "begin", _begin)
    return engine


@functools.cache
def _dialect() -> Dialect:
    """Return what statements are compiled for; it has asked SQLite what it can do, and oslo.db handles its errors."""
    engine: Engine = _new_engine("sqlite://")
    return engine.dialect


def _begin(connection: Connection) -> None:
    """Begin as oslo.db does, but at once."""
    if "in_transaction" not in connection.info:
        connection.connection.execute("BEGIN")
        connection.info["in_transaction"] = True
