# SPDX-License-Identifier: Apache-2.0
"""Server groups on a fabric, in nova's own scheduler: groups that are planned as a whole, beside nova without us

Nova's SchedulerManager with its default filters, NUMATopologyFilter and PciPassthroughFilter decides about every server
of a group; leafs are read from and claimed in a Placement in process (SQLite). Each group is given back before the
next. Stock nova makes its first two passes, and the rest is extrapolated: each pass is about all hosts again.

``group_ms``: our filter and weigher in all passes of a request, on the clock. ``whole_s``: all passes, nova's part
included. ``leafs_over_optimum``: leafs of a group by the fewest that have as many hosts free for it. The machine may be
shared: ratios are of one run, times on the clock are upper bounds.
"""

import os
import statistics
import tempfile
import time
import uuid
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from nova import objects
from nova.conf import CONF

from benchmarks import report
from benchmarks.bench_scheduler import prepare, settle
from benchmarks.cloud import Cloud, Flavor, request
from benchmarks.nova_scheduler import Scheduler, Times, uncollected
from emulation.placement_service import PlacementInProcess
from nova_numa_ext import conf as our_conf
from nova_numa_ext.fabrics import GroupOwner, PlacementFabrics
from nova_numa_ext.policy.network.groups import (
    GroupRequest,
    LeafPlaces,
    LeafPlan,
    NoLeafs,
    PlanOptions,
)
from nova_numa_ext.policy.network.leafs import Leafs
from nova_numa_ext.policy.network.planner import plan
from nova_numa_ext.scheduler import session
from nova_numa_ext.scheduler.group_plan import GroupPlanner
from placement_traits import names
from placement_traits.client import PlacementClient
from placement_traits.fabric import Fabric, FabricKind, FabricNode, LeafLayout
from placement_traits.fabric_tree import FabricWriter

HOSTS_PER_LEAF, LEAFS_PER_POD, CHURN = 18, 18, 0.05
SIZES, FEW, FEW_FROM, CLAIMS = (8, 32, 64, 256), 5, 256, 200
_NUMBERS: Final = 1 << 20  # between two requests: their servers have the numbers in between
_KEYS: Final = {"numa_ext:tier": "BE", "hw:cpu_policy": "dedicated", "hw:numa_nodes": "1"}
FLAVORS = {
    share: Flavor(share, 2, 2048, {**_KEYS, "numa_ext:net_share": share})
    for share in ("shared", "quiet")
}
_GOALS = {
    "whole_ratio_32": 0.05,
    "whole_ratio_64": 0.05,
    "planner_ms_p99": 10.0,
    "claim_ms_p95_4_leafs": 50.0,
    "shortlist_over_allowed": 0.0,
    "leafs_over_optimum_mean": 1.02,
    "faults": 0.0,
}

Figures = dict[str, float]


@dataclass
class WatchedPlanner:
    """The planner with two watches, of which a busy machine lengthens one; notes leafs beside the fewest there are."""

    took_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    over: list[float] = field(default_factory=list)

    def __call__(
        self, leafs: Leafs, asked: GroupRequest, options: PlanOptions
    ) -> LeafPlan | NoLeafs:
        """Plan one group."""
        began, cpu_began = time.perf_counter(), time.thread_time()
        found = plan(leafs, asked, options)
        self.took_s.append(time.perf_counter() - began)
        self.cpu_s.append(time.thread_time() - cpu_began)
        if isinstance(found, LeafPlan):
            self.over.append(len(found.places) / fewest(leafs, asked.hosts))
        return found


def fewest(leafs: Leafs, hosts: int) -> int:
    """Return the fewest leafs that have so many hosts free together."""
    missing = hosts
    for count, room in enumerate(sorted((leaf.room for leaf in leafs.leafs), reverse=True), 1):
        missing -= room
        if missing <= 0:
            return count
    raise ValueError(f"the fabric has no {hosts} free hosts")


