# SPDX-License-Identifier: Apache-2.0
"""How much a group uses each level of the network, and which class that is (Jokanović, section 3.2).

Each message counts at the levels that it crosses, by where its two ranks are::

    level 0     every message
    level 1     those that leave the leaf
    level 2     those that leave the node right above the leaf, and so on

Utilisation of a level is the rate at which bytes cross it, in the time that the group needs where no network slows it,
over the bandwidth that the group sees there. The class follows from the highest utilisation of the levels that groups
share: a host's own link is its group's alone, so level 0 does not count.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from placement_traits.errors import InvalidValueError
from placement_traits.names import NetClass

Message = tuple[int, int, float]
"""Rank that sends, rank that receives, bytes."""


@dataclass(frozen=True, slots=True)
class UseThresholds:
    """From which utilisation of a shared level on a group is of a class; the thesis names no figures.

    With these the groups of its chapter 5 are of the classes that it gives them, by their mean rates.

    :param moderate: in (0, 1]
    :param extreme: not below ``moderate``
    :raises InvalidValueError: figures without a meaning
    """

    moderate: float = 0.1
    extreme: float = 0.5

    def __post_init__(self) -> None:
        if not 0.0 < self.moderate <= self.extreme:
            raise InvalidValueError(
                "thresholds of classes", (self.moderate, self.extreme), "0 < moderate <= extreme"
            )


DEFAULT_THRESHOLDS: Final = UseThresholds()


def bytes_by_level(
    messages: Iterable[Message], nodes_of: Mapping[int, Sequence[str]]
) -> tuple[float, ...]:
    """Return the bytes that cross each level, 0 first; each level has at most as many as the one below.

    :param nodes_of: leaf of each rank and the nodes above it, bottom up, of each as many
    :raises KeyError: a rank has no place
    """
    levels = max(map(len, nodes_of.values()), default=0)
    found = [0.0] * (levels + 1)
    for sender, receiver, size in messages:
        found[0] += size
        pairs = zip(nodes_of[sender], nodes_of[receiver], strict=True)
        for level, (own, other) in enumerate(pairs, start=1):
            if own == other:
                break
            found[level] += size
    return tuple(found)


def utilisation(
    crossing: Sequence[float], seconds: float, bandwidth: Sequence[float | None]
) -> tuple[float | None, ...]:
    """Return U_L = R_L / B_L of each level; None where the group does not come or the bandwidth is not known.

    :param crossing: bytes of each level, as of :func:`bytes_by_level`
    :param seconds: that the group needs where nothing but its own links slow it
    :param bandwidth: that it sees at each level, bytes a second, as of :meth:`.xgft.Xgft.seen`
    :raises InvalidValueError: there is no time
    """
    if seconds <= 0:
        raise InvalidValueError("seconds", seconds, "a number > 0")
    return tuple(
        None if seen is None else size / seconds / seen
        for size, seen in zip(crossing, bandwidth, strict=True)
    )


def class_of(
    used: Sequence[float | None], thresholds: UseThresholds = DEFAULT_THRESHOLDS
) -> NetClass:
    """Return the class of a group by the utilisation of each level, 0 first; what is not known counts as nothing."""
    highest = max((each for each in used[1:] if each is not None), default=0.0)
    if highest >= thresholds.extreme:
        return NetClass.EXTREME
    return NetClass.MODERATE if highest >= thresholds.moderate else NetClass.LOW


def mean_in_transit(messages: Iterable[tuple[float, float, float]], end: float) -> float:
    """Return how many bytes are under way in the mean (Eq. 2.1).

    :param messages: when each was sent and had arrived, s, and its bytes
    :param end: of the run, s
    :raises InvalidValueError: a message arrives before it is sent, or the run has no length
    """
    if end <= 0:
        raise InvalidValueError("end of the run", end, "a number > 0")
    total = 0.0
    for sent, arrived, size in messages:
        if not 0 <= sent <= arrived:
            raise InvalidValueError("message", (sent, arrived), "sent, then arrived")
        total += size * (min(arrived, end) - min(sent, end))
    return total / end
