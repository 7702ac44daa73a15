# SPDX-License-Identifier: Apache-2.0
"""Parts that are one group on the fabric: leafs and hosts together, and who waits for what."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest

from nova_numa_ext.policy.jobs.host_aspects import PlannerSettings
from nova_numa_ext.policy.jobs.host_planner import HostPlanner
from nova_numa_ext.policy.jobs.host_view import HostClaims, HostsView, ViewFabric
from nova_numa_ext.policy.jobs.job import Job, Part, Scope, ScopeWait
from nova_numa_ext.policy.jobs.part_specs import group_hints, group_of, of_part
from nova_numa_ext.policy.jobs.plan import HostPlace, Never, Outcome, Plan, Wait
from nova_numa_ext.policy.jobs.terms import for_tenants, sentence
from nova_numa_ext.policy.network.groups import PlanOptions, PolicyName
from nova_numa_ext.policy.network.singles import Singles
from placement_traits import names
from placement_traits.fabric import Fabric
from placement_traits.fleet_arrays import UNKNOWN
from placement_traits.names import NetClass, UplinkShare
from placement_traits.network_request import NetworkRequest
from placement_traits.request import InvalidRequestError, parse
from placement_traits.workload_request import WorkloadRequest
from tests.support.fabrics import fabric, leafs_of
from tests.support.job_hosts import gpu_request, machine, root, view

QUIET = NetworkRequest(share=UplinkShare.QUIET)
SHARED = NetworkRequest()
HEAVY = NetworkRequest(net_class=NetClass.EXTREME)
SMALL = parse({}, vcpus=8, memory_mb=1024)
POD_THEN_ANY = (ScopeWait(Scope.POD, 600), ScopeWait(Scope.FLEET))


def hosts_of(plan: Fabric, **busy: tuple[int, ...]) -> HostsView:
    """The hosts of a fabric with their agents; numbers of busy GPUs by host, its name with _ for -."""
    hosts = []
    for name, leaf in plan.hosts.items():
        host = machine(name, busy=busy.get(name.replace("-", "_"), ()))
        hosts.append(replace(host, traits=host.traits | {names.leaf_trait("train", leaf)}))
    leaf_of = {names.leaf_trait("train", leaf): leaf for leaf in plan.leafs}
    return replace(view(*hosts), fabrics=(ViewFabric(leafs_of(plan), leaf_of),))


def job(
    count: int,
    network: NetworkRequest | None = QUIET,
    uuid: str = "job",
    request: WorkloadRequest = SMALL,
    **more: object,
) -> Job:
    part = Part("p", count, "flavor", request, apart=True, network=network, **more)  # type: ignore[arg-type]
    return Job(uuid, "project", (part,), 0.0)


def planned(
    asked: Job, hosts: HostsView, claims: HostClaims, now: float = 0.0, **settings: object
) -> Outcome[HostPlace]:
    return HostPlanner().plan(asked, hosts, claims, now, PlannerSettings(**settings))  # type: ignore[arg-type]


def leafs_taken(outcome: Outcome[HostPlace], plan: Fabric) -> Mapping[str, int]:
    """Servers by leaf."""
    assert isinstance(outcome, Plan), outcome
    leaf_of = {root(name): leaf for name, leaf in plan.hosts.items()}
    return Counter(leaf_of[each.host] for each in outcome.places)


def why(outcome: Outcome[HostPlace]) -> list[str]:
    assert not isinstance(outcome, Plan), outcome
    return [sentence(reason) for reason in outcome.reasons]


def test_a_quiet_group_gets_blocks_of_one_pod_each_host_once() -> None:
    plan = fabric([18] * 4)
    hosts = hosts_of(plan)
    found = planned(job(32), hosts, HostClaims(hosts))
    assert leafs_taken(found, plan) == {"l000": 16, "l001": 16}
    assert isinstance(found, Plan)
    assert {each.count for each in found.places} == {1}
    assert len({each.host for each in (*found.places, *found.spare)}) == 32 + 4


def test_groups_of_one_round_keep_off_each_others_uplinks() -> None:
    plan = fabric([18] * 4)
    hosts = hosts_of(plan)
    claims = HostClaims(hosts)
    first, second = job(32), job(32, uuid="second")
    found = planned(first, hosts, claims)
    assert isinstance(found, Plan)
    claims.take(first, found)
    beside = planned(second, hosts, claims)
    assert leafs_taken(beside, plan) == {"l002": 16, "l003": 16}
    assert isinstance(beside, Plan)
    claims.take(second, beside)
    third = planned(job(32, uuid="third"), hosts, claims)
    assert isinstance(third, Wait)
    assert why(third) == [
        "part p: servers that find a place: 0, requested: 32",
        "free blocks for large groups: 0, needed: 2",
    ]
    sharing = planned(job(20, NetworkRequest(slice_size=2)), hosts, claims)
    assert why(sharing)[1] == "the group needs 20 hosts, and 0 are free for it"
    assert isinstance(
        planned(job(20, SHARED), hosts, claims), Plan
    )  # it prefers leafs, and takes any hosts
    claims.give(first, found)
    assert leafs_taken(planned(job(32, uuid="third"), hosts, claims), plan).keys() == {
        "l000",
        "l001",
    }


def test_groups_that_share_get_leafs_as_the_operator_chooses() -> None:
    plan = fabric([18] * 4)
    hosts = hosts_of(plan)
    asked = job(20, NetworkRequest(within="pod"))
    found = planned(asked, hosts, HostClaims(hosts))
    assert leafs_taken(found, plan) == {"l000": 18, "l001": 2}
    balanced = PlanOptions(PolicyName.BALANCED)
    found = planned(asked, hosts, HostClaims(hosts), leafs=balanced)
    assert leafs_taken(found, plan) == {"l000": 10, "l001": 10}


def test_servers_of_no_group_keep_off_a_groups_own_leafs_where_they_are_refused_there() -> None:
    """The group's claim is not in Placement yet, as in the round that plans it, or it is."""
    plan = fabric([3, 3, 3, 3])
    hosts = hosts_of(plan)
    claims = HostClaims(hosts)
    group = job(4, QUIET)
    found = planned(group, hosts, claims)
    assert leafs_taken(found, plan).keys() == {"l000", "l001"}
    assert isinstance(found, Plan)
    claims.take(group, found)
    held = tuple(
        replace(leaf, held={names.LEAF_BLOCK: 2}) if leaf.name in {"l000", "l001"} else leaf
        for leaf in hosts.fabrics[0].leafs.leafs
    )
    (known,) = hosts.fabrics
    shown = replace(hosts, fabrics=(replace(known, leafs=replace(known.leafs, leafs=held)),))
    single = job(7, None, uuid="single")
    for seen, taken in ((hosts, claims), (shown, HostClaims(shown))):
        assert isinstance(planned(single, seen, taken), Plan)
        refused = planned(single, seen, taken, singles=Singles.REFUSE)
        assert isinstance(refused, Wait)
        assert why(refused)[0] == "part p: servers that find a place: 6, requested: 7"
        assert "hosts on leafs that a group has alone, left out:" in why(refused)[1]
        fits = planned(replace(single, parts=(replace(single.parts[0], count=6),)), seen, taken)
        assert isinstance(fits, Plan)
        there = planned(
            replace(single, parts=(replace(single.parts[0], count=6),)),
            seen,
            taken,
            singles=Singles.REFUSE,
        )
        assert leafs_taken(there, plan).keys() == {"l002", "l003"}


