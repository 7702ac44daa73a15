# SPDX-License-Identifier: Apache-2.0
"""Metrics that are read from the kernel's groups: what a scrape shows, and what one that cannot be read costs."""

import errno
import logging

import pytest

from emulation.hosts import four_nodes
from emulation.kernel.resctrl import ResctrlModel
from emulation.kernel.shape import Shape
from emulation.kernel.threads import ThreadTable, Traffic
from emulation.servers import BE_SPECS, LC_SPECS, Server
from host_agent.machine.rdt.resctrl import Resctrl
from host_agent.model.assignment import Assignment, Decision, Guest, Observation, Outcome
from host_agent.model.partition import PartitionPlace, PartitionRequest
from host_agent.model.round import Round
from host_agent.model.workload import Activity, parse
from host_agent.report.groups import GroupMetrics
from host_agent.report.metrics import METRICS
from placement_traits.names import Tier

LC = Server("lc", LC_SPECS, cpus=(1,))
BE = Server("be", BE_SPECS)
GROUPS = {LC.uuid: "numa_ext-lc", BE.uuid: "numa_ext-be-0"}


class Tree(ResctrlModel):
    """A tree that can be lost."""

    lost = False

    def read(self, path: str) -> str:
        if self.lost:
            raise OSError(errno.EIO, "Input/output error")
        return super().read(path)


class Bench:
    def __init__(self) -> None:
        self.now, self.moved = 100.0, 0.0
        self.tree = Tree(Shape(domains=(0, 1)), threads=ThreadTable({10: 0}), demand=self._demand)
        self.resctrl = Resctrl(self.tree)
        for group in GROUPS.values():
            self.resctrl.create_group(group)
        self.resctrl.move_tasks(GROUPS[LC.uuid], "", lambda: (10,))
        self.resctrl.write_schemata(GROUPS[BE.uuid], {"MB": {0: 40}})
        self.metrics = GroupMetrics(self.resctrl, lambda: self.now)
        self.metrics.on_round(self._round())

    def _demand(self, _tid: int, domain: int) -> Traffic:
        total = self.moved if domain == 0 else 0.0
        return Traffic(total, total / 2)

    def _round(self) -> Round:
        requests = {
            LC.uuid: PartitionRequest(LC.uuid, Tier.LC, (0,), {0: 4}),
            BE.uuid: PartitionRequest(BE.uuid, Tier.BE, (0, 1), {}, {0: 40}),
        }
        return Round(
            Observation(
                four_nodes(), tuple(Guest(parse(s.xml, Activity.RUNNING)) for s in (LC, BE))
            ),
            Decision(tuple(Assignment(u, partition=r) for u, r in requests.items())),
            {u: Outcome(place=PartitionPlace(u, GROUPS[u])) for u in requests},
        )

    def scrape(self) -> dict[tuple[str, tuple[str, ...]], float]:
        found = list(self.metrics.samples())
        for name, labels, _ in found:
            assert len(labels) == len(METRICS[name].labels)
        return {(name, labels): value for name, labels, value in found}


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_levels_are_those_of_the_kernel_in_the_domains_of_a_server(bench: Bench) -> None:
    found = bench.scrape()
    assert found["numa_ext_server_mb_level", (BE.uuid, "be", "0")] == 40
    assert found["numa_ext_server_mb_level", (BE.uuid, "be", "1")] == 100
    assert found["numa_ext_server_mb_level", (LC.uuid, "lc", "0")] == 100
    assert ("numa_ext_server_mb_level", (LC.uuid, "lc", "1")) not in found


def test_occupancy_and_traffic_are_of_latency_critical_servers(bench: Bench) -> None:
    bench.scrape()
    bench.now, bench.moved = 130.0, 300e6
    found = bench.scrape()
    labels = (LC.uuid, "lc", "0")
    assert found["numa_ext_server_memory_mbps", (*labels, "total")] == pytest.approx(10.0)
    assert found["numa_ext_server_memory_mbps", (*labels, "local")] == pytest.approx(5.0)
    assert ("numa_ext_server_llc_occupancy_bytes", labels) in found
    assert not [key for key in found if key[0].endswith("bytes") and key[1][0] == BE.uuid]


def test_groups_that_can_still_be_made_are_counted(bench: Bench) -> None:
    before = bench.scrape()
    bench.resctrl.create_group("numa_ext-more")
    bench.resctrl.create_monitor("numa_ext-more", "numa_ext-vm-a")
    after = bench.scrape()
    assert before["numa_ext_closids_left", ()] - after["numa_ext_closids_left", ()] == 1
    assert before["numa_ext_rmids_left", ()] - after["numa_ext_rmids_left", ()] == 2
    closids = bench.resctrl.capabilities().num_closids
    assert before["numa_ext_closids_left", ()] == closids - 3, "root, lc, be"


def test_a_group_that_has_gone_takes_no_other_metric_with_it(bench: Bench) -> None:
    bench.resctrl.remove_group(GROUPS[LC.uuid])
    found = bench.scrape()
    assert found["numa_ext_server_mb_level", (BE.uuid, "be", "0")] == 40
    assert not [key for key in found if LC.uuid in key[1]]


def test_a_tree_that_cannot_be_read_is_one_warning(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.tree.lost = True
    with caplog.at_level(logging.WARNING):
        assert bench.scrape() == {}
        bench.scrape()
    assert [record.message[:25] for record in caplog.records] == ["no metrics of RDT groups:"]
    bench.tree.lost = False
    assert len(bench.scrape()) > 5
