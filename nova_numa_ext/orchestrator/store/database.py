# SPDX-License-Identifier: Apache-2.0
"""Where the database is, how its transactions begin and end, and which version its tables have."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from oslo_config import cfg
from oslo_db import api, exception, options
from oslo_db.sqlalchemy import enginefacade
from sqlalchemy import Connection, Engine, select

from nova_numa_ext.orchestrator.store.tables import Now
from placement_traits.errors import (
    LONGEST_TEXT,
    CapabilityMissingError,
    NumaExtError,
    ServiceUnavailableError,
    cut,
)

_MIGRATIONS: Final = Path(__file__).parent / "migrations"
_TRIES: Final = 10

T = TypeVar("T")


class LostRaceError(NumaExtError):
    """Another transaction was faster: a deadlock, a certification failure of Galera, or a row that has changed."""


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register oslo.db's options in ``[database]``; registering twice is harmless."""
    conf.register_opts(options.database_opts, "database")


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return (group, options) for oslo-config-generator."""
    return [("database", list(options.database_opts))]


class Database:
    """One database; any thread may use it.

    :param url: as SQLAlchemy writes it
    :param settings: further options of oslo.db's ``[database]``, by name
    """

    def __init__(self, url: str, **settings: Any) -> None:
        self._url = url
        self._context = enginefacade.transaction_context()
        self._context.configure(**(settings | {"connection": url, "sqlite_fk": True}))
        self._made: Engine | None = None

    @classmethod
    def configured(cls, conf: cfg.ConfigOpts) -> "Database":
        """Return the database that ``[database]`` names.

        :raises CapabilityMissingError: it names none
        """
        register_opts(conf)
        settings = dict(conf.database.items())
        url = settings.pop("connection")
        if not url:
            files = ", ".join(conf.config_file or ())
            raise CapabilityMissingError(
                f"[database]connection is not set in {files}: name the job service's database, such as "
                "mysql+pymysql://USER:PASSWORD@HOST/numa_ext?charset=utf8mb4"
            )
        return cls(url, **settings)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Begin; commit at the end, roll back where anything is raised.

        :raises LostRaceError: another transaction was faster; nothing was changed
        :raises ServiceUnavailableError: the database does not answer, or refuses
        """
        try:
            with self._engine().begin() as connection:
                yield connection
        except (exception.DBDeadlock, exception.DBConsistencyError) as error:
            raise LostRaceError("Another transaction on the same rows was faster.") from error
        except exception.DBError as error:
            raise ServiceUnavailableError(
                f"The job service's database does not do what is asked: {cut(str(error), LONGEST_TEXT)}"
            ) from error

    def again(self, change: Callable[[Connection], T]) -> T:
        """Make a change in a transaction, again while others are faster; return what it returns.

        :raises LostRaceError: others were faster each time
        :raises ServiceUnavailableError: see :meth:`transaction`
        """

        @api.wrap_db_retry(  # type: ignore[untyped-decorator]
            max_retries=_TRIES,
            retry_interval=0.05,
            max_retry_interval=1.0,
            jitter=True,
            exception_checker=lambda error: isinstance(error, LostRaceError),
        )
        def tried() -> T:
            with self.transaction() as connection:
                return change(connection)

        found: T = tried()
        return found

    def now(self) -> float:
        """Return the database's clock, seconds since 1970."""
        with self.transaction() as connection:
            return float(connection.execute(select(Now())).scalar_one())

    def sync(self) -> None:
        """Make the tables, or bring them to this release's version; harmless where they have it."""
        with self.transaction() as connection:
            command.upgrade(self._alembic(connection), "head")

    def version(self) -> tuple[str | None, str]:
        """Return which version the tables have, None without tables, and which one this release wants."""
        with self.transaction() as connection:
            found = MigrationContext.configure(connection).get_current_revision()
            newest = ScriptDirectory.from_config(self._alembic(connection)).get_current_head()
        assert newest is not None, "the package has lost its migrations"
        return found, newest

    def _alembic(self, connection: Connection) -> Config:
        config = Config()
        config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
        config.attributes["connection"] = connection
        return config

    def _engine(self) -> Engine:
        if self._made is None:
            self._made = self._context.writer.get_engine()
        return self._made
