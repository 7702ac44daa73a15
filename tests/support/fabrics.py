# SPDX-License-Identifier: Apache-2.0
"""Fabrics and leafs for tests: sizes in, names that say the place out."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from nova_numa_ext.policy.network.groups import GroupRequest, LeafPlan, NoLeafs, PlanOptions
from nova_numa_ext.policy.network.leafs import Leaf, Leafs
from nova_numa_ext.policy.network.planner import plan
from nova_numa_ext.policy.network.uplinks import residents
from placement_traits.fabric import Fabric, FabricKind, FabricNode


def fabric(
    sizes: Sequence[int],
    *,
    name: str = "train",
    leafs_per_pod: int = 2,
    uplinks_mbps: Sequence[int | None] = (),
    **more: Any,
) -> Fabric:
    """A fabric of pods p00 … with leafs l000 … and hosts l000-00 … in each."""
    pods = -(-len(sizes) // leafs_per_pod)
    nodes = [FabricNode(f"p{n:02}", "pod") for n in range(pods)]
    uplinks = uplinks_mbps or [None] * len(sizes)
    nodes += [
        FabricNode(f"l{n:03}", "leaf", f"p{n // leafs_per_pod:02}", uplink)
        for n, uplink in enumerate(uplinks)
    ]
    hosts = {f"l{n:03}-{h:02}": f"l{n:03}" for n, size in enumerate(sizes) for h in range(size)}
    return Fabric(
        name,
        FabricKind.ETHERNET,
        ("leaf", "pod"),
        {node.name: node for node in nodes},
        hosts,
        **more,
    )


def leafs_of(plan: Fabric) -> Leafs:
    """All leafs of a fabric, with every host free and nothing held."""
    return Leafs(
        plan.levels,
        tuple(
            Leaf(
                leaf,
                plan.above(leaf),
                plan.sizes[leaf],
                plan.sizes[leaf],
                plan.block,
                oversubscription=plan.oversubscription(leaf),
            )
            for leaf in plan.leafs
        ),
        plan.usual_size,
    )


class Groups:
    """Groups on a fabric: what they use and hold, as Placement would count it.

    :param fabric_plan: where they are
    """

    def __init__(self, fabric_plan: Fabric) -> None:
        self.empty = leafs_of(fabric_plan)
        self.plans: dict[str, LeafPlan] = {}
        self._layouts = {leaf.name: leaf.layout for leaf in self.empty.leafs}

    @property
    def leafs(self) -> Leafs:
        """What a planner sees now."""
        used = Counter[str]()
        held: dict[str, Counter[str]] = {}
        units = Counter[str]()
        for found in self.plans.values():
            used.update({one.leaf: one.hosts for one in found.places})
            units.update(found.uplinks)
            for node, amounts in found.claims.items():
                held.setdefault(node, Counter()).update(amounts)
        return Leafs(
            self.empty.levels,
            tuple(
                replace(
                    leaf,
                    free=leaf.size - used[leaf.name],
                    layout=self._layouts[leaf.name],
                    held=held.get(leaf.name, {}),
                    residents=residents(
                        units[leaf.name], leaf.size, leaf.block, held.get(leaf.name, {})
                    ),
                )
                for leaf in self.empty.leafs
            ),
            self.empty.usual_size,
            {node: sum(amounts.values()) for node, amounts in held.items() if node[0] == "p"},
        )

    def start(
        self, name: str, request: GroupRequest, options: PlanOptions | None = None
    ) -> LeafPlan | NoLeafs:
        """Plan a group and let it run there, if there is a place."""
        found = plan(self.leafs, request, options or PlanOptions())
        if isinstance(found, LeafPlan):
            self.plans[name] = found
            self._layouts |= found.layouts
        return found

    def end(self, name: str) -> None:
        """A group is gone."""
        del self.plans[name]

    def hosts(self, name: str) -> Mapping[str, int]:
        """Return a group's hosts by leaf."""
        return {one.leaf: one.hosts for one in self.plans[name].places}

    def pods(self, name: str) -> set[str]:
        """Return the pods that a group is in."""
        above = {leaf.name: leaf.pod for leaf in self.empty.leafs}
        return {above[leaf] for leaf in self.hosts(name)}

    def sharing_leafs(self) -> Iterator[tuple[str, str, str]]:
        """Yield groups of several leafs that are on one leaf, and so share its uplinks: two names and the leaf."""
        large = [name for name in self.plans if len(self.hosts(name)) > 1]
        for a, b in combinations(large, 2):
            for leaf in self.hosts(a).keys() & self.hosts(b).keys():
                yield a, b, leaf

    def sharing_pods(self) -> Iterator[tuple[str, str, str]]:
        """Yield groups of several pods that are in one pod, and so share its uplinks: two names and the pod."""
        large = [name for name in self.plans if len(self.pods(name)) > 1]
        for a, b in combinations(large, 2):
            for pod in self.pods(a) & self.pods(b):
                yield a, b, pod
