# SPDX-License-Identifier: Apache-2.0
"""Fabrics in the real Placement: the whole tree, what groups hold of it, and plans that change."""

import json
import uuid
from dataclasses import replace

import pytest

from nova_numa_ext.fabrics import PlacementFabrics
from nova_numa_ext.policy.network.groups import GroupRequest, NoLeafs
from nova_numa_ext.policy.network.planner import plan
from nova_numa_ext.policy.network.terms import GroupTerm
from placement_traits import names
from placement_traits.claim_store import ClaimStore, NoRoomError
from placement_traits.claims import Claim, emptied
from placement_traits.client import PlacementError
from placement_traits.errors import NumaExtError, ServiceUnavailableError
from placement_traits.fabric import FabricNode, LeafLayout
from placement_traits.fabric_tree import FabricWriter, HeldError, leaf_inventories
from placement_traits.names import LEAF_BLOCK, LEAF_HOST, LEAF_REST, POD_UPLINK, UplinkShare
from placement_traits.reason import Reason
from placement_traits.view import FleetView, ViewSettings
from tests.support.fabrics import fabric

PLAN = fabric([5, 5, 2], leafs_per_pod=2, uplinks_mbps=(250_000, None, None), host_mbps=200_000)

UPLINK = {"LEAF_UPLINK": (1_000_000_000, 1, 0)}
KNOWN_UPLINK = {**UPLINK, "LEAF_UPLINK_MBPS": (250_000, 1, 0)}


@pytest.fixture
def cloud(empty_cloud):
    """Nova's providers of the hosts of the first two leafs; the third leaf's are not there yet::

    l000-00 … l000-04, l001-00 … l001-04    VCPU 8, MEMORY_MB 8192
    """
    empty_cloud.once("hosts of two leafs", lambda: [*map(empty_cloud.compute, [*PLAN.hosts][:10])])
    empty_cloud.writer = FabricWriter(empty_cloud.client)
    return empty_cloud


@pytest.fixture
def applied(cloud):
    """The same, with the fabric of the plan::

    net:train
    ├─ net:train:p00          POD_UPLINK 10000
    │  ├─ net:train:l000      LEAF_BLOCK 4, LEAF_REST 1; oversubscribed 4 : 1
    │  └─ net:train:l001      LEAF_BLOCK 4, LEAF_REST 1
    └─ net:train:p01          POD_UPLINK 10000
       └─ net:train:l002      LEAF_REST 2
    """
    cloud.changes = cloud.once("fabric of three leafs", lambda: cloud.writer.apply(PLAN))
    return cloud


def tree(cloud):
    """Every provider of the fabric: its parent's name, traits without prefix, and inventories as total/reserved."""
    found = {}
    listed = [
        each
        for each in cloud.client.get("/resource_providers")["resource_providers"]
        if each["name"].startswith("net:")
    ]
    name_of = {each["uuid"]: each["name"] for each in listed}
    for each in listed:
        path = f"/resource_providers/{each['uuid']}"
        traits = cloud.client.get(f"{path}/traits")["traits"]
        inventories = cloud.client.get(f"{path}/inventories")["inventories"]
        found[each["name"]] = (
            name_of.get(each["parent_provider_uuid"]),
            " ".join(sorted(trait.removeprefix(names.TRAIT_PREFIX) for trait in traits)),
            {
                key.removeprefix(names.TRAIT_PREFIX): (
                    one["total"],
                    one["min_unit"],
                    one["reserved"],
                )
                for key, one in inventories.items()
            },
        )
    return found


def host_traits(cloud, host):
    root = cloud.client.provider_named(host)["uuid"]
    return set(cloud.client.get(f"/resource_providers/{root}/traits")["traits"])


def claim(cloud, **leafs):
    """Let a group hold hosts of leafs: leaf=(class, amount)."""
    amounts = {
        cloud.client.provider_named(f"net:train:{leaf}")["uuid"]: {held[0]: held[1]}
        for leaf, held in leafs.items()
    }
    held = Claim(str(uuid.uuid4()), names.GROUP_CONSUMER, "p", "u", amounts)
    store = ClaimStore(cloud.client)
    store.write(held)
    return store.read(held.consumer)


