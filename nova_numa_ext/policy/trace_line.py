# SPDX-License-Identifier: Apache-2.0
"""A line of a trace in CSV: its cells, checked one by one."""

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, Self

from placement_traits.errors import InvalidValueError


@dataclass(frozen=True, slots=True)
class TraceLine:
    """One line of a trace.

    :param at: file and line, for messages
    :param cells: text by column
    """

    at: str
    cells: Mapping[str, str]

    @classmethod
    def of(
        cls, lines: Iterable[str], where: str, columns: Sequence[str], required: Sequence[str]
    ) -> Iterator[Self]:
        """Return the lines below the first one, which names columns.

        :param where: the file, for messages
        :param columns: all that there may be
        :param required: of these, those that must be there
        :raises InvalidValueError: one of them is not there
        """
        reader = csv.DictReader(lines)
        named = frozenset(reader.fieldnames or ())
        for column in required:
            if column not in named:
                allowed = f"a first line that names it, as in {','.join(columns)}"
                raise InvalidValueError(
                    f"{where}, column {column}", ",".join(sorted(named)), allowed
                )
        for number, given in enumerate(reader, start=2):
            yield cls(f"{where} line {number}", {key: text or "" for key, text in given.items()})

    def number(
        self,
        column: str,
        low: float = 0.0,
        high: float = math.inf,
        *,
        default: float | None = None,
    ) -> float:
        """Return a finite number between two limits.

        :param default: what an empty cell or a column that is not there means; None where that is not allowed
        :raises InvalidValueError: it is none
        """
        text = self.cells.get(column, "")
        if not text and default is not None:
            return default
        return self.finite(column, text, low, high)

    def finite(self, column: str, text: str, low: float, high: float = math.inf) -> float:
        """Return the finite number that a text of a cell is.

        :raises InvalidValueError: it is none, or beyond a limit
        """
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or not low <= value <= high:
            least = "" if low == -math.inf else f" >= {low:g}"
            most = "" if high == math.inf else f" and <= {high:g}"
            self.refuse(column, f"a number{least}{most}")
        return value

    def refuse(self, column: str, allowed: str) -> NoReturn:
        """Raise for a cell that is wrong."""
        raise InvalidValueError(f"{self.at}, {column}", self.cells.get(column, ""), allowed)