def fabric(hosts: int) -> Fabric:
    """Return a fabric of pods and leafs for so many hosts of a :class:`benchmarks.cloud.Cloud`."""
    leaf_of = {f"host{n:05}": f"l{n // HOSTS_PER_LEAF:04}" for n in range(hosts)}
    leafs = list(dict.fromkeys(leaf_of.values()))
    pods = [f"p{n // LEAFS_PER_POD:03}" for n in range(len(leafs))]
    nodes = [FabricNode(pod, "pod") for pod in dict.fromkeys(pods)]
    nodes += [FabricNode(leaf, "leaf", pod) for leaf, pod in zip(leafs, pods, strict=True)]
    kind = FabricKind.ETHERNET
    return Fabric("train", kind, ("leaf", "pod"), {node.name: node for node in nodes}, leaf_of)


def leaf_traits(number: int) -> frozenset[str]:
    """Return the trait of the leaf of a host."""
    trait = names.leaf_trait("train", f"l{number // HOSTS_PER_LEAF:04}")
    return frozenset({trait} if trait else ())


@dataclass
class World:
    """Hosts, a fabric in Placement, and nova's scheduler with ours and without."""

    cloud: Cloud
    fabrics: PlacementFabrics
    planner: WatchedPlanner
    number: int = 0

    def scheduler(self, *, ours: bool) -> Scheduler:
        """Nova's scheduler as after a start."""
        made = Scheduler(self.cloud, ours=ours, enough_s=1e9 if ours else 0.0)
        if ours:
            made.engine = session.Engine(
                CONF,
                our_conf.read(CONF),
                self.cloud,
                None,
                beyond=session.BeyondHosts(GroupPlanner(lambda: self.fabrics, self.planner)),
            )
        return made

    def ask(self, scheduler: Scheduler, servers: int, share: str) -> Times:
        """Ask for one group, and give its leafs back."""
        self.number += 1
        group = str(uuid.UUID(int=self.number))
        flavor = FLAVORS[share]
        with uncollected():
            self.cloud.churn(CHURN)
            spec = request(self.number * _NUMBERS, flavor, servers)
            spec.instance_group = objects.InstanceGroup(
                uuid=group,
                policy="anti-affinity",
                policies=["anti-affinity"],
                hosts=[],
                members=[],
                rules={},
            )
            offered = self.cloud.offer(spec, flavor)
        settle()
        times = scheduler.select(spec, offered)
        self.fabrics.release(group)
        return times


@contextmanager
def world(hosts: int) -> Iterator[World]:
    """Make a cloud with a fabric."""
    with PlacementInProcess() as placement:
        client = PlacementClient(placement.adapter)
        plan_ = fabric(hosts)
        report.progress(f"{hosts} hosts, {len(plan_.leafs)} leafs …")
        FabricWriter(client).apply(plan_)
        cloud = Cloud(hosts, 1, traits=leaf_traits)
        yield World(cloud, PlacementFabrics(client), WatchedPlanner())


