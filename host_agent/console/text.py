# SPDX-License-Identifier: Apache-2.0
"""Values and rows for a reader."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

NOTHING: Final = "-"
_DEEPEST: Final = 8


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows, at least one, as a table with aligned columns; the columns of the first row."""
    columns = list(rows[0])
    cells = [[cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(text) for text in column) for column in zip(columns, *cells, strict=True)]
    lines = [columns, ["-" * width for width in widths], *cells]
    return "".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        + "\n"
        for row in lines
    )


def known(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those values that are not nothing."""
    return {key: value for key, value in values.items() if cell(value) != NOTHING}


def cell(value: Any, depth: int = _DEEPEST) -> str:
    """Return a value in one line; :data:`NOTHING` for nothing, an ellipsis for what is nested deeper than ``depth``."""
    if value is None or value == "":
        return NOTHING
    if not isinstance(value, Mapping | list | tuple | set | frozenset):
        return str(value)
    if not depth:
        return "…"
    if not isinstance(value, Mapping):
        return ",".join(cell(item, depth - 1) for item in value) or NOTHING
    if set(value) == {"address", "node"}:
        return f"{value['address']}@{cell(value['node'], depth - 1)}"
    return " ".join(f"{key}:{cell(item, depth - 1)}" for key, item in value.items()) or NOTHING
