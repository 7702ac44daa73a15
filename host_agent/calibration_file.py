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

from host_agent.controllers.weights import Bandwidth, Shares, canonical_weights
from host_agent.controllers.worker_sets import profile_sets
from host_agent.state import write_json
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
    sets: Mapping[frozenset[int], Bandwidth]
    pairs: Bandwidth
    measured: str

    def weights(self) -> dict[frozenset[int], dict[int, float]]:
        """Return worker set -> canonical weights, symmetric sets included (equations 4.2 and 4.5).

        :raises InvalidValueError: a bandwidth is not positive
        """
        return {
            member: profile.weights_of(member, canonical_weights(measured, profile.workers))
            for profile in profile_sets(self.distances)
            if (measured := self.sets.get(profile.workers)) is not None
            for member in profile.members
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


class CalibratedWeights:
    """The weights in the file as they are now; called each round, so it is read again only when it has changed.

    :param path: the file
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[object, ...] = ()
        self._weights: dict[frozenset[int], dict[int, float]] = {}

    def __call__(self, topology: HostTopology) -> Mapping[frozenset[int], Shares]:
        """Return worker set -> canonical weights; empty when nothing usable is there for this host."""
        try:
            found = self._path.stat()
        except OSError:
            self._stamp, self._weights = (), {}
            return self._weights
        stamp = (found.st_mtime_ns, found.st_size, topology)
        if stamp != self._stamp:
            self._stamp = stamp
            self._weights = self._read(topology)
        return self._weights

    def _read(self, topology: HostTopology) -> dict[frozenset[int], dict[int, float]]:
        try:
            calibration = load(self._path)
            weights = calibration.weights()
        except (OSError, InvalidValueError) as error:
            LOG.warning("going on without calibrated bandwidths: %s", error)
            return {}
        if calibration.distances != distances(topology):
            LOG.warning(
                "%s was measured on a machine with other nodes: calibrate again", self._path
            )
            return {}
        LOG.info("bandwidths of %d worker sets, measured %s", len(weights), calibration.measured)
        return weights
