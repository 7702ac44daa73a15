# SPDX-License-Identifier: Apache-2.0
"""Server groups on a fabric, in nova's own scheduler: groups that are planned as a whole, beside nova without us

Nova's SchedulerManager with its default filters, NUMATopologyFilter and PciPassthroughFilter decides about every server
of a group; leafs are read from and claimed in a Placement in process (SQLite). Other groups have ``--held`` of the
hosts all the time; each group that is measured is given back before the next. Stock nova makes two passes, and the
rest is extrapolated: each pass is about all hosts again.

``group_ms``: our filter and weigher in all passes of a request, on the clock; ``group_cpu_ms``: processor time of it.
``whole_s``: all passes, nova's part included; nova's filters look at all hosts that are left N times for N servers, so
a group of 256 takes 41,000 looks, and nearly all of its time is NUMATopologyFilter's. ``leafs_over_optimum``: leafs of
a group by the fewest that have as many hosts free for it, with uplinks that it may use. The machine may be shared:
ratios are of one run, times on the clock are upper bounds.

What takes longest comes last, and ``--json`` is written after each part: what a limit ends is named in it.
"""

import json
import os
import random
import statistics
import tempfile
import time
import uuid
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from nova import objects
from nova.conf import CONF

from benchmarks import report
from benchmarks.bench_scheduler import prepare, settle
from benchmarks.cloud import Cloud, Flavor, request
from benchmarks.nova_scheduler import Scheduler, Times, uncollected
from emulation.placement_service import PlacementInProcess
from nova_numa_ext import conf as our_conf
from nova_numa_ext.fabrics import GroupOwner, PlacementFabrics
from nova_numa_ext.policy.network.fragmentation import after
from nova_numa_ext.policy.network.groups import (
    GroupRequest,
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
from placement_traits.fabric import Fabric, FabricKind, FabricNode
from placement_traits.fabric_tree import FabricWriter
from placement_traits.names import UplinkShare

HOSTS_PER_LEAF, LEAFS_PER_POD, CHURN = 18, 18, 0.05
SIZES, FEW, FEW_FROM, CLAIMS, HELD = (8, 32, 64, 256), 5, 256, 200, 0.3
OTHERS = (8, 16, 24, 32, 40, 64)  # hosts of the groups that are there already
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
    "incomplete": 0.0,
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
            self.over.append(len(found.places) / fewest(leafs, asked))
        return found


def fewest(leafs: Leafs, asked: GroupRequest) -> int:
    """Return the fewest leafs that have a group's hosts free together; several have uplinks that it may use."""
    if asked.hosts <= max(leaf.room for leaf in leafs.leafs):
        return 1
    usable = (
        leaf.room
        for at, leaf in enumerate(leafs.leafs)
        if not leafs.is_closed(at)
        and not (leaf.residents and asked.share is not UplinkShare.SHARED)
    )
    missing = asked.hosts
    for count, room in enumerate(sorted(usable, reverse=True), 1):
        missing -= room
        if missing <= 0:
            return count
    raise ValueError(f"the fabric has no {asked.hosts} free hosts")


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
    incomplete: int = 0
    over_allowed: int = 0
    faults: int = 0

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


def occupy(fabrics: PlacementFabrics, share: float) -> float:
    """Let groups that stay hold hosts and use uplinks; returns the part of all hosts that they have."""
    draw, used = random.Random(1), 0
    (state,) = fabrics.read()
    every = sum(leaf.size for leaf in state.leafs.leafs)
    leafs = all_free(state.leafs)
    while used < share * every:
        asked = GroupRequest(
            draw.choice(OTHERS), draw.choice((UplinkShare.SHARED, UplinkShare.QUIET))
        )
        found = plan(leafs, asked)
        if not isinstance(found, LeafPlan):
            break
        owner = GroupOwner(str(uuid.UUID(int=draw.getrandbits(128))), "project", "user")
        (state,) = fabrics.read() if found.layouts else (state,)
        (fabrics.claim if found.claims else fabrics.share)(state, owner, found)
        leafs, used = after(leafs, found), used + asked.hosts
    return used / every


def all_free(leafs: Leafs) -> Leafs:
    """Return leafs with every host free that no group holds."""
    return replace(leafs, leafs=tuple(replace(leaf, free=leaf.size) for leaf in leafs.leafs))


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


def groups(
    world: World,
    options: Namespace,
    sizes: Sequence[int],
    before: Figures,
    keep: Callable[[Figures], None],
) -> Figures:
    """Groups with ours, of each size, that share and that are quiet in turn.

    :param before: the figures of earlier parts
    :param keep: gets all figures so far after each size
    """
    scheduler, found = world.scheduler(ours=True), {**before}
    rows = []
    world.ask(scheduler, min(SIZES), "shared")  # what is remembered of hosts is read once
    for size in sizes:
        runs = options.runs if size < FEW_FROM else min(FEW, options.runs)
        taken, planned = [], len(world.planner.over)
        for run in range(runs):
            times = world.ask(scheduler, size, ("shared", "quiet")[run % 2])
            world.incomplete += len(times.selected) < size
            taken.append(times)
            allowed = max(128, size + max(16, size // 8))
            world.over_allowed = max(world.over_allowed, (times.passed or 0) - allowed)
        ours = [1e3 * times.ours_whole.wall for times in taken]
        cpu = [1e3 * times.ours_whole.cpu for times in taken]
        whole = statistics.median(times.whole.wall for times in taken)
        longest = max(times.passed or 0 for times in taken)
        found |= {
            f"group_ms_median_{size}": statistics.median(ours),
            f"group_ms_p99_{size}": percentile(ours, 0.99),
            f"group_cpu_ms_median_{size}": statistics.median(cpu),
            f"whole_s_{size}": whole,
            f"shortlist_max_{size}": float(longest),
            f"leafs_over_optimum_{size}": statistics.mean(world.planner.over[planned:]),
        }
        rows.append((size, runs, statistics.median(ours), max(ours), whole, longest))
        found |= of_all_sizes(world, scheduler)
        keep(found)
    report.table(("servers", "runs", "ours ms", "longest ms", "whole s", "hosts handed on"), rows)
    world.faults += scheduler.faults
    return found


def of_all_sizes(world: World, scheduler: Scheduler) -> Figures:
    """Return what is counted of all groups so far."""
    return {
        "planner_ms_p99": 1e3 * percentile(world.planner.took_s, 0.99),
        "planner_cpu_ms_p99": 1e3 * percentile(world.planner.cpu_s, 0.99),
        "leafs_over_optimum_mean": statistics.mean(world.planner.over),
        "shortlist_over_allowed": float(world.over_allowed),
        "incomplete": float(world.incomplete),
        "faults": float(world.faults + scheduler.faults),
    }


def stock(world: World, size: int, ours: Figures) -> Figures:
    """Nova without us: two passes, the rest extrapolated; beside ours."""
    times = world.ask(world.scheduler(ours=False), size, "shared")
    ratio = ours[f"whole_s_{size}"] / times.whole.wall
    report.progress(
        f"{size} servers without ours: {times.whole.wall:.1f} s, extrapolated; with ours {ratio:.4f} of it"
    )
    return {f"stock_whole_s_{size}": times.whole.wall, f"whole_ratio_{size}": ratio}


def claims(world: World, options: Namespace) -> Figures:
    """Claims of four leafs each, as a quiet group of 64 makes them: blocks, uplinks of leafs and of their pods."""
    (state,) = world.fabrics.read()
    found = plan(all_free(state.leafs), GroupRequest(64, UplinkShare.QUIET))
    if not isinstance(found, LeafPlan) or len(found.places) != 4:
        raise ValueError("the fabric has no four leafs for a quiet group of 64")
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


def run(options: Namespace, keep: Callable[[Figures], None]) -> None:
    """Run all parts, the shortest first.

    :param keep: gets all figures so far after each part
    """
    with world(options.hosts) as made:
        figures = {"hosts": float(options.hosts), "held": occupy(made.fabrics, options.held)}
        report.progress(f"{100 * figures['held']:.0f} % of the hosts are other groups'")
        figures |= claims(made, options)
        keep(figures)
        few = [size for size in options.sizes if size >= FEW_FROM]
        for sizes in ([size for size in options.sizes if size not in few], few):
            if not sizes:
                continue
            figures = groups(made, options, sizes, figures, keep)
            with_goals = sorted(sizes, key=lambda size: f"whole_ratio_{size}" not in _GOALS)
            for size in (each for each in with_goals if each in options.stock):
                figures |= stock(made, size, figures)
                keep(figures)


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
    options.add_argument(
        "--stock",
        type=int,
        nargs="*",
        default=list(SIZES),
        help="sizes of which nova alone is asked, too",
    )
    options.add_argument("--claims", type=int, default=CLAIMS)
    options.add_argument(
        "--held", type=float, default=HELD, help="part of the hosts that other groups have"
    )
    arguments = options.parse_args()
    source = {
        "seed": 1,
        "churn": CHURN,
        "load_average": os.getloadavg()[0],
        "runs": arguments.runs,
        "runs_of_256": min(FEW, arguments.runs),
        "stock": "two passes of each size, the rest extrapolated from the second",
        "claims": "Placement in process, SQLite",
    }
    rounded: Figures = {}

    def keep(figures: Figures) -> None:
        rounded.update({name: round(value, 4) for name, value in figures.items()})
        if arguments.json is not None:
            part = {"bench": "groups", "ended": "by a limit", "figures": rounded, "source": source}
            arguments.json.write_text(json.dumps(part) + "\n")
        _show_goals(rounded)

    with tempfile.TemporaryDirectory() as directory:
        prepare(Path(directory))
        run(arguments, keep)
    report.finish("groups", "measured", rounded, source, arguments.json)


if __name__ == "__main__":
    main()
