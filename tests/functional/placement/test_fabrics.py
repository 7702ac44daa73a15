# SPDX-License-Identifier: Apache-2.0
"""Fabrics and what groups hold of them, in a real Placement: read as planners see them, claimed once, swept."""

import uuid
from dataclasses import replace

import pytest

from nova_numa_ext.fabrics import GroupOwner, PlacementFabrics
from nova_numa_ext.heal.group_claims import GroupMember, SweepResult, sweep
from nova_numa_ext.policy.network.groups import GroupRequest, LeafPlaces, LeafPlan
from nova_numa_ext.policy.network.planner import plan
from placement_traits import names
from placement_traits.claim_store import ForeignConsumerError, NoRoomError
from placement_traits.errors import ConflictError
from placement_traits.fabric import LeafLayout
from placement_traits.fabric_tree import FabricWriter
from placement_traits.names import NetClass, UplinkShare
from tests.support.fabric_in_placement import put_fabric
from tests.support.fabrics import fabric, leafs_of
from tests.support.group_hosts import leaf_trait

ALIVE, FAILED = GroupMember("ACTIVE", "h1"), GroupMember("ERROR", "")
BLOCK = {names.LEAF_BLOCK: 16}


@pytest.fixture
def cloud(empty_cloud):
    """Six leafs of 18 hosts, two a pod; hosts themselves have no providers::

    net:train
    ├─ net:train:p00
    │  ├─ net:train:l000      LEAF_BLOCK 16, LEAF_REST 2
    │  └─ net:train:l001      the same
    ├─ net:train:p01 ── l002, l003
    └─ net:train:p02 ── l004, l005
    """
    empty_cloud.plan = fabric([18] * 6)
    empty_cloud.providers = empty_cloud.once(
        "fabric of six leafs", lambda: put_fabric(empty_cloud.client, empty_cloud.plan)
    )
    return empty_cloud


@pytest.fixture
def fabrics(cloud):
    """What reads and claims leafs for server groups there."""
    return PlacementFabrics(cloud.client)


class Groups:
    """Nova's server groups; one that is not named has no members, one that is None was deleted."""

    def __init__(self, **members):
        self.of = members

    def members(self, group):
        return self.of.get(group, [])


def owner(project="project"):
    return GroupOwner(str(uuid.uuid4()), project, "user")


def blocks(*leafs):
    places = tuple(LeafPlaces(leaf, 16) for leaf in leafs)
    return LeafPlan(places, dict.fromkeys(leafs, BLOCK))


def all_free(state):
    """The fabric with a host free for each that no group holds."""
    leafs = tuple(replace(leaf, free=leaf.size) for leaf in state.leafs.leafs)
    return replace(state.leafs, leafs=leafs)


def test_no_fabric_is_read_where_none_was_ever_written(empty_cloud):
    assert PlacementFabrics(empty_cloud.client).read() == []


def test_a_fabric_is_read_as_it_was_planned(cloud, fabrics):
    (state,) = fabrics.read()
    assert state.name == "train"
    assert all_free(state) == replace(
        leafs_of(cloud.plan), uplinks={f"p{n:02}": 0 for n in range(3)}
    )
    assert state.leaf_of_trait["CUSTOM_NUMA_EXT_LEAF_TRAIN_L003"] == "l003"
    assert {**state.providers, "": state.root} == cloud.providers


def test_what_a_group_holds_is_shown_and_given_back(fabrics):
    (state,) = fabrics.read()
    group = owner()
    assert fabrics.held(group) == {}
    fabrics.claim(state, group, blocks("l000", "l001"))
    (after,) = fabrics.read()
    assert after.held(fabrics.held(group)) == {"l000": BLOCK, "l001": BLOCK}
    assert [leaf.held for leaf in after.leafs.leafs[:3]] == [BLOCK, BLOCK, {}]
    fabrics.release(group.group)
    fabrics.release(group.group)
    assert fabrics.held(group) == {}


