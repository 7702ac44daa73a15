# SPDX-License-Identifier: Apache-2.0
"""The file of measured memory bandwidths: written by ``numa-host-agent-ctl calibrate``, read by the agent.

It holds, per worker set that was measured, the bandwidth from each node to each worker while all nodes were read evenly
(``sets``), and the bandwidth of each pair of nodes alone (``pairs``). Weights are computed when it is read, for all
sets that are symmetric to a measured one. A file of a machine with other nodes or distances is not used.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from host_agent.control.home_nodes_store import write_json
from host_agent.decide.pages.weights import Shares, canonical_weights
from host_agent.decide.pages.worker_sets import profile_sets
from host_agent.model.traffic import NodeBandwidth
from placement_traits.errors import InvalidValueError
from placement_traits.topology import HostTopology

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
        return found

    def local_bandwidth_mbps(self) -> dict[int, int]:
        """Return node -> MB/s that its memory gives to its own CPUs, for nodes that have some."""
        return {
            node: max(1, round(to_worker[node]))
            for node, to_worker in self.pairs.items()
            if node in to_worker
        }


def distances(topology: HostTopology) -> dict[int, dict[int, int]]:
    """Return the distances between all nodes of a host that hold memory."""
    nodes = [node.id for node in topology.nodes if node.memory_mb != 0]
    return {a: {b: topology.distance(a, b) for b in nodes} for a in nodes}


def save(path: Path, found: Calibration) -> None:
    """Write the file.

    :raises OSError: it cannot be written
    """
    write_json(
        path,
        {
            "version": _VERSION,
            "measured": found.measured,
            "unit": "MB/s",
            "distances": found.distances,
            "sets": [
                {"workers": sorted(workers), "bandwidth": bandwidth}
                for workers, bandwidth in found.sets.items()
            ],
            "pairs": found.pairs,
        },
    )


def load(path: Path) -> Calibration:
    """Read the file.

    :raises OSError: it cannot be read
    :raises InvalidValueError: it is not such a file
    """
    try:
        content: Any = json.loads(path.read_text())
        if content["version"] != _VERSION:
            raise InvalidValueError(f"{path}: version", content["version"], str(_VERSION))
        return Calibration(
            {
                node: {other: int(far) for other, far in row.items()}
                for node, row in _by_node(content["distances"]).items()
            },
            {
                frozenset(map(int, one["workers"])): _by_node(one["bandwidth"])
                for one in content["sets"]
            },
            _by_node(content["pairs"]),
            str(content["measured"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, InvalidValueError):
            raise
        raise InvalidValueError(str(path), repr(error), "a file of calibrate") from error


def _by_node(table: Mapping[str, Mapping[str, float]]) -> dict[int, dict[int, float]]:
    return {
        int(node): {int(other): float(value) for other, value in row.items()}
        for node, row in table.items()
    }


class CalibrationFile:
    """What the file says now; asked each round, so it is read again only when it or the host has changed.

    :param path: the file
    """

    def __init__(self, path: Path) -> None:
        self._path = path
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
            found = load(self._path)
            weights = found.weights()
        except (OSError, InvalidValueError) as error:
            LOG.warning("going on without calibrated bandwidths: %s", error)
            return
        if found.distances != far:
            LOG.warning("%s was measured on a host with other nodes: calibrate again", self._path)
            return
        self._found, self._weights = found, weights
        LOG.info("bandwidths of %d worker sets, measured %s", len(weights), found.measured)