def test_the_whole_tree(applied):
    pod = {"POD_UPLINK": (10_000, 1, 0)}
    assert tree(applied) == {
        "net:train": (None, "NET_FABRIC", {"FABRIC_PLAN": (1, 1, 0)}),
        "net:train:p00": ("net:train", "NET_LEVEL_POD", pod),
        "net:train:p01": ("net:train", "NET_LEVEL_POD", pod),
        "net:train:l000": (
            "net:train:p00",
            "LEAF_TRAIN_L000 NET_BLOCK_4 NET_INDEX_0 NET_LEVEL_LEAF NET_OVERSUBSCRIPTION_400",
            {"LEAF_BLOCK": (4, 4, 0), "LEAF_REST": (1, 1, 0), **KNOWN_UPLINK},
        ),
        "net:train:l001": (
            "net:train:p00",
            "LEAF_TRAIN_L001 NET_BLOCK_4 NET_INDEX_1 NET_LEVEL_LEAF",
            {"LEAF_BLOCK": (4, 4, 0), "LEAF_REST": (1, 1, 0), **UPLINK},
        ),
        "net:train:l002": (
            "net:train:p01",
            "LEAF_TRAIN_L002 NET_BLOCK_4 NET_INDEX_2 NET_LEVEL_LEAF",
            {"LEAF_REST": (2, 1, 0), **UPLINK},
        ),
    }


def test_each_host_has_the_trait_of_its_leaf(applied):
    assert names.leaf_trait("train", "l000") in host_traits(applied, "l000-04")
    assert names.leaf_trait("train", "l001") in host_traits(applied, "l001-00")
    assert applied.changes.problems == tuple(
        f"l002-{n:02} is not in Placement: start nova-compute there, and apply the plan again."
        for n in range(2)
    )


def test_what_is_there_already_is_not_written_again(applied):
    writes = applied.client.counters.writes
    assert applied.writer.apply(PLAN).done == ()
    assert applied.client.counters.writes == writes


def test_a_dry_run_says_what_would_be_done_and_writes_nothing(cloud):
    writes = cloud.client.counters.writes
    would = cloud.writer.apply(PLAN, dry_run=True)
    assert cloud.client.counters.writes == writes
    assert tree(cloud) == {}
    assert would == cloud.writer.apply(PLAN)


def test_a_pass_that_was_cut_short_shows_no_half_of_a_fabric(cloud, monkeypatch):
    """No planner finds it: the root gets its trait and its unit last."""
    put = cloud.client.put

    def dies(path, body=None):
        if path.endswith("/inventories") and len(tree(cloud)) == 6:
            raise KeyboardInterrupt
        return put(path, body)

    monkeypatch.setattr(cloud.client, "put", dies)
    with pytest.raises(KeyboardInterrupt):
        cloud.writer.apply(PLAN)
    assert tree(cloud)["net:train"][1:] == ("", {})
    monkeypatch.undo()
    cloud.writer.apply(PLAN)
    assert tree(cloud)["net:train"][2] == {"FABRIC_PLAN": (1, 1, 0)}
    assert cloud.writer.apply(PLAN).done == ()


def test_inventories_are_the_rules(applied):
    """Half a block is refused, a second block is, and the rest beside it is had."""
    with pytest.raises(PlacementError):
        claim(applied, l000=(LEAF_BLOCK, 2))
    claim(applied, l000=(LEAF_BLOCK, 4), l001=(LEAF_BLOCK, 4))
    with pytest.raises(NoRoomError):
        claim(applied, l000=(LEAF_BLOCK, 4))
    claim(applied, l000=(LEAF_REST, 1))


def test_a_leaf_that_groups_hold_does_not_shrink(applied):
    group = claim(applied, l000=(LEAF_BLOCK, 4))
    before = tree(applied)
    smaller = replace(PLAN, hosts={h: leaf for h, leaf in PLAN.hosts.items() if h > "l000-01"})
    with pytest.raises(HeldError) as error:
        applied.writer.apply(smaller)
    assert str(error.value) == (
        "net:train:l000 would have 0 CUSTOM_NUMA_EXT_LEAF_BLOCK, 4 are held, but 1 server groups are there: "
        f"{group.consumer}. Drain it, and do this again when they are gone."
    )
    assert tree(applied) == before
    ClaimStore(applied.client).write(emptied(group))
    applied.writer.apply(smaller)
    assert tree(applied)["net:train:l000"][2] == {"LEAF_REST": (3, 1, 0), **KNOWN_UPLINK}
    assert names.leaf_trait("train", "l000") not in host_traits(applied, "l000-00")


def without(leaf, **nodes):
    kept = {name: node for name, node in PLAN.nodes.items() if name != leaf}
    hosts = {host: at for host, at in PLAN.hosts.items() if at != leaf}
    return replace(PLAN, nodes={**kept, **nodes}, hosts=hosts)


def test_a_leaf_that_groups_hold_neither_goes_nor_moves(applied):
    claim(applied, l001=(LEAF_BLOCK, 4))
    with pytest.raises(HeldError, match="net:train:l001 would go, but 1 server groups"):
        applied.writer.apply(without("l001"))
    moved = {**PLAN.nodes, "l001": FabricNode("l001", "leaf", "p01")}
    with pytest.raises(HeldError, match="net:train:l001 would hang on net:train:p01, but 1"):
        applied.writer.apply(replace(PLAN, nodes=moved))


