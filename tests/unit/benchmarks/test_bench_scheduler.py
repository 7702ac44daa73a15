# SPDX-License-Identifier: Apache-2.0
"""The benchmark of nova's scheduler runs, on a small cloud, and measures what its names say."""

import json
import subprocess
import sys

import pytest

HOSTS = 24
FLAVORS = ("LC two nodes", "BE", "one GPU")


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
