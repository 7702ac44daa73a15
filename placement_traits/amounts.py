# SPDX-License-Identifier: Apache-2.0
"""Amounts as flavors write them."""

import re
from collections.abc import Mapping
from typing import Final

MAX_AMOUNT: Final = 2**31 - 1
"""The largest amount of a resource that Placement takes (``placement.db.constants.MAX_INT``)."""

_DIGITS: Final = 18

RESOURCE_KEY: Final = re.compile(r"^resources(?P<group>[A-Za-z0-9_-]*):(?P<resource>[A-Z0-9_]+)$")
"""An extra spec that asks for an amount of a resource class in a request group; the unnumbered group is ''."""


def parse_amount(text: str) -> int | None:
    """Return a decimal number, None for what is none.

    More than :data:`MAX_AMOUNT` is refused like that by Placement, whatever it is: so it counts as that, and a text of
    10⁵ digits costs nothing.
    """
    if not text.isdecimal():
        return None
    return min(int(text), MAX_AMOUNT) if len(text) <= _DIGITS else MAX_AMOUNT


def amounts_by_group(extra_specs: Mapping[str, str], resource: str) -> dict[str, int]:
    """Return the amounts of one resource class by request group; the unnumbered group is ''."""
    amounts = {}
    for key, value in extra_specs.items():
        match = RESOURCE_KEY.match(key)
        number = parse_amount(value)
        if match and match["resource"] == resource and number is not None:
            amounts[match["group"]] = number
    return amounts
