# SPDX-License-Identifier: Apache-2.0
"""What servers hold follows the cells that nova-compute chose; what was lost is given back; nova is never disturbed."""

import itertools
import json
import uuid

import pytest
from keystoneauth1 import exceptions as keystone_errors
from nova import objects
from nova.scheduler import utils

from emulation.servers import BE_SPECS, Server
from nova_numa_ext import endpoints
from nova_numa_ext.cli import heal_command
from nova_numa_ext.policy.numa.nova_part import FlavorSizes, nova_part
from nova_numa_ext.policy.numa.whatif import own_amounts
from placement_traits import names
from placement_traits.client import CODE_CONCURRENT, PlacementError
from placement_traits.errors import CapabilityMissingError
from placement_traits.request import parse
from tests.support.allocations import L3_PART, SPECS, server_on
from tests.support.fabric_in_placement import put_fabric
from tests.support.fabrics import fabric
from tests.support.faults import FaultyAdapter, answer, refuse
from tests.support.group_hosts import leaf_trait

objects.register_all()
# What a flavor asks of Placement; nova 33 has it under another name.
novas_resources = (
    getattr(utils, "resources_from_flavor_and_bfv", None) or utils.resources_for_limits
)
LEAF = {"net:train:l000": {names.LEAF_BLOCK: 2}}
NOVAS = {"PCPU": 1, "MEMORY_MB": 64}
CLOS = {"CUSTOM_RDT_CLOS": 1}
DECLARED = {**BE_SPECS, "resources_NODE:CUSTOM_MEMORY_BANDWIDTH_MBPS": "2000"}
BANDWIDTH = {"CUSTOM_MEMORY_BANDWIDTH_MBPS": 2000}
OTHERS = {"CUSTOM_MEMORY_BANDWIDTH_MBPS": 3000}
STRICT = {
    **SPECS,
    "numa_ext:interference_class": "rabbit",
    "resources_NODE:CUSTOM_LLC_NEIGHBOURHOOD": "1000",
}
WHOLE = {"CUSTOM_LLC_NEIGHBOURHOOD": 1000}
FULL = {**SPECS, "resources_NODE:CUSTOM_LLC_WAY": "13"}


def results(rows):
    return [str(row.result) for row in rows]


# Where they run -------------------------------------------------------------------------------------------------------


def test_only_the_l3_part_moves(host):
    server = server_on(node=2)
    before = host.claim(server, l3=0, pci=True)
    (row,) = host.heal(server)
    after = host.held(server.uuid)
    assert after.pop("h1:l3_2") == before.pop("h1:l3_0") == L3_PART
    assert after == before
    assert (row.result, row.host, row.server, row.uuid) == ("done", "h1", "lc", server.uuid)
    assert row.change == (
        "h1:l3_0 -CUSTOM_LLC_WAY 4 -CUSTOM_MEMORY_BANDWIDTH_MBPS 2000; "
        "h1:l3_2 +CUSTOM_LLC_WAY 4 +CUSTOM_MEMORY_BANDWIDTH_MBPS 2000"
    )
    assert host.heal() == []


def test_what_is_right_is_not_written(host):
    server = server_on(node=1)
    before = host.claim(server, l3=1)
    assert host.heal(server) == []
    assert {method for method, _ in host.adapter.log} == {"GET"}
    assert host.held(server.uuid) == before


def test_two_servers_in_full_domains_swap_places(host):
    a, b = server_on(2, "a", FULL), server_on(3, "b", FULL)
    host.claim(a, l3=3, CUSTOM_LLC_WAY=13)
    host.claim(b, l3=2, CUSTOM_LLC_WAY=13)
    assert results(host.heal(a, b)) == ["done", "done"]
    assert "h1:l3_2" in host.held(a.uuid)
    assert "h1:l3_3" in host.held(b.uuid)


def test_a_full_domain_is_told_and_does_not_keep_others_from_moving(host):
    full, stuck, free = server_on(0, "full", FULL), server_on(0, "stuck"), server_on(2, "free")
    host.claim(full, l3=0, CUSTOM_LLC_WAY=13)
    host.claim(stuck, l3=1)
    host.claim(free, l3=3)
    told, moved = sorted(host.heal(full, stuck, free), key=lambda row: row.server, reverse=True)
    assert "h1:l3_2" in host.held(free.uuid)
    assert "h1:l3_1" in host.held(stuck.uuid)
    assert (told.result, moved.result) == ("failed", "done")
    assert "CUSTOM_LLC_WAY" in told.problem


def test_a_server_of_two_cells_keeps_the_half_that_is_right(host):
    specs = {
        **{key: value for key, value in SPECS.items() if not key.startswith("resources_")},
        "hw:numa_nodes": "2",
        "resources_N0:CUSTOM_LLC_WAY": "4",
        "resources_N1:CUSTOM_LLC_WAY": "2",
        "group_policy": "isolate",
    }
    server = Server("two", specs, cpus=(0, 6), vcpus=2)
    host.api.add(server, cells=[(0, (0,)), (3, (6,))])
    rest = {"h1": {"PCPU": 2, "MEMORY_MB": 64}, "h1:rdt": CLOS}
    half = {"h1:l3_0": {"CUSTOM_LLC_WAY": 4}}
    host.allocate(server.uuid, {**half, "h1:l3_1": {"CUSTOM_LLC_WAY": 2}, **rest})
    assert results(host.heal()) == ["done"]
    assert host.held(server.uuid) == {**half, "h1:l3_3": {"CUSTOM_LLC_WAY": 2}, **rest}


