# SPDX-License-Identifier: Apache-2.0
"""Time of one scheduling decision on a large cloud, next to nova's own NUMATopologyFilter.

Hosts have 4 NUMA nodes of 16 dedicated CPUs, 4 L3 domains and 30 servers each; a third of them have 4 to 8 GPUs.
Flavors are mixed, no two requests are equal, and between two requests 5 % of the hosts change. Both filters get the
same hosts with the same candidates in the same run: those that Placement would offer. Ours is the time in nova's own
handlers of filters and weighers: filter, order of candidates, weigher, journal. The floor is the same with a filter
and a weigher that do nothing, plus one look at each candidate.

The machine may be shared: the figures with ``cpu`` are processor time of the deciding thread.
HOSTS (default 10000) and REQUESTS (default 12) are environment variables; ``--profile`` shows where the time goes.
"""

import cProfile
import datetime
import gc
import logging
import os
import pstats
import random
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nova import objects
from nova.conf import CONF
from nova.pci.stats import PciDeviceStats
from nova.scheduler import filters, host_manager, weights
from nova.scheduler.filters import numa_topology_filter
from nova.virt import hardware

from benchmarks import report
from nova_numa_ext import conf as our_conf
from nova_numa_ext.scheduler import NumaExtFilter, NumaExtWeigher, session
from placement_traits import names
from placement_traits.fleet import Amount, DeviceView, GpuView, HostView, L3View, RdtView
from placement_traits.fleet_arrays import FleetArrays
from placement_traits.journal import Journal
from placement_traits.names import GpuLink, NeighbourTrait, PackingTrait, RdtTrait, TierTrait
from placement_traits.snapshot import FleetSnapshot, ViewState

NODES, CPUS, MEMORY_MB, SERVERS, HOSTS_PER_AGGREGATE = 4, 16, 65_536, 30, 500
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
LC = {
    "numa_ext:tier": "LC",
    "hw:cpu_policy": "dedicated",
    "hw:numa_nodes": "1",
    "resources:CUSTOM_RDT_CLOS": "1",
    "resources_NODE:CUSTOM_LLC_WAY": "2",
}
BE = {"numa_ext:tier": "BE", "hw:cpu_policy": "dedicated", "hw:numa_nodes": "1"}
FLAVORS: tuple[tuple[str, int, int, dict[str, str]], ...] = (
    ("LC", 2, 4096, LC),
    ("LC rabbit", 4, 8192, {**LC, "numa_ext:interference_class": "rabbit"}),
    ("BE two nodes", 4, 4096, {**BE, "hw:numa_nodes": "2"}),
    ("LC devil", 1, 2048, {**LC, "numa_ext:interference_class": "devil"}),
    ("BE", 2, 2048, BE),
    ("BE one GPU", 2, 2048, {**BE, "pci_passthrough:alias": "gpu:1", "numa_ext:gpu_comm": "2"}),
)
GPU_CLASS = "CUSTOM_PCI_10DE_20B0"


class Fleet:
    """The view of a cloud that does not change: what is measured is the decision."""

    def __init__(self, hosts: dict[str, HostView]) -> None:
        self._arrays = FleetArrays.of(hosts.values())

    def snapshot(self) -> FleetSnapshot:
        """Return it as fresh."""
        return FleetSnapshot(self._arrays, 1.0, ViewState.FRESH)


