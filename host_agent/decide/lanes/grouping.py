# SPDX-License-Identifier: Apache-2.0
"""Which applications share a lane where there are fewer lanes than applications (Jokanović, section 5.3).

The most demanding ones have a lane each, the others share the last one. The same holds for virtual lanes of InfiniBand,
traffic classes of Ethernet and classes of service of a cache: what is shared is a buffer, and who fills it is in the
way of all others there.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from placement_traits.errors import InvalidValueError

_HEAVIEST: Final = 8


def grouped(demand: Mapping[str, Sequence[float]], lanes: int) -> tuple[tuple[str, ...], ...]:
    """Return who is in which lane, the most demanding first.

    :param demand: of each application its utilisation of each shared level; its highest counts
    :param lanes: how many there are, >= 1
    :return: as many groups as there are lanes, or applications where these are fewer
    :raises InvalidValueError: there is no lane
    """
    if lanes < 1:
        raise InvalidValueError("lanes", lanes, "1 or more")
    ordered = sorted(demand, key=lambda name: (-max(demand[name], default=0.0), name))
    if len(ordered) <= lanes:
        return tuple((name,) for name in ordered)
    alone, together = ordered[: lanes - 1], ordered[lanes - 1 :]
    return (*((name,) for name in alone), tuple(together))


def weights(demand: Sequence[float]) -> tuple[int, ...]:
    """Return weights to begin with, inverse to demand: 1 for the largest, then twice as much for each half of it, to 8.

    :param demand: of each lane, >= 0
    """
    most = max(demand, default=0.0)
    found = []
    for each in demand:
        weight = 1
        while weight < _HEAVIEST and each * 2 * weight <= most:
            weight *= 2
        found.append(weight)
    return tuple(found)
