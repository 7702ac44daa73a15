# SPDX-License-Identifier: Apache-2.0
"""Servers that use GPUs of other hosts: the filter finds them a host from which a pool with room is reached."""

import uuid

import pytest
from nova import exception

from nova_numa_ext.policy.remote_gpu import lease_claims
from nova_numa_ext.policy.remote_gpu.lease_claims import LeaseRoute
from nova_numa_ext.policy.remote_gpu.slices import GpuSlice
from nova_numa_ext.scheduler import process
from placement_traits import names, pool_reader
from placement_traits.claim_store import ClaimStore
from placement_traits.claims import emptied
from placement_traits.errors import ServiceUnavailableError
from placement_traits.names import ServiceLevel
from placement_traits.pool_reporter import PoolReporter
from placement_traits.remote_gpu_request import LEASE_HINT as HINT
from tests.functional.scheduler.conftest import BE
from tests.functional.scheduler.test_moves import same_cell
from tests.support.pools import client, pool

REQUIRED = {**BE, "numa_ext:remote_gpu": "required", "numa_ext:remote_gpu_memory_mb": "4000"}
ALLOWED = {**REQUIRED, "numa_ext:remote_gpu": "allowed"}
PROMISED = {**REQUIRED, "numa_ext:remote_gpu_network_mbps": "600"}
SERVER = str(uuid.uuid4())


@pytest.fixture
def fabric(cloud):
    """Three hosts, of which two reach a pool; one of these has it itself::

    h1    no client
    h2    client in fabric "main", 1000 MB/s
    h3    client in fabrics "main" and "side", 1000 MB/s; lends GPU "a" in "main"
    g1    lends GPUs "a" and "b" of 8000 MiB in "side"
    """
    cloud.lends = PoolReporter(cloud.placement)

    def lend():
        cloud.lends.sync(pool("g1", gpus=("a", "b"), fabrics=("side",)))
        cloud.lends.sync(pool("h3"))

    cloud.once("pools of g1 and h3", lend)
    cloud.claims = ClaimStore(cloud.placement)
    cloud.root = {name: cloud.host(name).uuid for name in ("h1", "h2", "h3")}
    cloud.publish("h2", remote_gpus=client("main"))
    cloud.publish("h3", remote_gpus=client("main", "side"))
    return cloud


def hosts(cloud, *args, **fields):
    return [host for host, _ in cloud.boot(*args, **fields)]


def refused(cloud, *args, **fields):
    """Boot in vain; return the reasons by host."""
    with pytest.raises(exception.NoValidHost):
        cloud.boot(*args, **fields)
    groups = cloud.entries("filter")[-1]["refused"]
    return {host: group["reason"] for group in groups for host in group["hosts"]}


def lease(
    cloud,
    host="h3",
    name="a",
    *,
    project="project",
    level=ServiceLevel.GOLD,
    client_of=None,
    mbps=100,
):
    """Make a lease as the engine does; returns its uuid."""
    lends = next(each for each in pool_reader.read(cloud.placement) if each.host == host)
    gpu = next(each.uuid for each in lends.gpus if each.name == name)
    nics = ("", "")
    if client_of:
        nics = lends.nics[0].uuid, cloud.provider(names.client_provider(client_of))
    amounts = lease_claims.amounts(GpuSlice(4000, level), LeaseRoute(gpu, lends.cpu, *nics), mbps)
    claim = lease_claims.lease(str(uuid.uuid4()), project, "user", amounts)
    cloud.claims.write(claim)
    return claim.consumer


def release(cloud, consumer):
    cloud.claims.write(emptied(cloud.claims.read(consumer)))


def test_a_server_goes_where_its_gpu_is_nearest(fabric):
    """A GPU of its own host costs nothing on the wire."""
    assert hosts(fabric, REQUIRED) == ["h3"]
    assert hosts(fabric, ALLOWED) == ["h3"]


def test_a_server_reaches_a_gpu_of_another_host(fabric):
    fabric.publish("h3")
    assert hosts(fabric, REQUIRED) == ["h2"]


