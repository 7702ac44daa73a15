# SPDX-License-Identifier: Apache-2.0
"""Measure the memory bandwidth between the NUMA nodes of this host: BWAP's canonical tuner.

For each worker set that is worth measuring (rational, one of each symmetry class) all its CPUs traverse memory at
random that is spread evenly over all nodes, and it is measured how fast each node serves each worker: the canonical
weights follow from that (equations 4.2 and 4.5). Each pair of nodes alone follows, whose diagonal is what one node's
memory gives to its own CPUs: the host's capacity.

Source: Gureya 2021, section 4.3.
"""

from collections.abc import Callable, Collection
from datetime import datetime
from pathlib import Path
from typing import Protocol

from host_agent.control.calibration_store import Calibration, distances
from host_agent.decide.pages.worker_sets import profile_sets, widest_sets
from host_agent.model.traffic import NodeBandwidth
from placement_traits.topology import HostTopology


class Profiler(Protocol):
    """Something that measures bandwidths."""

    @property
    def method(self) -> str:
        """How it has measured, a few words."""

    def profile(self, workers: Collection[int], nodes: Collection[int]) -> NodeBandwidth:
        """Return memory node -> worker -> MB/s while the CPUs of all workers read all ``nodes`` evenly."""


def calibrate(
    topology: HostTopology,
    profiler: Profiler,
    *,
    now: datetime,
    progress: Callable[[str], object] = lambda _line: None,
) -> Calibration:
    """Measure a host.

    :param topology: of the host; nodes without CPUs serve memory and are no workers
    :param now: stands in the result
    :param progress: called before each measurement
    """
    far = distances(topology)
    nodes = sorted(far)
    with_cpus = frozenset(node for node in nodes if topology.cpus_of_node(node))
    classes = ([set_ for set_ in one.members if set_ <= with_cpus] for one in profile_sets(far))
    nearest = [members for members in classes if members]
    pairs: dict[int, dict[int, float]] = {node: {} for node in nodes}
    alone = [(worker, node) for worker in sorted(with_cpus) for node in nodes]
    for number, (worker, node) in enumerate(alone, 1):
        progress(f"[pair {number}/{len(alone)}] worker {worker}, memory on node {node}")
        pairs[node][worker] = profiler.profile([worker], [node])[node][worker]
    widest = [
        workers
        for workers in widest_sets(pairs, with_cpus)
        if not any(workers in members for members in nearest)
    ]
    worker_sets = [*(members[0] for members in nearest), *widest]
    sets = {}
    for number, workers in enumerate(worker_sets, 1):
        progress(f"[set {number}/{len(worker_sets)}] workers {_text(workers)}, memory on all nodes")
        sets[workers] = profiler.profile(workers, nodes)
    return Calibration(
        far, sets, pairs, f"{now.isoformat(timespec='seconds')} by {profiler.method}"
    )


def default_megabytes(topology: HostTopology) -> int:
    """Return the memory per node to traverse, MiB: several times the largest L3 cache, which would answer otherwise."""
    largest_kb = max((domain.size_kb or 0 for domain in topology.l3_domains), default=0)
    return max(256, 4 * largest_kb // 1024)


def free_megabytes(node_root: Path, node: int) -> int:
    """Return the free memory of a node, MiB.

    :param node_root: ``/sys/devices/system/node``
    :raises OSError: the node is not there
    """
    for line in (node_root / f"node{node}" / "meminfo").read_text().splitlines():
        words = line.split()
        if len(words) >= 4 and words[2] == "MemFree:":
            return int(words[3]) // 1024
    return 0


def _text(workers: Collection[int]) -> str:
    return ",".join(map(str, sorted(workers)))
