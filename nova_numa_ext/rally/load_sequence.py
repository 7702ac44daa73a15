# SPDX-License-Identifier: Apache-2.0
"""Which server uses a GPU next, and how long none does then: a load that is the same for a seed.

Prades 2021, section 3.2: applications follow each other in random order, with a gap between the end of one and the
start of the next. How long the gap is, is the load: 90 s low, 45 s medium, 22 s high, 0 s the most that one user makes.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Session:
    """One server that uses a GPU.

    :param flavor: name of its flavor
    :param gap_s: from its end until the next one begins, seconds
    """

    flavor: str
    gap_s: float


def sessions(
    flavors: Sequence[str], gaps_s: Sequence[float], count: int, seed: int
) -> tuple[Session, ...]:
    """Return sessions in random order; those of a seed are always the same, and more of them begin alike.

    Flavors come equally often, and so do gaps: each in an order of its own.

    :param flavors: from which is drawn, one at least
    :param gaps_s: from which is drawn, seconds, one at least
    :param count: how many
    :param seed: of both orders
    """
    drawn = zip(
        _in_random_order(flavors, random.Random(f"flavors {seed}")),
        _in_random_order(gaps_s, random.Random(f"gaps {seed}")),
        strict=True,
    )
    return tuple(Session(flavor, float(gap_s)) for flavor, gap_s in islice(drawn, count))


def _in_random_order(values: Sequence[_T], draw: random.Random) -> Iterator[_T]:
    """Yield all values in random order, then all again in another one, without end."""
    while True:
        yield from draw.sample(values, len(values))
