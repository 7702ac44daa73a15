# SPDX-License-Identifier: Apache-2.0
"""One group: its spares and next best leafs, what it may stay within, how it grows, is replaced and moves."""

from dataclasses import replace

import pytest

from nova_numa_ext.policy.network import terms
from nova_numa_ext.policy.network.groups import (
    GroupRequest,
    LeafPlaces,
    LeafPlan,
    NoLeafs,
    PlanOptions,
    PolicyName,
)
from nova_numa_ext.policy.network.planner import SHARING, places, plan
from nova_numa_ext.policy.network.terms import GroupTerm
from nova_numa_ext.policy.network.uplinks import SHARES, of_blocks, residents
from placement_traits.names import (
    LEAF_BLOCK,
    LEAF_REMAINDER,
    LEAF_UPLINK_UNITS,
    NetClass,
    UplinkShare,
)
from placement_traits.reason import Reason
from tests.support.fabrics import Groups, fabric, leafs_of

QUIET = UplinkShare.QUIET


def reasons(found: NoLeafs) -> tuple[list[str], bool]:
    return [reason.term for reason in found.reasons], found.ever


def test_spares_are_beside_the_places_then_in_the_nearest_leafs() -> None:
    leafs = leafs_of(fabric([18] * 6, leafs_per_pod=2))
    found = plan(leafs, GroupRequest(32, spares=10))
    assert found.places == (LeafPlaces("l000", 18), LeafPlaces("l001", 14))
    assert found.spares == (LeafPlaces("l001", 4), LeafPlaces("l002", 6))
    assert found.next_best == ("l002", "l003", "l004", "l005")


def test_spares_of_a_quiet_group_are_in_its_leafs_only() -> None:
    groups = Groups(fabric([18] * 6, leafs_per_pod=2))
    found = groups.start("group", GroupRequest(32, QUIET, spares=16))
    assert found.spares == (LeafPlaces("l000", 2), LeafPlaces("l001", 2))


def test_spares_are_below_the_node_that_a_group_must_stay_within() -> None:
    """Nova takes them where a claim is lost or a build fails, and asks no one again."""
    leafs = leafs_of(fabric([18] * 6, leafs_per_pod=2))
    found = plan(leafs, GroupRequest(32, within="pod", spares=10))
    assert found.spares == (LeafPlaces("l001", 4),)
    assert found.next_best == ()
    of_leaf = plan(leafs, GroupRequest(17, within="leaf", spares=10))
    assert of_leaf.spares == (LeafPlaces("l000", 1),)


def test_a_plan_says_who_chose_and_how_many_leafs_there_could_be() -> None:
    leafs = leafs_of(fabric([18] * 6))
    found = plan(leafs, GroupRequest(32))
    assert [terms.sentence(each) for each in found.reasons] == [
        "leafs chosen by best_fit",
        "leafs: 2, at least needed: 2",
    ]


def test_places_alone_are_those_of_the_plan() -> None:
    known = Groups(fabric([18] * 6, leafs_per_pod=3))
    for number, hosts in enumerate((40, 5, 32, 30, 2, 60)):
        for share in (UplinkShare.SHARED, UplinkShare.QUIET, UplinkShare.EXCLUSIVE):
            asked = GroupRequest(hosts, share, spares=3)
            whole, found = plan(known.leafs, asked), places(known.leafs, asked)
            if isinstance(whole, NoLeafs):
                assert found == whole.reasons[0]
            else:
                assert found == replace(whole, spares=(), next_best=())
        known.start(str(number), GroupRequest(hosts, UplinkShare.QUIET))


def test_every_term_has_its_sentence() -> None:
    assert set(terms.SENTENCES) == set(GroupTerm)
    for term in GroupTerm:
        assert "{" not in terms.sentence(Reason(term, 1, 2, "pod"))


@pytest.mark.parametrize("share", UplinkShare)
def test_a_group_stays_within_one_node_or_has_no_place(share: UplinkShare) -> None:
    leafs = leafs_of(fabric([18] * 6, leafs_per_pod=2))
    inside = plan(leafs, GroupRequest(32, share, within="pod"))
    assert len({one.leaf for one in inside.places}) == 2
    wide = plan(leafs, GroupRequest(48, share, within="pod"))
    assert wide == NoLeafs((Reason(GroupTerm.WITHIN, 36, 48, "pod"),), ever=False)
    assert terms.sentence(wide.reasons[0]) == (
        "the group must stay in one pod: the best has 36 free hosts, needed are 48"
    )


