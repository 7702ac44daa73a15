# SPDX-License-Identifier: Apache-2.0
"""Names with ranges, as Slurm and ClusterShell write them: ``cmp[001-018,020],login1``."""

import re
from collections.abc import Iterator
from typing import Final

from placement_traits.errors import InvalidValueError
from placement_traits.fabric import MOST_HOSTS

_PART: Final = re.compile(r"[^,\[\]\s]*(?:\[[0-9,-]+\][^,\[\]\s]*)*")
_BRACKET: Final = re.compile(r"\[([0-9,-]+)\]")
_RANGE: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_ALLOWED: Final = "names with ranges such as cmp[001-018,020], separated by commas"


def expanded(text: str, where: str) -> list[str]:
    """Return the names of a list; the zeros of a range's first number are kept.

    :param where: file and place, for the sentence of a refusal
    :raises InvalidValueError: this is no list of names, or has too many
    """
    found: list[str] = []
    at = 0
    while True:
        part = _PART.match(text, at)
        if part is None or not part[0]:
            raise InvalidValueError(where, text, _ALLOWED)
        for name in _names(part[0], text, where):
            found.append(name)
            if len(found) > MOST_HOSTS:
                raise InvalidValueError(where, text, f"{MOST_HOSTS} names at most")
        at = part.end()
        if at == len(text):
            return found
        if text[at] != ",":
            raise InvalidValueError(where, text, _ALLOWED)
        at += 1


def _names(part: str, text: str, where: str) -> Iterator[str]:
    bracket = _BRACKET.search(part)
    if bracket is None:
        yield part
        return
    for one in bracket[1].split(","):
        bounds = _RANGE.fullmatch(one)
        if bounds is None or int(bounds[2] or bounds[1]) < int(bounds[1]):
            raise InvalidValueError(where, text, _ALLOWED)
        width = len(bounds[1])
        for number in range(int(bounds[1]), int(bounds[2] or bounds[1]) + 1):
            yield from _names(
                f"{part[: bracket.start()]}{number:0{width}}{part[bracket.end() :]}", text, where
            )