def test_the_neighbourhood_of_a_strict_server_moves_with_it(host):
    server = server_on(node=2, specs=STRICT)
    host.claim(server, l3=0, **WHOLE)
    assert results(host.heal(server)) == ["done"]
    assert host.held(server.uuid)["h1:l3_2"] == {**L3_PART, **WHOLE}


def test_a_strict_server_beside_a_claim_that_excludes_it_is_told(host):
    """Nova was not asked (``az:host``), or lost a race: the operator has to migrate one of them."""
    rabbit, other = server_on(2, "rabbit", STRICT), server_on(2, "other", STRICT)
    host.claim(rabbit, l3=2, **WHOLE)
    host.claim(other, l3=0, **WHOLE)
    (row,) = host.heal(rabbit, other)
    assert (row.result, row.server) == ("failed", "other")
    assert "h1:l3_0" in host.held(other.uuid)


# What an agent has reserved for it ------------------------------------------------------------------------------------


def test_a_claim_takes_the_place_of_what_was_reserved_for_it(host):
    """The domain is full with both; nothing else that is reserved there is given away."""
    full, server = (
        server_on(2, "full", {**SPECS, "resources_NODE:CUSTOM_LLC_WAY": "9"}),
        server_on(2),
    )
    host.claim(full, l3=2, CUSTOM_LLC_WAY=9)
    host.claim(server, l3=0)
    host.reserve("h1:l3_2", CUSTOM_LLC_WAY=4, CUSTOM_MEMORY_BANDWIDTH_MBPS=3000)
    assert results(host.heal(full, server)) == ["done"]
    assert "h1:l3_2" in host.held(server.uuid)
    assert host.reserved("h1:l3_2") == {"CUSTOM_MEMORY_BANDWIDTH_MBPS": 3000}


def test_servers_swap_full_domains_in_which_each_is_reserved(host):
    a, b = server_on(2, "a", FULL), server_on(3, "b", FULL)
    host.claim(a, l3=3, CUSTOM_LLC_WAY=13)
    host.claim(b, l3=2, CUSTOM_LLC_WAY=13)
    for provider in ("h1:l3_2", "h1:l3_3"):
        host.reserve(provider, CUSTOM_LLC_WAY=13, CUSTOM_MEMORY_BANDWIDTH_MBPS=2000)
    assert results(host.heal(a, b)) == ["done", "done"]
    assert "h1:l3_2" in host.held(a.uuid)
    assert host.reserved("h1:l3_2") == {"CUSTOM_MEMORY_BANDWIDTH_MBPS": 2000}


def test_a_domain_that_is_too_full_all_the_same_keeps_what_is_reserved(host):
    full, server = server_on(2, "full", FULL), server_on(2)
    host.claim(full, l3=2, CUSTOM_LLC_WAY=13)
    before = host.claim(server, l3=0)
    host.reserve("h1:l3_2", CUSTOM_MEMORY_BANDWIDTH_MBPS=9000)
    assert results(host.heal(full, server)) == ["failed"]
    assert host.held(server.uuid) == before
    assert host.reserved("h1:l3_2") == {"CUSTOM_MEMORY_BANDWIDTH_MBPS": 9000}


def test_a_refusal_of_one_change_keeps_no_other_from_being_made(host):
    """POST /reshaper is for role service only, which an administrator's credentials may lack."""
    full, plain, elsewhere = server_on(2, "full"), server_on(1, "plain"), server_on(3, "elsewhere")
    host.claim(full, l3=0)
    host.claim(plain, l3=0)
    host.claim(elsewhere, l3=0, host="h2")
    host.reserve("h1:l3_2", CUSTOM_LLC_WAY=13)
    host.api.add(elsewhere, "h2")
    host.fault = lambda method, path: refuse(403) if path == "/reshaper" else None
    rows = host.heal(full, plain)
    assert [(row.server, row.result) for row in rows] == [
        ("full", "failed"),
        ("plain", "done"),
        ("elsewhere", "done"),
    ]
    assert "403" in rows[0].problem
    assert ("h1:l3_1" in host.held(plain.uuid), "h2:l3_3" in host.held(elsewhere.uuid)) == (
        True,
        True,
    )


