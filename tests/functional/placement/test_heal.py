# SPDX-License-Identifier: Apache-2.0
"""``heal`` rebuilds what ``nova-manage placement heal_allocations`` cannot: nested amounts."""

import uuid
from types import SimpleNamespace

import pytest
from lxml import etree
from nova import objects
from nova.scheduler import utils
from nova.virt.libvirt import config as libvirt_config

from emulation.hosts import four_nodes
from emulation.servers import BE_SPECS, Server
from host_agent.conf import configuration
from host_agent.console import heal as heal_module
from host_agent.console.heal import heal_claims
from host_agent.control import home_nodes_store
from host_agent.decide.amounts.claims import claims, floating_claims
from host_agent.machine.libvirt import ListedDomain
from host_agent.model.assignment import Guest, Observation
from host_agent.model.workload import Activity, parse
from host_agent.report.nova_resources import nova_part
from placement_traits import journal
from placement_traits.client import PlacementError
from placement_traits.errors import CapabilityMissingError
from tests.support.allocations import L3_PART, SPECS, running, server_on

objects.register_all()
# What a flavor asks of Placement; nova 33 has it under another name.
novas_resources = (
    getattr(utils, "resources_from_flavor_and_bfv", None) or utils.resources_for_limits
)
PROJECT, USER = str(uuid.uuid4()), str(uuid.uuid4())
DECLARED = {**BE_SPECS, "resources_NODE:CUSTOM_MEMORY_BANDWIDTH_MBPS": "2000"}
BANDWIDTH = {"CUSTOM_MEMORY_BANDWIDTH_MBPS": 2000}


def flavor_of(extra_specs, **sizes):
    values = {"vcpus": 1, "memory_mb": 64, "root_gb": 0, "ephemeral_gb": 0, "swap": 0, **sizes}
    return objects.Flavor(name="f", flavorid="f", extra_specs=extra_specs, **values)


def metadata(flavor, root_type="image"):
    """The metadata as nova's own libvirt driver writes it."""
    flavor_part = libvirt_config.LibvirtConfigGuestMetaNovaFlavor()
    flavor_part.name, flavor_part.id = flavor.name, flavor.flavorid
    flavor_part.memory, flavor_part.vcpus = flavor.memory_mb, flavor.vcpus
    flavor_part.disk, flavor_part.ephemeral = flavor.root_gb, flavor.ephemeral_gb
    flavor_part.swap, flavor_part.extra_specs = flavor.swap, flavor.extra_specs
    owner = libvirt_config.LibvirtConfigGuestMetaNovaOwner()
    owner.userid, owner.username = USER, "user"
    owner.projectid, owner.projectname = PROJECT, "project"
    instance = libvirt_config.LibvirtConfigGuestMetaNovaInstance()
    instance.package, instance.name = "34.0.0", "lc"
    instance.flavor, instance.owner = flavor_part, owner
    if root_type:
        instance.roottype, instance.rootid = root_type, uuid.uuid4()
    return f"<domain><metadata>{etree.tostring(instance.format_dom()).decode()}</metadata></domain>"


def heal(host, server, xml=None, *, dry_run=False):
    """Run the command's inside for one server of h1."""
    domains = {server.uuid: xml or metadata(flavor_of(SPECS))}
    journal = None if dry_run else host.journal
    return heal_claims(host.allocations, "h1", running(server), domains, journal)


def test_nova_itself_cannot_heal_such_a_server(host):
    """heal_allocations merges all that the flavor counts and puts it on the root, which has no such classes."""
    merged = novas_resources(flavor_of(SPECS), is_bfv=False)
    assert set(merged) >= {"CUSTOM_RDT_CLOS", "CUSTOM_LLC_WAY"}
    server = server_on(node=1)
    with pytest.raises(PlacementError, match="409"):
        host.cloud.claim(server.uuid, allocations={host.cloud.uuid("h1"): dict(merged)})


def test_a_server_that_lost_everything_gets_it_back(host):
    server = server_on(node=1)
    wanted = {
        "h1": {"PCPU": 1, "MEMORY_MB": 64},
        "h1:rdt": {"CUSTOM_RDT_CLOS": 1},
        "h1:l3_1": L3_PART,
    }
    (row,) = heal(host, server)
    assert (row["result"], row["holds"], row["should_hold"]) == ("done", {}, wanted)
    assert host.held(server.uuid) == wanted
    body = host.cloud.client.get(f"/allocations/{server.uuid}")
    assert (body["project_id"], body["user_id"]) == (PROJECT, USER)
    assert body["consumer_type"] == "unknown"  # as nova leaves it
    assert [entry.action for entry in host.journal] == ["heal"]
    assert heal(host, server) == []