def test_a_quiet_group_keeps_off_leafs_that_others_share() -> None:
    plan = fabric([18] * 4)
    hosts = hosts_of(plan)
    claims = HostClaims(hosts)
    sharing = job(20, HEAVY, uuid="sharing")
    found = planned(sharing, hosts, claims)
    assert isinstance(found, Plan)
    claims.take(sharing, found)
    beside = leafs_taken(planned(job(32), hosts, claims), plan)
    assert not beside.keys() & leafs_taken(found, plan).keys()
    assert (
        not claims.copy().either(HostClaims(hosts)).groups.large.keys() ^ claims.groups.large.keys()
    )


def test_what_a_running_group_holds_is_free_where_it_gives_its_places_back() -> None:
    """Placement shows it as held; a reservation asks what is free when the group has ended."""
    plan = fabric([18] * 2)
    hosts = hosts_of(plan)
    (shown,) = hosts.fabrics
    held = tuple(
        replace(leaf, held={names.LEAF_BLOCK: 16}, residents=(NetClass.MODERATE,))
        for leaf in shown.leafs.leafs
    )
    busy = replace(hosts, fabrics=(replace(shown, leafs=replace(shown.leafs, leafs=held)),))
    claims = HostClaims(busy)
    assert isinstance(planned(job(32), busy, claims), Wait)
    rows = {
        leaf: [name for name, of in plan.hosts.items() if of == leaf][:16] for leaf in plan.leafs
    }
    places = tuple(HostPlace("p", root(name), 1) for each in rows.values() for name in each)
    claims.give(job(32, uuid="running"), Plan(places))
    assert isinstance(
        planned(job(32), busy, claims), Wait
    )  # whose uplinks these are it does not know
    alone = replace(
        busy,
        fabrics=(
            replace(
                shown,
                leafs=replace(
                    shown.leafs, leafs=tuple(replace(leaf, residents=()) for leaf in held)
                ),
            ),
        ),
    )
    claims = HostClaims(alone)
    claims.give(job(32, uuid="running"), Plan(places))
    assert leafs_taken(planned(job(32), alone, claims), plan) == {"l000": 16, "l001": 16}


