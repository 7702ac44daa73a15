# SPDX-License-Identifier: Apache-2.0
"""Whether a real Placement has a host for one more member of an elastic group, before nova is asked for it."""

import pytest

from emulation.servers import LC_SPECS
from nova_numa_ext.orchestrator.cloud.room import ServerRoom, wants
from nova_numa_ext.orchestrator.cloud.servers import UserServers
from nova_numa_ext.policy.numa.nova_part import FlavorSizes
from placement_traits.errors import ServiceUnavailableError
from tests.support.compute_api import ComputeApi
from tests.support.faults import refuse

LC = {**LC_SPECS, "resources_NODE:CUSTOM_LLC_WAY": "4"}


class Asked:
    """Nova with flavors of a test, and the two computes of ``host``."""

    def __init__(self, host):
        self.host, self.nova = host, ComputeApi()
        client = host.cloud.connect(host.adapter)
        self.room, self.servers = ServerRoom(client), UserServers(self.nova)

    def lacking(self, vcpus=2, ram=128, disk=0, **specs):
        shown = {"vcpus": vcpus, "ram": ram, "disk": disk}
        self.nova.flavors["f"] = shown | {"extra_specs": specs.get("specs", {})}
        return self.room.lacking(self.servers, "f")


@pytest.fixture
def asked(host):
    return Asked(host)


def test_a_flavor_that_some_host_has_room_for_lacks_nothing(asked):
    assert asked.lacking() == ""
    assert asked.lacking(8, 8192, specs={"hw:cpu_policy": "dedicated"}) == ""
    assert asked.lacking(specs=LC) == ""
    assert asked.lacking(disk=10_000) == "", "an image may bring a volume"


def test_what_no_host_has_is_named(asked):
    assert asked.lacking(ram=8193) == "2 VCPU, 8193 MEMORY_MB"
    dedicated = {"hw:cpu_policy": "dedicated"}
    assert asked.lacking(9, specs=dedicated) == "9 PCPU, 128 MEMORY_MB"
    found = asked.lacking(specs={"resources_NODE:CUSTOM_LLC_WAY": "14"})
    assert found == "2 VCPU, 128 MEMORY_MB, 14 CUSTOM_LLC_WAY"
    assert asked.lacking(specs={"resources:CUSTOM_UNHEARD_OF": "1"}) == "", "nova says it"


def test_room_that_others_take_is_none(asked):
    """Memory is full on both hosts; when one has some again, that is seen."""
    host = asked.host
    for name in ("h1", "h2"):
        host.allocate(f"00000000-0000-0000-0000-0000000000{name[1]}1", {name: {"MEMORY_MB": 8100}})
    assert asked.lacking() == "2 VCPU, 128 MEMORY_MB"
    assert asked.lacking(ram=92) == ""
    host.cloud.client.delete("/allocations/00000000-0000-0000-0000-000000000021")
    assert asked.lacking() == ""


def test_cpus_may_be_shared_dedicated_or_both_whatever_the_flavor_says(asked):
    """An image may say it, too, and nova takes shared CPUs where no host has dedicated ones."""
    host = asked.host
    for name in ("h1", "h2"):
        host.allocate(f"00000000-0000-0000-0000-0000000000{name[1]}1", {name: {"VCPU": 7}})
    assert asked.lacking() == "", "eight dedicated ones are free"
    for name in ("h1", "h2"):
        host.allocate(f"00000000-0000-0000-0000-0000000000{name[1]}2", {name: {"PCPU": 7}})
    assert asked.lacking() == "", "one of each kind"
    assert asked.lacking(specs={"hw:cpu_policy": "mixed"}) == ""
    assert asked.lacking(specs={"hw:cpu_policy": "shared"}) == "2 VCPU, 128 MEMORY_MB"
    assert asked.lacking(specs={"hw:cpu_policy": "dedicated"}) == "2 PCPU, 128 MEMORY_MB"
    assert asked.lacking(1, specs={"hw:cpu_policy": "dedicated"}) == ""
    for name in ("h1", "h2"):
        host.allocate(f"00000000-0000-0000-0000-0000000000{name[1]}3", {name: {"PCPU": 1}})
    assert asked.lacking() == "2 VCPU, 128 MEMORY_MB"
    assert asked.lacking(specs={"hw:cpu_policy": "mixed"}) == "1 VCPU, 1 PCPU, 128 MEMORY_MB"
    assert asked.lacking(1, specs={"hw:cpu_policy": "dedicated"}) == "", "nova takes shared ones"


def test_the_amounts_of_one_group_are_of_one_domain(asked):
    """13 ways in each of four domains; what two groups share is not asked of them together."""
    assert (
        asked.lacking(specs={"resources1:CUSTOM_LLC_WAY": "7", "resources2:CUSTOM_LLC_WAY": "7"})
        == ""
    )
    assert asked.lacking(
        specs={"resources1:CUSTOM_LLC_WAY": "14", "resources2:CUSTOM_LLC_WAY": "1"}
    )
    isolated = {f"resources{one}:CUSTOM_LLC_WAY": "1" for one in range(5)}
    assert asked.lacking(specs=isolated) == ""
    assert asked.lacking(specs=isolated | {"group_policy": "isolate"}) != ""
    assert asked.lacking(specs=isolated | {"group_policy": "unheard of"}) == ""


def test_a_flavor_that_is_gone_is_for_nova_to_refuse(asked):
    assert asked.room.lacking(asked.servers, "gone") == ""


def test_silence_is_told_from_no_room(asked):
    asked.host.fault = lambda _method, _path: refuse(503)
    with pytest.raises(ServiceUnavailableError):
        asked.lacking()
    asked.nova.flavors["f"] = {"name": "of another program"}
    with pytest.raises(ServiceUnavailableError, match="not nova's"):
        asked.room.lacking(asked.servers, "f")


def test_a_flavor_replaces_and_removes_amounts_of_its_own():
    sizes = FlavorSizes(2, 128)
    specs = {"resources:VCPU": "0", "resources:MEMORY_MB": "64", "resources:CUSTOM_X": "many"}
    assert [dict(each[""]) for each in wants(sizes, specs)] == [
        {"MEMORY_MB": 64},
        {"MEMORY_MB": 64, "PCPU": 2},
        {"MEMORY_MB": 64, "PCPU": 1},
    ]
