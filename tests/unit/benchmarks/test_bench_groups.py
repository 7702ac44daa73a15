# SPDX-License-Identifier: Apache-2.0
"""The benchmark of groups on a small cloud: all groups are complete, and its yardstick is right."""

from argparse import Namespace

import pytest
from nova.conf import CONF

from benchmarks import bench_groups
from benchmarks.bench_scheduler import prepare
from nova_numa_ext.policy.network.groups import GroupRequest
from nova_numa_ext.scheduler import fleet, process
from placement_traits.names import UplinkShare
from tests.support.fabrics import fabric, leafs_of


@pytest.mark.parametrize(("hosts", "leafs"), [(1, 1), (4, 1), (5, 2), (8, 3)])
def test_the_fewest_leafs_are_those_with_most_room(hosts, leafs):
    asked = GroupRequest(hosts, UplinkShare.SHARED)
    assert bench_groups.fewest(leafs_of(fabric([2, 4, 3])), asked) == leafs


def test_its_groups_are_complete_and_its_figures_are_there(tmp_path, monkeypatch):
    monkeypatch.setattr(fleet, "from_nova", fleet.from_nova)
    options = Namespace(hosts=144, runs=2, sizes=[4], stock=[4], claims=2, held=0.1)
    parts = []
    try:
        prepare(tmp_path)
        bench_groups.run(options, lambda figures: parts.append({**figures}))
    finally:
        process.use(None)
        CONF.reset()
        CONF.clear()
    claims, groups, stock = parts
    assert claims["held"] >= 0.1
    assert "claim_ms_p95_4_leafs" in claims
    assert {"group_ms_p99_4", "group_cpu_ms_median_4", "planner_ms_p99"} <= {*groups} - {*claims}
    assert {*stock} - {*groups} == {"stock_whole_s_4", "whole_ratio_4"}
    assert stock["incomplete"] == stock["faults"] == 0
    assert stock["leafs_over_optimum_mean"] == 1
    assert stock["shortlist_over_allowed"] <= 0
