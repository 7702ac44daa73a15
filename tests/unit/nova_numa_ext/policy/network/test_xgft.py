# SPDX-License-Identifier: Apache-2.0
"""Fat trees and bounds of sharing against the figures of the thesis (F-003-02 to 04)."""

from fractions import Fraction

import pytest

from nova_numa_ext.policy.network.sharing import most_jobs, most_jobs_per_link, most_jobs_spread
from nova_numa_ext.policy.network.xgft import Xgft
from placement_traits.errors import InvalidValueError


def slimmed(width: int) -> Xgft:
    return Xgft((16, 16, 8), (1, width, width))


@pytest.mark.parametrize(
    ("width", "links", "gbps", "switches", "ratio"),
    [
        (16, (2048, 2048, 2048), (20480, 20480, 20480), (128, 128, 256), 1),
        (8, (2048, 1024, 512), (20480, 10240, 5120), (128, 64, 64), 2),
        (4, (2048, 512, 128), (20480, 5120, 1280), (128, 32, 16), 4),
        (2, (2048, 256, 32), (20480, 2560, 320), (128, 16, 4), 8),
        (1, (2048, 128, 8), (20480, 1280, 80), (128, 8, 1), 16),
    ],
)
def test_the_slimmed_trees_of_2048_hosts(width, links, gbps, switches, ratio) -> None:
    """F-003-02: table 3.2 of the reference."""
    tree = slimmed(width)
    assert tree.nodes(0) == 2048
    assert tuple(map(tree.links, (1, 2, 3))) == links
    assert tuple(tree.bandwidth(level, 10) for level in (1, 2, 3)) == gbps
    assert tuple(map(tree.nodes, (1, 2, 3))) == switches
    assert tree.contention(1) == ratio


def test_the_trees_of_chapter_5() -> None:
    """F-003-02: 512 and 1024 hosts, 4:1."""
    assert [Xgft((16, 16, 2), (1, 4, 4)).links(level) for level in (1, 2, 3)] == [512, 128, 32]
    assert [Xgft((16, 16, 4), (1, 4, 4)).links(level) for level in (1, 2, 3)] == [1024, 256, 64]
    assert Xgft((16, 16, 4), (1, 4, 4)).contention(2) == Fraction(4)


SEEN = {
    (256, 16): [(2560, None), (1280, None), (640, None), (320, None), (160, None)],
    (256, 8): [(5120, 5120), (2560, 1280), (1280, 320), (640, 80), (320, 20)],
    (256, 4): [(10240, 10240), (5120, 2560), (2560, 640), (1280, 160), (640, 40)],
    (256, 2): [(20480, 20480), (10240, 5120), (5120, 1280), (2560, 320), (1280, 80)],
    (512, 16): [(5120, 5120), (2560, 1280), (1280, 320), (640, 80), (320, 20)],
    (512, 8): [(10240, 10240), (5120, 2560), (2560, 640), (1280, 160), (640, 40)],
    (512, 4): [(20480, 20480), (10240, 5120), (5120, 1280), (2560, 320), (1280, 80)],
    (512, 2): [None] * 5,
}


@pytest.mark.parametrize(("job", "expected"), SEEN.items())
def test_the_bandwidth_that_a_job_sees(job, expected) -> None:
    """F-003-03: table of section 3.2; 256 hosts on whole leafs stay in one subtree."""
    assert [slimmed(width).seen(job[0], job[1], 10) for width in (16, 8, 4, 2, 1)] == expected


def test_what_is_no_tree_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="XGFT"):
        Xgft((16,), (1, 2))
    with pytest.raises(InvalidValueError, match="XGFT"):
        Xgft((16, 0), (1, 2))


def test_bounds_of_the_two_examples() -> None:
    """F-003-04: figure 4.6, XGFT(3;2,2,2;1,1,1); levels 2 and 3, then each link's."""
    assert (most_jobs(4, 1, 2), most_jobs(4, 2, 4)) == (4, 4)
    assert (most_jobs(2, 1, 2), most_jobs(2, 1, 4)) == (2, 6)
    assert [most_jobs_per_link(n, below) for n, below in ((1, 2), (2, 4), (1, 4))] == [1, 2, 3]


def test_bounds_of_marenostrum() -> None:
    """F-003-04: 18 hosts a leaf, one of the job on each."""
    assert most_jobs_spread(8, 18, 2) == 136
    assert most_jobs_spread(8, 18, 3) == 8 * 323


def test_smaller_fragments_and_higher_levels_share_more() -> None:
    by_fragment = [most_jobs(16, n, 18) for n in (16, 8, 4, 2, 1)]
    assert by_fragment == sorted(by_fragment)
    assert most_jobs_spread(8, 18, 2) < most_jobs_spread(8, 18, 3)