def test_a_leaf_that_has_lost_its_trait_takes_no_group_and_stops_none() -> None:
    plan = fabric([18] * 4)
    whole = hosts_of(plan)
    (shown,) = whole.fabrics
    left = {trait: leaf for trait, leaf in shown.leaf_of_trait.items() if leaf != "l000"}
    hosts = replace(whole, fabrics=(replace(shown, leaf_of_trait=left),))
    found = planned(job(32), hosts, HostClaims(hosts))
    assert leafs_taken(found, plan) == {"l002": 16, "l003": 16}
    pods = {leaf: int(hosts.pod[hosts.row[root(f"{leaf}-00")]]) for leaf in plan.leafs}
    assert pods["l000"] == UNKNOWN
    assert pods["l001"] != pods["l002"] == pods["l003"] != UNKNOWN


def test_an_exclusive_group_closes_its_pods() -> None:
    plan = fabric([4] * 4)
    hosts = hosts_of(plan)
    claims = HostClaims(hosts)
    exclusive = NetworkRequest(share=UplinkShare.EXCLUSIVE)
    first = job(6, exclusive)
    found = planned(first, hosts, claims)
    assert isinstance(found, Plan)
    claims.take(first, found)
    beside = planned(job(6, exclusive, uuid="second"), hosts, claims)
    assert not leafs_taken(beside, plan).keys() & leafs_taken(found, plan).keys()


def test_a_narrower_place_is_waited_for_as_long_as_the_part_says() -> None:
    plan = fabric([4] * 4)
    hosts = hosts_of(plan)
    claims = HostClaims(hosts)
    for name in ("l000-00", "l002-00"):
        claims.put(Part("x", 4, "flavor", SMALL), hosts.row[root(name)], 4)
    asked = job(8, SHARED, wait_for=POD_THEN_ANY)
    found = planned(asked, hosts, claims, now=100.0)
    assert isinstance(found, Wait)
    assert found.until == 600.0
    assert why(found)[1:] == [
        "the group must stay in one pod: the best has 7 free hosts, needed are 8",
        "part p waits for a place within one pod, 500 s more",
    ]
    assert sum(leafs_taken(planned(asked, hosts, claims, now=600.0), plan).values()) == 8
    within = NetworkRequest(within="pod")
    bound = job(8, within, wait_for=POD_THEN_ANY)
    assert isinstance(
        planned(bound, hosts, claims, now=600.0), Wait
    )  # what it requests never widens
    one_leaf = job(5, within, wait_for=(ScopeWait(Scope.LEAF, 60.0), ScopeWait(Scope.FLEET)))
    assert isinstance(planned(one_leaf, hosts, claims), Wait)
    assert len(leafs_taken(planned(one_leaf, hosts, claims, now=60.0), plan)) == 2


