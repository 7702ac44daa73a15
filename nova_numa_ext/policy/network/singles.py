# SPDX-License-Identifier: Apache-2.0
"""On which leaf a single server is least in the way of groups (Jokanović, section 4.2: a small job of one host).

==========================  ==========================================================================================
leaf                        value
==========================  ==========================================================================================
a group has it alone        0: a server there would use uplinks that are promised
in use                      from one half up to 1, the fuller the better: wide places stay whole
nothing is on it            below one half, more towards the last leafs: large groups begin at the first
==========================  ==========================================================================================
"""

from collections.abc import Sequence
from typing import Final

from nova_numa_ext.policy.network.leafs import Leafs

IN_USE: Final = 0.5


def values(leafs: Leafs, used: Sequence[int]) -> list[float]:
    """Return how good each leaf is for a server of no group, in [0, 1].

    :param used: hosts of each leaf on which there are servers
    """
    count = len(leafs.leafs)
    found = []
    for at, (leaf, hosts) in enumerate(zip(leafs.leafs, used, strict=True)):
        busy = max(hosts, leaf.held_hosts)
        if leafs.is_closed(at):
            found.append(0.0)
        elif busy:
            found.append(IN_USE + (1.0 - IN_USE) * min(1.0, busy / max(1, leaf.size)))
        else:
            found.append(IN_USE * (1.0 + at / count) / 2)
    return found
