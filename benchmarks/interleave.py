# SPDX-License-Identifier: Apache-2.0
"""BWAP's way to move pages (algorithm 3), as a yardstick for the agent's plans.

``mbind`` knows only uniform interleaving. Over ranges with shrinking node sets it gives any weights: each range is one
layer of the staircase of weights. Resident pages on an allowed node do not move, which is why the agent moves pages of
running guests by :mod:`host_agent.model.pages` instead.

Source: Gureya 2021, algorithm 3 (L1197-1223).
"""

from dataclasses import dataclass

from host_agent.model.pages import Shares


@dataclass(frozen=True, slots=True)
class Layer:
    """One ``mbind`` call.

    :param first: first page
    :param pages: number of pages
    :param nodes: nodes of the uniform interleave, ascending
    """

    first: int
    pages: int
    nodes: tuple[int, ...]


def interleave_layers(weights: Shares, pages: int) -> tuple[Layer, ...]:
    """Return the layers that give ``weights`` over ``pages`` pages; at most one per node, none empty.

    Ends are rounded to whole pages such that the layers always cover all pages.
    """
    nodes = sorted((node for node in weights if weights[node] > 0), key=lambda n: (weights[n], n))
    layers = []
    first, covered, previous = 0, 0.0, 0.0
    while nodes:
        lowest = weights[nodes[0]]
        covered += len(nodes) * (lowest - previous) * pages
        end = pages if len(nodes) == 1 else round(covered)
        if end > first:
            layers.append(Layer(first, end - first, tuple(sorted(nodes))))
        first, previous = max(first, end), lowest
        nodes = [node for node in nodes if weights[node] > lowest]
    if layers and first < pages:
        last = layers[-1]
        layers[-1] = Layer(last.first, pages - last.first, last.nodes)
    return tuple(layers)


def fault_in(layers: tuple[Layer, ...]) -> list[int]:
    """Return the node of each page as fresh faults place them: by offset modulo the set."""
    return [
        layer.nodes[offset % len(layer.nodes)] for layer in layers for offset in range(layer.pages)
    ]


def rebind(placed: list[int], layers: tuple[Layer, ...]) -> list[int]:
    """Return the node of each page after ``mbind(MPOL_MF_MOVE)``: pages outside the new set move, the others stay."""
    result = list(placed)
    for layer in layers:
        for offset in range(layer.pages):
            page = layer.first + offset
            if result[page] not in layer.nodes:
                result[page] = layer.nodes[offset % len(layer.nodes)]
    return result
