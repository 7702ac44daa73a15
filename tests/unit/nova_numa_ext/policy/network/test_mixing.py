# SPDX-License-Identifier: Apache-2.0
"""Who may share uplinks with whom: mixing where the fabric is wide, isolating where it is narrow (F-003-26 to 28)."""

from dataclasses import replace

import pytest

from nova_numa_ext.policy.network.groups import GroupRequest
from nova_numa_ext.policy.network.leafs import Leaf
from nova_numa_ext.policy.network.mixing import Company, company, pays
from nova_numa_ext.policy.network.planner import plan
from placement_traits.names import NetClass
from tests.support.fabrics import fabric, leafs_of

LOW, MODERATE, EXTREME = NetClass


def leaf(resident: NetClass | None, oversubscription: float | None) -> Leaf:
    residents = () if resident is None else (resident,)
    return Leaf("l", (), 18, 18, 16, residents=residents, oversubscription=oversubscription)


@pytest.mark.parametrize(
    ("oversubscription", "expected"),
    [
        (None, "extreme: GOOD FAIR BAD, moderate: GOOD FAIR FAIR, low: GOOD GOOD GOOD"),
        (2.0, "extreme: GOOD FAIR BAD, moderate: GOOD FAIR FAIR, low: GOOD GOOD GOOD"),
        (4.0, "extreme: BAD BAD BAD, moderate: FAIR BAD BAD, low: GOOD FAIR BAD"),
    ],
)
def test_company_on_a_leaf(oversubscription: float | None, expected: str) -> None:
    """In each row what a group finds where a low, a moderate and an extreme one is."""
    assert expected == ", ".join(
        f"{mine.value}: "
        + " ".join(company(leaf(other, oversubscription), mine).name for other in NetClass)
        for mine in (EXTREME, MODERATE, LOW)
    )
    assert company(leaf(None, oversubscription), EXTREME) is Company.GOOD


def placed(
    residents: dict[int, NetClass], mine: NetClass, oversubscription: float, hosts: int = 36
):
    leafs = leafs_of(fabric([18] * 4, leafs_per_pod=4))
    leafs = replace(
        leafs,
        leafs=tuple(
            replace(
                each,
                free=17 if at in residents else 18,
                residents=(residents[at],) if at in residents else (),
                oversubscription=oversubscription,
            )
            for at, each in enumerate(leafs.leafs)
        ),
    )
    return [one.leaf for one in plan(leafs, GroupRequest(hosts, net_class=mine)).places]


def test_extreme_groups_are_not_put_together_where_there_is_another_place() -> None:
    """F-003-26: best fit alone would fill the leafs that are used."""
    at = {0: EXTREME, 1: LOW, 2: EXTREME, 3: LOW}
    assert placed(at, LOW, 2.0, 34) == ["l000", "l001"]
    assert placed(at, EXTREME, 2.0, 34) == ["l001", "l003"]
    assert len(placed(at, EXTREME, 2.0, 60)) == 4, "where there is none they are"


def test_on_a_narrow_fabric_an_extreme_group_is_alone() -> None:
    """F-003-27."""
    at = {0: LOW, 1: LOW}
    assert placed(at, EXTREME, 2.0, 34) == ["l000", "l002"]
    assert placed(at, EXTREME, 4.0, 34) == ["l002", "l003"]


def test_a_group_in_one_leaf_uses_no_uplink() -> None:
    assert placed({0: EXTREME}, EXTREME, 8.0, 17) == ["l000"]


def test_another_place_pays_where_all_gain_more_than_the_group_loses() -> None:
    """F-003-28: Eq. 3.5."""
    assert pays([3.0, 4.0], [1.0, 2.0], intra_before=1.0, intra_after=4.0)
    assert not pays([3.0, 4.0], [1.0, 2.0], intra_before=1.0, intra_after=5.0)