def test_a_leaf_whose_uplinks_are_shared_does_not_go(applied):
    group = claim(applied, l000=(names.LEAF_UPLINK, 1000))
    with pytest.raises(
        HeldError, match=f"would go, but 1 server groups are there: {group.consumer}"
    ):
        applied.writer.apply(without("l000"))


def test_a_leaf_that_is_free_moves_to_another_pod_and_keeps_its_index(applied):
    nodes = {
        **PLAN.nodes,
        "l001": FabricNode("l001", "leaf", "p02"),
        "p02": FabricNode("p02", "pod"),
    }
    moved = replace(PLAN, nodes=nodes)
    would = applied.writer.apply(moved, dry_run=True).done
    assert (
        applied.writer.apply(moved).done
        == would
        == ("net:train:p02 created", "net:train:l001 changed")
    )
    parent, traits, inventories = tree(applied)["net:train:l001"]
    assert (parent, inventories["LEAF_BLOCK"]) == ("net:train:p02", (4, 4, 0))
    assert "NET_INDEX_1" in traits
    (state,) = PlacementFabrics(applied.client).read()
    assert [leaf.pod for leaf in state.leafs.leafs] == ["p00", "p02", "p01"]
    assert applied.writer.apply(moved).done == ()
    emptied_pod = {name: node for name, node in PLAN.nodes.items() if name != "p01"}
    only = {**emptied_pod, "l002": FabricNode("l002", "leaf", "p00")}
    applied.writer.apply(replace(PLAN, nodes=only))
    assert {each for each in tree(applied) if ":p" in each} == {"net:train:p00"}


def test_a_leaf_that_is_free_goes_and_others_keep_their_index(applied):
    applied.writer.apply(without("l000"))
    found = tree(applied)
    assert "net:train:l000" not in found
    assert "NET_INDEX_1" in found["net:train:l001"][1]
    assert not any(map(names.is_leaf_trait, host_traits(applied, "l000-00")))
    applied.writer.apply(PLAN)
    assert "NET_INDEX_3" in tree(applied)["net:train:l000"][1], "it comes after the last"


def test_a_fabric_that_is_removed_leaves_nothing_on_hosts_either(applied):
    hosts = {
        name: each for name, each in applied.everything().items() if not name.startswith("net")
    }
    applied.writer.mark(PLAN, {"l001-00": "l000"})
    with_leafs = [host for host in hosts if any(map(names.is_ours, host_traits(applied, host)))]
    assert len(with_leafs) == 10
    client = applied.connect()
    would = FabricWriter(client).remove("train", dry_run=True)
    assert (client.counters.writes, len(would.done)) == (0, 10 + 6)
    assert applied.writer.remove("train") == would
    assert would.done[-1] == "net:train deleted"
    assert tree(applied) == {}
    assert not any(names.is_ours(each) for host in hosts for each in host_traits(applied, host))
    assert applied.everything().keys() == hosts.keys()
    assert applied.writer.remove("train").done == ()
    assert applied.writer.apply(PLAN) == applied.changes, "it may come again"


def test_a_removal_that_was_cut_short_is_done_again(applied, monkeypatch):
    client = applied.connect()
    delete, left = client.delete, 2

    def cut(path):
        nonlocal left
        left -= 1
        if left < 0:
            raise ServiceUnavailableError("Placement", "it is away")
        delete(path)

    monkeypatch.setattr(client, "delete", cut)
    with pytest.raises(ServiceUnavailableError):
        FabricWriter(client).remove("train")
    assert 0 < len(tree(applied)) < 6
    FabricWriter(applied.connect()).remove("train")
    assert tree(applied) == {}


@pytest.mark.parametrize("what", [LEAF_BLOCK, names.LEAF_UPLINK])
def test_a_fabric_of_which_groups_hold_something_is_not_removed(applied, what):
    group = claim(applied, l001=(what, 4))
    before = applied.everything()
    for dry_run in (True, False):
        with pytest.raises(HeldError, match=f"l001 would go, but 1 .* there: {group.consumer}"):
            applied.writer.remove("train", dry_run=dry_run)
    assert applied.everything() == before


def test_a_drained_leaf_takes_no_group_and_stays_so_when_the_plan_is_applied_again(applied):
    assert applied.writer.drain("train", "l000", on=True)
    assert not applied.writer.drain("train", "l000", on=True)
    with pytest.raises(NoRoomError):
        claim(applied, l000=(LEAF_REST, 1))
    applied.writer.apply(PLAN)
    assert tree(applied)["net:train:l000"][2] == {
        "LEAF_BLOCK": (4, 4, 4),
        "LEAF_REST": (1, 1, 1),
        **KNOWN_UPLINK,
    }
    assert applied.writer.drain("train", "l000", on=False)
    claim(applied, l000=(LEAF_REST, 1))
    with pytest.raises(NumaExtError, match="no leaf p00 of a fabric train"):
        applied.writer.drain("train", "p00", on=True)