def groups(world: World, options: Namespace) -> Figures:
    """Groups with ours, of each size, that share and that are quiet in turn."""
    scheduler, found = world.scheduler(ours=True), Figures()
    over_allowed, rows, incomplete = [0], [], 0
    world.ask(scheduler, min(options.sizes), "shared")  # what is remembered of hosts is read once
    for size in options.sizes:
        runs = options.runs if size < FEW_FROM else min(FEW, options.runs)
        taken = []
        for run in range(runs):
            times = world.ask(scheduler, size, ("shared", "quiet")[run % 2])
            incomplete += len(times.selected) < size
            taken.append(times)
            over_allowed.append((times.passed or 0) - max(128, size + max(16, size // 8)))
        ours = [1e3 * times.ours_whole.wall for times in taken]
        whole = statistics.median(times.whole.wall for times in taken)
        longest = max(times.passed or 0 for times in taken)
        found |= {
            f"group_ms_median_{size}": statistics.median(ours),
            f"group_ms_p99_{size}": percentile(ours, 0.99),
            f"whole_s_{size}": whole,
            f"shortlist_max_{size}": float(longest),
        }
        rows.append((size, runs, statistics.median(ours), max(ours), whole, longest))
    report.table(("servers", "runs", "ours ms", "longest ms", "whole s", "hosts handed on"), rows)
    return found | {
        "planner_ms_p99": 1e3 * percentile(world.planner.took_s, 0.99),
        "planner_cpu_ms_p99": 1e3 * percentile(world.planner.cpu_s, 0.99),
        "leafs_over_optimum_mean": statistics.mean(world.planner.over),
        "shortlist_over_allowed": float(max(over_allowed)),
        "incomplete": float(incomplete),
        "faults": float(scheduler.faults),
    }


def stock(world: World, options: Namespace, ours: Figures) -> Figures:
    """Nova without us: two passes of each size, the rest extrapolated; beside ours as soon as each is known."""
    scheduler = world.scheduler(ours=False)
    found = Figures()
    for size in options.sizes:
        times = world.ask(scheduler, size, "shared")
        found[f"stock_whole_s_{size}"] = times.whole.wall
        ratio = found[f"whole_ratio_{size}"] = ours[f"whole_s_{size}"] / times.whole.wall
        report.progress(
            f"{size} servers without ours: {times.whole.wall:.1f} s, extrapolated; with ours {ratio:.4f} of it"
        )
    return found


def claims(world: World, options: Namespace) -> Figures:
    """Claims of four leafs each, as a quiet group of 64 makes them."""
    (state,) = world.fabrics.read()
    block = {names.LEAF_BLOCK: state.leafs.leafs[0].block}
    leafs = [
        leaf.name
        for leaf in state.leafs.leafs
        if leaf.is_untouched and leaf.layout is LeafLayout.PARTITIONED
    ][:4]
    found = LeafPlan(tuple(LeafPlaces(leaf, 16) for leaf in leafs), dict.fromkeys(leafs, block))
    took, cpu = [], []
    for _ in range(options.claims):
        owner = GroupOwner(str(uuid.uuid4()), "project", "user")
        began, cpu_began = time.perf_counter(), time.thread_time()
        world.fabrics.claim(state, owner, found)
        took.append(1e3 * (time.perf_counter() - began))
        cpu.append(1e3 * (time.thread_time() - cpu_began))
        world.fabrics.release(owner.group)
    return {
        "claim_ms_p95_4_leafs": percentile(took, 0.95),
        "claim_cpu_ms_p95_4_leafs": percentile(cpu, 0.95),
    }


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest-rank percentile."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def run(options: Namespace) -> tuple[Figures, dict[str, Any]]:
    """Run all parts; returns figures and what to know about them."""
    with world(options.hosts) as made:
        figures = {"hosts": float(options.hosts), **groups(made, options)}
        figures |= claims(made, options)
        _show_goals(figures)  # nova alone takes most of the time
        figures |= stock(made, options, figures)
    _show_goals(figures)
    notes = {
        "runs": options.runs,
        "runs_of_256": min(FEW, options.runs),
        "stock": "two passes of each size, the rest extrapolated from the second",
        "claims": "Placement in process, SQLite",
    }
    return figures, notes


def _show_goals(figures: Figures) -> None:
    """Print the figures that have a goal and are known."""
    report.table(
        ("figure", "measured", "goal", ""),
        [
            (name, figures[name], f"<= {goal:g}", "pass" if figures[name] <= goal else "MISS")
            for name, goal in _GOALS.items()
            if name in figures
        ],
    )


def main() -> None:
    """Run and report."""
    options = report.parser(__doc__)
    options.add_argument("--hosts", type=int, default=int(os.environ.get("HOSTS", "10000")))
    options.add_argument("--runs", type=int, default=int(os.environ.get("RUNS", "20")))
    options.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    options.add_argument("--claims", type=int, default=CLAIMS)
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        prepare(Path(directory))
        figures, notes = run(arguments)
    source = {"seed": 1, "churn": CHURN, "load_average": os.getloadavg()[0], **notes}
    rounded = {name: round(value, 4) for name, value in figures.items()}
    report.finish("groups", "measured", rounded, source, arguments.json)


if __name__ == "__main__":
    main()
