# SPDX-License-Identifier: Apache-2.0
"""A server's L3 part of its allocation follows the cells that nova-compute chose, and never gets in nova's way."""

import itertools
import uuid
from types import SimpleNamespace

import pytest

from emulation.hosts import four_nodes
from emulation.servers import BE_SPECS, Server
from host_agent.decide.amounts.claims import NotTouchableError, claims
from host_agent.model.assignment import Decision, Guest, Observation
from host_agent.model.process import Process, Role, Thread
from host_agent.model.round import Round
from host_agent.model.workload import Activity, parse
from host_agent.report.allocations import Allocations
from host_agent.report.nova_api import NovaApi
from host_agent.report.published import movable
from host_agent.report.rehome import Rehomer, Settled
from placement_traits.client import PlacementError
from placement_traits.errors import CapabilityMissingError, ServiceUnavailableError
from placement_traits.names import WHOLE_NEIGHBOURHOOD
from placement_traits.reporter import Reporter
from placement_traits.tree import L3State, desired_tree
from tests.support.allocations import L3_PART, SPECS, running, server_on
from tests.support.faults import answer
from tests.support.hosts import SETTINGS


def test_only_the_l3_part_moves(host):
    server = server_on(node=2)
    before = host.claim(server, l3=0, pci=True)
    assert host.turn(server) == ()
    after = host.held(server.uuid)
    assert after.pop("h1:l3_2") == before.pop("h1:l3_0") == L3_PART
    assert after == before
    (entry,) = host.journal
    assert (entry.action, entry.result, entry.server) == ("rehome", "done", server.uuid)
    assert entry.what == {"from": {"h1:l3_0": L3_PART}, "to": {"h1:l3_2": L3_PART}}


def test_what_is_right_is_looked_at_once_and_not_written(host):
    server = server_on(node=1)
    before = host.claim(server, l3=1)
    assert host.turn(server) == ()
    asked = len(host.adapter.log)
    assert host.turn(server) == ()
    assert len(host.adapter.log) == asked
    assert all(method == "GET" for method, _ in host.adapter.log)
    assert host.held(server.uuid) == before
    assert host.journal == []


def test_what_was_right_is_looked_at_again_after_some_time(host):
    now = [0.0]
    rehomer = Rehomer(host.allocations, "h1", host.journal, recheck_s=60.0, clock=lambda: now[0])
    server = server_on(node=1)
    host.claim(server, l3=1)
    rehomer.turn(running(server))
    host.cloud.client.delete(f"/allocations/{server.uuid}")
    host.claim(server, l3=0)  # an operator's, or nova-manage's
    now[0] = 59.0
    rehomer.turn(running(server))
    assert "h1:l3_0" in host.held(server.uuid)
    now[0] = 60.0
    rehomer.turn(running(server))
    assert "h1:l3_1" in host.held(server.uuid)


def test_two_servers_in_full_domains_swap_places(host):
    specs = {**SPECS, "resources_NODE:CUSTOM_LLC_WAY": "13"}
    a, b = server_on(2, "a", specs), server_on(3, "b", specs)
    host.claim(a, l3=3, CUSTOM_LLC_WAY=13)
    host.claim(b, l3=2, CUSTOM_LLC_WAY=13)
    assert host.turn(a, b) == ()
    assert "h1:l3_2" in host.held(a.uuid)
    assert "h1:l3_3" in host.held(b.uuid)


def test_a_full_domain_is_told_and_does_not_keep_others_from_moving(host):
    full, stuck, free = server_on(0, "full"), server_on(0, "stuck"), server_on(2, "free")
    host.claim(full, l3=0, CUSTOM_LLC_WAY=13)
    host.claim(stuck, l3=1)
    host.claim(free, l3=3)
    problems = host.turn(stuck, free)
    assert "h1:l3_2" in host.held(free.uuid)
    assert "h1:l3_1" in host.held(stuck.uuid)
    assert len(problems) == 1
    assert f"Server stuck ({stuck.uuid}) could not be re-homed." in problems[0]


