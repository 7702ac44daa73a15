# SPDX-License-Identifier: Apache-2.0
"""Bytes by level, utilisation and classes, by the programs of the thesis."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_numa_ext.policy.network.use import (
    Message,
    UseThresholds,
    bytes_by_level,
    class_of,
    mean_in_transit,
    utilisation,
)
from nova_numa_ext.policy.network.xgft import Xgft
from placement_traits.errors import InvalidValueError
from placement_traits.names import NetClass

RANKS = 256
TREE = Xgft((16, 16, 4), (1, 4, 4))  # what the thesis calls S4, chapter 5
LINK = 10.0  # Gbit/s


def placed(per_leaf: int) -> dict[int, tuple[str, str]]:
    """Leaf and pod of each rank, so many ranks on each leaf, 16 leafs in each pod."""
    leafs = {rank: rank // per_leaf for rank in range(RANKS)}
    return {rank: (f"l{leaf}", f"p{leaf // 16}") for rank, leaf in leafs.items()}


def ft() -> Iterator[Message]:
    """All ranks to all others, as FT does; one unit each."""
    yield from ((a, b, 1.0) for a in range(RANKS) for b in range(RANKS) if a != b)


def cg() -> Iterator[Message]:
    """Exchanges with the ranks 1, 2, 4 and 8 further in the row of 16, and a transpose of the rows, as CG does."""
    for rank in range(RANKS):
        row, column = divmod(rank, 16)
        for step in (1, 2, 4, 8):
            yield rank, row * 16 + (column ^ step), 1.0
        if row != column:
            yield rank, column * 16 + row, 1.0


def bt() -> Iterator[Message]:
    """Neighbours in a grid of 16 x 16, as BT has them."""
    for rank in range(RANKS):
        row, column = divmod(rank, 16)
        for down, right in ((0, 1), (0, -1), (1, 0), (-1, 0)):
            yield rank, (row + down) % 16 * 16 + (column + right) % 16, 1.0


def used(messages: Iterator[Message], injected: float, per_leaf: int) -> tuple[float | None, ...]:
    """Utilisation by level of a program of which each rank sends so many Gbit/s in the mean."""
    crossing = bytes_by_level(messages, placed(per_leaf))
    seconds = crossing[0] / (RANKS * injected)
    seen = TREE.seen(RANKS, per_leaf, LINK)
    assert seen is not None
    return utilisation(crossing, seconds, (RANKS * LINK, *seen))


@pytest.mark.parametrize(("per_leaf", "share"), [(16, 0.2), (8, 0.4), (4, 0.6)])
def test_the_narrower_the_leafs_the_more_of_cg_leaves_them(per_leaf: int, share: float) -> None:
    """One exchange of five leaves the row at 16 a leaf; the transposes of the diagonal stay, so it is near a fifth."""
    crossing = bytes_by_level(cg(), placed(per_leaf))
    assert crossing[1] / crossing[0] == pytest.approx(share, abs=0.02)


def test_ft_uses_the_highest_level_most() -> None:
    found = used(ft(), 0.65, 8)
    assert max(each for each in found if each is not None) == found[2]
    assert found[2] == pytest.approx(256 * 0.65 * 128 / 255 / 320)


def test_classes_are_those_of_the_thesis_at_8_and_at_4_hosts_of_a_leaf() -> None:
    programs = {"FT": (ft, 0.65), "CG": (cg, 1.3), "BT": (bt, 0.3)}
    found = {
        per_leaf: {
            name: class_of(used(messages(), injected, per_leaf))
            for name, (messages, injected) in programs.items()
        }
        for per_leaf in (8, 4)
    }
    moderate, low = NetClass.MODERATE, NetClass.LOW
    assert found == {
        8: {"FT": moderate, "CG": moderate, "BT": low},
        4: {"FT": moderate, "CG": low, "BT": low},
    }
    at_hosts = {name: used(each(), rate, 4)[0] for name, (each, rate) in programs.items()}
    assert max(at_hosts, key=lambda name: at_hosts[name] or 0.0) == "CG", (
        "its own links do not count"
    )


def test_thresholds_are_the_operators() -> None:
    found = (0.9, 0.3, None)
    assert class_of(found) is NetClass.MODERATE
    assert class_of(found, UseThresholds(0.05, 0.2)) is NetClass.EXTREME
    assert class_of((0.9,)) is NetClass.LOW
    for wrong in ((0.0, 0.5), (0.5, 0.1)):
        with pytest.raises(InvalidValueError):
            UseThresholds(*wrong)


places = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), min_size=1, max_size=8)


@given(places, st.data())
def test_what_crosses_a_level_crosses_those_below(
    drawn: list[tuple[int, int]], data: st.DataObject
) -> None:
    nodes = {rank: (f"p{pod} l{leaf}", f"p{pod}") for rank, (leaf, pod) in enumerate(drawn)}
    rank = st.integers(0, len(nodes) - 1)
    messages = data.draw(st.lists(st.tuples(rank, rank, st.floats(0, 1e9)), max_size=20))
    found = bytes_by_level(messages, nodes)
    assert list(found) == sorted(found, reverse=True)


def test_bytes_in_transit() -> None:
    """100 bytes for 2 s and 50 for 4 s of a run of 10 s; what is under way at its end counts until then."""
    assert mean_in_transit([(0.0, 2.0, 100.0), (5.0, 9.0, 50.0)], 10.0) == pytest.approx(40.0)
    assert mean_in_transit([(8.0, 12.0, 100.0)], 10.0) == pytest.approx(20.0)
    for messages, end in (([(2.0, 1.0, 1.0)], 5.0), ([], 0.0)):
        with pytest.raises(InvalidValueError):
            mean_in_transit(messages, end)
    with pytest.raises(InvalidValueError):
        utilisation((1.0,), 0.0, (1.0,))
