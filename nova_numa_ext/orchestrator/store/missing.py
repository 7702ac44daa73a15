# SPDX-License-Identifier: Apache-2.0
"""What migrations make, each only where it is not there yet.

MariaDB commits with each statement that makes a table, a column or an index. A migration that is cut off has made some
of them, while the version that is stored is the one before: the next ``db sync`` begins with the same migration again,
and has to go on where that one ended. Migrations use these functions in place of Alembic's of the same names.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

from placement_traits.errors import ConflictError


def create_table(name: str, *columns: "sa.Column[Any]", **options: Any) -> None:
    """Make a table with all of its columns; parameters as of ``alembic.op.create_table``.

    :raises ConflictError: there is another one of that name, of another service
    """
    if not _seen().has_table(name):
        op.create_table(name, *columns, **options)
        return
    there = {each["name"] for each in _seen().get_columns(name)}
    missing = [
        each.name for each in columns if isinstance(each, sa.Column) and each.name not in there
    ]
    if missing:
        raise ConflictError(
            f"The database has a table {name} without {', '.join(missing)}, which is not the job service's: "
            "[database]connection is to name a database of its own."
        )


def add_column(table: str, column: "sa.Column[Any]") -> None:
    """Make a column of a table that is there."""
    if column.name not in {each["name"] for each in _seen().get_columns(table)}:
        op.add_column(table, column)


def create_index(name: str, table: str, columns: list[str], *, unique: bool = False) -> None:
    """Make an index of a table that is there."""
    if name not in {each["name"] for each in _seen().get_indexes(table)}:
        op.create_index(name, table, columns, unique=unique)


def _seen() -> sa.Inspector:
    """Return what is there now: an inspector keeps what it has read."""
    return sa.inspect(op.get_bind())
