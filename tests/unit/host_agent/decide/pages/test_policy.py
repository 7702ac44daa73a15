# SPDX-License-Identifier: Apache-2.0
"""Which shares each memory policy wants, and what a full node does to it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host_agent.decide.pages.policy import desired_shares, fit
from placement_traits.errors import CapabilityMissingError
from placement_traits.names import MemoryPolicy

NODES = (0, 1, 2, 3)
CANONICAL = {0: 0.4, 1: 0.3, 2: 0.2, 3: 0.1}


@pytest.mark.parametrize(
    ("policy", "dwp", "expected"),
    [
        (MemoryPolicy.LOCAL, 0.0, {0: 0.75, 1: 0.25}),
        (MemoryPolicy.FIRST_TOUCH, 0.0, None),
        (MemoryPolicy.AUTONUMA, 0.0, None),
        (MemoryPolicy.UNIFORM_WORKERS, 0.0, {0: 0.5, 1: 0.5}),
        (MemoryPolicy.UNIFORM_ALL, 0.0, dict.fromkeys(NODES, 0.25)),
        (MemoryPolicy.BWAP_UNIFORM, 0.0, dict.fromkeys(NODES, 0.25)),
        (MemoryPolicy.BWAP_UNIFORM, 1.0, {0: 0.5, 1: 0.5, 2: 0.0, 3: 0.0}),
        (MemoryPolicy.BWAP, 0.0, CANONICAL),
        (MemoryPolicy.BWAP, 0.5, {0: 0.4857, 1: 0.3643, 2: 0.1, 3: 0.05}),
    ],
)
def test_f_004_17_every_policy_is_selectable(
    policy: MemoryPolicy, dwp: float, expected: dict[int, float] | None
) -> None:
    shares = desired_shares(
        policy, vcpus_per_node={0: 3, 1: 1}, nodes=NODES, canonical=CANONICAL, dwp=dwp
    )
    if expected is None:
        assert shares is None
    else:
        assert shares == pytest.approx(expected, abs=1e-3)


def test_bwap_without_measured_bandwidths_says_what_to_do() -> None:
    with pytest.raises(CapabilityMissingError, match="calibrate"):
        desired_shares(MemoryPolicy.BWAP, vcpus_per_node={0: 1}, nodes=NODES)


def test_a_full_node_gives_its_share_to_the_other_wanted_nodes() -> None:
    shares, reasons = fit({0: 0.5, 1: 0.3, 2: 0.2}, 1000, {0: 200, 1: 1000, 2: 1000, 3: 1000})
    assert shares == pytest.approx({0: 0.2, 1: 0.48, 2: 0.32, 3: 0.0})
    assert [reason.term for reason in reasons] == ["room_on_node"]


def test_when_the_wanted_nodes_are_full_the_nearest_others_help() -> None:
    shares, _ = fit({0: 1.0}, 1000, {0: 600, 1: 1000, 2: 300}, near=(2, 1))
    assert shares == pytest.approx({0: 0.6, 1: 0.1, 2: 0.3})


def test_a_guest_that_fits_nowhere_is_not_moved() -> None:
    with pytest.raises(CapabilityMissingError, match="nothing is moved"):
        fit({0: 1.0}, 1000, {0: 500, 1: 400})


@given(
    raw=st.lists(st.integers(0, 10), min_size=2, max_size=6).filter(any),
    room=st.lists(st.integers(0, 800), min_size=6, max_size=6),
)
def test_shares_that_fit_sum_to_one_and_never_exceed_the_room(
    raw: list[int], room: list[int]
) -> None:
    desired = {n: value / sum(raw) for n, value in enumerate(raw)}
    rooms = {n: float(value) for n, value in enumerate(room)}
    if sum(room) < 1000:
        with pytest.raises(CapabilityMissingError):
            fit(desired, 1000, rooms)
        return
    shares, _ = fit(desired, 1000, rooms)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert all(share * 1000 <= rooms.get(n, 0) + 1e-6 for n, share in shares.items())


@given(
    st.dictionaries(st.integers(0, 7), st.floats(0.0, 1.0), min_size=1).filter(
        lambda shares: sum(shares.values()) > 0.01
    ),
    st.floats(1.0, 1e6),
)
def test_shares_that_have_room_everywhere_are_given_as_they_are(
    parts: dict[int, float], memory_mb: float
) -> None:
    """What most guests of most rounds get, without going over the nodes again and again."""
    whole = sum(parts.values())
    shares = {node: part / whole for node, part in parts.items()}
    room = {node: shares.get(node, 0.0) * memory_mb + 1.0 for node in range(8)}
    found, clipped = fit(shares, memory_mb, room, (7, 3), {5: memory_mb})
    assert clipped == ()
    assert found == pytest.approx(dict.fromkeys(range(8), 0.0) | shares)