def test_of_hosts_in_several_fabrics_the_one_in_the_fastest_is_first(fabric):
    """F-002-27: EDR, FDR and 1 GbE, MB/s each; without a fast one the next is taken."""
    fabric.lends.remove("h3")
    for host, mbps in {"h1": 125, "h2": 11_500, "h3": 6_000}.items():
        fabric.lends.sync(pool(f"lender-of-{host}", fabrics=(host,), mbps=mbps))
        fabric.publish(host, remote_gpus=client(host))
    order = []
    for _ in range(3):
        order += hosts(fabric, REQUIRED)
        fabric.publish(order[-1])
    assert order == ["h2", "h3", "h1"]


def test_what_cannot_be_met_is_refused_with_the_reason(fabric):
    """No slice is found, and each host says why."""
    for name in ("a", "b"):
        lease(fabric, "g1", name)
    lease(fabric)
    assert refused(fabric, REQUIRED) == {
        "h1": "its servers reach no remote GPU: trait CUSTOM_NUMA_EXT_RGPU_CLIENT is absent",
        "h2": "remote GPUs free in the pools that it reaches: 0, requested: 1",
        "h3": "remote GPUs free in the pools that it reaches: 0, requested: 1",
    }


def test_what_is_only_allowed_is_not_refused(fabric):
    lease(fabric)
    lease(fabric, "g1", "a")
    lease(fabric, "g1", "b")
    assert hosts(fabric, ALLOWED)


def test_a_host_of_another_fabric_reaches_no_pool(fabric):
    """F-002-26."""
    fabric.publish("h2", remote_gpus=client("far"))
    fabric.publish("h3")
    assert refused(fabric, REQUIRED)["h2"] == (
        "no pool of remote GPUs that counts is in its fabrics (far)"
    )


@pytest.mark.parametrize(
    ("wants", "asked"),
    [
        ({"numa_ext:remote_gpu_memory_mb": "9000"}, "opencl and 9000 MiB"),
        ({"numa_ext:remote_gpu_api": "cuda"}, "cuda and 4000 MiB"),
        ({"numa_ext:remote_gpu_migratable": "true"}, "opencl and 4000 MiB, migratable"),
    ],
)
def test_what_no_gpu_is_has_a_sentence(fabric, wants, asked):
    assert refused(fabric, {**REQUIRED, **wants})["h3"] == (
        f"no GPU of the pools that it reaches is what numa_ext:remote_gpu_… asks for: {asked}"
    )


def test_a_server_of_three_gpus_goes_where_it_has_all(fabric):
    """F-002-34: two of g1 and the one of h3; h2 reaches only the latter."""
    three = {**REQUIRED, "numa_ext:remote_gpu_count": "3"}
    assert hosts(fabric, three) == ["h3"]
    four = {**REQUIRED, "numa_ext:remote_gpu_count": "4"}
    assert refused(fabric, four)["h3"] == (
        "remote GPUs free in the pools that it reaches: 3, requested: 4"
    )


def test_the_servers_of_one_request_share_the_room(fabric):
    """Two silver leases share each of three GPUs."""
    fabric.publish("h2")
    assert hosts(fabric, REQUIRED, count=6, num_instances=6) == ["h3"] * 6
    reasons = refused(fabric, REQUIRED, count=7, num_instances=7)
    assert reasons["h3"] == "remote GPUs free in the pools that it reaches: 6, requested: 7"


def test_bandwidth_is_promised_by_both_nics(fabric):
    """The client's NIC has 1000 MB/s: of two leases of 600 MB/s one would not fit."""
    fabric.publish("h3")
    lease(fabric, "h3", level=ServiceLevel.SCAVENGER, client_of="h2")
    assert hosts(fabric, PROMISED) == ["h2"]
    fabric.lends.sync(pool("h3", gpus=("a", "b"), mbps=5000))
    lease(fabric, "h3", "b", client_of="h2", mbps=400)
    assert refused(fabric, PROMISED)["h2"] == (
        "less than 600 MB/s are free on its NIC to remote GPUs"
    )


def test_on_its_own_host_a_lease_needs_no_bandwidth(fabric):
    fabric.publish("h3", remote_gpus=client("main", mbps=100))
    fabric.publish("h2")
    assert hosts(fabric, PROMISED) == ["h3"]


def test_a_pool_that_is_drained_takes_no_more(fabric):
    root = next(each.root for each in pool_reader.read(fabric.placement) if each.host == "h3")
    path = f"/resource_providers/{root}/traits"
    fabric.placement.put(f"/traits/{names.DRAINED}")
    there = fabric.placement.get(path)
    fabric.placement.put(path, {**there, "traits": [*there["traits"], names.DRAINED]})
    fabric.publish("h3")
    assert "free in the pools that it reaches: 0" in refused(fabric, REQUIRED)["h2"]


