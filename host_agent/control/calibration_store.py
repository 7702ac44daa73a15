# SPDX-License-Identifier: Apache-2.0
"""The file of measured memory bandwidths: written by ``numa-host-agent-ctl calibrate``, read by the agent.

It holds, per worker set that was measured, the bandwidth from each node to each worker while all nodes were read evenly
(``sets``), and the bandwidth of each pair of nodes alone (``pairs``). Weights are computed when it is read, for all
sets that are symmetric to a measured one. A file of a machine with other nodes or distances is not used.
"""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from host_agent.decide.pages.weights import canonical_weights
from host_agent.decide.pages.worker_sets import profile_sets
from host_agent.model.pages import Shares
from host_agent.model.traffic import NodeBandwidth
from placement_traits.errors import InvalidValueError
from placement_traits.json_store import JsonStore
from placement_traits.plain import Value
from placement_traits.topology import HostTopology, Matrix

LOG = logging.getLogger(__name__)

_VERSION: Final = 1

Distances = Mapping[int, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured on one machine.

    :param distances: node -> node -> SLIT distance: tells the machine
    :param sets: measured worker set -> memory node -> worker -> MB/s, all nodes read evenly
    :param pairs: memory node -> worker -> MB/s, one pair at a time
    :param measured: when (ISO 8601), and how
    """

    distances: Distances
    sets: Mapping[frozenset[int], NodeBandwidth]
    pairs: NodeBandwidth
    measured: str

    def weights(self) -> dict[frozenset[int], dict[int, float]]:
        """Return worker set -> canonical weights, symmetric sets included (equations 4.2 and 4.5).

        :raises InvalidValueError: a bandwidth is not positive
        """
        found: dict[frozenset[int], dict[int, float]] = {}
        for profile in profile_sets(self.distances):
            measured = next((workers for workers in profile.members if workers in self.sets), None)
            if measured is not None:
                back = {image: node for node, image in profile.members[measured].items()}
                shares = canonical_weights(self.sets[measured], measured)
                first = {back[node]: share for node, share in shares.items()}
                found |= {member: profile.weights_of(member, first) for member in profile.members}
        for workers in self.sets.keys() - found.keys():
            found[workers] = canonical_weights(self.sets[workers], workers)
        return found

    def local_bandwidth_mbps(self) -> dict[int, int]:
        """Return node -> MB/s that its memory gives to its own CPUs, for nodes that have some."""
        return {
            node: max(1, round(to_worker[node]))
            for node, to_worker in self.pairs.items()
            if node in to_worker
        }

    def read_bandwidth_mbps(self) -> Matrix | None:
        """Return the pairs as a matrix, a row per worker; None where a node has no CPUs, and is no worker."""
        nodes = sorted(self.distances)
        if any(to_worker.keys() != set(nodes) for to_worker in self.pairs.values()):
            return None
        return tuple(tuple(round(self.pairs[node][worker]) for node in nodes) for worker in nodes)


def distances(topology: HostTopology) -> dict[int, dict[int, int]]:
    """Return the distances between all nodes of a host that hold memory."""
    nodes = [node.id for node in topology.nodes if node.memory_mb != 0]
    return {a: {b: topology.distance(a, b) for b in nodes} for a in nodes}


def store(path: Path) -> JsonStore[Calibration]:
    """Return the file."""
    return JsonStore(path, _VERSION, _decode, _encode)


def _encode(found: Calibration) -> Mapping[str, Any]:
    return {
        "measured": found.measured,
        "unit": "MB/s",
        "distances": found.distances,
        "sets": [
            {"workers": sorted(workers), "bandwidth": bandwidth}
            for workers, bandwidth in found.sets.items()
        ],
        "pairs": found.pairs,
    }


def _decode(found: Value) -> Calibration:
    rows = found.member("distances").numbered()
    if not rows:
        raise found.member("distances").refused("distances between nodes")
    nodes = frozenset(rows)
    far = {
        node: {other: value.integer() for other, value in _row(row, nodes).items()}
        for node, row in rows.items()
    }
    sets = {}
    for one in found.member("sets").items():
        listed = one.member("workers")
        workers = frozenset(worker.integer() for worker in listed.items())
        if not workers or not workers <= nodes:
            raise listed.refused("some of the nodes")
        sets[workers] = _bandwidth(one.member("bandwidth"), nodes, workers)
    pairs = found.member("pairs")
    columns = frozenset(_row(pairs, nodes)[min(nodes)].numbered())  # the nodes with CPUs
    if not columns <= nodes:
        raise pairs.refused("bandwidths between the nodes")
    measured = found.member("measured").text()
    return Calibration(far, sets, _bandwidth(pairs, nodes, columns), measured)


def _bandwidth(
    table: Value, nodes: Collection[int], workers: Collection[int]
) -> dict[int, dict[int, float]]:
    return {
        node: {worker: value.number(0.0) for worker, value in _row(row, workers).items()}
        for node, row in _row(table, nodes).items()
    }


def _row(row: Value, nodes: Collection[int]) -> dict[int, Value]:
    """Return the members of a row of a matrix, of which none may be missing and none be left over."""
    found = row.numbered()
    if found.keys() != set(nodes):
        raise row.refused(f"a value for each of the nodes {sorted(nodes)}, and no other")
    return found


class CalibrationFile:
    """What the file says now; asked each round, so it is read again only when it or the host has changed.

    :param path: the file
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._store = store(path)
        self._stamp: tuple[object, ...] = ()
        self._found: Calibration | None = None
        self._weights: dict[frozenset[int], dict[int, float]] = {}

    def weights(self, topology: HostTopology) -> Mapping[frozenset[int], Shares]:
        """Return worker set -> canonical weights; empty when nothing usable is there for this host."""
        self._look(topology)
        return self._weights

    def local_bandwidth_mbps(self, topology: HostTopology) -> dict[int, int]:
        """Return node -> MB/s that its memory gives to its own CPUs; empty when not measured on this host."""
        self._look(topology)
        return self._found.local_bandwidth_mbps() if self._found else {}

    def read_bandwidth_mbps(self, topology: HostTopology) -> Matrix | None:
        """Return what CPUs read from each node alone, MB/s; None when not measured between all nodes of this host."""
        self._look(topology)
        found = self._found.read_bandwidth_mbps() if self._found else None
        return found if found and len(found) == len(topology.nodes) else None

    def _look(self, topology: HostTopology) -> None:
        try:
            status = self._path.stat()
        except OSError:
            self._stamp, self._found, self._weights = (), None, {}
            return
        far = distances(topology)
        stamp = (status.st_mtime_ns, status.st_size, far)
        if stamp == self._stamp:
            return
        self._stamp, self._found, self._weights = stamp, None, {}
        try:
            found = self._store.read()
            weights = found.weights() if found is not None else {}
        except (OSError, InvalidValueError) as error:
            LOG.warning("going on without calibrated bandwidths: %s", error)
            return
        if found is None or found.distances != far:
            LOG.warning("%s was measured on a host with other nodes: calibrate again", self._path)
            return
        self._found, self._weights = found, weights
        LOG.info("bandwidths of %d worker sets, measured %s", len(weights), found.measured)
