# SPDX-License-Identifier: Apache-2.0
"""Time of one scheduling decision on a large cloud, next to nova's own NUMATopologyFilter.

Hosts have 4 NUMA nodes of 16 dedicated CPUs and 4 L3 domains, 30 servers each; flavors are mixed, no two requests in
a row are equal, and between two requests 5 % of the hosts change. Both filters get the same list of HostStates in
the same run. HOSTS (default 10000) and REQUESTS (default 12) are environment variables. The floor is what nova
itself does per host around a filter, measured as the copying of the candidates.
"""

import copy
import datetime
import logging
import os
import random
import statistics
import time
import uuid
from collections.abc import Callable
from typing import Any

from nova import objects
from nova.conf import CONF
from nova.scheduler import host_manager, weights
from nova.scheduler.filters import numa_topology_filter
from nova.virt import hardware

from benchmarks import report
from nova_numa_ext import conf as our_conf
from nova_numa_ext.scheduler import NumaExtWeigher, engine
from placement_traits.fleet import Amount, FleetSnapshot, HostView, L3View, RdtView, ViewState
from placement_traits.names import NeighbourTrait, PackingTrait, RdtTrait, TierTrait

NODES, CPUS, MEMORY_MB, SERVERS = 4, 16, 65_536, 30
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
LC = {
    "numa_ext:tier": "LC",
    "hw:cpu_policy": "dedicated",
    "hw:numa_nodes": "1",
    "resources:CUSTOM_RDT_CLOS": "1",
    "resources_NODE:CUSTOM_LLC_WAY": "2",
}
FLAVORS: tuple[tuple[int, int, dict[str, str]], ...] = (
    (2, 4096, LC),
    (4, 8192, {**LC, "numa_ext:interference_class": "rabbit"}),
    (1, 2048, {**LC, "numa_ext:interference_class": "devil"}),
    (4, 4096, {"numa_ext:tier": "BE", "hw:cpu_policy": "dedicated", "hw:numa_nodes": "2"}),
    (2, 2048, {"numa_ext:tier": "BE", "hw:cpu_policy": "dedicated", "hw:numa_nodes": "1"}),
)


class Fleet:
    """The view of a cloud that does not change: what is measured is the decision."""

    def __init__(self, hosts: dict[str, HostView]) -> None:
        self._hosts = hosts

    def snapshot(self) -> FleetSnapshot:
        """Return it as fresh."""
        return FleetSnapshot(self._hosts, 1.0, ViewState.FRESH)


class Cloud:
    """HostStates with a random fill, of which some change between requests."""

    def __init__(self, count: int, seed: int) -> None:
        self._random = random.Random(seed)
        self.views: dict[str, HostView] = {}
        self.states = [self._state(number) for number in range(count)]

    def churn(self, share: float) -> None:
        """Give ``share`` of the hosts another fill, as nova-compute's report would."""
        for state in self._random.sample(self.states, int(len(self.states) * share)):
            self._fill(state)

    def offer(self, spec: Any, extra_specs: dict[str, str]) -> None:
        """Put Placement's candidates into the HostStates: one per L3 domain, or one."""
        for state in self.states:
            root = {state.uuid: {"resources": {"PCPU": spec.vcpus, "MEMORY_MB": spec.memory_mb}}}
            if "resources_NODE:CUSTOM_LLC_WAY" not in extra_specs:
                state.allocation_candidates = [
                    {"allocations": root, "mappings": {"": [state.uuid]}}
                ]
                continue
            state.allocation_candidates = [
                {
                    "allocations": {
                        **root,
                        domain.uuid: {"resources": {"CUSTOM_LLC_WAY": 2}},
                    },
                    "mappings": {"": [state.uuid], "_NODE": [domain.uuid]},
                }
                for domain in self.views[state.uuid].l3
            ]

    def _state(self, number: int) -> Any:
        state = host_manager.HostState(f"host{number:05}", f"host{number:05}", "cell")
        state.uuid = str(uuid.UUID(int=number + 1))
        state.cpu_allocation_ratio = state.ram_allocation_ratio = 1.0
        state.pci_stats = None
        self.views[state.uuid] = self._view(state.uuid, state.host)
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
        state.num_instances = SERVERS
        state.updated = START + datetime.timedelta(seconds=self._random.random() * 1e6)

    def _view(self, root: str, name: str) -> HostView:
        traits = frozenset({TierTrait.LC, TierTrait.BE, RdtTrait.L3_CAT, PackingTrait.SPREAD})
        domains = tuple(
            L3View(
                f"{root}-{node}",
                node,
                (node,),
                node // 2,
                0,
                Amount(16, self._random.randint(0, 14)),
                Amount(60_000, self._random.randint(0, 50) * 1000),
                frozenset(t for t in NeighbourTrait if self._random.random() < 0.2),
            )
            for node in range(NODES)
        )
        return HostView(root, name, traits, RdtView(f"{root}-rdt", Amount(14, 6)), domains)