def test_a_group_that_fits_in_one_leaf_is_where_its_policy_puts_it() -> None:
    leafs = leafs_of(fabric([18] * 6, leafs_per_pod=2))
    assert plan(leafs, GroupRequest(8, QUIET, within="leaf")).places == (LeafPlaces("l005", 8),)


@pytest.fixture
def beside_quiet() -> Groups:
    """Six leafs of 18, two a pod: a quiet group of 32 has the blocks of the first pod."""
    groups = Groups(fabric([18] * 6, leafs_per_pod=2))
    groups.start("quiet", GroupRequest(32, QUIET))
    return groups


@pytest.mark.parametrize("policy", SHARING)
def test_a_group_that_shares_keeps_off_the_uplinks_of_a_quiet_one(
    beside_quiet: Groups, policy: PolicyName
) -> None:
    found = beside_quiet.start("shared", GroupRequest(40, spares=40), PlanOptions(shared=policy))
    assert not {one.leaf for one in (*found.places, *found.spares)} & {"l000", "l001"}
    refused = beside_quiet.start("more", GroupRequest(34), PlanOptions(shared=policy))
    assert isinstance(refused, NoLeafs)
    assert refused.ever


def test_a_group_that_shares_may_use_uplinks_where_quiet_ones_have_their_last_servers() -> None:
    groups = Groups(fabric([18] * 4, leafs_per_pod=2))
    quiet = groups.start("quiet", GroupRequest(22, QUIET))
    assert quiet.claims["l001"] == {LEAF_REMAINDER: 4}
    shared = groups.start("shared", GroupRequest(40))
    assert "l000" not in {one.leaf for one in shared.places}
    assert "l001" in {one.leaf for one in groups.start("more", GroupRequest(8)).places}


@pytest.mark.parametrize("share", [UplinkShare.QUIET, UplinkShare.EXCLUSIVE])
def test_a_group_that_asks_to_be_alone_keeps_off_uplinks_that_others_share(
    share: UplinkShare,
) -> None:
    """The order in which they come does not count: a group that shares is on the uplinks of its leafs."""
    groups = Groups(fabric([18] * 4, leafs_per_pod=2))
    assert groups.start("one leaf", GroupRequest(8)).uplinks == {}
    shared = groups.start("shared", GroupRequest(20))
    used = {one.leaf for one in shared.places}
    assert used == set(shared.uplinks) == {"l000", "l001"}
    found = groups.start("alone", GroupRequest(32, share))
    assert {one.leaf for one in found.places} == {"l002", "l003"}
    refused = groups.start("more", GroupRequest(32, share))
    assert [reason.term for reason in refused.reasons][1:] == [GroupTerm.SHARING]
    groups.end("shared")
    groups.end("one leaf")
    assert isinstance(groups.start("more", GroupRequest(32, share)), LeafPlan)


def test_a_quiet_remainder_may_be_where_uplinks_are_shared() -> None:
    groups = Groups(fabric([18] * 2, leafs_per_pod=2))
    assert groups.start("quiet", GroupRequest(22, QUIET)).uplinks == {
        "l000": LEAF_UPLINK_UNITS,
        "l001": SHARES[NetClass.MODERATE],
    }
    extreme = GroupRequest(20, QUIET, net_class=NetClass.EXTREME)
    assert isinstance(groups.start("full", extreme), NoLeafs)
    assert groups.leafs.leafs[1].residents == (NetClass.MODERATE,)


def test_a_group_that_grows_to_another_leaf_uses_the_uplinks_of_both() -> None:
    leafs = leafs_of(fabric([2, 2], leafs_per_pod=2))
    full = replace(leafs, leafs=(replace(leafs.leafs[0], free=0), leafs.leafs[1]))
    found = plan(full, GroupRequest(1, members={"l000": 2}, net_class=NetClass.LOW))
    assert found.uplinks == {"l000": 1, "l001": 1}


