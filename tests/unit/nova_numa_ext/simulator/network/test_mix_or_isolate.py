# SPDX-License-Identifier: Apache-2.0
"""Figures 3.19 and 3.20 on single links: who may share a switch, and from when on each should have its own (F-003-27).

XGFT(3; 16, 16, 8; 1, W, W) with random routes, as in the thesis. FT sends all to all and communicates half of its time
(0.107 of 0.212 s); what CGPOP sends is not published: here to the next host, a twentieth of its time. The model has all
hosts send at once, all the time that they communicate, so a partner that seldom sends costs more than it would.
"""

from collections.abc import Sequence

import pytest

from nova_numa_ext.simulator.network.fluid import Pattern, max_min
from nova_numa_ext.simulator.network.links import CAPACITY, LinkTree, Routing, flows, loads
from nova_numa_ext.simulator.network.traffic import JobTraffic

FT = JobTraffic(Pattern.ALL_TO_ALL, 0.5)
CGPOP = JobTraffic(Pattern.RING, 0.05)
TASKS, PER_LEAF = 256, 16

Placed = tuple[Sequence[int], JobTraffic]


def hosts(leaf: int, of_each: int, offset: int = 0) -> list[int]:
    """So many of each leaf from one on, from a place of it on."""
    leafs = range(leaf, leaf + TASKS // of_each)
    return [each * PER_LEAF + offset + at for each in leafs for at in range(of_each)]


def slowdowns(parents: int, *jobs: Placed) -> list[float]:
    tree = LinkTree((PER_LEAF, 16, 8), (1, parents, parents))
    used = [
        loads(tree, flows(at, sent.pattern), Routing.RANDOM, seed)
        for seed, (at, sent) in enumerate(jobs)
    ]
    capacity = dict.fromkeys((link for each in used for link in each), CAPACITY)
    rates = max_min(used, capacity)
    return [1 / sent.speed(rate) for (_, sent), rate in zip(jobs, rates.tolist(), strict=True)]


def gains(parents: int) -> list[float]:
    """What each of FT and CGPOP gains by leafs of its own (F16) over sharing them with the other one (F8)."""
    grouped = slowdowns(
        parents,
        (hosts(0, 8), FT),
        (hosts(0, 8, 8), CGPOP),
        (hosts(32, 8), FT),
        (hosts(32, 8, 8), CGPOP),
    )
    alone = slowdowns(
        parents,
        (hosts(0, 16), FT),
        (hosts(16, 16), CGPOP),
        (hosts(32, 16), FT),
        (hosts(48, 16), CGPOP),
    )
    return [1 - own / shared for own, shared in zip(alone[:2], grouped[:2], strict=True)]


def test_two_that_send_much_are_bad_for_each_other() -> None:
    """E6, half of the links up. Beside CGPOP FT loses little in the thesis and more here, but less than beside FT."""
    (alone,) = slowdowns(8, (hosts(0, 8), FT))
    both = slowdowns(8, (hosts(0, 8), FT), (hosts(0, 8, 8), FT))
    mixed = slowdowns(8, (hosts(0, 8), FT), (hosts(0, 8, 8), CGPOP))
    assert alone < mixed[0] < both[0]
    assert both == pytest.approx([both[0]] * 2, rel=0.1)


def test_leafs_of_its_own_pay_where_there_are_few_links_up() -> None:
    """E7: with half of the links up FT hardly gains or loses, with fewer both gain, the more the fewer."""
    half, quarter, eighth = map(gains, (8, 4, 2))
    assert abs(half[0]) < 0.05
    assert 0.05 < quarter[0] < eighth[0]
    assert half[1] < quarter[1] < eighth[1]