def request(number: int) -> tuple[Any, dict[str, str]]:
    """The ``number``-th RequestSpec; flavors take turns."""
    vcpus, memory_mb, extra_specs = FLAVORS[number % len(FLAVORS)]
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
    spec = objects.RequestSpec(
        flavor=flavor,
        image=image,
        instance_uuid=str(uuid.UUID(int=number + 1)),
        numa_topology=hardware.numa_get_constraints(flavor, image),
        pci_requests=objects.InstancePCIRequests(requests=[]),
        scheduler_hints={},
    )
    return spec, extra_specs


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return (milliseconds, result)."""
    began = time.perf_counter()
    result = work()
    return (time.perf_counter() - began) * 1000, result


def percentile(values: list[float], share: float) -> float:
    """Nearest-rank percentile."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main() -> None:
    """Run both filters and report."""
    file = report.parser(__doc__).parse_args().json
    count, rounds = int(os.environ.get("HOSTS", "10000")), int(os.environ.get("REQUESTS", "12"))
    objects.register_all()
    logging.disable(logging.INFO)
    our_conf.register_opts(CONF)
    CONF([], project="nova", default_config_files=[])
    cloud = Cloud(count, seed=1)
    engine.use(engine.Engine(CONF, Fleet(cloud.views), None))
    ours, novas, floor, cold, left = [], [], [], 0.0, 0
    weigher, nova_filter = NumaExtWeigher(), numa_topology_filter.NUMATopologyFilter()
    for number in range(rounds):
        cloud.churn(0.05)
        spec, extra_specs = request(number)
        cloud.offer(spec, extra_specs)
        took, _ = timed(lambda: [copy.deepcopy(s.allocation_candidates) for s in cloud.states])
        floor.append(took)

        def decide(spec: Any = spec) -> int:
            passed = engine.engine().filter(cloud.states, spec)
            weighed = [weights.WeighedHost(state, 0.0) for state in passed]
            weigher.weigh_objects(weighed, spec)
            return len(passed)

        took, left = timed(decide)
        if number == 0:
            cold = took
        else:
            ours.append(took)
        cloud.offer(spec, extra_specs)
        took, _ = timed(lambda spec=spec: list(nova_filter.filter_all(cloud.states, spec)))
        novas.append(took)
        report.say(
            f"request {number}: ours {ours[-1] if ours else cold:.0f} ms, nova {took:.0f} ms, {left} hosts pass"
        )
    figures = {
        "hosts": count,
        "ours_ms_cold": cold,
        "ours_ms_median": statistics.median(ours),
        "ours_ms_p99": percentile(ours, 0.99),
        "numa_topology_filter_ms_median": statistics.median(novas),
        "ratio": statistics.median(ours) / statistics.median(novas),
        "nova_candidate_copy_ms_median": statistics.median(floor),
    }
    report.finish("scheduler", "measured", figures, {"seed": 1, "requests": rounds}, file)


if __name__ == "__main__":
    main()
