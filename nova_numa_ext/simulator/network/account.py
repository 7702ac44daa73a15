# SPDX-License-Identifier: Apache-2.0
"""The leafs of a fabric while groups come and go, as Placement and nova would count them: one change at a time."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from nova_numa_ext.policy.network.groups import LeafPlan
from nova_numa_ext.policy.network.leafs import Leaf, Leafs
from nova_numa_ext.policy.network.uplinks import residents
from placement_traits.fabric import Fabric


class LeafAccount:
    """Leafs with every host free at first.

    :param fabric: the plan
    """

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._at = {leaf: at for at, leaf in enumerate(fabric.leafs)}
        self._units = Counter[str]()
        self._held: dict[str, Counter[str]] = {}
        self._uplinks = Counter[str]()
        self._leafs = [
            Leaf(
                leaf,
                fabric.above(leaf),
                fabric.sizes[leaf],
                fabric.sizes[leaf],
                fabric.block,
                oversubscription=fabric.oversubscription(leaf),
            )
            for leaf in fabric.leafs
        ]

    @property
    def leafs(self) -> Leafs:
        """What a planner sees now."""
        fabric = self._fabric
        return Leafs(fabric.levels, tuple(self._leafs), fabric.usual_size, dict(self._uplinks))

    def start(self, plan: LeafPlan) -> None:
        """A group takes what was planned for it."""
        for leaf, layout in plan.layouts.items():
            at = self._at[leaf]
            self._leafs[at] = replace(self._leafs[at], layout=layout)
        self._change(plan, 1)

    def end(self, plan: LeafPlan) -> None:
        """A group gives back what it took."""
        self._change(plan, -1)

    def _change(self, plan: LeafPlan, sign: int) -> None:
        for node, amounts in plan.claims.items():
            if node in self._at:
                _add(self._held.setdefault(node, Counter()), amounts, sign)
            else:
                self._uplinks[node] += sign * sum(amounts.values())
        _add(self._units, plan.uplinks, sign)
        for place in plan.places:
            at = self._at[place.leaf]
            leaf = self._leafs[at]
            held = {**self._held.get(place.leaf, {})}
            self._leafs[at] = replace(
                leaf,
                free=leaf.free - sign * place.hosts,
                held=held,
                residents=residents(self._units[place.leaf], leaf.size, leaf.block, held),
            )


def _add(counts: Counter[str], amounts: Mapping[str, int], sign: int) -> None:
    for key, amount in amounts.items():
        counts[key] += sign * amount
        if not counts[key]:
            del counts[key]
