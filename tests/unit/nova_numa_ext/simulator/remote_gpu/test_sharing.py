# SPDX-License-Identifier: Apache-2.0
"""How much programs that share a GPU slow each other: the limits that are known, and what was measured."""

import pytest

from nova_numa_ext.policy.remote_gpu.slices import SHARING_SLOWDOWN
from nova_numa_ext.simulator.remote_gpu.sharing import slowdowns


def test_a_program_alone_is_as_fast_as_its_gpu() -> None:
    assert slowdowns((0.7,)) == pytest.approx((1.0,))
    assert slowdowns((0.5,), 2.0) == pytest.approx((0.75,))
    assert slowdowns(()) == ()


def test_programs_that_only_compute_share_the_gpu_and_those_that_do_not_are_not_slowed() -> None:
    assert slowdowns((1.0, 1.0, 1.0)) == pytest.approx((3.0, 3.0, 3.0))
    assert slowdowns((0.0, 0.9)) == pytest.approx((1.0, 1.0))


def test_two_alike_are_slowed_as_the_closed_network_says() -> None:
    """Of two the one waits for the other in half of its kernels: 1 - b + b (1 + b)."""
    assert slowdowns((0.4, 0.4)) == pytest.approx((1.16, 1.16))
    first, second = slowdowns((0.2, 0.8))
    assert 1 < second < first < 1.2, "the one that computes little meets the other most"


@pytest.mark.parametrize("tenants", [2, 3])
def test_it_says_what_was_measured_within_four_percent(tenants: int) -> None:
    """Prades 2021, section 3.4: a GPU that is busy half of the time; over one remote tenant."""
    (said, *_) = slowdowns((0.5,) * tenants)
    assert said == pytest.approx(SHARING_SLOWDOWN[tenants] / SHARING_SLOWDOWN[1], rel=0.04)


def test_no_gpu_does_more_than_it_can() -> None:
    busy = (0.9, 0.6, 0.3, 0.8, 0.5, 0.7)
    done = [each / slower for each, slower in zip(busy, slowdowns(busy), strict=True)]
    assert 0.9 < sum(done) < 1.0