def test_a_claim_is_all_or_nothing(fabrics):
    (state,) = fabrics.read()
    fabrics.claim(state, owner(), blocks("l001"))
    late = owner()
    with pytest.raises(NoRoomError):
        fabrics.claim(state, late, blocks("l000", "l001"))
    assert fabrics.held(late) == {}


def test_another_project_gains_nothing_by_a_groups_uuid(fabrics):
    (state,) = fabrics.read()
    group = owner()
    fabrics.claim(state, group, blocks("l000"))
    with pytest.raises(ForeignConsumerError, match="for another project"):
        fabrics.held(replace(group, project="another"))


def asked(state, hosts, share=UplinkShare.SHARED, **more):
    found = plan(all_free(state), GroupRequest(hosts, share, **more))
    assert isinstance(found, LeafPlan)
    return found


def test_uplinks_that_groups_share_are_seen_and_no_hosts_are_held(fabrics):
    (state,) = fabrics.read()
    group = owner()
    fabrics.share(state, group, asked(state, 20, net_class=NetClass.EXTREME))
    (after,) = fabrics.read()
    assert [leaf.residents for leaf in after.leafs.leafs[:3]] == [(NetClass.EXTREME,)] * 2 + [()]
    assert after.held(fabrics.held(group)) == {}
    assert after.nodes(fabrics.held(group)) == {"l000", "l001"}
    assert asked(after, 32, UplinkShare.QUIET).places[0].leaf == "l002"
    fabrics.share(after, group, replace(blocks(), uplinks={"l001": 1, "l003": 1}))
    assert after.nodes(fabrics.held(group)) == {"l000", "l001", "l003"}
    assert [claim.consumer for claim in fabrics.all()] == [group.group]
    fabrics.release(group.group)
    assert fabrics.all() == []


def test_of_a_quiet_and_a_sharing_group_in_the_same_moment_one_loses(fabrics):
    """Both were planned by what was there before; Placement refuses the second, whichever it is."""
    (state,) = fabrics.read()
    shared, quiet = asked(state, 20), asked(state, 32, UplinkShare.QUIET)
    first = owner()
    fabrics.share(state, first, shared)
    with pytest.raises(NoRoomError):
        fabrics.claim(state, owner(), quiet)
    fabrics.release(first.group)
    fabrics.claim(state, owner(), quiet)
    with pytest.raises(NoRoomError):
        fabrics.share(state, owner(), shared)


def divided(cloud):
    """Two pods of two leafs of 16 hosts that pass upwards all that these send: four blocks of 4 each."""
    plan = replace(fabric([16] * 4, block_size=4, nonblocking=True), name="wide")
    plan = replace(plan, hosts={f"w-{host}": leaf for host, leaf in plan.hosts.items()})
    put_fabric(cloud.client, plan)


def wide(fabrics):
    return next(state for state in fabrics.read() if state.name == "wide")


def test_of_two_groups_on_a_leaf_of_several_blocks_in_the_same_moment_one_loses(cloud, fabrics):
    """Each would find units enough: a block has a fourth of the uplinks, one that shares takes a thousand."""
    divided(cloud)
    state = wide(fabrics)
    both, fourth = ("l000", "l001"), names.LEAF_UPLINK_UNITS // 4
    shared = replace(blocks(), uplinks=dict.fromkeys(both, 1000))
    of_four = {names.LEAF_BLOCK: 4}
    quiet = LeafPlan((), dict.fromkeys(both, of_four), uplinks=dict.fromkeys(both, fourth))
    first, late = owner(), owner()
    fabrics.share(state, first, shared)
    with pytest.raises(ConflictError):
        fabrics.claim(state, late, quiet)
    assert fabrics.held(late) == {}
    after = wide(fabrics)
    assert asked(after, 20, UplinkShare.QUIET).uplinks.keys().isdisjoint(shared.uplinks)
    fabrics.release(first.group)
    state = wide(fabrics)
    fabrics.claim(state, late, quiet)
    with pytest.raises(ConflictError):
        fabrics.share(state, first, shared)
    assert fabrics.held(first) == {}


