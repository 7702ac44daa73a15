# SPDX-License-Identifier: Apache-2.0
"""Place by size, profile, then give lanes (F-003-40): what one part says is what the next one asks."""

from collections.abc import Iterable
from itertools import permutations

from host_agent.decide.lanes.grouping import grouped, weights
from nova_numa_ext.policy.network.groups import GroupRequest, LeafPlan
from nova_numa_ext.policy.network.use import Message, bytes_by_level, class_of, utilisation
from nova_numa_ext.policy.network.xgft import Xgft
from nova_numa_ext.simulator.network.contention import SharedRun, wasted_host_s
from nova_numa_ext.simulator.network.fluid import Pattern
from nova_numa_ext.simulator.network.traffic import JobTraffic, SharedLinks
from placement_traits.names import NetClass, UplinkShare
from tests.support.fabrics import Groups, fabric

FABRIC = fabric([18] * 12, leafs_per_pod=6)
TREE = Xgft((18, 6, 2), (1, 4, 4))
OVERSUBSCRIPTION = 18 / 4
HOSTS = {"ft": 40, "cg": 23, "bt": 22}


def all_to_all(hosts: int) -> list[Message]:
    return [(*pair, 1.0) for pair in permutations(range(hosts), 2)]


def ring(hosts: int) -> list[Message]:
    return [(rank, (rank + 1) % hosts, 1.0) for rank in range(hosts)]


def used(plan: LeafPlan, messages: Iterable[Message], injected: float) -> tuple[float, ...]:
    """Utilisation of the shared levels by a group of which each host sends a part of its link."""
    leafs = [one.leaf for one in plan.places for _ in range(one.hosts)]
    crossing = bytes_by_level(
        messages, {rank: (leaf, *FABRIC.above(leaf)) for rank, leaf in enumerate(leafs)}
    )
    seen = TREE.seen(len(leafs), 18, 1.0)
    assert seen is not None
    found = utilisation(crossing, crossing[0] / (len(leafs) * injected), (float(len(leafs)), *seen))
    return tuple(each or 0.0 for each in found)


def test_groups_that_meet_in_a_leaf_get_lanes_by_what_they_were_seen_to_send() -> None:
    groups = Groups(FABRIC)
    plans = {}
    for name, hosts in HOSTS.items():
        found = groups.start(name, GroupRequest(hosts, UplinkShare.QUIET))
        assert isinstance(found, LeafPlan)
        plans[name] = found
    (meeting,) = set.intersection(*({one.leaf for one in plan.places} for plan in plans.values()))
    assert (
        sum(one.hosts for plan in plans.values() for one in plan.places if one.leaf == meeting)
        == 13
    )

    profiles = {
        "ft": used(plans["ft"], all_to_all(HOSTS["ft"]), 0.5),
        "cg": used(plans["cg"], all_to_all(HOSTS["cg"]), 0.2),
        "bt": used(plans["bt"], ring(HOSTS["bt"]), 0.1),
    }
    assert {name: class_of(each) for name, each in profiles.items()} == {
        "ft": NetClass.EXTREME,
        "cg": NetClass.MODERATE,
        "bt": NetClass.LOW,
    }

    demand = {name: each[1:] for name, each in profiles.items()}
    lanes = grouped(demand, 2)
    assert lanes == (("ft",), ("cg", "bt"))
    heaviest = [max(max(demand[name]) for name in lane) for lane in lanes]
    assert weights(heaviest)[0] == 1 < weights(heaviest)[1]

    assert wasted(plans, "ft", "cg") > 0
    apart = {"ft": plans["ft"], "cg": alone_in(plans["cg"], meeting)}
    assert wasted(apart, "ft", "cg") == 0, "what sharing costs is the leaf's in which they meet"


def alone_in(plan: LeafPlan, leaf: str) -> LeafPlan:
    """The same plan with another leaf in place of one."""
    (free,) = (each for each in FABRIC.leafs[6:7] if each not in {one.leaf for one in plan.places})
    places = tuple(type(one)(free, one.hosts) if one.leaf == leaf else one for one in plan.places)
    return LeafPlan(places, {}, {}, {})


def wasted(plans: dict[str, LeafPlan], *names: str) -> float:
    """J_inter of groups that communicate all the time, in seconds of hosts for each second of work."""
    links = SharedLinks(FABRIC, OVERSUBSCRIPTION)
    traffic = JobTraffic(Pattern.ALL_TO_ALL, 1.0)
    alone = {
        at: links.start(at, {one.leaf: one.hosts for one in plans[name].places}, traffic)
        for at, name in enumerate(names)
    }
    sharing = links.speeds()
    return round(
        wasted_host_s(
            SharedRun(HOSTS[name], 1 / alone[at], 1 / sharing[at]) for at, name in enumerate(names)
        ),
        9,
    )
