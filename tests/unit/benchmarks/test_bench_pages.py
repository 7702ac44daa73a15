# SPDX-License-Identifier: Apache-2.0
"""What bench-pages computes from what it reads, and the process whose memory it moves, on this machine's one node."""

from pathlib import Path

import pytest

from benchmarks import bench_pages, page_moves
from benchmarks.guest_memory import KINDS

NUMA_MAPS = """\
7f0000000000 prefer:0 anon=512 dirty=512 N0=256 N1=128 N2=77 N3=51 kernelpagesize_kB=4
7f0000400000 default file=/usr/lib/libc.so.6 mapped=3 N1=3 kernelpagesize_kB=4
"""

MOVE = {"bytes_over_minimum": 1.0, "error_pp": 0.1, "calls": 8, "moved_bytes": 64e6}
FOUND = {
    "all_to_one": {"ours_pages_per_s": 900.0, "theirs_pages_per_s": 1000.0},
    "weighted": {**MOVE, "failed_pages": 0},
    "touched": {
        "before": {"ops_per_s": 40.0, "longest_ms": 30.0},
        "during": {"ops_per_s": 10.0, "longest_ms": 300.0},
        "after": {"ops_per_s": 39.0, "longest_ms": 31.0},
        "move": {**MOVE, "bytes_over_minimum": 1.5, "failed_pages": 2},
    },
}


def test_shares_are_those_of_the_mapping_at_the_address() -> None:
    assert page_moves.shares_at(NUMA_MAPS, 0x7F0000000000) == {
        0: 256 / 512,
        1: 128 / 512,
        2: 77 / 512,
        3: 51 / 512,
    }
    with pytest.raises(KeyError):
        page_moves.shares_at(NUMA_MAPS, 0x7F0000001000)


def test_the_error_counts_nodes_that_should_hold_nothing() -> None:
    assert page_moves.error_pp({0: 0.9, 3: 0.1}, {0: 1.0}) == pytest.approx(10.0)
    assert page_moves.error_pp(page_moves.WEIGHTS, page_moves.WEIGHTS) == 0.0


def test_what_must_move_at_least_is_what_the_nodes_lack() -> None:
    assert page_moves.least_share({0: 1.0}, page_moves.WEIGHTS) == pytest.approx(0.5)
    assert page_moves.least_share({0: 0.6, 1: 0.4}, {0: 0.5, 2: 0.5}) == pytest.approx(0.5)


def test_bytes_and_failures_are_the_worse_of_idle_and_in_use() -> None:
    figures = bench_pages.figures_of("thp", FOUND)
    assert figures["all_to_one_ratio_thp"] == 0.9
    assert figures["bytes_over_minimum_thp"] == 1.5
    assert figures["failed_pages_thp"] == 2
    assert figures["calls_per_gb_thp"] == 125.0
    assert figures["progress_during_thp"] == 0.25
    assert bench_pages.missed(figures) == ["bytes_over_minimum_thp", "failed_pages_thp"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_process_is_found_by_the_mover_and_makes_progress(kind: str, tmp_path: Path) -> None:
    with page_moves.guest(kind, 4, tmp_path) as guest:
        (found,) = guest.operations.guest_ram(guest.uuid)
        assert (found.start, found.end - found.start) == (guest.start, 4 << 20)
        assert guest.shares() == {0: 1.0}
        moved = page_moves.ours(guest, {0: 1.0})
        assert (moved.calls, moved.failed) == (0, 0), "all of it is there"
        seen = page_moves.progress(guest, lambda: _wait_for_ops(guest))
        assert seen["ops_per_s"] > 0
        assert seen["longest_ms"] > 0


def _wait_for_ops(guest: page_moves.Guest) -> None:
    first = guest.stats[3]
    while guest.stats[3] == first:
        assert guest.process.poll() is None
