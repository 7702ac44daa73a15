# SPDX-License-Identifier: Apache-2.0
"""Amounts as flavors write them."""

from typing import Final

MAX_AMOUNT: Final = 2**31 - 1
"""The largest amount of a resource that Placement takes (``placement.db.constants.MAX_INT``)."""

_DIGITS: Final = 18


def parse_amount(text: str) -> int | None:
    """Return a decimal number, None for what is none.

    More than :data:`MAX_AMOUNT` is refused like that by Placement, whatever it is: so it counts as that, and a text of
    10⁵ digits costs nothing.
    """
    if not text.isdecimal():
        return None
    return min(int(text), MAX_AMOUNT) if len(text) <= _DIGITS else MAX_AMOUNT
