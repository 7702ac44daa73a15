# SPDX-License-Identifier: Apache-2.0
"""Where the database is, how its transactions begin and end, and which version its tables have."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from oslo_config import cfg
from oslo_db import api, exception, options
from oslo_db.sqlalchemy import enginefacade
from sqlalchemy import Connection, Engine, event, make_url, select
from sqlalchemy.exc import ArgumentError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from nova_numa_ext.orchestrator.store.tables import Now
from placement_traits.errors import (
    LONGEST_TEXT,
    CapabilityMissingError,
    NumaExtError,
    ServiceUnavailableError,
    cut,
)
from placement_traits.oslo_options import ConfigurationError

_MIGRATIONS: Final = Path(__file__).parent / "migrations"
_TRIES: Final = 10
# No longer than a term of the leader, whose row such a transaction has locked.
_IDLE_S: Final = 10

T = TypeVar("T")


class LostRaceError(NumaExtError):
    """Another transaction was faster: a deadlock, a certification failure of Galera, a row that has changed or come."""


class DatabaseError(ServiceUnavailableError):
    """The database does not answer, or refuses; for operators, as it may name hosts, users and tables.

    :param words: the driver's, without what was to be written
    """

    def __init__(self, words: str) -> None:
        super().__init__(words)
        self.words = words

    def __str__(self) -> str:
        return (
            f"The job service's database does not do what is asked: {cut(self.words, LONGEST_TEXT)}"
        )


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register oslo.db's options in ``[database]``; registering twice is harmless."""
    conf.register_opts(options.database_opts, "database")


def list_opts() -> list[tuple[str, Sequence[cfg.Opt]]]:
    """Return oslo.db's options by section."""
    found: list[tuple[str, Sequence[cfg.Opt]]] = options.list_opts()
    return found


class Database:
    """One database; any thread may use it.

    :param url: as SQLAlchemy writes it
    :param settings: further options of oslo.db's ``[database]``, by name
    """

    def __init__(self, url: str, **settings: Any) -> None:
        self._url = url = _with_all_characters(url)
        self._context = enginefacade.transaction_context()
        # oslo.db yields to other greenlets after each transaction; here threads wait, on a busy machine for long.
        ours = {"connection": url, "sqlite_fk": True, "thread_checkin": False}
        self._context.configure(**(settings | ours))
        self._lock = threading.Lock()
        self._made: Engine | None = None

    @classmethod
    def configured(cls, conf: cfg.ConfigOpts) -> "Database":
        """Return the database that ``[database]`` names.

        :raises CapabilityMissingError: it names none
        :raises ConfigurationError: what it says cannot be used
        """
        register_opts(conf)
        settings = _settings(conf)
        url = settings.pop("connection")
        if not url:
            files = ", ".join(conf.config_file or ())
            raise CapabilityMissingError(
                f"[database]connection is not set in {files}: name the job service's database, such as "
                "mysql+pymysql://USER:PASSWORD@HOST/numa_ext?charset=utf8mb4"
            )
        _check_url(url, conf)
        return cls(url, **settings)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Begin; commit at the end, roll back where anything is raised.

        :raises LostRaceError: another transaction was faster; nothing was changed
        :raises DatabaseError: see there
        """
        try:
            with self._engine().begin() as connection:
                yield connection
        except (exception.DBDeadlock, exception.DBDuplicateEntry) as error:
            raise LostRaceError("Another transaction on the same rows was faster.") from error
        except exception.DBError as error:
            raise DatabaseError(_words(error)) from error
        except PoolTimeoutError as error:
            raise DatabaseError(f"no connection is free: {error}") from error

    def again(self, change: Callable[[Connection], T]) -> T:
        """Make a change in a transaction, again while others are faster; return what it returns.

        :raises LostRaceError: others were faster each time
        :raises DatabaseError: see there
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
        with self._lock:
            if self._made is None:
                made = self._context.writer.get_engine()
                event.listen(made, "connect", partial(_let_go, made))
                made.dispose()  # of the connection that was made before
                self._made = made
            return self._made


def _let_go(engine: Engine, connection: Any, _record: Any) -> None:
    """Have MariaDB end a transaction whose process does nothing: a host that is gone would keep its locks for hours."""
    if engine.dialect.name == "mariadb" or getattr(engine.dialect, "is_mariadb", False):
        with closing(connection.cursor()) as cursor:
            cursor.execute(f"SET SESSION idle_write_transaction_timeout = {_IDLE_S}")


def _with_all_characters(url: str) -> str:
    """Return a URL by which texts come as they are: oslo.db's own default is three bytes a character at most."""
    parsed = make_url(url)
    if parsed.get_backend_name() not in ("mysql", "mariadb"):
        return url
    whole = parsed.update_query_dict({"charset": "utf8mb4"})
    return whole.render_as_string(hide_password=False)


def _words(error: exception.DBError) -> str:
    """Return what the driver says; oslo.db and SQLAlchemy add the statement with its parameters."""
    inner = error.inner_exception
    said = getattr(inner, "orig", None) or type(inner).__name__
    return f"{type(error).__name__}: {said}"


def _settings(conf: cfg.ConfigOpts) -> dict[str, Any]:
    try:
        return dict(conf.database.items())
    except (cfg.Error, ValueError) as error:
        raise _unusable(conf, f"[database]: {error}") from error


def _check_url(url: str, conf: cfg.ConfigOpts) -> None:
    """See :meth:`Database.configured`; a URL holds a password, so it is not shown."""
    try:
        make_url(url).get_dialect().import_dbapi()
    except ArgumentError:  # of which NoSuchModuleError is one
        allowed = "mysql+pymysql://USER:PASSWORD@HOST/numa_ext?charset=utf8mb4"
        raise _unusable(
            conf, f"[database]connection is no URL of a database; allowed: such as {allowed}"
        ) from None
    except ImportError as error:
        raise _unusable(
            conf, f"[database]connection needs a driver that is not installed: {error}"
        ) from error


def _unusable(conf: cfg.ConfigOpts, why: str) -> ConfigurationError:
    where = ", ".join(conf.config_file or ())
    return ConfigurationError(f"{where}: {cut(why, LONGEST_TEXT)}")
