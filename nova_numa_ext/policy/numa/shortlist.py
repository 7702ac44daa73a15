# SPDX-License-Identifier: Apache-2.0
"""In which order hosts are judged, and how many of them: the best by a guess, and those that nova's choosing needs.

The guess is the total of nova's weighers and of our coarse score (:mod:`.coarse`). Hosts that cannot serve the request
by what is known come last, in the same order among themselves: knowledge may be stale, so the judge still has the last
word about them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from nova_numa_ext.policy.numa.coarse_terms import Integers, Mask
from nova_numa_ext.policy.numa.score import Floats

LEAST_PASSED: Final = 8
_SHARE_OF_THE_BEST: Final = 4


@dataclass(frozen=True, slots=True)
class Size:
    """How long the list is.

    :param hosts: hosts in it, at least
    :param per_cell: hosts that each of nova's cells has in it, at least, if it has one among the best
    """

    hosts: int
    per_cell: int = 0

    @classmethod
    def of(cls, option: int, servers: int, attempts: int) -> "Size":
        """Return the size.

        :param option: ``[numa_ext]shortlist``
        :param servers: of the request
        :param attempts: hosts that nova tries one after the other, all of one cell
        """
        return cls(max(option, 2 * servers), attempts)


def enough(servers: int) -> int:
    """Return how many hosts must pass all filters before the rest of the hosts is left out."""
    return max(LEAST_PASSED, 2 * servers)


def order(totals: Floats, possible: Mask) -> Integers:
    """Return the hosts in the order in which they are judged: H positions.

    :param totals: coarse totals of all weighers, H
    """
    found: Integers = np.lexsort((-totals, ~possible))
    return found


def chosen(
    ordered: Integers, possible: Mask, raw: Sequence[Floats], cells: Sequence[str], size: Size
) -> Integers:
    """Return the positions that are judged first: the best ones, and those that keep nova's ways of choosing.

    Nova stretches what a weigher says over the hosts at hand, so those with the least and the most of each weigher
    are in the list, too; and nova tries a server again in the cell of its first host only.

    :param ordered: what :func:`order` returns
    :param raw: what each of nova's weighers says, H each
    :param cells: nova's cell of each host, H
    """
    best = ordered[: size.hosts]
    known = np.flatnonzero(possible)
    extremes = [
        known[at]
        for values in raw
        if len(known)
        for at in (int(values[known].argmin()), int(values[known].argmax()))
    ]
    names = np.array(cells, dtype=object)
    extra = [
        at
        for cell in dict.fromkeys(names[best[: max(1, size.hosts // _SHARE_OF_THE_BEST)]].tolist())
        for at in ordered[_first(names[ordered] == cell, size.per_cell)].tolist()
    ]
    found: Integers = np.array(
        list(dict.fromkeys([*best.tolist(), *map(int, extremes), *extra])), np.int64
    )
    return found


def _first(mask: Mask, count: int) -> Integers:
    return np.flatnonzero(mask)[:count]