def test_the_command_reads_libvirt_and_writes_its_journal(host, monkeypatch, tmp_path):
    server, floating = server_on(node=1), Server("be", DECLARED, shared="0-7")
    owner = f"<nova:owner><nova:user uuid='{USER}'>u</nova:user><nova:project uuid='{PROJECT}'>p</nova:project>"
    listed = tuple(
        ListedDomain(
            each.uuid,
            each.xml.replace("<nova:flavor", f"{owner}</nova:owner><nova:flavor"),
            Activity.RUNNING,
        )
        for each in (server, floating)
    )
    libvirt = SimpleNamespace(domains=lambda: listed, close=lambda: None)
    monkeypatch.setattr(heal_module, "LibvirtSource", lambda _uri: libvirt)
    monkeypatch.setattr(heal_module, "make_allocations", lambda _conf, _root: host.allocations)
    monkeypatch.setattr(heal_module, "topology_reader", lambda _conf: four_nodes)
    config = tmp_path / "agent.conf"
    config.write_text(f"[host]\nname = h1\n[agent]\nstate_dir = {tmp_path}\n")
    conf = configuration.load([f"--config-file={config}"])
    home_nodes_store.store(conf.paths.home_nodes).save({floating.uuid: (3,)})
    assert [row["result"] for row in heal_module.heal(conf, dry_run=True)] == ["would", "would"]
    assert [row["result"] for row in heal_module.heal(conf, dry_run=False)] == ["done", "done"]
    assert set(host.held(server.uuid)) == {"h1", "h1:rdt", "h1:l3_1"}
    assert set(host.held(floating.uuid)) == {"h1", "h1:l3_3"}
    (entry, other) = journal.read(conf.paths.journal)
    assert (entry["action"], entry["result"], entry["server"]) == ("heal", "done", server.uuid)
    assert other["server"] == floating.uuid


def test_novas_part_is_left_as_it_is_when_there_is_one(host):
    server = server_on(node=1)
    host.cloud.claim(
        server.uuid, allocations={host.cloud.uuid("h1"): {"PCPU": 1, "MEMORY_MB": 512}}
    )
    (row,) = heal(host, server)
    assert row["result"] == "done"
    assert host.held(server.uuid) == {
        "h1": {"PCPU": 1, "MEMORY_MB": 512},
        "h1:rdt": {"CUSTOM_RDT_CLOS": 1},
        "h1:l3_1": L3_PART,
    }


def test_a_dry_run_says_the_same_and_writes_nothing(host):
    server = server_on(node=1)
    (row,) = heal(host, server, dry_run=True)
    assert row["result"] == "would"
    assert set(row["should_hold"]) == {"h1", "h1:rdt", "h1:l3_1"}
    assert host.held(server.uuid) == {}
    assert host.journal == []


def heal_floating(host, server, *others, home=()):
    """Heal a server without a NUMA topology; ``others`` run beside it."""
    guests = tuple(Guest(parse(each.xml, Activity.RUNNING)) for each in (*others, server))
    observation = Observation(four_nodes(), guests)
    home_nodes = {server.uuid: home} if home else {}
    found = floating_claims(observation, home_nodes, claims(observation))
    xml = {server.uuid: metadata(flavor_of(server.specs))}
    return heal_claims(host.allocations, "h1", found, xml, host.journal)


@pytest.mark.parametrize(("home", "l3"), [((2,), "h1:l3_2"), ((), "h1:l3_1")])
def test_a_floating_server_gets_its_bandwidth_in_its_home(host, home, l3):
    """Without a home where least is declared of what its CPUs reach: another server has declared in domain 0."""
    server = Server("be", DECLARED, shared="0-3")
    (row,) = heal_floating(host, server, server_on(node=0), home=home)
    assert row["result"] == "done"
    assert host.held(server.uuid) == {"h1": {"VCPU": 1, "MEMORY_MB": 64}, l3: BANDWIDTH}
    assert heal_floating(host, server, home=home) == []


def test_floating_servers_without_a_home_are_spread(host):
    """Nova restricts neither to CPUs."""
    first, second = (Server(title, DECLARED, shared="") for title in ("be1", "be2"))
    guests = tuple(Guest(parse(each.xml, Activity.RUNNING)) for each in (first, second))
    found = floating_claims(Observation(four_nodes(), guests), {}, ())
    assert [[part.l3 for part in claim.parts] for claim in found] == [[0], [1]]