class Cloud:
    """HostStates with a random fill, of which some change between requests."""

    def __init__(self, count: int, seed: int) -> None:
        self._random = random.Random(seed)
        self.views: dict[str, HostView] = {}
        self._aggregates = [
            objects.Aggregate(id=number, name=f"zone{number}", metadata={}, hosts=[])
            for number in range(count // HOSTS_PER_AGGREGATE + 1)
        ]
        self.states = [self._state(number) for number in range(count)]

    def churn(self, share: float) -> None:
        """Give ``share`` of the hosts another fill, as nova-compute's report would."""
        for state in self._random.sample(self.states, int(len(self.states) * share)):
            self._fill(state)

    def offer(self, spec: Any) -> list[Any]:
        """Put Placement's candidates into the HostStates; returns the hosts that have some."""
        offered = []
        for state in self.states:
            state.allocation_candidates = list(self._candidates(state, spec))
            if state.allocation_candidates:
                offered.append(state)
        return offered

    def _candidates(self, state: Any, spec: Any) -> Iterable[dict[str, Any]]:
        """One per free GPU, one per L3 domain, or one."""
        root = {
            state.uuid: {"resources": {names.PCPU: spec.vcpus, names.MEMORY_MB: spec.memory_mb}}
        }
        requests = spec.pci_requests.requests
        if requests:
            for pool in state.pci_stats.pools:
                if pool["count"]:
                    yield {
                        "allocations": {**root, pool["rp_uuid"]: {"resources": {GPU_CLASS: 1}}},
                        "mappings": {
                            "": [state.uuid],
                            f"{requests[0].request_id}-0": [pool["rp_uuid"]],
                        },
                    }
        elif "resources_NODE:CUSTOM_LLC_WAY" in spec.flavor.extra_specs:
            for domain in self.views[state.uuid].l3:
                yield {
                    "allocations": {**root, domain.uuid: {"resources": {"CUSTOM_LLC_WAY": 2}}},
                    "mappings": {"": [state.uuid], "_NODE": [domain.uuid]},
                }
        else:
            yield {"allocations": root, "mappings": {"": [state.uuid]}}

    def _state(self, number: int) -> Any:
        state = host_manager.HostState(f"host{number:05}", f"host{number:05}", "cell")
        state.uuid = str(uuid.UUID(int=number + 1))
        state.cpu_allocation_ratio = state.ram_allocation_ratio = 1.0
        state.aggregates = [self._aggregates[number // HOSTS_PER_AGGREGATE]]
        state.instances = {f"{number}-{server}": None for server in range(SERVERS)}
        gpus = self._random.choice((4, 6, 8)) if number % 3 == 0 else 0
        self.views[state.uuid] = self._view(state.uuid, state.host, gpus)
        self._fill(state)
        return state

    def _fill(self, state: Any) -> None:
        cells = []
        for node in range(NODES):
            first = node * CPUS
            cpus = set(range(first, first + CPUS))
            pinned = set(self._random.sample(sorted(cpus), self._random.randint(8, CPUS)))
            used = self._random.randint(4, 15) * 4096
            cells.append(
                objects.NUMACell(
                    id=node,
                    socket=node // 2,
                    cpuset=set(),
                    pcpuset=cpus,
                    memory=MEMORY_MB,
                    cpu_usage=0,
                    memory_usage=used,
                    pinned_cpus=pinned,
                    siblings=[{cpu, cpu + 1} for cpu in range(first, first + CPUS, 2)],
                    mempages=[
                        objects.NUMAPagesTopology(
                            size_kb=4, total=MEMORY_MB * 256, used=used * 256, reserved=0
                        )
                    ],
                    network_metadata=objects.NetworkMetadata(physnets=set(), tunneled=False),
                )
            )
        state.numa_topology = objects.NUMATopology(cells=cells)
        state.pci_stats = PciDeviceStats(state.numa_topology)
        view = self.views[state.uuid]
        state.pci_stats.pools = [
            {
                "vendor_id": "10de",
                "product_id": "20b0",
                "dev_type": "type-PCI",
                "numa_node": gpu.node,
                "address": gpu.address,
                "rp_uuid": device.uuid,
                "count": self._random.randint(0, 1),
            }
            for gpu, device in zip(view.gpus, view.devices, strict=True)
        ]
        state.num_instances = SERVERS
        state.updated = START + datetime.timedelta(seconds=self._random.random() * 1e6)

    def _view(self, root: str, name: str, gpus: int) -> HostView:
        traits = frozenset({TierTrait.LC, TierTrait.BE, RdtTrait.L3_CAT, PackingTrait.SPREAD})
        neighbours = (
            NeighbourTrait.RABBIT,
            NeighbourTrait.DEVIL,
            NeighbourTrait.LC,
            NeighbourTrait.BE,
        )
        domains = tuple(
            L3View(
                f"{root}-{node}",
                node,
                (node,),
                node // 2,
                0,
                Amount(16, self._random.randint(0, 14)),
                Amount(60_000, self._random.randint(0, 50) * 1000),
                frozenset(t for t in neighbours if self._random.random() < 0.2),
            )
            for node in range(NODES)
        )
        addresses = [f"0000:{number:02x}:00.0" for number in range(gpus)]
        links = {
            address: {addresses[number ^ 1]: GpuLink.NV2}
            for number, address in enumerate(addresses)
        }
        return HostView(
            root,
            name,
            traits,
            RdtView(f"{root}-rdt", Amount(14, 6)),
            domains,
            tuple(
                GpuView(f"{root}-our-{address}", address, number % NODES, None, links[address])
                for number, address in enumerate(addresses)
            ),
            tuple(DeviceView(f"{root}-{address}", address, Amount(1, 0)) for address in addresses),
        )


def request(number: int) -> tuple[str, Any]:
    """The ``number``-th RequestSpec with the name of its flavor; flavors take turns."""
    name, vcpus, memory_mb, extra_specs = FLAVORS[number % len(FLAVORS)]
    flavor = objects.Flavor(
        name=f"f{number}",
        flavorid=f"f{number}",
        vcpus=vcpus,
        memory_mb=memory_mb + number * 4,
        root_gb=1,
        ephemeral_gb=0,
        swap=0,
        extra_specs=dict(extra_specs),
    )
    image = objects.ImageMeta.from_dict({"properties": {}})
    gpu = objects.InstancePCIRequest(
        count=1,
        alias_name="gpu",
        spec=[{"vendor_id": "10de", "product_id": "20b0"}],
        request_id=str(uuid.UUID(int=number + 1)),
        numa_policy="legacy",
    )
    spec = objects.RequestSpec(
        flavor=flavor,
        image=image,
        instance_uuid=str(uuid.UUID(int=number + 1)),
        numa_topology=hardware.numa_get_constraints(flavor, image),
        pci_requests=objects.InstancePCIRequests(
            requests=[gpu] if "pci_passthrough:alias" in extra_specs else []
        ),
        scheduler_hints={},
    )
    return name, spec


class NoFilter(filters.BaseHostFilter):  # type: ignore[misc]
    """Looks at each candidate once and refuses nothing."""

    def host_passes(self, host_state: Any, filter_properties: Any) -> bool:
        """Accept."""
        del filter_properties
        return all(candidate["allocations"] for candidate in host_state.allocation_candidates)


class NoWeigher(weights.BaseHostWeigher):  # type: ignore[misc]
    """Has no opinion."""

    minval, maxval = 0.0, 1.0

    def _weigh_object(self, obj: Any, weight_properties: Any) -> float:
        del obj, weight_properties
        return 0.0


def through_nova(states: Sequence[Any], spec: Any, filter_: Any, weigher: Any | None) -> int:
    """Ask as nova's scheduler does; returns the number of hosts that pass."""
    passed = filters.HostFilterHandler().get_filtered_objects([filter_], states, spec)
    if weigher is not None:
        weights.HostWeightHandler().get_weighed_objects([weigher], passed, spec)
    return len(passed)


@dataclass
class Series:
    """Times of one kind of request, milliseconds on the clock and of the processor."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def time(self, work: Callable[[], int]) -> int:
        """Run and note; what was left to collect before is not this run's."""
        gc.collect()
        began, cpu = time.perf_counter(), time.thread_time()
        result = work()
        self.cpu.append((time.thread_time() - cpu) * 1000)
        self.wall.append((time.perf_counter() - began) * 1000)
        return result

    def median(self, figure: str) -> dict[str, float]:
        """Both medians as figures."""
        return {
            f"{figure}_ms_median": statistics.median(self.wall),
            f"{figure}_cpu_ms_median": statistics.median(self.cpu),
        }


def percentile(values: list[float], share: float) -> float:
    """Nearest-rank percentile."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def measure(cloud: Cloud, rounds: int) -> dict[str, float]:
    """Ask for ``rounds`` servers after a change each, and for as many without one."""
    cold, ours, warm, novas, floor = Series(), Series(), Series(), Series(), Series()
    our_filter, our_weigher = NumaExtFilter(), NumaExtWeigher()
    novas_filter = numa_topology_filter.NUMATopologyFilter()
    name, spec = request(2 * rounds)
    states = cloud.offer(spec)
    cold.time(lambda: through_nova(states, spec, our_filter, our_weigher))
    by_flavor: dict[str, tuple[Series, Series]] = {}
    for number in range(rounds):
        cloud.churn(0.05)
        name, spec = request(number)
        ours_here, novas_here = by_flavor.setdefault(name, (Series(), Series()))
        states = cloud.offer(spec)
        passed = ours.time(lambda s=states, r=spec: through_nova(s, r, our_filter, our_weigher))
        states = cloud.offer(spec)
        floor.time(lambda s=states, r=spec: through_nova(s, r, NoFilter(), NoWeigher()))
        novas.time(lambda s=states, r=spec: through_nova(s, r, novas_filter, None))
        for series, here in ((ours, ours_here), (novas, novas_here)):
            here.wall.append(series.wall[-1])
            here.cpu.append(series.cpu[-1])
        _, spec = request(rounds + number)
        states = cloud.offer(spec)
        warm.time(lambda s=states, r=spec: through_nova(s, r, our_filter, our_weigher))
        report.progress(
            f"{name}: {len(ours.wall)} of {rounds}: ours {ours.wall[-1]:.0f} ms "
            f"(processor {ours.cpu[-1]:.0f}), NUMATopologyFilter {novas.wall[-1]:.0f} ms "
            f"(processor {novas.cpu[-1]:.0f}), {passed} hosts pass"
        )
    report.table(
        ("flavor", "ours ms", "ours cpu ms", "NUMATopologyFilter ms", "cpu ms", "ratio of cpu"),
        [
            (
                flavor,
                *(statistics.median(each) for each in (one.wall, one.cpu, two.wall, two.cpu)),
                statistics.median(one.cpu) / statistics.median(two.cpu),
            )
            for flavor, (one, two) in by_flavor.items()
        ],
    )
    return {
        **ours.median("ours"),
        "ours_ms_p99": percentile(ours.wall, 0.99),
        "ours_ms_cold": cold.wall[0],
        "ours_cpu_ms_cold": cold.cpu[0],
        **warm.median("ours_warm"),
        **novas.median("numa_topology_filter"),
        "ratio": statistics.median(ours.wall) / statistics.median(novas.wall),
        "ratio_cpu": statistics.median(ours.cpu) / statistics.median(novas.cpu),
        **floor.median("floor"),
    }


def profile(cloud: Cloud, rounds: int) -> None:
    """Show where the time of our requests goes, by flavor."""
    our_filter, our_weigher = NumaExtFilter(), NumaExtWeigher()
    for number in range(rounds):
        cloud.churn(0.05)
        name, spec = request(number)
        states = cloud.offer(spec)
        profiler = cProfile.Profile()
        profiler.runcall(through_nova, states, spec, our_filter, our_weigher)
        report.progress(f"--- {name}")
        pstats.Stats(profiler).sort_stats("tottime").print_stats(22)


def main() -> None:
    """Run both filters and report."""
    options = report.parser(__doc__)
    options.add_argument("--profile", action="store_true", help="show where the time goes instead")
    arguments = options.parse_args()
    count, rounds = int(os.environ.get("HOSTS", "10000")), int(os.environ.get("REQUESTS", "12"))
    objects.register_all()
    logging.disable(logging.INFO)
    our_conf.register_opts(CONF)
    CONF([], project="nova", default_config_files=[])
    cloud = Cloud(count, seed=1)
    with tempfile.TemporaryDirectory() as directory:
        journal = Journal(Path(directory) / "decisions.jsonl", 2**26, 1)
        session.use(session.Engine(CONF, our_conf.read(CONF), Fleet(cloud.views), journal))
        if arguments.profile:
            profile(cloud, rounds)
            return
        figures = {"hosts": float(count), **measure(cloud, rounds)}
    source = {"seed": 1, "requests": rounds, "load_average": os.getloadavg()[0]}
    report.finish("scheduler", "measured", figures, source, arguments.json)


if __name__ == "__main__":
    main()
