# SPDX-License-Identifier: Apache-2.0
"""The benchmark of groups on a small cloud: all groups are complete, and its yardstick is right."""

from argparse import Namespace

import pytest
from nova.conf import CONF

from benchmarks import bench_groups
from benchmarks.bench_scheduler import prepare
from nova_numa_ext.scheduler import fleet, process
from tests.support.fabrics import fabric, leafs_of


@pytest.mark.parametrize(("hosts", "leafs"), [(1, 1), (4, 1), (5, 2), (8, 3)])
def test_the_fewest_leafs_are_those_with_most_room(hosts, leafs):
    assert bench_groups.fewest(leafs_of(fabric([2, 4, 3])), hosts) == leafs


def test_its_groups_are_complete_and_its_figures_are_there(tmp_path, monkeypatch):
    monkeypatch.setattr(fleet, "from_nova", fleet.from_nova)
    options = Namespace(hosts=90, runs=2, sizes=[4], claims=2)
    try:
        prepare(tmp_path)
        figures, _ = bench_groups.run(options)
    finally:
        process.use(None)
        CONF.reset()
        CONF.clear()
    assert figures["incomplete"] == figures["faults"] == 0
    assert figures["leafs_over_optimum_mean"] == 1
    assert figures["shortlist_over_allowed"] <= 0
    assert {"whole_ratio_4", "group_ms_p99_4", "planner_ms_p99", "claim_ms_p95_4_leafs"} <= set(
        figures
    )