def test_a_floating_server_may_hold_its_bandwidth_in_any_domain(host):
    server = Server("be", DECLARED, shared="0-7")
    h1, l3 = host.cloud.uuid("h1"), host.cloud.uuid("h1:l3_0")
    host.cloud.claim(server.uuid, allocations={h1: {"VCPU": 1}, l3: BANDWIDTH})
    assert heal_floating(host, server, home=(2,)) == []


@pytest.mark.parametrize(
    "specs",
    [
        BE_SPECS,
        {**DECLARED, "resources_B:CUSTOM_MEMORY_BANDWIDTH_MBPS": "10", "group_policy": "isolate"},
    ],
    ids=["nothing of ours", "more groups than domains"],
)
def test_a_floating_server_is_left_out(host, specs):
    """``nova-manage`` heals what asks for nothing of ours; its one CPU reaches one domain."""
    assert heal_floating(host, Server("be", specs, shared="0")) == []


def test_a_server_under_way_is_left_to_nova(host):
    server = server_on(node=1)
    host.busy[server.uuid] = "task rebuilding"
    (row,) = heal(host, server)
    assert (row["result"], row["problem"]) == ("failed", "task rebuilding")
    assert host.held(server.uuid) == {}


def test_what_cannot_be_counted_is_said(host):
    flavor = flavor_of({**SPECS, "resources_OTHER:CUSTOM_FPGA": "1"})
    (row,) = heal(host, server_on(node=1), metadata(flavor))
    assert row["result"] == "failed"
    assert "resources_OTHER:CUSTOM_FPGA" in row["problem"]


@pytest.mark.parametrize("from_volume", [False, True])
@pytest.mark.parametrize("sizes", [{}, {"root_gb": 20, "swap": 1500, "ephemeral_gb": 3}])
@pytest.mark.parametrize(
    "extra_specs",
    [
        {},
        {"hw:cpu_policy": "dedicated"},
        {"hw:cpu_policy": "dedicated", "hw:emulator_threads_policy": "isolate"},
        {"resources:VCPU": "0", "resources:CUSTOM_BAREMETAL": "1"},
        {"resources:MEMORY_MB": "128"},
    ],
)
def test_novas_part_is_what_nova_would_count(extra_specs, sizes, from_volume):
    flavor = flavor_of(extra_specs, vcpus=4, **sizes)
    xml = metadata(flavor, root_type="" if from_volume else "image")
    theirs = novas_resources(flavor, is_bfv=from_volume)
    assert nova_part(xml).resources == dict(theirs)


def with_pins(xml, *cpusets):
    pins = "".join(f"<vcpupin vcpu='{n}' cpuset='{cpus}'/>" for n, cpus in enumerate(cpusets))
    return xml.replace("</domain>", f"<cputune>{pins}</cputune></domain>")


@pytest.mark.parametrize(
    ("pins", "counted"), [(("2", "3"), "PCPU"), (("0-3", "0-3"), "VCPU"), (("0", "0"), "VCPU")]
)
def test_dedicated_vcpus_that_the_image_asked_for_are_seen_by_their_pins(pins, counted):
    xml = with_pins(metadata(flavor_of({}, vcpus=2)), *pins)
    assert nova_part(xml).resources == {counted: 2, "MEMORY_MB": 64}


@pytest.mark.parametrize(
    ("extra_specs", "more", "problem"),
    [
        ({"resources:CUSTOM_FPGA": "one"}, "", "resources:CUSTOM_FPGA=one, which is no number"),
        ({}, "<launchSecurity type='sev'/>", "MEM_ENCRYPTION_CONTEXT is not known"),
        (
            {},
            "<cputune><vcpupin vcpu='0' cpuset='2'/><vcpupin vcpu='1' cpuset='0-1'/></cputune>",
            "mixes shared and dedicated",
        ),
    ],
)
def test_what_cannot_be_rebuilt_is_told_for_this_server_alone(extra_specs, more, problem):
    xml = metadata(flavor_of(extra_specs, vcpus=2)).replace("</domain>", f"{more}</domain>")
    with pytest.raises(CapabilityMissingError, match=problem):
        nova_part(xml)


def test_metadata_without_an_owner_is_refused():
    with pytest.raises(CapabilityMissingError, match="does not show its owner"):
        nova_part(server_on(node=1).xml)