def test_parts_without_a_group_may_wait_for_a_pod() -> None:
    plan = fabric([1] * 4)
    hosts = hosts_of(plan)
    claims = HostClaims(hosts)
    claims.put(Part("x", 4, "flavor", SMALL), hosts.row[root("l000-00")], 4)
    part = Part("p", 8, "flavor", SMALL, wait_for=POD_THEN_ANY)
    found = planned(Job("j", "project", (part,), 0.0), hosts, claims)
    assert isinstance(found, Plan)
    assert {each.host for each in found.places} == {root("l002-00"), root("l003-00")}


def test_hosts_in_a_leaf_are_those_with_good_gpus_and_leafs_with_them_come_first() -> None:
    """One GPU of each pair is busy on three hosts of the first leaf: two linked ones are on the second."""
    plan = fabric([4, 4])
    hosts = hosts_of(plan, **{f"l000_0{n}": (0, 2) for n in range(3)})
    asked = job(3, NetworkRequest(within="leaf"), request=gpu_request(2, "topo_p", 0.6))
    found = planned(asked, hosts, HostClaims(hosts))
    assert leafs_taken(found, plan) == {"l001": 3}
    assert isinstance(found, Plan)
    assert found.utility >= 0.6


def test_a_group_that_no_empty_fabric_has_room_for_never_starts() -> None:
    plan = fabric([4] * 2)
    hosts = hosts_of(plan)
    found = planned(job(9), hosts, HostClaims(hosts))
    assert isinstance(found, Never)
    assert why(found)[0].endswith("if all hosts were empty: 0, requested: 9")
    level = planned(job(4, NetworkRequest(within="rack")), hosts, HostClaims(hosts))
    assert why(level)[1] == "the fabric has no level rack, its levels are leaf, pod"
    for reason in found.reasons if isinstance(found, Never) else ():
        assert for_tenants(reason)[1] == sentence(reason)


def test_a_group_waits_while_leafs_are_drained() -> None:
    plan = fabric([4] * 2)
    hosts = hosts_of(plan)
    (fabric_,) = hosts.fabrics
    first, last = fabric_.leafs.leafs
    drained = replace(fabric_.leafs, leafs=(first, replace(last, size=0, drained=4)))
    hosts = replace(hosts, fabrics=(replace(fabric_, leafs=drained),))
    found = planned(job(8), hosts, HostClaims(hosts))
    assert isinstance(found, Wait)
    assert "leafs that are drained, and take no group: 1" in why(found)
    assert leafs_taken(planned(job(4), hosts, HostClaims(hosts)), plan) == {"l000": 4}


def test_without_a_fabric_only_what_binds_is_refused() -> None:
    hosts = replace(hosts_of(fabric([4])), fabrics=())
    bound = planned(job(2), hosts, HostClaims(hosts))
    assert why(bound)[1] == "part p is a group on the fabric, and the cloud has described none"
    assert isinstance(planned(job(2, SHARED), hosts, HostClaims(hosts)), Plan)


def test_a_part_may_request_less_of_the_network_than_its_flavor_and_no_more() -> None:
    flavor = {"numa_ext:net_share": "quiet", "numa_ext:net_slice": "4"}
    less = {"numa_ext:net_share": "shared", "numa_ext:net_slice": "2", "numa_ext:net_within": "pod"}
    found = of_part(flavor, less)
    assert group_hints(found) == {
        "numa_ext_share": "shared",
        "numa_ext_slice": "2",
        "numa_ext_within": "pod",
    }
    for more in (
        {"numa_ext:net_share": "exclusive"},
        {"numa_ext:net_slice": "8"},
        {"numa_ext:net_class": "low"},
    ):
        with pytest.raises(InvalidRequestError):
            of_part(flavor, more)
    with pytest.raises(InvalidRequestError, match="the flavor does not set it"):
        of_part({}, {"numa_ext:net_share": "quiet"})


def test_what_makes_a_group_of_a_part() -> None:
    quiet, soft = {"numa_ext:net_share": "quiet"}, {"numa_ext:net_class": "low"}
    assert group_of(quiet, 2, apart=False) == QUIET
    assert group_of(quiet, 1, apart=False) is None
    assert group_of(soft, 2, apart=False) is None
    assert group_of(soft, 2, apart=True) is not None
    assert group_of({}, 2, apart=True) is None