def test_views_see_the_leafs_of_hosts_and_wrong_cables_at_once(cloud):
    """A view that reads everything each ten minutes compares what agents publish, and no roots."""
    client, hosts = cloud.client, ("l000-00", "l000-01")
    for trait in (names.OWNER, names.HOST):
        client.put(f"/traits/{trait}")
    for host in hosts:
        root = client.provider_named(host)["uuid"]
        child = client.post(
            "/resource_providers", {"name": f"{host}:rdt", "parent_provider_uuid": root}
        )
        for provider, trait in ((root, names.HOST), (child["uuid"], names.OWNER)):
            path = f"/resource_providers/{provider}/traits"
            client.put(path, {**client.get(path), "traits": [trait]})
    view = FleetView(client._adapter, ViewSettings(max_age_s=3600.0), background=False)
    view.refresh()

    def shown():
        view.refresh()
        assert view.stats.full_reads == 1
        arrays = view.snapshot().arrays
        return [arrays.views[client.provider_named(host)["uuid"]].traits for host in hosts]

    leaf = names.leaf_trait("train", "l000")
    assert not any(leaf in traits for traits in shown())
    cloud.writer.apply(PLAN)
    assert all(leaf in traits for traits in shown())
    cloud.writer.mark(PLAN, {"l000-01"})
    assert [names.MISCABLED in traits for traits in shown()] == [False, True]
    cloud.writer.mark(PLAN, set())
    assert not any(names.MISCABLED in traits for traits in shown())


def test_drained_leafs_are_of_the_fabric_still(applied):
    """They have no room, whoever is there; and they count where it is asked whether a group would ever have a place."""
    claim(applied, l000=(LEAF_REST, 1))
    for leaf in ("l000", "l001"):
        applied.writer.drain("train", leaf, on=True)
    (state,) = PlacementFabrics(applied.client).read()
    leafs = replace(
        state.leafs,
        leafs=tuple(replace(leaf, free=leaf.planned_size) for leaf in state.leafs.leafs),
    )
    assert [(leaf.room, leaf.drained, leaf.blocks_free) for leaf in leafs.leafs] == [
        (0, 5, 0), (0, 5, 0), (2, 0, 0),
    ]  # fmt: skip
    assert leafs.usual_size == 5
    found = plan(leafs, GroupRequest(8, UplinkShare.QUIET))
    assert isinstance(found, NoLeafs) and found.ever
    assert found.reasons[-1] == Reason(GroupTerm.DRAINED, 2)
    never = plan(leafs, GroupRequest(13, UplinkShare.QUIET))
    assert isinstance(never, NoLeafs) and not never.ever


def test_a_layout_that_a_planner_chose_is_kept(applied):
    leaf = applied.client.provider_named("net:train:l001")
    applied.client.put(
        f"/resource_providers/{leaf['uuid']}/inventories",
        {
            "resource_provider_generation": leaf["generation"],
            "inventories": leaf_inventories(5, 4, LeafLayout.WHOLE),
        },
    )
    claim(applied, l001=(LEAF_HOST, 3), p00=(POD_UPLINK, 1))
    applied.writer.apply(PLAN)
    assert tree(applied)["net:train:l001"][2] == {"LEAF_HOST": (5, 1, 0), **UPLINK}


def test_a_host_of_another_fabric_is_a_problem_and_keeps_its_leaf(applied):
    other = fabric([1], name="storage")
    other = replace(other, hosts={"l000-00": "l000"})
    assert applied.writer.apply(other).problems == (
        "l000-00 hangs on another fabric, it has CUSTOM_NUMA_EXT_LEAF_TRAIN_L000: remove it there.",
    )
    assert names.leaf_trait("train", "l000") in host_traits(applied, "l000-00")


def test_a_provider_that_only_has_the_name_is_left_alone(cloud):
    foreign = cloud.compute("net:train")
    with pytest.raises(NumaExtError, match="is no fabric of ours"):
        cloud.writer.apply(PLAN)
    assert cloud.client.get(f"/resource_providers/{foreign}/traits")["traits"] == [
        "HW_CPU_X86_AVX2"
    ]


def test_one_query_shows_all_that_a_planner_needs(applied):
    claim(applied, l000=(LEAF_BLOCK, 4))
    found = applied.client.get(f"/allocation_candidates?resources={names.FABRIC_PLAN}:1")
    leaf = found["provider_summaries"][applied.client.provider_named("net:train:l000")["uuid"]]
    assert leaf["resources"][LEAF_BLOCK] == {"capacity": 4, "used": 4}
    assert len(found["provider_summaries"]) == 6
    assert len(json.dumps(found)) < 4000
