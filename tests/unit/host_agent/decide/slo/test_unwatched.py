# SPDX-License-Identifier: Apache-2.0
"""Whatever the controller was doing when it stops: nobody stays at the minimum, nothing stands that was only tried."""

from typing import Any

import pytest

from host_agent.decide.slo.shapes import (
    BalmPhase,
    BalmState,
    BeTarget,
    GiveBack,
    Moving,
    Releasing,
    Search,
    Taken,
)
from host_agent.decide.slo.unwatched import unwatched

HERE = frozenset({0})
LOW = {"a": BeTarget(10), "b": BeTarget(10)}
BEFORE = {"a": BeTarget(80)}


@pytest.mark.parametrize(
    ("state", "levels"),
    [
        ({"search": Search(("a", "b"), HERE, valid={"a": BeTarget(40), "gone": BeTarget(30)})}, (40, 10)),
        ({"phase": BalmPhase.HEAL, "search": Search(("a", "b"), HERE), "before": BEFORE}, (80, 50)),
        ({"phase": BalmPhase.RELEASE, "releasing": Releasing((), frozenset("L"), 2.0), "before": BEFORE}, (80, 50)),
        ({"phase": BalmPhase.TRIAL, "trial": GiveBack("a", BeTarget(60))}, (60, 10)),
        ({"moving": Moving("a", 70, careful=False)}, (70, 10)),
        ({}, (10, 10)),
    ],
    ids=["a level was good", "none was yet", "nothing helps", "trial", "pages under way", "at rest"],
)  # fmt: skip
def test_levels_that_may_stand(state: dict[str, Any], levels: tuple[int, int]) -> None:
    found = unwatched(
        BalmState(targets=LOW, taken=Taken(full_s={"L": 1.0}), **state), {"a": 50, "b": 50}
    )
    assert {uuid: target.level for uuid, target in found.targets.items()} == dict(
        zip("ab", levels, strict=True)
    )
    assert (found.phase, found.search, found.taken.full_s) == (BalmPhase.WATCH, None, {"L": 1.0})