def test_a_server_of_two_cells_keeps_the_half_that_is_right(host):
    specs = {
        **{key: value for key, value in SPECS.items() if not key.startswith("resources_")},
        "hw:numa_nodes": "2",
        "resources_N0:CUSTOM_LLC_WAY": "4",
        "resources_N1:CUSTOM_LLC_WAY": "2",
        "group_policy": "isolate",
    }
    server = Server("two", specs, cpus=(0, 6), vcpus=2, node=0)
    cells = (
        "<cell id='0' cpus='0' memory='32768' unit='KiB'/><cell id='1' cpus='1' memory='32768' unit='KiB'/>",
        "<memnode cellid='0' mode='strict' nodeset='0'/><memnode cellid='1' mode='strict' nodeset='3'/>",
    )
    xml = server.xml.replace("<cell id='0' cpus='0-1' memory='65536' unit='KiB'/>", cells[0])
    xml = xml.replace("<memnode cellid='0' mode='strict' nodeset='0'/>", cells[1])
    held = {"h1:l3_0": {"CUSTOM_LLC_WAY": 4}, "h1:l3_1": {"CUSTOM_LLC_WAY": 2}}
    rest = {"h1": {"PCPU": 2, "MEMORY_MB": 64}, "h1:rdt": {"CUSTOM_RDT_CLOS": 1}}
    host.cloud.claim(
        server.uuid,
        allocations={host.cloud.uuid(rp): amounts for rp, amounts in {**held, **rest}.items()},
    )
    guest = Guest(parse(xml, Activity.RUNNING))
    assert host.rehomer.turn(claims(Observation(four_nodes(), (guest,)))) == ()
    moved = {"h1:l3_0": {"CUSTOM_LLC_WAY": 4}, "h1:l3_3": {"CUSTOM_LLC_WAY": 2}}
    assert host.held(server.uuid) == {**moved, **rest}


def test_the_bandwidth_of_a_server_that_the_agent_has_placed_follows_it(host):
    """A floating server that may run in one L3 domain only; nova's own part stays."""
    specs = {**BE_SPECS, "resources_NODE:CUSTOM_MEMORY_BANDWIDTH_MBPS": "3000"}
    server = Server("be", specs, shared="0-7")
    held = {"h1": {"VCPU": 1, "MEMORY_MB": 64}}
    bandwidth = {"CUSTOM_MEMORY_BANDWIDTH_MBPS": 3000}
    host.cloud.claim(
        server.uuid,
        allocations={
            host.cloud.uuid(rp): amounts for rp, amounts in {**held, "h1:l3_0": bandwidth}.items()
        },
    )
    threads = (Thread(1, Role.VCPU, 0, "CPU 0/TCG", "6"),)
    guest = Guest(parse(server.xml, Activity.RUNNING), Process(1, 0, "0-7", threads))
    done = Round(Observation(four_nodes(), (guest,)), Decision())
    assert host.rehomer.turn(movable(done, ())) == ()
    assert host.held(server.uuid) == {**held, "h1:l3_3": bandwidth}


def test_an_allocation_that_lacks_something_is_for_heal(host):
    server = server_on(node=1)
    host.cloud.claim(server.uuid, allocations={host.cloud.uuid("h1"): {"PCPU": 1}})
    (problem,) = host.turn(server)
    assert "numa-host-agent-ctl heal" in problem
    assert host.held(server.uuid) == {"h1": {"PCPU": 1}}


# Hands off -----------------------------------------------------------------------------------------------------------


def test_nothing_moves_while_nova_has_something_under_way_and_it_does_afterwards(host):
    server = server_on(node=2)
    before = host.claim(server, l3=0)
    host.busy[server.uuid] = "task resize_prep"
    assert host.turn(server) == ()
    assert host.held(server.uuid) == before
    del host.busy[server.uuid]
    assert host.turn(server) == ()
    assert "h1:l3_2" in host.held(server.uuid)


def test_a_migration_consumer_is_never_touched(host):
    server = server_on(node=2)
    before = host.claim(server, l3=0, consumer_type="MIGRATION")
    assert host.turn(server) == ()
    assert host.held(server.uuid) == before


def test_a_server_that_still_holds_its_old_host_after_an_evacuation_is_not_touched(host):
    server = server_on(node=2)
    parts = {"h1": {"PCPU": 1}, "h1:l3_0": L3_PART, "h2": {"PCPU": 1}, "h2:l3_0": L3_PART}
    host.cloud.claim(
        server.uuid, allocations={host.cloud.uuid(rp): amounts for rp, amounts in parts.items()}
    )
    assert host.turn(server) == ()
    assert host.held(server.uuid) == parts