def test_units_of_uplinks_say_how_many_of_each_class_share_them() -> None:
    used = sum(SHARES[each] for each in (NetClass.LOW, NetClass.LOW, NetClass.EXTREME))
    assert residents(used, 18, 16, {}) == (NetClass.LOW, NetClass.LOW, NetClass.EXTREME)
    assert residents(LEAF_UPLINK_UNITS, 18, 16, {LEAF_BLOCK: 16}) == ()
    assert residents(LEAF_UPLINK_UNITS, 18, 16, {}) == ()
    half = of_blocks(16, 8, 8)
    assert residents(0, 16, 8, {LEAF_BLOCK: 8}) == (), "taken before uplinks were counted"
    assert residents(half + 1, 16, 8, {LEAF_BLOCK: 8}) == (NetClass.LOW,)
    assert of_blocks(3, 4, 0) == 0


def test_a_group_that_shares_and_uses_no_uplink_may_be_beside_a_quiet_one(
    beside_quiet: Groups,
) -> None:
    for leaf in ("l002", "l003", "l004", "l005"):
        beside_quiet.start(leaf, GroupRequest(18, QUIET))
    assert beside_quiet.start("two", GroupRequest(2)).places == (LeafPlaces("l000", 2),)
    grown = GroupRequest(1, members={"l000": 2})
    assert beside_quiet.start("grown", grown).reasons[0].term == GroupTerm.QUIET


def test_a_group_that_shares_grows_and_moves_without_a_quiet_ones_uplinks(
    beside_quiet: Groups,
) -> None:
    beside_quiet.start("others", GroupRequest(70))
    grows = GroupRequest(3, members={"l005": 16})
    assert [one.leaf for one in beside_quiet.start("one", replace(grows, hosts=2)).places] == [
        "l005"
    ]
    assert beside_quiet.start("full", grows).reasons[0].term == GroupTerm.QUIET
    assert beside_quiet.start("moves", replace(grows, hosts=1, is_move=True)).places


@pytest.mark.parametrize("is_move", [False, True])
@pytest.mark.parametrize("own", ["l000", "l005"])
def test_quiet_uplinks_are_no_reason_where_no_host_is_free(
    beside_quiet: Groups, own: str, is_move: bool
) -> None:
    leafs = beside_quiet.leafs
    full = replace(leafs, leafs=tuple(replace(leaf, free=0) for leaf in leafs.leafs))
    grows = GroupRequest(1, members={own: 2}, is_move=is_move)
    assert plan(full, grows).reasons == (Reason(GroupTerm.FREE_HOSTS, 0, 1),)
    within = plan(full, replace(grows, within="pod"))
    assert within.reasons == (Reason(GroupTerm.WITHIN, 0, 1, "pod"),)


def test_quiet_uplinks_are_no_reason_where_a_server_that_moves_may_use_them(
    beside_quiet: Groups,
) -> None:
    beside_quiet.start("others", GroupRequest(72))
    grows = GroupRequest(5, members={"l005": 16})
    moved = beside_quiet.start("moved", replace(grows, is_move=True))
    assert moved.reasons == (Reason(GroupTerm.FREE_HOSTS, 4, 5),)
    grown = beside_quiet.start("grown", replace(grows, hosts=4))
    assert grown.reasons == (Reason(GroupTerm.QUIET, 0, 4),)


def test_a_group_that_shares_keeps_out_of_the_pods_of_an_exclusive_one() -> None:
    groups = Groups(fabric([18] * 6, leafs_per_pod=2))
    groups.start("alone", GroupRequest(20, UplinkShare.EXCLUSIVE))
    (pod,) = groups.pods("alone")
    groups.start("shared", GroupRequest(70))
    assert pod not in groups.pods("shared")


def test_a_node_that_could_hold_the_group_waits_for_others_to_go() -> None:
    leafs = leafs_of(fabric([18] * 4, leafs_per_pod=2))
    full = replace(leafs, leafs=tuple(replace(leaf, free=10) for leaf in leafs.leafs))
    assert plan(full, GroupRequest(30, within="pod")) == NoLeafs(
        (Reason(GroupTerm.WITHIN, 20, 30, "pod"),), ever=True
    )


@pytest.mark.parametrize(
    ("request_", "term", "sentence"),
    [
        (
            GroupRequest(109),
            GroupTerm.FABRIC_SIZE,
            "the group needs 109 hosts, and the fabric has 108 in all",
        ),
        (
            GroupRequest(4, within="row"),
            GroupTerm.LEVEL,
            "the fabric has no level row, its levels are leaf, pod",
        ),
        (
            GroupRequest(9, slice_hosts=4),
            GroupTerm.SLICES,
            "slices of 4 hosts, each in one leaf: 9 hosts are no whole number of them",
        ),
    ],
)
def test_what_can_never_be_is_said_so(request_, term, sentence) -> None:
    found = plan(leafs_of(fabric([18] * 6)), request_)
    assert reasons(found) == ([term], False)
    assert terms.sentence(found.reasons[0]) == sentence


