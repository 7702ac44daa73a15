# SPDX-License-Identifier: Apache-2.0
"""Extended generalised fat trees, XGFT(h; m1 … mh; w1 … wh): how many switches and links they have, what a job sees.

Jokanović, section 1.2.1 after Öhring et al. Level 0 are the hosts, level h the roots; a node of level i has m_i
children and a node of level i - 1 has w_i parents. Links of level i join levels i - 1 and i.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import prod

from placement_traits.errors import InvalidValueError


@dataclass(frozen=True, slots=True)
class Xgft:
    """A fat tree.

    :param children: m1 … mh
    :param parents: w1 … wh
    :raises InvalidValueError: the lists are empty, not as long as each other, or have numbers below 1
    """

    children: tuple[int, ...]
    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.children or len(self.children) != len(self.parents):
            raise InvalidValueError(
                "XGFT", (self.children, self.parents), "as many numbers of children as of parents"
            )
        if min(*self.children, *self.parents) < 1:
            raise InvalidValueError("XGFT", (self.children, self.parents), "numbers >= 1")

    @property
    def height(self) -> int:
        """Levels of switches."""
        return len(self.children)

    def nodes(self, level: int) -> int:
        """Nodes of a level, 0 to h: hosts at 0, switches above."""
        return prod(self.parents[:level]) * prod(self.children[level:])

    def links(self, level: int) -> int:
        """Links of a level, 1 to h."""
        return self.nodes(level - 1) * self.parents[level - 1]

    def bandwidth(self, level: int, link: float) -> float:
        """Bandwidth of all links of a level in one direction; unit as of one link."""
        return self.links(level) * link

    def contention(self, level: int) -> Fraction:
        """Links down per link up at a switch of a level, 1 to h - 1."""
        return Fraction(self.children[level - 1], self.parents[level])

    def seen(self, hosts: int, per_leaf: int, link: float) -> tuple[float | None, ...] | None:
        """Return the bandwidth upwards from leafs, from the next level …, that a job can reach; None: it does not fit.

        :param hosts: of the job
        :param per_leaf: of them on each leaf that it uses, all in order
        :param link: bandwidth of one link
        :return: for levels 2 to h; None where the job stays below one node
        """
        used = -(-hosts // per_leaf)  # subtrees of level 1
        if per_leaf > self.children[0] or used > self.nodes(1) // prod(self.parents[:1]):
            return None
        found: list[float | None] = []
        for level in range(2, self.height + 1):
            links = used * prod(self.parents[1:level])
            found.append(links * link if level == 2 or used > 1 else None)
            used = -(-used // self.children[level - 1])
        return tuple(found)
