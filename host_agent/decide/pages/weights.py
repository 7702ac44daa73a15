# SPDX-License-Identifier: Apache-2.0
"""BWAP's weights: how much of a guest's memory each NUMA node should hold.

Threads on the *workers* read from all nodes at once, so the slowest transfer decides and the best share of a node is
in proportion to the bandwidth it gives to the worker that gets least from it (*canonical* weights). One knob is left:
the *data-to-worker proximity factor* (DWP) scales the workers' cluster against the others, from 0 (canonical) to 1
(all pages on workers), and keeps the ratios inside both clusters.

Source: Gureya, *Resource Allocation for Data-Intensive Services in the Cloud*, 2021, chapter 4, equations 4.1-4.5.
"""

from collections.abc import Collection, Iterable

from host_agent.model.pages import Shares
from host_agent.model.traffic import NodeBandwidth
from placement_traits.errors import InvalidValueError


def canonical_weights(bandwidth: NodeBandwidth, workers: Collection[int]) -> dict[int, float]:
    """Return the shares that minimise the time to read shared data (eq. 4.2 for one worker, 4.5 for several).

    :param bandwidth: measured while the workers read memory that is spread evenly over all nodes
    :param workers: nodes the threads run on, not empty
    :raises InvalidValueError: no workers, or a worker to which no node has bandwidth
    """
    if not workers:
        raise InvalidValueError("workers", tuple(workers), "at least one NUMA node")
    least = {
        node: min(to_worker[worker] for worker in workers) for node, to_worker in bandwidth.items()
    }
    total = sum(least.values())
    if total <= 0 or min(least.values()) < 0:
        raise InvalidValueError("bandwidth", dict(least), "positive figures")
    return {node: value / total for node, value in least.items()}


def dwp_weights(canonical: Shares, workers: Collection[int], dwp: float) -> dict[int, float]:
    """Return the shares at a data-to-worker proximity factor.

    :param canonical: shares at DWP 0
    :param dwp: 0.0 (canonical) to 1.0 (all pages on the workers)
    :raises InvalidValueError: ``dwp`` outside its range or workers without a share to scale
    """
    if not 0.0 <= dwp <= 1.0:
        raise InvalidValueError("DWP", dwp, "0.0 to 1.0")
    on_workers = _on_workers(canonical, workers)
    scale = (on_workers + dwp * (1.0 - on_workers)) / on_workers
    return {
        node: share * (scale if node in workers else 1.0 - dwp) for node, share in canonical.items()
    }


def dwp_step(canonical: Shares, workers: Collection[int], fraction: float) -> float:
    """Return the change of DWP that brings ``fraction`` of all pages to the workers; 1.0 where all are there."""
    elsewhere = 1.0 - _on_workers(canonical, workers)
    return min(1.0, fraction / elsewhere) if elsewhere > 1e-12 else 1.0


def _on_workers(canonical: Shares, workers: Collection[int]) -> float:
    share = sum(canonical.get(node, 0.0) for node in workers)
    if share <= 0:
        raise InvalidValueError("canonical weights", dict(canonical), "a share on some worker")
    return share


def uniform(nodes: Iterable[int]) -> dict[int, float]:
    """Return equal shares for ``nodes``."""
    members = tuple(nodes)
    return {node: 1.0 / len(members) for node in members}
