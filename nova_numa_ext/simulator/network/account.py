# SPDX-License-Identifier: Apache-2.0
"""The leafs of a fabric while groups come and go, as Placement and nova would count them: one change at a time."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Self

from nova_numa_ext.policy.network.groups import LeafPlan
from nova_numa_ext.policy.network.leafs import Leaf, Leafs
from nova_numa_ext.policy.network.uplinks import residents
from placement_traits import names
from placement_traits.fabric import Fabric, LeafLayout

_LAYOUT_OF: Final = {
    names.LEAF_BLOCK: LeafLayout.PARTITIONED,
    names.LEAF_REST: LeafLayout.PARTITIONED,
    names.LEAF_REMAINDER: LeafLayout.REMAINDER,
    names.LEAF_HOST: LeafLayout.WHOLE,
}


class LeafAccount:
    """Leafs with every host free at first.

    :param fabric: the plan
    """

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._usual = fabric.usual_size
        self._at = {leaf: at for at, leaf in enumerate(fabric.leafs)}
        self._units = Counter[str]()
        self._held: dict[str, Counter[str]] = {}
        self._uplinks = Counter[str]()
        self._free = sum(fabric.sizes.values())
        self._seen: Leafs | None = None  # since the last change
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
        if self._seen is None:
            self._seen = Leafs(
                self._fabric.levels, tuple(self._leafs), self._usual, dict(self._uplinks)
            )
        return self._seen

    @property
    def free(self) -> int:
        """Hosts of all leafs that no group is on."""
        return self._free

    def copy(self) -> Self:
        """Return an account of its own with the same groups."""
        made = object.__new__(type(self))
        made._fabric, made._usual, made._at = self._fabric, self._usual, self._at
        made._units = Counter(self._units)
        made._held = {leaf: Counter(held) for leaf, held in self._held.items()}
        made._uplinks = Counter(self._uplinks)
        made._leafs = list(self._leafs)
        made._free = self._free
        made._seen = None
        return made

    def either(self, other: Self) -> Self:
        """Return an account in which free is what is free in both.

        A leaf that groups hold in another layout there than here has nothing free.
        """
        made = self.copy()
        made._units |= other._units
        made._uplinks |= other._uplinks
        for leaf, held in other._held.items():
            made._held[leaf] = made._held.get(leaf, Counter()) | held
        for at, (here, there) in enumerate(zip(self._leafs, other._leafs, strict=True)):
            known = here.is_untouched or there.is_untouched or here.layout is there.layout
            kept = {**made._held.get(here.name, {})}
            made._leafs[at] = replace(
                here,
                free=min(here.free, there.free) if known else 0,
                layout=here.layout if there.is_untouched else there.layout,
                held=kept,
                residents=residents(made._units[here.name], here.size, here.block, kept),
            )
        made._free = sum(leaf.free for leaf in made._leafs)
        return made

    def start(self, plan: LeafPlan) -> None:
        """A group takes what was planned for it."""
        for node, amounts in plan.claims.items():
            at = self._at.get(node)
            layout = _LAYOUT_OF.get(next(iter(amounts), ""))
            if at is not None and layout is not None and self._leafs[at].layout is not layout:
                self._leafs[at] = replace(self._leafs[at], layout=layout)
        self._change(plan, 1)

    def end(self, plan: LeafPlan) -> None:
        """A group gives back what it took."""
        self._change(plan, -1)

    def _change(self, plan: LeafPlan, sign: int) -> None:
        self._seen = None
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
            self._free -= sign * place.hosts
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