def test_a_server_with_leases_goes_where_they_were_planned(fabric):
    """Their room is theirs: nothing more is needed; hosts of the fabric are allowed after the planned one."""
    held = lease(fabric, client_of="h2")
    assert hosts(fabric, REQUIRED, hints={HINT: [held]}) == ["h2"]
    fabric.publish("h2", remote_gpus=client("far"))
    assert hosts(fabric, REQUIRED, hints={HINT: [held]}) == ["h3"]


def test_leases_of_two_pools_need_both_fabrics(fabric):
    held = [lease(fabric, client_of="h2"), lease(fabric, "g1", client_of="h2")]
    assert hosts(fabric, REQUIRED, hints={HINT: held}) == ["h3"]
    assert hosts(fabric, REQUIRED, hints={HINT: [",".join(held)]}) == ["h3"]


@pytest.mark.parametrize("given", ["another project's", "a server's", "no uuid", "too many"])
def test_a_hint_of_anything_else_is_refused(fabric, given):
    text = {
        "another project's": lambda: lease(fabric, project="other"),
        "a server's": lambda: hosts(fabric, BE) and fabric.last_servers[0],
        "no uuid": lambda: "h3",
        "too many": lambda: ",".join([SERVER] * 17),
    }[given]()
    reasons = refused(fabric, REQUIRED, hints={HINT: [text]})
    assert set(reasons) == {"h1", "h2", "h3"}
    for reason in reasons.values():
        assert reason.startswith(
            "the scheduler hint numa_ext_lease names no lease of the server's project: "
        )


def test_a_hint_whose_lease_has_gone_is_as_none(fabric):
    held = lease(fabric, client_of="h2")
    release(fabric, held)
    assert hosts(fabric, REQUIRED, hints={HINT: [held]}) == ["h3"]
    for at in (("h3", "a"), ("g1", "a"), ("g1", "b")):
        lease(fabric, *at)
    assert "requested: 1" in refused(fabric, REQUIRED, hints={HINT: [held]})["h3"]


@pytest.mark.parametrize("hint", ["its lease's", "no lease's", "none"])
def test_a_server_that_moves_needs_a_client_in_the_fabric_and_no_room(fabric, hint):
    """Its leases move with it."""
    mine, *_others = [lease(fabric, *at) for at in (("h3", "a"), ("g1", "a"), ("g1", "b"))]
    text = {"its lease's": [mine], "no lease's": ["h3"], "none": []}[hint]
    fields = {"servers": [SERVER], "requested_destination": same_cell()}
    assert hosts(fabric, REQUIRED, hints={HINT: text}, ignore_hosts=["h3"], **fields) == ["h2"]
    fabric.publish("h2")
    reasons = refused(fabric, REQUIRED, hints={HINT: text}, ignore_hosts=["h3"], **fields)
    assert "its servers reach no remote GPU" in reasons["h2"]


def test_who_asks_for_no_remote_gpu_costs_no_look_at_pools(fabric, monkeypatch):
    def never(*_arguments):
        raise AssertionError("pools were read")

    monkeypatch.setattr(pool_reader, "read", never)
    assert hosts(fabric, BE)
    assert hosts(fabric, {**BE, "numa_ext:remote_gpu": "allowed"})


def test_pools_that_cannot_be_read_refuse_nothing(fabric, monkeypatch, caplog):
    """A guess never refuses; leases that find no room wait."""

    def fails(_client):
        raise ServiceUnavailableError("Placement is down")

    monkeypatch.setattr(pool_reader, "read", fails)
    assert hosts(fabric, REQUIRED)
    assert "Pools of remote GPUs cannot be read" in caplog.text


def test_many_hosts_are_ordered_by_nearness_before_they_are_judged(fabric):
    """A short list of one: the host with the pool is not left out because others score better."""
    fabric.configure(shortlist=1)
    for number in range(4, 10):
        fabric.host(f"h{number}", agent=False)
        fabric.publish(f"h{number}", remote_gpus=client("main"))
    assert hosts(fabric, REQUIRED) == ["h3"]
    assert process.engine().faults.total() == 0