def quiet_group(**more) -> tuple[Groups, GroupRequest]:
    """A group that holds the blocks of leafs 0 and 1, with 16 and 15 servers, beside another one."""
    groups = Groups(fabric([18] * 8, leafs_per_pod=4))
    holds = groups.start("group", GroupRequest(32, QUIET)).claims
    groups.start("other", GroupRequest(32, QUIET))
    members = {"l000": 16, "l001": 15}
    groups.plans["group"] = replace(
        groups.plans["group"],
        places=tuple(LeafPlaces(leaf, hosts) for leaf, hosts in members.items()),
    )
    return groups, GroupRequest(1, QUIET, members=members, holds=holds, **more)


def test_a_server_is_replaced_in_the_groups_own_block() -> None:
    groups, request = quiet_group()
    found = plan(groups.leafs, request)
    assert found.places == (LeafPlaces("l001", 1),)
    assert found.claims == request.holds
    assert terms.sentence(found.reasons[0]) == "leafs chosen by its leafs, where it is"


def test_a_group_does_not_grow_beyond_what_it_holds() -> None:
    groups, request = quiet_group()
    found = plan(groups.leafs, replace(request, hosts=2))
    assert reasons(found) == ([GroupTerm.HELD], True)
    assert terms.sentence(found.reasons[0]) == (
        "the group holds 1 hosts that are free there, needed are 2, and it grows in its own leafs only"
    )


def test_a_server_moves_beside_the_block_when_it_is_full_then_near_it() -> None:
    groups, request = quiet_group(is_move=True)
    full = replace(request, members={"l000": 16, "l001": 16})
    assert plan(groups.leafs, full).places == (LeafPlaces("l000", 1),)
    leafs = groups.leafs
    busy = replace(
        leafs,
        leafs=tuple(
            replace(leaf, free=0 if at < 2 else leaf.free) for at, leaf in enumerate(leafs.leafs)
        ),
    )
    (place,) = plan(busy, full).places
    assert place.leaf in ("l002", "l003"), "the same pod"


def test_a_group_without_claims_grows_in_its_leafs_then_in_its_pod() -> None:
    leafs = leafs_of(fabric([18] * 8, leafs_per_pod=4))
    leafs = replace(
        leafs,
        leafs=tuple(
            replace(leaf, free=4 if at == 5 else leaf.free) for at, leaf in enumerate(leafs.leafs)
        ),
    )
    found = plan(leafs, GroupRequest(10, members={"l005": 14}))
    assert found.places == (LeafPlaces("l004", 6), LeafPlaces("l005", 4))
    assert found.claims == {}


def test_a_group_that_must_stay_in_a_pod_grows_and_moves_there_only() -> None:
    leafs = leafs_of(fabric([18] * 4, leafs_per_pod=2))
    leafs = replace(
        leafs,
        leafs=tuple(replace(leaf, free=1 if at < 2 else 18) for at, leaf in enumerate(leafs.leafs)),
    )
    request = GroupRequest(3, within="pod", members={"l000": 17})
    assert plan(leafs, request) == NoLeafs((Reason(GroupTerm.WITHIN, 2, 3, "pod"),), ever=True)
    anywhere = plan(leafs, replace(request, within=None))
    assert anywhere.places == (LeafPlaces("l000", 1), LeafPlaces("l002", 2))


def test_operators_choose_the_policies() -> None:
    leafs = leafs_of(fabric([18] * 4, leafs_per_pod=2))
    options = PlanOptions(PolicyName.FIRST_AVAILABLE, PolicyName.EXCLUSIVE)
    used = replace(leafs, leafs=(replace(leafs.leafs[0], free=1), *leafs.leafs[1:]))
    assert plan(used, GroupRequest(4), options).places[0] == LeafPlaces("l000", 1)
    found = plan(leafs, GroupRequest(20, QUIET), options)
    assert found.claims["l000"] == {LEAF_BLOCK: 16, "CUSTOM_NUMA_EXT_LEAF_REST": 2}