@pytest.mark.parametrize(
    ("activity", "server"),
    [
        (Activity.PAUSED, server_on(2)),  # also an incoming live migration
        (Activity.OFF, server_on(2)),
        (Activity.RUNNING, Server("be", BE_SPECS)),  # asks for nothing of ours
        (Activity.RUNNING, Server("left-alone", {**SPECS, "numa_ext:managed": "false"}, (4,))),
    ],
)
def test_who_makes_no_claim(activity, server):
    assert running(server, activity=activity) == ()


def test_a_claim_settles_after_some_seconds_and_anew_after_each_interruption():
    now = itertools.count()
    settled = Settled(2.0, clock=lambda: float(next(now)))
    here, there = running(server_on(1)), running(server_on(2))
    assert [settled.of(here) for _ in range(3)] == [(), (), here]
    assert settled.of(()) == ()  # paused for a moment
    assert [settled.of(here) for _ in range(3)] == [(), (), here]
    assert settled.of(there) == ()


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
    (problem,) = host.turn(server)
    assert "could not be re-homed" in problem
    assert host.held(migration) == before
    assert set(host.held(server.uuid)) == ({"h2", "h2:rdt", "h2:l3_3"} if as_first_read else set())


def test_a_resize_that_is_confirmed_meanwhile_is_not_disturbed(host):
    """The server runs here; what the confirmation removes is the migration's, on the other host."""
    server, migration = server_on(node=2), server_on(node=0)
    host.claim(server, l3=0)
    host.claim(migration, l3=0, host="h2", consumer_type="MIGRATION")
    host.before_post = lambda: host.nova.delete_allocation_for_instance(
        host.context, migration.uuid, consumer_type="migration"
    )
    assert host.turn(server) == ()
    assert "h1:l3_2" in host.held(server.uuid)
    assert host.held(migration.uuid) == {}


def test_a_resize_that_is_reverted_meanwhile_wins(host):
    server, migration = server_on(node=2), server_on(node=0)
    host.claim(server, l3=0)
    old = host.claim(migration, l3=1, host="h2", consumer_type="MIGRATION")
    host.before_post = lambda: host.nova.move_allocations(host.context, migration.uuid, server.uuid)
    (problem,) = host.turn(server)
    assert "409" in problem
    assert host.held(server.uuid) == old
    assert host.held(migration.uuid) == {}


@pytest.mark.parametrize("force", [True, False])
def test_a_server_deleted_meanwhile_is_not_brought_back(host, force):
    server = server_on(node=2)
    host.claim(server, l3=0)
    host.before_post = lambda: host.nova.delete_allocation_for_instance(
        host.context, server.uuid, force=force
    )
    (problem,) = host.turn(server)
    assert "409" in problem
    assert host.held(server.uuid) == {}


def test_another_server_that_comes_meanwhile_disturbs_nothing(host):
    """Only the consumer's generation counts: providers change all the time."""
    server, other = server_on(node=2), server_on(node=2, title="other")
    host.claim(server, l3=0)
    host.before_post = lambda: host.claim(other, l3=2)
    assert host.turn(server) == ()
    assert host.held(server.uuid)["h1:l3_2"] == host.held(other.uuid)["h1:l3_2"] == L3_PART


# What nova says ------------------------------------------------------------------------------------------------------


def nova_that_says(migrations=(), http=200, **server):
    """The answers of nova's API about one server."""
    known = {
        "status": "ACTIVE",
        "OS-EXT-STS:task_state": None,
        "OS-EXT-SRV-ATTR:hypervisor_hostname": "h1",
        **server,
    }

    def request(url, _method, **_options):
        body = {"server": known} if url.startswith("/servers/") else {"migrations": migrations}
        found = answer(http)
        found.json = lambda: body
        return found

    return NovaApi(SimpleNamespace(request=request))


