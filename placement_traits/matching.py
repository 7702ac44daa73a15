# SPDX-License-Identifier: Apache-2.0
"""Give each of several the one that it may have, no two the same (augmenting paths, Kuhn 1955)."""

from collections.abc import Hashable, Sequence
from typing import TypeVar

Choice = TypeVar("Choice", bound=Hashable)


def matched(choices: Sequence[Sequence[Choice]]) -> list[Choice | None]:
    """Return one of its choices for as many as possible, no two the same.

    Each has its first choice where that takes nothing from one before it; once one is matched, it stays so.

    :param choices: of each, the best first
    :returns: what each has, in the same order; None: nothing
    """
    owner: dict[Choice, int] = {}

    def place(number: int, seen: set[Choice]) -> bool:
        free = [each for each in choices[number] if each not in owner]
        for each in free or choices[number]:
            if each in seen:
                continue
            seen.add(each)
            if each not in owner or place(owner[each], seen):
                owner[each] = number
                return True
        return False

    for number in range(len(choices)):
        place(number, set())
    has = {number: choice for choice, number in owner.items()}
    return [has.get(number) for number in range(len(choices))]
