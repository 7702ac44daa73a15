# SPDX-License-Identifier: Apache-2.0
"""Cost of a move and of a fabric: Prades 2021, chapters 2, 6 and 7 (F-002-13 to 16, 18 and 27)."""

import pytest

from nova_numa_ext.policy.remote_gpu.fabrics import FABRICS, PAGEABLE_IN_VM, fabric, run_time_ratio
from nova_numa_ext.policy.remote_gpu.migration import (
    OTHER_S,
    REGIONS,
    copy_s,
    downtime_s,
    kernel_wait_s,
    moved_run_s,
    other_s,
)
from nova_numa_ext.simulator.remote_gpu.prades import APPLICATIONS
from placement_traits.errors import InvalidValueError

EDR, FDR, ETHERNET = FABRICS["edr"], FABRICS["fdr"], FABRICS["1gbe"]
GIB = 1 << 30


def test_gpu_blast_on_ethernet_takes_two_hops() -> None:
    assert copy_s(ETHERNET, [1300 * 10**6]) == pytest.approx(20.8)
    assert copy_s(FDR, [48 * 10**9 // 8]) == pytest.approx(1.0)


def test_four_gib_in_one_region_and_the_gain_over_ethernet() -> None:
    found = {each.name: downtime_s(each, [4 * GIB]) for each in (EDR, FDR, ETHERNET)}
    assert found["edr"] == pytest.approx(0.48, abs=0.01)
    assert found["fdr"] == pytest.approx(0.82, abs=0.01)
    assert found["1gbe"] / found["edr"] == pytest.approx(128, rel=0.12)
    assert found["1gbe"] / found["fdr"] == pytest.approx(91, rel=0.12)


@pytest.mark.parametrize("name", OTHER_S)
def test_the_table_of_other_times_is_met_at_its_columns(name: str) -> None:
    found = [other_s(fabric(name), regions) for regions in REGIONS]
    assert found == pytest.approx(list(OTHER_S[name]), abs=1e-12)
    assert other_s(fabric(name), 256) > other_s(fabric(name), 128)
    assert OTHER_S[name][3] <= other_s(fabric(name), 12) <= OTHER_S[name][4]


def test_ethernet_has_the_larger_other_time_only_with_many_regions() -> None:
    assert other_s(ETHERNET, 64) < other_s(FDR, 64)
    assert other_s(ETHERNET, 128) > other_s(FDR, 128)


def test_more_regions_of_the_same_size_in_all_cost_no_longer_copy() -> None:
    assert copy_s(FDR, [GIB // 32] * 128) == copy_s(FDR, [4 * GIB])


@pytest.mark.parametrize("name", ["edr", "fdr"])
def test_applications_are_without_gpu_for_less_than_half_a_second(name: str) -> None:
    for app in APPLICATIONS:
        assert downtime_s(fabric(name), app.region_sizes()) < 0.5, app.name
    assert max(downtime_s(ETHERNET, app.region_sizes()) for app in APPLICATIONS) > 20


def test_a_move_waits_for_the_kernel_that_runs() -> None:
    assert kernel_wait_s(0.325, 14.4) == pytest.approx(2.34)


def test_promotion_and_demotion_at_a_third() -> None:
    promoted, demoted = moved_run_s(271, 80, 0.33), moved_run_s(80, 271, 0.33)
    assert (promoted, demoted) == (pytest.approx(143, abs=0.5), pytest.approx(208, abs=0.5))
    for ours, measured in ((promoted, 150.0), (demoted, 227.0)):
        assert 0.9 * measured <= ours <= measured


def test_a_fabric_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(InvalidValueError, match="edr, fdr"):
        fabric("token-ring")
    with pytest.raises(InvalidValueError, match="at least one"):
        other_s(EDR, 0)


def test_faster_fabrics_have_the_shorter_run_time() -> None:
    found = [run_time_ratio(0.2, 24.0, FABRICS[name].gbps) for name in ("edr", "fdr", "1gbe")]
    assert sorted(found) == found


def test_copies_decide_how_much_a_slower_path_costs() -> None:
    ratios = [run_time_ratio(share, 48.0, 12.0) for share in (0.1, 0.35, 0.65, 0.9)]
    assert sorted(ratios) == ratios
    assert run_time_ratio(1.0, 6.0, 6.0 * PAGEABLE_IN_VM) == 2.0
    assert run_time_ratio(0.0, 6.0, 0.1) == 1.0


def test_each_region_costs_its_part_of_the_downtime() -> None:
    """The same bytes in 1 and in 128 regions: the copy is the same, the rest is that of table 7.1."""
    for name in ("1gbe", "fdr", "edr"):
        network, size = FABRICS[name], 4 << 30
        one, many = downtime_s(network, [size]), downtime_s(network, [size // 128] * 128)
        assert many - one == pytest.approx(OTHER_S[name][-1] - OTHER_S[name][0])


def test_a_fabric_without_a_row_has_that_of_its_kind() -> None:
    assert other_s(FABRICS["fdr-pcie1"], 8) == other_s(FDR, 8)
    assert other_s(FABRICS["vm-bridge"], 8) == other_s(ETHERNET, 8)


def test_a_job_that_moves_stands_still_for_the_downtime() -> None:
    assert moved_run_s(271, 80, 1 / 3, 2.5) == pytest.approx(moved_run_s(271, 80, 1 / 3) + 2.5)