def test_a_group_that_grows_and_loses_keeps_what_it_shared_before(cloud, fabrics):
    divided(cloud)
    group = owner()
    fabrics.share(wide(fabrics), group, replace(blocks(), uplinks={"l000": 1, "l001": 1}))
    before, state = fabrics.held(group), wide(fabrics)
    fabrics.claim(state, owner(), asked(state, 20, UplinkShare.QUIET))
    with pytest.raises(ConflictError):
        fabrics.share(state, group, replace(blocks(), uplinks={"l003": 1}))
    assert fabrics.held(group) == before


def test_who_uses_the_uplinks_of_a_drained_leaf_is_seen_as_before(cloud, fabrics):
    divided(cloud)
    state = wide(fabrics)
    fabrics.claim(state, owner(), asked(state, 20, UplinkShare.QUIET))
    used = {leaf.name: leaf.residents for leaf in wide(fabrics).leafs.leafs}
    assert not any(used.values())
    for leaf in used:
        FabricWriter(cloud.client).drain("wide", leaf, on=True)
    after = wide(fabrics)
    assert {leaf.name: leaf.residents for leaf in after.leafs.leafs} == used
    assert not any(leaf.room for leaf in all_free(after).leafs)


def test_what_is_kept_is_not_swept_by_who_has_read_it_before(fabrics):
    """A group comes again right when the sweep has seen that its servers are gone."""
    (state,) = fabrics.read()
    group = owner()
    fabrics.claim(state, group, blocks("l000"))
    (read,) = fabrics.all()
    fabrics.keep(group, fabrics.held(group))
    assert not fabrics.release_dead(read)
    (read,) = fabrics.all()
    assert fabrics.release_dead(read)
    with pytest.raises(ConflictError):
        fabrics.keep(group, read.amounts)


def test_what_a_group_shares_follows_its_servers_as_far_as_others_let_it(cloud, fabrics):
    hosts = ["h-l000", "h-l001", "h-l004"]
    for host in hosts:
        made = cloud.client.post("/resource_providers", {"name": host})
        path = f"/resource_providers/{made['uuid']}/traits"
        trait = leaf_trait(host.removeprefix("h-"))
        cloud.client.put(path, {"resource_provider_generation": 0, "traits": [trait]})
    (state,) = fabrics.read()
    group, quiet = owner(), owner()
    units = {names.LEAF_UPLINK: 1}
    spread = dict.fromkeys(("l000", "l001", "l002", "l003"), 1)
    fabrics.share(state, group, replace(blocks(), uplinks=spread))
    (claim,) = fabrics.all()
    alone = {names.LEAF_UPLINK: names.LEAF_UPLINK_UNITS}
    fabrics.claim(state, quiet, replace(blocks("l004"), uplinks=dict.fromkeys(["l004"], 10**9)))
    assert fabrics.held(quiet) == {cloud.providers["l004"]: {**BLOCK, **alone}}
    expected = {cloud.providers[leaf]: units for leaf in ("l000", "l001")}
    assert fabrics.follow(claim, {*hosts, "of no fabric"}, dry_run=False) == expected
    assert fabrics.held(group) == expected
    assert fabrics.follow(claim, hosts, dry_run=False) is None
    (held,) = [each for each in fabrics.all() if each.consumer == quiet.group]
    assert fabrics.follow(held, (), dry_run=False) == held.amounts