@pytest.mark.parametrize(
    ("nova", "why"),
    [
        (nova_that_says(), ""),
        (nova_that_says(migrations=[{"status": "confirmed"}, {"status": "completed"}]), ""),
        (nova_that_says(migrations=[{"status": "finished"}]), "migration finished"),
        (nova_that_says(migrations=[{"status": "running"}]), "migration running"),
        (nova_that_says(http=404), "nova does not know the server"),
    ],
)
def test_why_nova_keeps_us_away(nova, why):
    assert nova.why_busy("a-server", "h1") == why


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("OS-EXT-STS:task_state", "migrating", "task migrating"),
        ("status", "VERIFY_RESIZE", "status VERIFY_RESIZE"),
        ("status", "SHELVED", "status SHELVED"),
        ("OS-EXT-SRV-ATTR:hypervisor_hostname", "h2", "nova has it on h2"),
    ],
)
def test_states_in_which_nothing_is_touched(key, value, why):
    nova = nova_that_says(**{key: value})
    assert nova.why_busy("a-server", "h1") == why


def test_credentials_that_nova_does_not_trust_are_told_in_a_sentence():
    with pytest.raises(CapabilityMissingError, match="needs the admin role, or set"):
        nova_that_says(http=403).why_busy("a-server", "h1")
    with pytest.raises(ServiceUnavailableError, match="with 500"):
        nova_that_says(http=500).why_busy("a-server", "h1")


def test_not_touchable_is_said_with_its_reason(host):
    server = server_on(node=2)
    host.claim(server, l3=0)
    allocations = Allocations(
        host.cloud.client, host.cloud.client, "h1", lambda *_: "task deleting"
    )
    with pytest.raises(NotTouchableError, match="task deleting"):
        allocations.check_quiet(server.uuid)


STRICT = {
    **SPECS,
    "numa_ext:interference_class": "rabbit",
    "resources_NODE:CUSTOM_LLC_NEIGHBOURHOOD": "1000",
}
WHOLE = {"CUSTOM_LLC_NEIGHBOURHOOD": 1000}


def test_the_neighbourhood_of_a_strict_server_moves_with_it(host):
    server = server_on(node=2, specs=STRICT)
    host.claim(server, l3=0, **WHOLE)
    assert host.turn(server) == ()
    assert host.held(server.uuid)["h1:l3_2"] == {**L3_PART, **WHOLE}


def test_two_strict_rabbits_in_each_others_domain_swap_places(host):
    a, b = server_on(2, "a", STRICT), server_on(3, "b", STRICT)
    host.claim(a, l3=3, **WHOLE)
    host.claim(b, l3=2, **WHOLE)
    assert host.turn(a, b) == ()
    assert "h1:l3_2" in host.held(a.uuid)
    assert "h1:l3_3" in host.held(b.uuid)


def test_a_strict_server_beside_a_claim_that_excludes_it_is_told(host):
    """Nova was not asked (``az:host``), or was overtaken: the operator has to migrate one of them."""
    rabbit, other = server_on(2, "rabbit", STRICT), server_on(2, "other", STRICT)
    host.claim(rabbit, l3=2, **WHOLE)
    host.claim(other, l3=0, **WHOLE)
    (problem,) = host.turn(rabbit, other)
    assert f"Server other ({other.uuid}) could not be re-homed." in problem
    assert "h1:l3_0" in host.held(other.uuid)


def test_more_may_be_reserved_of_a_neighbourhood_than_is_free(host):
    """A bound rabbit without a claim beside a strict devil: the devil keeps its claim and may leave, none may come.

    Placement lets an allocation that is over capacity be replaced by one that is no larger, so nova can give the
    server's amounts to a migration, and back when that fails.
    """
    devil, migration = server_on(0, "devil"), str(uuid.uuid4())
    place = {"CUSTOM_LLC_NEIGHBOURHOOD": 1}
    before = host.claim(devil, l3=0, **place)
    reporter = Reporter(host.cloud.client)
    full = {0: L3State(reserved_neighbourhood=WHOLE_NEIGHBOURHOOD)}
    assert reporter.sync(desired_tree("h1", four_nodes(), SETTINGS, full)).problems == ()
    with pytest.raises(PlacementError, match="exceed"):
        host.claim(server_on(0, "late"), l3=0, **place)
    host.nova.move_allocations(host.context, devil.uuid, migration)
    assert (host.held(devil.uuid), host.held(migration)) == ({}, before)
    host.nova.move_allocations(host.context, migration, devil.uuid)
    assert (host.held(devil.uuid), host.held(migration)) == (before, {})
    assert reporter.sync(desired_tree("h1", four_nodes(), SETTINGS)).problems == ()
    host.claim(server_on(0, "late"), l3=0, **place)
