# SPDX-License-Identifier: Apache-2.0
"""Plain JSON data that came from outside, read with checks: every error names the place of the wrong value."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from placement_traits.errors import InvalidValueError

_SHOWN: Final = 60
_SUM_OF_SHARES: Final = 1e-6


class Value:
    """One value of a JSON text and where it stands.

    Every method raises :class:`~placement_traits.errors.InvalidValueError` where the value is of another kind.

    :param raw: as :func:`json.loads` returns it
    :param where: the file and the path in it
    """

    __slots__ = ("raw", "where")

    def __init__(self, raw: Any, where: str) -> None:
        self.raw = raw
        self.where = where

    def refused(self, allowed: str) -> InvalidValueError:
        """Return the error that says what would be allowed here; a long value is shown by its beginning."""
        given = self.raw
        if isinstance(given, Mapping | Sequence) and not isinstance(given, str):
            given = f"{'an object' if isinstance(given, Mapping) else 'a list'} of {len(given)}"
        elif isinstance(given, str) and len(given) > _SHOWN:
            given = f"{given[:_SHOWN]}…"
        elif isinstance(given, int) and given.bit_length() > _SHOWN:
            given = f"a number of {given.bit_length()} bits"
        return InvalidValueError(self.where, given, allowed)

    def members(self) -> dict[str, "Value"]:
        """Return the members of an object."""
        if not isinstance(self.raw, Mapping):
            raise self.refused("an object")
        return {name: Value(raw, f"{self.where}.{name}") for name, raw in self.raw.items()}

    def member(self, name: str) -> "Value":
        """Return a member that has to be there."""
        if not isinstance(self.raw, Mapping):
            raise self.refused("an object")
        if name not in self.raw:
            raise InvalidValueError(f"{self.where}.{name}", None, "a value, it is missing")
        return Value(self.raw[name], f"{self.where}.{name}")

    def numbered(self) -> dict[int, "Value"]:
        """Return the members of an object whose names are whole numbers >= 0 (NUMA nodes, L3 domains)."""
        found = {}
        for name, value in self.members().items():
            if not (name.isascii() and name.isdecimal() and len(name) < 10):
                raise InvalidValueError(self.where, name[:_SHOWN], "whole numbers >= 0 as names")
            found[int(name)] = value
        return found

    def items(self) -> "list[Value]":
        """Return the items of a list."""
        if not isinstance(self.raw, list):
            raise self.refused("a list")
        return [Value(raw, f"{self.where}[{number}]") for number, raw in enumerate(self.raw)]

    def text(self) -> str:
        """Return a string."""
        if not isinstance(self.raw, str):
            raise self.refused("a text")
        return self.raw

    def flag(self) -> bool:
        """Return a truth value."""
        if not isinstance(self.raw, bool):
            raise self.refused("true or false")
        return self.raw

    def integer(self, least: int = 0, most: int | None = None) -> int:
        """Return a whole number within bounds."""
        number = self.raw
        allowed = f"a whole number >= {least}" + ("" if most is None else f" and <= {most}")
        if not isinstance(number, int) or isinstance(number, bool) or number < least:
            raise self.refused(allowed)
        if most is not None and number > most:
            raise self.refused(allowed)
        return number

    def number(self, least: float = -math.inf, most: float = math.inf) -> float:
        """Return a finite number within bounds."""
        if not isinstance(self.raw, int | float) or isinstance(self.raw, bool):
            raise self.refused("a number")
        try:
            number = float(self.raw)
        except OverflowError:
            raise self.refused("a number") from None
        if not math.isfinite(number) or not least <= number <= most:
            raise self.refused(f"a number from {least:g} to {most:g}")
        return number

    def optional(self) -> "Value | None":
        """Return the value, None for null."""
        return None if self.raw is None else self

    def shares(self) -> dict[int, float]:
        """Return node -> share of a whole; together they are 1."""
        found = {node: value.number(0.0, 1.0) for node, value in self.numbered().items()}
        if abs(sum(found.values()) - 1.0) > _SUM_OF_SHARES:
            raise self.refused("shares that sum to 1")
        return found