def test_leafs_of_an_older_release_count_no_uplinks_until_the_fabric_is_applied_again(cloud):
    for leaf in cloud.plan.leafs:
        path = f"/resource_providers/{cloud.providers[leaf]}/inventories"
        body = cloud.client.get(path)
        del body["inventories"][names.LEAF_UPLINK]
        cloud.client.put(path, body)
    fabrics = PlacementFabrics(cloud.client)
    (state,) = fabrics.read()
    quiet, shared = owner(), owner()
    fabrics.claim(state, quiet, asked(state, 32, UplinkShare.QUIET))
    fabrics.share(state, shared, asked(state, 20))
    assert state.held(fabrics.held(quiet))["l000"] == BLOCK
    assert fabrics.held(shared) == {}
    FabricWriter(cloud.client).apply(cloud.plan)
    (after,) = fabrics.read()
    assert after.counted == {*cloud.plan.leafs}


def test_an_empty_leaf_changes_its_layout_and_one_of_two_planners_loses(fabrics):
    (state,) = fabrics.read()
    remainder = replace(
        blocks(),
        claims={"l000": {names.LEAF_REMAINDER: 4}},
        layouts={"l000": LeafLayout.REMAINDER},
    )
    fabrics.claim(state, owner(), remainder)
    other = replace(
        remainder,
        claims={"l002": {names.LEAF_REMAINDER: 4}},
        layouts={"l002": LeafLayout.REMAINDER},
    )
    with pytest.raises(ConflictError):
        fabrics.claim(state, owner(), other)
    (after,) = fabrics.read()
    first, _, third, *_ = after.leafs.leafs
    assert (first.layout, first.held) == (LeafLayout.REMAINDER, {names.LEAF_REMAINDER: 4})
    assert third.is_untouched


def test_a_leaf_in_use_keeps_its_layout(fabrics):
    (state,) = fabrics.read()
    fabrics.claim(state, owner(), blocks("l000"))
    late = replace(
        blocks(), claims={"l000": {names.LEAF_HOST: 2}}, layouts={"l000": LeafLayout.WHOLE}
    )
    with pytest.raises(NoRoomError):
        fabrics.claim(state, owner(), late)


def test_a_claim_is_swept_when_no_member_is_alive_and_only_then(fabrics):
    (state,) = fabrics.read()
    alive, dead, shelved, deleted = (owner() for _ in range(4))
    for leaf, group in enumerate((alive, dead, shelved, deleted)):
        fabrics.claim(state, group, blocks(f"l00{leaf}"))
    nova = Groups(
        **{
            alive.group: [FAILED, ALIVE],
            dead.group: [FAILED, FAILED],
            shelved.group: [GroupMember("SHELVED_OFFLOADED", "")],
            deleted.group: None,
        }
    )
    tried = {claim.consumer: result for claim, result, _ in sweep(fabrics, nova, dry_run=True)}
    assert tried == {
        alive.group: SweepResult.ALIVE,
        dead.group: SweepResult.WOULD,
        shelved.group: SweepResult.ALIVE,
        deleted.group: SweepResult.UNKNOWN,
    }
    swept = {claim.consumer: result for claim, result, _ in sweep(fabrics, nova)}
    assert swept[dead.group] == SweepResult.RELEASED
    assert {claim.consumer for claim in fabrics.all()} == set(tried) - {dead.group}
    for used, result in ((True, SweepResult.UNKNOWN), (False, SweepResult.RELEASED)):
        found = sweep(fabrics, nova, may_be_used=lambda _claim, used=used: used)
        assert {claim.consumer: result for claim, result, _ in found}[deleted.group] == result


def test_a_claim_that_changed_since_it_was_read_is_not_swept(fabrics):
    (state,) = fabrics.read()
    group = owner()
    fabrics.claim(state, group, blocks("l000"))
    (read,) = fabrics.all()
    fabrics.release(group.group)
    fabrics.claim(state, group, blocks("l001"))
    fabrics._claims.write(
        replace(fabrics.all()[0])
    )  # written once more, so that the generation rises
    assert not fabrics.release_dead(read)
    assert state.held(fabrics.held(group)) == {"l001": BLOCK}
