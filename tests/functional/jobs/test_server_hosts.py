# SPDX-License-Identifier: Apache-2.0
"""Where a server is, by what it holds in a real Placement."""

import uuid

from nova_numa_ext.orchestrator.cloud.hosts import FRESH_S, ServerHosts
from placement_traits import names


def test_a_server_is_where_its_cpus_are(placement):
    """host ─ node (VCPU); its disk is of a pool that hosts share."""
    host, pool = placement.compute("host"), placement.compute("pool", DISK_GB=100)
    node = placement.child(host, "node", VCPU=4)
    server = str(uuid.uuid4())
    hosts = ServerHosts(placement.connect())
    assert (hosts.host(server), hosts.names(server)) == (None, frozenset())
    placement.claim(server, allocations={pool: {"DISK_GB": 10}, node: {"VCPU": 1}})
    assert (hosts.host(server), hosts.names(server)) == (host, {"host"})


def test_a_server_that_was_evacuated_has_something_of_both_hosts(placement):
    """Nova keeps the part of the one that is down until that is back."""
    down, runs = placement.compute("down"), placement.compute("runs")
    server = str(uuid.uuid4())
    placement.claim(server, allocations={down: {"VCPU": 1}, runs: {"VCPU": 1}})
    assert ServerHosts(placement.connect()).names(server) == {"down", "runs"}


def test_whose_a_server_is_its_allocation_says(placement):
    host, server = placement.compute("owned"), str(uuid.uuid4())
    hosts = ServerHosts(placement.connect())
    assert hosts.owner(server) is None
    placement.claim(server, allocations={host: {"VCPU": 1}})
    held = placement.client.get(f"/allocations/{server}")
    assert hosts.owner(server) == (held["project_id"], held["user_id"]) != ("", "")


def test_a_server_is_looked_up_again_when_nova_has_moved_it(placement):
    first, second = (placement.compute(name) for name in ("first", "second"))
    server = str(uuid.uuid4())
    client = placement.connect()
    hosts = ServerHosts(client)
    placement.claim(server, allocations={first: {"VCPU": 1}})
    assert hosts.host(server, "id-of-first") == first
    placement.client.call("DELETE", f"/allocations/{server}")
    placement.claim(server, allocations={second: {"VCPU": 1}})
    asked = client.counters.requests
    assert hosts.host(server, "id-of-first") == first
    assert client.counters.requests == asked, "the same host id is not asked for again"
    assert hosts.host(server, "id-of-second") == second
    placement.client.call("DELETE", f"/allocations/{server}")
    assert hosts.host(server) is None, "without a host id Placement is asked each time"


def test_the_fabrics_of_a_host_are_read_once_a_minute(placement):
    now = [0.0]
    client = placement.connect()
    hosts = ServerHosts(client, lambda: now[0])
    assert hosts.fabrics("client") == frozenset()
    placement.traits(placement.compute("client"), names.REMOTE_GPU_CLIENT, names.fabric("main"))
    asked = client.counters.requests
    assert hosts.fabrics("client") == frozenset()
    assert client.counters.requests == asked
    now[0] = FRESH_S
    assert hosts.fabrics("client") == {"main"}
