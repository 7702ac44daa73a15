# SPDX-License-Identifier: Apache-2.0
"""The benchmark of nova's scheduler runs, on a small cloud, and measures what its names say."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.scheduler_figures import scheduler_rows

ROOT = Path(__file__).resolve().parents[3]
HOSTS = 12
FLAVORS = ("LC two nodes", "BE", "one GPU")

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    file = tmp_path_factory.mktemp("bench") / "result.json"
    parts = ("single", "stock", "ratios", "full", "view", "copies", "refused")
    subprocess.run(
        [
            *(sys.executable, "-W", "ignore", "-m", "benchmarks.bench_scheduler"),
            *("--hosts", str(HOSTS), "--requests", "3", "--once", "0", "--json", str(file)),
            *("--refused", "6"),
            *(word for flavor in FLAVORS for word in ("--flavor", flavor)),
            *(word for part in parts for word in ("--part", part)),
        ],
        check=True,
        capture_output=True,
        timeout=900,
    )
    return json.loads(file.read_text())


def test_our_plug_ins_answer_each_flavor_without_a_fault(result):
    figures = result["figures"]
    assert figures["hosts"] == HOSTS
    assert figures["faults"] == 0
    assert 0 < figures["ours_ms_median"] < figures["whole_ms_median"]
    assert figures["ours_ms_median_full_fleet"] > 0
    seconds = result["source"]["part_s"]
    assert set(seconds) == {"single", "stock", "ratios", "full", "view", "copies", "refused"}
    assert figures["run_s"] == pytest.approx(sum(seconds.values()))


def test_each_flavor_has_figures_of_its_own(result):
    figures = result["figures"]
    for flavor in ("lc_two_nodes", "be", "one_gpu"):
        ours, whole, stock = (
            figures[f"{kind}_ms_median_{flavor}"] for kind in ("ours", "whole", "stock")
        )
        assert 0 < ours < whole
        assert stock > 0
        assert (
            0 < figures[f"ours_cpu_ms_median_{flavor}"] <= figures[f"whole_cpu_ms_median_{flavor}"]
        )
        assert figures[f"stock_32_ms_median_{flavor}"] > 0
    assert "ours_ms_median_sr_iov" not in figures


def test_the_documentation_makes_its_table_of_a_result(result):
    """Flavors that were not asked for have no row, and what was not measured is left empty."""
    head, rows = scheduler_rows(result)
    assert head[:5] == ["flavor", "servers", "ours ms", "whole ms", "stock ms"]
    assert head[-2:] == ["ratio", "by cpu"]
    assert {row[0] for row in rows} == set(FLAVORS)
    [many] = [row for row in rows if row[:2] == ["BE", "32"]]
    assert many[2] == "–" != many[4]
    figures = result["figures"]
    expected = figures["whole_ms_median_be"] / figures["stock_ms_median_be"]
    [one] = [row for row in rows if row[:2] == ["BE", "1"]]
    assert float(one[-2]) == pytest.approx(expected, abs=0.01)


def test_stock_nova_is_asked_once_for_each_flavor_and_the_rest_is_said_to_be_extrapolated(result):
    source = result["source"]
    assert source["stock_runs"] == dict.fromkeys(FLAVORS, 1)
    assert set(source["stock_extrapolated"]) >= set(FLAVORS)
    assert result["figures"]["whole_ratio_worst"] >= result["figures"]["whole_ratio_median"] > 0


def test_a_short_list_refuses_nothing_and_the_view_is_shared(result):
    figures, source = result["figures"], result["source"]
    assert figures["refused_by_shortlist"] == 0
    assert source["refused_of"]["requests"] == 6
    assert 0 <= figures["view_mb_per_worker"] < 20