@pytest.mark.parametrize("gone", ["inventories", "allocations"])
def test_a_provider_that_went_since_the_reading_ends_no_run(host, gone):
    """Another provider cannot be healed any more, the next host can."""
    here, elsewhere = server_on(2, "here"), server_on(3, "elsewhere")
    host.claim(here, l3=0)
    host.claim(server_on(0, "orphan"), l3=2)
    host.claim(elsewhere, l3=0, host="h2")
    host.api.add(elsewhere, "h2")
    path_gone = f"/resource_providers/{host.cloud.uuid('h1:l3_2')}/{gone}"
    host.fault = lambda method, path: refuse(404) if path == path_gone else None
    rows = host.heal(here)
    assert rows[0].result == ("failed" if gone == "inventories" else "done")
    assert (rows[-1].server, rows[-1].result) == ("elsewhere", "done")


# What was lost --------------------------------------------------------------------------------------------------------


def flavor_of(extra_specs, **sizes):
    values = {"vcpus": 1, "memory_mb": 64, "root_gb": 0, "ephemeral_gb": 0, "swap": 0, **sizes}
    return objects.Flavor(name="f", flavorid="f", extra_specs=extra_specs, **values)


def test_nova_itself_cannot_heal_such_a_server(host):
    """heal_allocations merges all that the flavor counts and puts it on the root, which has no such classes."""
    merged = novas_resources(flavor_of(SPECS), is_bfv=False)
    assert set(merged) >= {"CUSTOM_RDT_CLOS", "CUSTOM_LLC_WAY"}
    server = server_on(node=1)
    with pytest.raises(PlacementError, match="409"):
        host.cloud.claim(server.uuid, allocations={host.cloud.uuid("h1"): dict(merged)})


def test_a_server_that_lost_everything_gets_it_back(host):
    server = server_on(node=1)
    wanted = {"h1": NOVAS, "h1:rdt": CLOS, "h1:l3_1": L3_PART}
    (row,) = host.heal(server)
    assert (row.result, row.holds, row.should_hold) == ("done", {}, wanted)
    assert host.held(server.uuid) == wanted
    body = host.cloud.client.get(f"/allocations/{server.uuid}")
    assert (body["project_id"], body["user_id"]) == ("project", "user")
    assert body["consumer_type"] == "unknown"  # as nova leaves it
    assert host.heal() == []


def test_novas_part_is_left_as_it_is_when_there_is_one(host):
    server = server_on(node=1)
    host.allocate(server.uuid, {"h1": {"PCPU": 1, "MEMORY_MB": 512}})
    assert results(host.heal(server)) == ["done"]
    assert host.held(server.uuid) == {
        "h1": {"PCPU": 1, "MEMORY_MB": 512},
        "h1:rdt": CLOS,
        "h1:l3_1": L3_PART,
    }


def test_a_dry_run_shows_the_same_and_writes_nothing(host):
    server = server_on(node=1)
    (row,) = host.heal(server, write=False)
    assert row.result == "would"
    assert set(row.should_hold) == {"h1", "h1:rdt", "h1:l3_1"}
    assert host.held(server.uuid) == {}


def test_floating_servers_get_their_bandwidth_where_least_is_declared(host):
    """Of domain 0 another server has declared; those healed before in the same run count, too."""
    other = server_on(node=0)
    host.claim(other, l3=0)
    lost = [Server(title, DECLARED, shared="") for title in ("be1", "be2", "be3", "be4")]
    assert results(host.heal(other, *lost)) == ["done"] * 4
    held = [host.held(server.uuid) for server in lost]
    assert [each.pop("h1") for each in held] == [{"VCPU": 1, "MEMORY_MB": 64}] * 4
    assert sorted(held, key=str) == [{f"h1:l3_{l3}": BANDWIDTH} for l3 in range(4)]


def test_what_was_refused_is_not_counted_as_declared(host):
    """Domain 0 will have 2000 MB/s, the others have 3000 each: planned twice, it would seem to have 4000."""
    host.allocate(str(uuid.uuid4()), {f"h1:l3_{l3}": OTHERS for l3 in (1, 2, 3)})
    first, floating = server_on(node=0), Server("be", DECLARED, shared="")
    conflict = answer(409, json.dumps({"errors": [{"code": CODE_CONCURRENT, "detail": ""}]}))
    faults = iter([lambda _send: conflict] * 3)
    host.fault = lambda method, path: next(faults, None) if method == "POST" else None
    rows = host.heal(first, floating)
    assert [row.result for row in rows if row.server] == ["done", "done"]
    assert next(faults, None) is None
    assert "h1:l3_0" in host.held(first.uuid)
    assert host.held(floating.uuid) == {"h1": {"VCPU": 1, "MEMORY_MB": 64}, "h1:l3_0": BANDWIDTH}


def test_a_floating_server_may_hold_its_bandwidth_in_any_domain(host):
    server = Server("be", DECLARED, shared="0-7")
    host.allocate(server.uuid, {"h1": {"VCPU": 1, "MEMORY_MB": 64}, "h1:l3_3": BANDWIDTH})
    assert host.heal(server) == []


def test_what_cannot_be_counted_is_told_for_this_server_alone(host):
    strange = server_on(1, "strange", {**SPECS, "resources_OTHER:CUSTOM_FPGA": "1"})
    rows = host.heal(strange, server_on(2, "plain"))
    assert [(row.server, row.result) for row in rows] == [("strange", "failed"), ("plain", "done")]
    assert "resources_OTHER:CUSTOM_FPGA" in rows[0].problem


