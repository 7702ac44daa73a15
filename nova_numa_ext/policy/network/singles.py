# SPDX-License-Identifier: Apache-2.0
"""On which leaf a single server is least in the way of groups (Jokanović, section 4.2: a small job of one host).

==========================  ==========================================================================================
leaf                        value
==========================  ==========================================================================================
a group has it alone        0: a server there would use uplinks that are promised; operators may have it refused
in use                      from one half up to 1, the fuller the better: wide places stay whole
nothing is on it            below one half, more towards the last leafs: large groups begin at the first
==========================  ==========================================================================================
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from nova_numa_ext.policy.network.leafs import Leafs

CLOSED: Final = 0.0
IN_USE: Final = 0.5


class Singles(StrEnum):
    """What becomes of servers of no group on leafs that a group has alone."""

    AVOID = "avoid"
    REFUSE = "refuse"


def values(leafs: Leafs, used: Sequence[int]) -> list[float]:
    """Return how good each leaf is for a server of no group, in [0, 1].

    :param used: hosts of each leaf on which there are servers
    """
    count = len(leafs.leafs)
    found = []
    for at, (leaf, hosts) in enumerate(zip(leafs.leafs, used, strict=True)):
        busy = max(hosts, leaf.held_hosts)
        if leafs.is_closed(at):
            found.append(CLOSED)
        elif busy:
            found.append(IN_USE + (1.0 - IN_USE) * min(1.0, busy / max(1, leaf.size)))
        else:
            found.append(IN_USE * (1.0 + at / count) / 2)
    return found
