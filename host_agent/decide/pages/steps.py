# SPDX-License-Identifier: Apache-2.0
"""One step of page migration: which shares come next, away from crowded nodes or back to where a guest runs best.

A step moves a fixed part of all pages. Away from a set of nodes, they are taken in proportion to what is there and
distributed over all other nodes in the ratio that the guest's own placement prefers (evenly when it prefers none). With
two nodes that is BALM's rule: outbound (local to remote) when the guest runs on the crowded node, inbound
otherwise, and nothing when both are crowded. With more nodes and a guest that runs on an uncrowded one, its pages come
home and spread in the proportion of its weights: one formula for both directions and any number of nodes.

Source: Gureya 2021, section 5.3; steps of 10 % as in BWAP (section 4.3).
"""

from collections.abc import Collection

from host_agent.model.pages import Shares

SMALLEST = 1e-4
"""Share of the memory below which nothing is moved."""


def away(
    shares: Shares,
    crowded: Collection[int],
    preferred: Shares,
    room: Shares,
    step: float,
) -> dict[int, float] | None:
    """Return the shares after one step away from crowded nodes, None when nothing can be moved.

    :param shares: node -> share of the pages now; sums to 1
    :param crowded: nodes to leave
    :param preferred: node -> share that the guest's own placement wants
    :param room: node -> largest share that the node can hold; the nodes of the host
    :param step: part of all pages to move
    """
    there = {node: share for node, share in shares.items() if node in crowded and share > 0}
    targets = [node for node in sorted(room) if node not in crowded]
    amount = min(step, sum(there.values()))
    free = {node: max(0.0, room[node] - shares.get(node, 0.0)) for node in targets}
    weights = {node: preferred.get(node, 0.0) for node in targets}
    if not sum(weights.values()):
        weights = dict.fromkeys(targets, 1.0)
    given = _distribute(amount, weights, free)
    amount = sum(given.values())
    if amount < SMALLEST:
        return None
    total = sum(there.values())
    moved = dict(shares)
    for node, share in there.items():
        moved[node] = share - amount * share / total
    for node, part in given.items():
        moved[node] = moved.get(node, 0.0) + part
    return _tidy(moved)


def towards(shares: Shares, preferred: Shares, step: float) -> dict[int, float] | None:
    """Return the shares after one step towards the preferred ones, None when they are reached by it.

    :param step: part of all pages to move at most
    """
    nodes = {*shares, *preferred}
    gap = {node: preferred.get(node, 0.0) - shares.get(node, 0.0) for node in nodes}
    distance = sum(value for value in gap.values() if value > 0)
    if distance <= step + SMALLEST:
        return None
    return _tidy({node: shares.get(node, 0.0) + gap[node] * step / distance for node in nodes})


def _distribute(amount: float, weights: Shares, free: Shares) -> dict[int, float]:
    """Distribute by weights; what a full node cannot take goes to the others."""
    given = dict.fromkeys(weights, 0.0)
    for _ in weights:
        left = amount - sum(given.values())
        open_ = {node: weights[node] for node in weights if free[node] - given[node] > 1e-12}
        if left <= 1e-12 or not open_:
            break
        if not sum(open_.values()):
            open_ = dict.fromkeys(open_, 1.0)
        total = sum(open_.values())
        for node, weight in open_.items():
            given[node] += min(left * weight / total, free[node] - given[node])
    return given


def _tidy(shares: Shares) -> dict[int, float]:
    """Round to parts per million; the largest share takes the rest so that the sum stays 1."""
    rounded = {node: round(share, 6) for node, share in sorted(shares.items())}
    largest = max(rounded, key=lambda node: rounded[node])
    rounded[largest] = round(1.0 - sum(v for n, v in rounded.items() if n != largest), 6)
    return {node: share for node, share in rounded.items() if share > 0}