def test_a_server_that_is_not_ours_to_heal_is_left_out(host):
    """``nova-manage`` heals what asks for nothing of ours."""
    unmanaged, malformed = {"numa_ext:managed": "false"}, {"numa_ext:tier": "XX"}
    for specs in ({}, BE_SPECS, {**SPECS, **unmanaged}, {**SPECS, **malformed}):
        host.api.add(server_on(1, specs=specs))
    assert host.heal() == []


def test_a_tier_that_the_image_requires_is_assumed(host):
    """Nova's API does not show it, and without a tier the flavor would make no sense."""
    specs = {key: value for key, value in SPECS.items() if key != "numa_ext:tier"}
    server = server_on(1, specs=specs)
    host.claim(server, l3=0)
    assert results(host.heal(server)) == ["done"]


@pytest.mark.parametrize("from_volume", [False, True])
@pytest.mark.parametrize("sizes", [{}, {"root_gb": 20, "swap": 1500, "ephemeral_gb": 3}])
@pytest.mark.parametrize(
    ("extra_specs", "pinned"),
    [
        ({}, 0),
        ({"hw:cpu_policy": "dedicated"}, 4),
        ({"hw:cpu_policy": "dedicated", "hw:emulator_threads_policy": "isolate"}, 4),
        ({"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "0-2"}, 3),
        ({"resources:VCPU": "0", "resources:CUSTOM_BAREMETAL": "1"}, 0),
        ({"resources:MEMORY_MB": "128"}, 0),
        ({"resources:PCPU": "4"}, 4),
    ],
)
def test_novas_part_is_what_nova_would_count(extra_specs, pinned, sizes, from_volume):
    flavor = flavor_of(extra_specs, vcpus=4, **sizes)
    ours = nova_part(
        FlavorSizes(4, 64, flavor.root_gb, flavor.ephemeral_gb, flavor.swap),
        extra_specs,
        {},
        pinned=pinned,
        from_volume=from_volume,
    )
    assert ours == dict(novas_resources(flavor, is_bfv=from_volume))


@pytest.mark.parametrize("emulator", [{}, {"hw:emulator_threads_policy": "isolate"}])
@pytest.mark.parametrize(
    "extra_specs",
    [
        {},
        {"hw:cpu_policy": "dedicated"},
        {"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "0-2"},
        {"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "^1-2"},
        {"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": " 0 - 3, ^1,^2"},
        {
            "hw:cpu_policy": "mixed",
            "hw:cpu_realtime": "yes",
            "hw:cpu_realtime_mask": "3",
        },
    ],
)
def test_what_a_flavor_asks_of_novas_provider_is_what_nova_would_count(extra_specs, emulator):
    specs = {**extra_specs, **(emulator if extra_specs else {})}
    flavor = flavor_of(specs, vcpus=4)
    asked = own_amounts(parse(specs, vcpus=4, memory_mb=64))
    counted = dict(novas_resources(flavor, is_bfv=False))
    counted.pop("DISK_GB", None)
    assert {resource: amount for _, resource, amount in asked} == counted


@pytest.mark.parametrize(
    ("specs", "image", "problem"),
    [
        ({"resources:CUSTOM_FPGA": "one"}, {}, "resources:CUSTOM_FPGA=one, which is no number"),
        ({"hw:mem_encryption": "True"}, {}, "MEM_ENCRYPTION_CONTEXT is not known"),
        ({}, {"hw_mem_encryption": "true"}, "MEM_ENCRYPTION_CONTEXT is not known"),
    ],
)
def test_what_cannot_be_rebuilt_is_told(specs, image, problem):
    with pytest.raises(CapabilityMissingError, match=problem):
        nova_part(FlavorSizes(2, 64), specs, image, pinned=0, from_volume=False)


# Hands off -----------------------------------------------------------------------------------------------------------


def test_nothing_is_asked_while_a_server_is_in_flight_and_it_moves_afterwards(host):
    server = server_on(node=2)
    before = host.claim(server, l3=0)
    for under_way in (
        {"OS-EXT-STS:task_state": "migrating"},
        {"status": "VERIFY_RESIZE"},
        {"status": "SHELVED"},
        {"status": "ERROR"},
    ):
        host.api.add(server, **under_way)
        assert host.heal() == []
        assert not any(path.endswith("/topology") for path in host.api.asked)
        assert host.held(server.uuid) == before
    host.api.add(server)
    assert results(host.heal()) == ["done"]


def test_a_server_that_rests_keeps_its_cells_and_is_healed(host):
    for number, status in enumerate(("PAUSED", "SUSPENDED", "SHUTOFF")):
        server = server_on(node=3, title=status)
        host.claim(server, l3=number)
        host.api.add(server, status=status)
    assert results(host.heal()) == ["done"] * 3


@pytest.mark.parametrize(("status", "result"), [("finished", "left"), ("confirmed", "done")])
def test_a_migration_that_is_not_over_keeps_us_away(host, status, result):
    server = server_on(node=2)
    host.claim(server, l3=0)
    host.api.migrations = [{"uuid": "m", "instance_uuid": server.uuid, "status": status}]
    (row,) = host.heal(server)
    assert row.result == result
    assert row.problem == ("something is under way: migration finished" if result == "left" else "")


def test_a_consumer_that_is_no_server_is_never_touched(host):
    server = server_on(node=2)
    before = host.claim(server, l3=0, consumer_type="MIGRATION")
    (row,) = host.heal(server)
    assert (row.result, row.problem) == ("left", "its consumer is of type MIGRATION")
    assert host.held(server.uuid) == before


def test_after_an_evacuation_the_part_of_the_new_host_is_healed_and_the_old_one_is_told(host):
    server = server_on(node=2)
    left = {"h2": NOVAS, "h2:rdt": CLOS, "h2:l3_0": L3_PART}
    host.allocate(server.uuid, {"h1": NOVAS, "h1:rdt": CLOS, "h1:l3_0": L3_PART, **left})
    moved, told = host.heal(server)
    assert (moved.result, moved.host) == ("done", "h1")
    assert host.held(server.uuid) == {"h1": NOVAS, "h1:rdt": CLOS, "h1:l3_2": L3_PART, **left}
    assert (told.result, told.host, told.server) == ("left", "h2", "lc")
    assert told.holds == {"h2:rdt": CLOS, "h2:l3_0": L3_PART}
    assert "when nova-compute of h2 starts" in told.problem
    assert results(host.heal()) == ["left"]


def test_a_server_that_holds_only_another_host_is_left_to_nova(host):
    server = server_on(node=2)
    before = host.claim(server, l3=0, host="h2")
    here, there = host.heal(server)
    assert (here.result, here.host, there.host) == ("left", "h1", "h2")
    assert "nova's own provider" in here.problem
    assert host.held(server.uuid) == before


def test_what_nova_does_not_know_is_told_and_not_deleted(host):
    gone, moving = server_on(0, "gone"), server_on(1, "moving")
    before = host.claim(gone, l3=0)
    host.claim(moving, l3=1)
    host.api.migrations = [
        {"uuid": "old", "instance_uuid": "x", "status": "completed"},
        {"uuid": "older", "instance_uuid": "y", "status": "completed"},
        {"uuid": moving.uuid, "instance_uuid": "z", "status": "running"},
    ]
    (row,) = host.heal()
    assert (row.result, row.server, row.uuid) == ("left", "", gone.uuid)
    assert row.holds == {"h1:rdt": CLOS, "h1:l3_0": L3_PART}
    assert f"audit --delete --resource_provider {host.cloud.uuid('h1')}" in row.problem
    assert f"allocation delete {gone.uuid}" in row.problem
    assert host.held(gone.uuid) == before


def test_a_server_of_a_cell_that_is_down_is_no_orphan(host):
    """Nova shows its id and little else."""
    server = server_on(0)
    host.claim(server, l3=0)
    host.api.servers[server.uuid] = {"id": server.uuid, "status": "UNKNOWN"}
    assert host.heal() == []


def test_a_consumer_of_another_service_is_no_orphan(host):
    host.claim(server_on(0), l3=0, consumer_type="RESERVATION")
    assert host.heal() == []


def test_consumers_are_read_only_where_more_is_used_than_servers_account_for(host):
    server = server_on(node=1)
    host.claim(server, l3=1)
    host.heal(server)
    assert not any(path.endswith("/allocations") for _, path in host.adapter.log)


@pytest.mark.parametrize("left_alone", ["busy", "wrong flavor"])
def test_what_servers_hold_that_are_left_alone_is_accounted_for(host, left_alone):
    """One request for such a server, none for each of its providers."""
    specs = {**SPECS, "numa_ext:tier": "ABC"} if left_alone == "wrong flavor" else SPECS
    server = server_on(node=1, specs=specs)
    host.claim(server, l3=0)
    host.api.add(server)
    if left_alone == "busy":
        host.api.servers[server.uuid]["OS-EXT-STS:task_state"] = "rebooting"
    assert host.heal() == []
    assert not any(path.endswith("/allocations") for _, path in host.adapter.log)


# Races: nova acts between our look and our write ---------------------------------------------------------------------


@pytest.mark.parametrize("as_first_read", [True, False])
def test_a_live_migration_that_starts_meanwhile_wins(host, as_first_read):
    """conductor: the source's allocation goes to the migration, then the server gets one on the target.

    The new consumer has the generation of the old one, so a write with it alone would be accepted.
    """
    server, migration = server_on(node=2), str(uuid.uuid4())
    before = host.claim(server, l3=0)
    generation = host.cloud.client.get(f"/allocations/{server.uuid}")["consumer_generation"]

    def empty():
        host.api.servers[server.uuid]["OS-EXT-STS:task_state"] = "migrating"
        host.api.migrations = [
            {"uuid": migration, "instance_uuid": server.uuid, "status": "running"}
        ]
        assert host.nova.move_allocations(host.context, server.uuid, migration)

    def start():
        empty()
        host.claim(server, l3=3, host="h2")
        found = host.cloud.client.get(f"/allocations/{server.uuid}")
        assert found["consumer_generation"] == generation

    if as_first_read:
        host.after_asking = start
    else:
        host.before_post = empty
    (row,) = host.heal(server)
    assert (row.result, row.problem.partition(":")[0]) == ("left", "something is under way")
    assert host.held(migration) == before
    assert set(host.held(server.uuid)) == ({"h2", "h2:rdt", "h2:l3_3"} if as_first_read else set())


def test_a_resize_that_is_reverted_meanwhile_wins(host):
    server, migration = server_on(node=2), server_on(node=0)
    host.claim(server, l3=0)
    old = host.claim(migration, l3=1, host="h2", consumer_type="MIGRATION")

    def revert():
        host.nova.move_allocations(host.context, migration.uuid, server.uuid)
        host.api.servers[server.uuid]["OS-EXT-SRV-ATTR:hypervisor_hostname"] = "h2"

    host.before_post = revert
    (row,) = host.heal(server)
    assert "nova has it on h2" in row.problem
    assert host.held(server.uuid) == old
    assert host.held(migration.uuid) == {}


@pytest.mark.parametrize("force", [True, False])
def test_a_server_deleted_meanwhile_is_not_brought_back(host, force):
    server = server_on(node=2)
    host.claim(server, l3=0)

    def delete():
        host.nova.delete_allocation_for_instance(host.context, server.uuid, force=force)
        del host.api.servers[server.uuid]

    host.before_post = delete
    assert host.heal(server) == []
    assert host.held(server.uuid) == {}


def touch(host, server):
    """Write what is there: the consumer gets another generation."""
    body = host.cloud.client.get(f"/allocations/{server.uuid}")
    host.cloud.client.put(f"/allocations/{server.uuid}", body)


def test_another_writer_is_waited_for(host):
    """Consumer generations differ at the first write; the second one knows it."""
    server = server_on(node=2)
    host.claim(server, l3=0)

    host.before_post = lambda: touch(host, server)
    assert results(host.heal(server)) == ["done"]
    assert "h1:l3_2" in host.held(server.uuid)


def test_a_writer_that_never_ends_is_told(host):
    server = server_on(node=2)
    host.claim(server, l3=0)

    def again():
        touch(host, server)
        host.before_post = again

    host.before_post = again
    (row,) = host.heal(server)
    assert (row.result, row.problem.startswith("Its allocation changed meanwhile")) == (
        "failed",
        True,
    )


def test_another_server_that_comes_meanwhile_disturbs_nothing(host):
    """Only the consumer's generation counts: providers change all the time."""
    server, other = server_on(node=2), server_on(node=2, title="other")
    host.claim(server, l3=0)
    host.before_post = lambda: host.claim(other, l3=2)
    assert results(host.heal(server)) == ["done"]
    assert host.held(server.uuid)["h1:l3_2"] == host.held(other.uuid)["h1:l3_2"] == L3_PART


# The command ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def command(host, monkeypatch, capsys, tmp_path):
    """``numa-ext-heal`` over the two computes; returns status, output and errors."""
    file = tmp_path / "nova.conf"
    file.write_text("")
    monkeypatch.setattr(endpoints, "placement", lambda _conf: host.adapter)
    monkeypatch.setattr(endpoints, "compute", lambda _conf: host.api)

    def run(*words, **options):
        status = heal_command.main([f"--config-file={file}", *words], **options)
        output = capsys.readouterr()
        return status, output.out, output.err

    return run


def test_the_plan_is_printed_first_and_then_what_was_done(host, command):
    server = server_on(node=2)
    host.claim(server, l3=0)
    host.api.add(server)
    change = "h1:l3_0 -CUSTOM_LLC_WAY 4"
    status, out, _ = command("--dry-run")
    assert (status, out.startswith(f"would  h1  lc  {change}")) == (0, True)
    status, out, _ = command("-f", "json")
    assert (status, [row["result"] for row in json.loads(out)]) == (0, ["done"])
    assert command() == (0, "All servers hold what they should.\n", "")


@pytest.fixture
def group(host):
    """A server group that holds a block of a fabric::

    h1, h2                 of ``host``
    net:train:p00
    ├─ net:train:l000      LEAF_BLOCK 2 of 2 held by the group
    └─ net:train:l001      free
    """
    put_fabric(host.cloud.client, fabric([3, 3]))
    group = str(uuid.uuid4())
    host.allocate(group, LEAF, consumer_type=names.GROUP_CONSUMER)
    return group


def test_groups_without_a_server_give_their_leafs_back_at_each_run(host, command, group):
    host.api.groups[group] = []
    change = f"-  group {group}  net:train:l000 -{names.LEAF_BLOCK} 2"
    assert command("--host", "h1")[1] == "All servers hold what they should.\n"
    assert command("--dry-run")[1] == f"would  {change}\n"
    assert command()[1] == f"done  {change}\n"
    assert host.held(group) == {}
    assert command() == (0, "All servers hold what they should.\n", "")


def test_a_single_run_leaves_and_shows_a_group_that_nova_does_not_know(host, command, group):
    """A tenant may delete a group while its servers run."""
    for _ in range(2):
        status, out, _ = command()
        assert (status, out.startswith(f"left  -  group {group}  nova does not know")) == (0, True)
    assert host.held(group) == LEAF


class Rounds:
    """Rounds of ``numa-ext-heal --every 300``: what happens between them, one call after the other, then the end."""

    def __init__(self, *between):
        self.between = list(between)
        self.now = 0.0

    def sleep(self, seconds):
        self.now += seconds
        if not self.between:
            raise EnoughError
        self.between.pop(0)()

    def clock(self):
        return self.now


class EnoughError(Exception):
    pass


def nothing():
    """Nothing happens between two rounds."""


def rounds(command, *between):
    """Run rounds until nothing more is to happen."""
    steps = Rounds(*between)
    with pytest.raises(EnoughError):
        command("--every", "300", sleep=steps.sleep, clock=steps.clock)


@pytest.fixture
def on_the_leaf(host, group):
    """Hosts h1 and h2 hang on the group's leaf::

    net:train:l000         LEAF_BLOCK 2 of 2 held by the group
    h1, h2                 + the trait of leaf l000
    """
    for name in ("h1", "h2"):
        path = f"/resource_providers/{host.cloud.client.provider_named(name)['uuid']}/traits"
        body = host.cloud.client.get(path)
        host.cloud.client.put(path, {**body, "traits": [*body["traits"], leaf_trait("l000")]})
    return group


def test_a_forgotten_groups_leafs_are_free_again_after_the_grace_time(host, command, on_the_leaf):
    rounds(command)
    assert host.held(on_the_leaf) == LEAF
    rounds(command, nothing)
    assert host.held(on_the_leaf) == {}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"OS-EXT-SRV-ATTR:hypervisor_hostname": None, "status": "BUILD"},
        {"flavor": None, "status": "UNKNOWN"},
    ],
    ids=["on its leaf", "not placed yet", "in a cell that is down"],
)
def test_a_forgotten_groups_leafs_stay_while_a_server_may_be_its_own(
    host, command, on_the_leaf, changes
):
    server = server_on(node=0)
    host.claim(server, l3=0)
    host.api.add(server, **changes)
    project = host.cloud.client.get(f"/allocations/{on_the_leaf}")["project_id"]
    host.api.servers[server.uuid]["tenant_id"] = project
    rounds(command, nothing, nothing)
    assert host.held(on_the_leaf) == LEAF
    rounds(command, host.api.servers.clear, nothing)
    assert host.held(on_the_leaf) == {}


def test_a_group_of_another_regions_hosts_keeps_its_leafs(host, command, on_the_leaf):
    host.api.hosts.remove("h2")
    rounds(command, nothing, nothing)
    assert host.held(on_the_leaf) == LEAF


def test_the_grace_time_begins_anew_where_a_forgotten_groups_claim_has_changed(
    host, command, on_the_leaf
):
    def written():
        path = f"/allocations/{on_the_leaf}"
        host.cloud.client.put(path, host.cloud.client.get(path))

    rounds(command, written)
    assert host.held(on_the_leaf) == LEAF


def test_uplinks_that_a_group_shares_follow_its_servers(host, command):
    """Two servers were on two leafs; one has moved, then nova goes on to move it, then both are on one leaf."""
    client = host.cloud.client
    put_fabric(client, fabric([3, 3, 3]))
    for name, leaf in (("h1", "l000"), ("h2", "l002")):
        path = f"/resource_providers/{client.provider_named(name)['uuid']}/traits"
        body = client.get(path)
        client.put(path, {**body, "traits": [*body["traits"], leaf_trait(leaf)]})
    group, first, second = str(uuid.uuid4()), server_on(node=0), server_on(node=0)
    shared = {names.LEAF_UPLINK: 1000}
    before = {"net:train:l000": shared, "net:train:l001": shared}
    host.allocate(group, before, consumer_type=names.GROUP_CONSUMER)
    host.api.add(first, "h1")
    host.api.add(second, "h2", **{"OS-EXT-STS:task_state": "migrating"})
    host.api.groups[group] = [first.uuid, second.uuid]
    command()
    assert host.held(group) == before
    host.api.servers[second.uuid]["OS-EXT-STS:task_state"] = None
    change = (
        f"group {group}  net:train:l001 -{names.LEAF_UPLINK} 1000; "
        f"net:train:l002 +{names.LEAF_UPLINK} 1000"
    )
    assert change in command("--dry-run")[1]
    assert host.held(group) == before
    assert change in command()[1]
    assert host.held(group) == {"net:train:l000": shared, "net:train:l002": shared}
    host.api.servers[second.uuid]["OS-EXT-SRV-ATTR:hypervisor_hostname"] = "h1"
    command()
    assert host.held(group) == {}


def test_a_row_says_whether_it_is_of_a_server_or_a_group_and_its_problem_if_it_has_one(
    host, command, group
):
    server = server_on(node=2)
    host.claim(server, l3=0)
    host.api.add(server)

    def rows():
        found = {row["uuid"]: row for row in json.loads(command("-f", "json")[1])}
        return {uuid: (row["kind"], row["result"], row["problem"]) for uuid, row in found.items()}

    first = rows()
    assert first[server.uuid] == ("server", "done", "")
    assert first[group][:2] == ("server_group", "left")
    assert first[group][2].startswith("nova does not know the server group")
    host.api.groups[group] = []
    assert rows() == {group: ("server_group", "done", "")}


def test_only_the_hosts_that_are_named_are_looked_at(host, command):
    server = server_on(node=2)
    host.claim(server, l3=0)
    host.api.add(server)
    assert command("--host", "h2")[1] == "All servers hold what they should.\n"
    status, _, error = command("--host", "h9")
    assert (status, error) == (1, "numa-ext-heal: --host: 'h9' is not allowed; allowed: h1, h2\n")


def test_trouble_with_nova_is_one_sentence(host, command):
    for fault, sentence in (
        (answer(403), "needs the role admin"),
        (answer(500), "Nova answered GET /servers/detail with 500"),
        (answer(200, "<html>"), "Nova's answer to GET /servers/detail is no JSON"),
        (answer(200, "{}"), "makes no sense: KeyError('servers')"),
        (answer(200, "[1]"), "makes no sense: TypeError("),
    ):
        host.api.fault = lambda _path, fault=fault: fault
        status, out, error = command()
        assert (status, out, error.count("\n")) == (1, "Nothing was done.\n", 1)
        assert sentence in error


def test_nova_that_cannot_be_reached_is_one_sentence(host, command):
    def fault(_path):
        raise keystone_errors.ConnectFailure("no route")

    host.api.fault = fault
    assert command()[2] == "numa-ext-heal: Nova does not answer GET /servers/detail: no route\n"


def test_a_nova_that_hides_nodes_from_this_user_is_told(host, command):
    server = server_on(node=2)
    host.claim(server, l3=0)
    host.api.add(server, nodes=[{"vcpu_set": [0]}])
    status, out, error = command()
    assert (status, out) == (1, "Nothing was done.\n")
    assert error.startswith("numa-ext-heal: Nova does not show on which NUMA nodes servers are")


def test_a_placement_that_is_down_ends_the_run_with_one_sentence(host, command, monkeypatch):
    server = server_on(node=2)
    host.claim(server, l3=0)
    host.api.add(server)
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    down = FaultyAdapter(
        host.adapter, lambda _method, path: refuse(503) if "/allocations/" in path else None
    )
    monkeypatch.setattr(endpoints, "placement", lambda _conf: down)
    monkeypatch.setattr("placement_traits.client.RetrySettings.pause_s", lambda *_: 0.0)
    status, _, error = command()
    assert status == 1
    assert error.startswith("numa-ext-heal: Placement did not answer GET /allocations/")
    assert error.count("\n") == 1


def test_garbage_from_placement_is_one_sentence(host, command, monkeypatch):
    server = server_on(node=2)
    before = host.claim(server, l3=0)
    host.api.add(server)
    for text in ("", "<html>", "{}", "null", '{"allocations": []}'):

        def fault(_method, path, text=text):
            return (lambda _send: answer(200, text)) if "/allocations/" in path else None

        faulty = FaultyAdapter(host.adapter, fault)
        monkeypatch.setattr(endpoints, "placement", lambda _conf, faulty=faulty: faulty)
        status, _, error = command()
        assert (status, error.count("\n")) == (1, 1), text
    assert host.held(server.uuid) == before


def test_a_loop_goes_on_after_a_fault_and_is_silent_while_all_is_right(host, command):
    """Down, up and wrong, right."""
    server = server_on(node=2)
    host.claim(server, l3=0)
    host.api.add(server)
    runs = itertools.count(1)

    class EnoughError(Exception):
        pass

    def sleep(seconds):
        assert seconds == 60
        host.api.fault = None
        if next(runs) == 3:
            raise EnoughError

    host.api.fault = lambda _path: answer(503)
    with pytest.raises(EnoughError):
        command("--every", "60", sleep=sleep)
    assert "h1:l3_2" in host.held(server.uuid)


@pytest.mark.parametrize("seconds", ["0", "soon", "1e9"])
def test_a_pause_that_makes_no_sense_is_refused(seconds, capsys):
    with pytest.raises(SystemExit):
        heal_command.main(["--every", seconds])
    assert "a number from 1 to 86400" in capsys.readouterr().err


def test_without_credentials_the_file_is_named(tmp_path, capsys):
    file = tmp_path / "nova.conf"
    file.write_text("[placement]\n")
    assert heal_command.main([f"--config-file={file}"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"numa-ext-heal: {file} holds no credentials in [placement]")
