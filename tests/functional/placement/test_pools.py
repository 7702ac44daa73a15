# SPDX-License-Identifier: Apache-2.0
"""Pools of GPUs for other hosts, and what leases claim of them, in a real Placement."""

import random
import uuid
from dataclasses import replace

import pytest

from nova_numa_ext.cli import doctor
from nova_numa_ext.cli.pool import ListPool, ShowPool
from nova_numa_ext.policy.remote_gpu import lease_claims
from nova_numa_ext.policy.remote_gpu.lease_claims import LeaseRoute
from nova_numa_ext.policy.remote_gpu.slices import GpuSlice
from placement_traits import names, pool_reader
from placement_traits.claim_store import ClaimStore, NoRoomError
from placement_traits.claims import emptied
from placement_traits.errors import InvalidValueError
from placement_traits.findings import Level
from placement_traits.fleet import Amount, DeviceView, HostView
from placement_traits.fleet_arrays import FleetArrays
from placement_traits.names import ServiceLevel
from placement_traits.pool_reporter import PoolReporter, root_uuid
from placement_traits.pool_tree import LentNic, pool_tree
from placement_traits.snapshot import FleetSnapshot, ViewState
from placement_traits.view import FleetView
from tests.support.at_once import at_once
from tests.support.commands import Compute, run
from tests.support.filled_placement import as_literal
from tests.support.pools import client_nic, gpu, pool


@pytest.fixture
def lent(empty_cloud):
    """Two hosts that lend, and a compute node whose servers reach them::

    rgpu:g1                 cpu 4 cores, eth1 1000 MB/s, GPUs a and b of 8000 MiB
    rgpu:g2                 cpu 4 cores, eth1 1000 MB/s, GPU a of 8000 MiB
    compute1                RGPU_CLIENT
    └─ compute1:rgpu        1000 MB/s
    """
    cloud = empty_cloud
    cloud.reporter = PoolReporter(cloud.client)

    def write():
        cloud.reporter.sync(pool("g1", gpus=("a", "b")))
        cloud.reporter.sync(pool("g2"))
        compute1 = cloud.compute("compute1")
        return compute1, client_nic(cloud, compute1, "compute1", 1000)

    cloud.compute1, cloud.nic = cloud.once("two hosts that lend", write)
    cloud.claims = ClaimStore(cloud.client)
    return cloud


def part(level=ServiceLevel.SILVER, memory_mb=1000):
    return GpuSlice(memory_mb, level)


def route(cloud, host="g1", name="a", wire=True):
    found = next(each for each in pool_reader.read(cloud.client) if each.host == host)
    uuid_of = {each.name: each.uuid for each in found.gpus}
    wires = (found.nics[0].uuid, cloud.nic) if wire else ("", "")
    return LeaseRoute(uuid_of[name], found.cpu, *wires)


def lease(way, wanted=None, *, mbps=0, project="project"):
    amounts = lease_claims.amounts(wanted or part(), way, mbps)
    return lease_claims.lease(str(uuid.uuid4()), project, "user", amounts)


def used(cloud):
    """(memory, shares) of each GPU, cores and MB/s of each pool, MB/s of the client."""
    found = {}
    for each in pool_reader.read(cloud.client):
        for one in each.gpus:
            found[f"{each.host} {one.name}"] = (one.memory_mb.used, one.share.used)
        found[each.host] = (each.cores.used, each.nics[0].mbps.used)
    usages = cloud.client.get(f"/resource_providers/{cloud.nic}/usages")["usages"]
    return found | {"client": usages[names.REMOTE_GPU_NETWORK_MBPS]}


def test_a_pool_is_a_tree_of_its_own(empty_cloud):
    """F-000-24, F-002-20: remote GPUs in Placement, with fabric, interface, transport and amounts."""
    lends = pool("g1", gpus=("0000:81:00.0", "b"))
    report = PoolReporter(empty_cloud.client).sync(lends)
    assert report.problems == ()
    assert report.root_uuid == root_uuid("g1")
    everything = empty_cloud.everything()
    assert everything == {
        **as_literal(pool_tree(lends), root_traits=(), root_inventories={"x": 0}),
        "rgpu:g1": (None, pool_tree(lends).root_traits, {}),
    }
    assert set(everything) == {
        "rgpu:g1",
        "rgpu:g1:cpu",
        "rgpu:g1:nic-eth1",
        "rgpu:g1:gpu-0000:81:00.0",
        "rgpu:g1:gpu-b",
    }
    assert everything["rgpu:g1:gpu-b"] == (
        "rgpu:g1",
        frozenset(
            {
                "CUSTOM_NUMA_EXT_RGPU_POOL",
                "CUSTOM_NUMA_EXT_RGPU",
                "CUSTOM_NUMA_EXT_RGPU_API_OPENCL",
                "CUSTOM_NUMA_EXT_RGPU_TRANSPORT_FAKE",
                "CUSTOM_NUMA_EXT_RGPU_SLICES_ENFORCED",
            }
        ),
        {"CUSTOM_RGPU_MEM_MB": (8000, 0, 1, 8000), "CUSTOM_RGPU_SHARE": (6, 0, 1, 6)},
    )


def test_a_pass_over_an_unchanged_pool_is_one_request(empty_cloud):
    reporter = PoolReporter(empty_cloud.client)
    reporter.sync(pool("g1"))
    again = reporter.sync(pool("g1"))
    assert (again.writes, again.changes, again.requests) == (0, (), 1)


def test_views_of_hosts_see_no_pool(lent):
    view = FleetView(lent.adapter, background=False)
    view.refresh()
    assert dict(view.snapshot().hosts) == {}


def test_pools_are_read_in_two_requests(lent):
    client = lent.connect()
    found = pool_reader.read(client)
    assert client.counters.requests == 2
    assert [(each.host, each.fabrics, each.cores) for each in found] == [
        ("g1", {"main"}, Amount(4, 0)),
        ("g2", {"main"}, Amount(4, 0)),
    ]
    first = found[0]
    assert [(each.device, each.mbps) for each in first.nics] == [("eth1", Amount(1000, 0))]
    assert [(each.name, each.memory_mb, each.share) for each in first.gpus] == [
        ("a", Amount(8000, 0), Amount(6, 0)),
        ("b", Amount(8000, 0), Amount(6, 0)),
    ]


def test_a_cloud_without_pools_has_none(empty_cloud):
    assert pool_reader.read(empty_cloud.client) == ()
    assert pool_reader.clients_with(empty_cloud.client, 1) == frozenset()


def test_pools_that_placement_leaves_out_are_read_by_themselves(lent):
    client = lent.connect()
    original = client.get

    def limited(path):
        one = path.endswith(f"{names.POOL_PROBE}:1")
        return original(f"{path}&limit=1" if one else path)

    client.get = limited
    assert [each.host for each in pool_reader.read(client)] == ["g1", "g2"]


def test_a_claim_is_over_gpu_core_and_both_nics(lent):
    """Memory, time, core and network of one lease, all or nothing."""
    held = lease(route(lent), mbps=400)
    lent.claims.write(held)
    assert len(held.amounts) == 4
    assert used(lent) == {
        "g1 a": (1000, 3),
        "g1 b": (0, 0),
        "g1": (1, 400),
        "g2 a": (0, 0),
        "g2": (0, 0),
        "client": 400,
    }
    lent.claims.write(emptied(lent.claims.read(held.consumer)))
    assert set(used(lent).values()) == {(0, 0), 0}


def test_on_its_own_host_a_lease_claims_no_nic(lent):
    lent.claims.write(lease(route(lent, wire=False), mbps=400))
    assert (used(lent)["g1"], used(lent)["client"]) == ((1, 0), 0)


def test_f_000_31_nothing_is_claimed_where_one_of_the_four_is_short(lent):
    """F-000-31: the client's NIC has 1000 MB/s; a second lease of 600 fits in the pool, not there."""
    lent.claims.write(lease(route(lent), mbps=600))
    before = used(lent)
    with pytest.raises(NoRoomError, match="CUSTOM_RGPU_NET_MBPS"):
        lent.claims.write(lease(route(lent, "g2"), mbps=600))
    assert used(lent) == before


@pytest.mark.parametrize(
    ("level", "leases"), [("gold", 1), ("silver", 2), ("bronze", 3), ("scavenger", 6)]
)
def test_service_levels_share_a_gpu(lent, level, leases):
    """F-002-24: tenants of a GPU by service level; Placement counts."""
    lent.reporter.sync(replace(pool("g3"), cores=8))
    way = route(lent, "g3")
    for _ in range(leases):
        lent.claims.write(lease(way, part(ServiceLevel(level), 100)))
    with pytest.raises(NoRoomError, match="CUSTOM_RGPU_SHARE"):
        lent.claims.write(lease(way, part(ServiceLevel(level), 100)))
    assert used(lent)["g3 a"] == (100 * leases, 6)


def test_unequal_slices_fill_the_memory_of_a_gpu_and_no_more(lent):
    """F-002-22, 23: 3000 and 1700 of 4799 MiB, and no third of 200."""
    lent.reporter.sync(replace(pool("g3"), gpus=(gpu("a", 4799),)))
    way = route(lent, "g3")
    for memory_mb in (3000, 1700):
        lent.claims.write(lease(way, part(ServiceLevel.BRONZE, memory_mb)))
    with pytest.raises(NoRoomError, match="CUSTOM_RGPU_MEM_MB"):
        lent.claims.write(lease(way, part(ServiceLevel.SCAVENGER, 200)))
    lent.claims.write(lease(way, part(ServiceLevel.SCAVENGER, 99)))
    assert used(lent)["g3 a"] == (4799, 5)


def test_each_lease_takes_a_core_of_the_gpus_host(lent):
    """F-002-29: two GPUs with room for more, and cores for three leases."""
    lent.reporter.sync(pool("g3", gpus=("a", "b"), cores=3))
    ways = [route(lent, "g3", name) for name in ("a", "b")]
    for number in range(3):
        lent.claims.write(lease(ways[number % 2], part(ServiceLevel.SCAVENGER)))
    with pytest.raises(NoRoomError, match="CUSTOM_RGPU_CORE"):
        lent.claims.write(lease(ways[1], part(ServiceLevel.SCAVENGER)))


def test_a_gang_is_had_together_or_not_at_all(lent):
    """All GPUs of a job in one request."""
    gold = part(ServiceLevel.GOLD)
    gang = [lease(route(lent, *at), gold) for at in (("g1", "a"), ("g1", "b"), ("g2", "a"))]
    too_many = [*gang, lease(route(lent, "g2"), part(ServiceLevel.SCAVENGER))]
    with pytest.raises(NoRoomError):
        lent.claims.write(*too_many)
    assert used(lent)["g1 a"] == (0, 0)
    lent.claims.write(*gang)
    assert [used(lent)[each][1] for each in ("g1 a", "g1 b", "g2 a")] == [6, 6, 6]


def test_a_move_keeps_its_source_until_it_is_over(lent):
    held = lease(route(lent), mbps=600)
    lent.claims.write(held)
    there = lease_claims.amounts(part(), route(lent, "g2"), 600)
    second = str(uuid.uuid4())
    lent.claims.write(*lease_claims.moved(lent.claims.read(held.consumer), there, second))
    assert used(lent) == {
        "g1 a": (1000, 3),
        "g1 b": (0, 0),
        "g1": (1, 600),
        "g2 a": (1000, 3),
        "g2": (1, 600),
        "client": 600,  # once: 1200 would not fit
    }
    lent.claims.write(emptied(lent.claims.read(second)))
    assert used(lent)["g1"] == (0, 0)
    assert lent.claims.read(held.consumer).amounts == there


def test_a_move_that_failed_goes_back_in_one_request(lent):
    held = lease(route(lent), mbps=600)
    lent.claims.write(held)
    before = used(lent)
    there = lease_claims.amounts(part(), route(lent, "g2"), 600)
    second = str(uuid.uuid4())
    lent.claims.write(*lease_claims.moved(lent.claims.read(held.consumer), there, second))
    both = lent.claims.read(held.consumer), lent.claims.read(second)
    lent.claims.write(*lease_claims.moved_back(*both, held.amounts))
    assert used(lent) == before
    assert lent.claims.read(second) is None


def test_a_server_that_moves_takes_its_lease_to_another_nic_in_one_request(lent):
    """Resize and cold migration: the client's host changes, the GPU stays."""
    other = lent.compute("compute2")
    nic = client_nic(lent, other, "compute2", 1000)
    held = lease(route(lent), mbps=600)
    lent.claims.write(held)
    there = lease_claims.amounts(part(), replace(route(lent), client_nic=nic), 600)
    second = str(uuid.uuid4())
    lent.claims.write(*lease_claims.moved(lent.claims.read(held.consumer), there, second))
    assert lent.claims.read(second).amounts == {lent.nic: {names.REMOTE_GPU_NETWORK_MBPS: 600}}
    assert used(lent)["g1 a"] == (1000, 3)


def test_what_is_left_of_a_clients_nic_is_read_by_the_name_of_its_host(lent):
    assert pool_reader.client_nic(lent.client, "compute2") is None
    lent.claims.write(lease(route(lent), mbps=600))
    found = pool_reader.client_nic(lent.client, "compute1")
    assert (found.uuid, found.mbps.free, found.mbps.capacity) == (lent.nic, 400, 1000)


def test_f_000_24_local_and_remote_leases_together_take_no_more_than_there_is(lent):
    """F-000-24: local and remote leases, sixteen of each, want slices of the same GPU at once."""
    lent.reporter.sync(replace(pool("g4"), cores=32))
    ways = [route(lent, "g4", wire=wire) for wire in (False, True)]

    def run(number):
        store = ClaimStore(lent.connect())
        chance = random.Random(number)
        wanted = part(chance.choice(list(ServiceLevel)), chance.choice([500, 3000]))
        try:
            store.write(lease(ways[number % 2], wanted, mbps=100))
        except NoRoomError:
            return 0
        return wanted.shares

    taken = at_once(32, run)
    memory, share = used(lent)["g4 a"]
    assert share == sum(taken)
    assert 3 <= share <= 6
    assert memory <= 8000


def test_usage_is_counted_by_project(lent):
    lent.claims.write(lease(route(lent), part(memory_mb=700), project="one"))
    lent.claims.write(lease(route(lent), part(memory_mb=900), project="two"))
    usages = lent.client.get("/usages?project_id=two")["usages"]
    assert usages[names.LEASE_CONSUMER][names.REMOTE_GPU_MEMORY_MB] == 900


def test_a_gpu_that_is_leased_stays_when_its_host_lends_it_no_more(lent):
    held = lease(route(lent, "g1", "b"))
    lent.claims.write(held)
    report = lent.reporter.sync(pool("g1", gpus=("a",)))
    assert "rgpu:g1:gpu-b is not desired any more" in report.problems[0]
    closed = LeaseRoute(*list(held.amounts)[:2])
    with pytest.raises(NoRoomError):
        lent.claims.write(lease(closed, part(memory_mb=1)))
    lent.claims.write(emptied(lent.claims.read(held.consumer)))
    assert lent.reporter.sync(pool("g1", gpus=("a",))).problems == ()
    assert "rgpu:g1:gpu-b" not in lent.everything()


def test_a_pool_goes_when_no_lease_is_left(lent):
    held = lease(route(lent, "g2"))
    lent.claims.write(held)
    assert lent.reporter.remove("g2").problems
    assert "rgpu:g2" in lent.everything()
    lent.claims.write(emptied(lent.claims.read(held.consumer)))
    assert lent.reporter.remove("g2").problems == ()
    assert not [name for name in lent.everything() if name.startswith("rgpu:g2")]
    assert lent.reporter.remove("g2") is None


def test_a_name_that_another_has_is_a_sentence(empty_cloud):
    parent = empty_cloud.compute("other")
    empty_cloud.child(parent, "rgpu:g1")
    with pytest.raises(InvalidValueError, match="delete or rename provider"):
        PoolReporter(empty_cloud.client).sync(pool("g1"))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"cores": 0}, "pool of g1, cores: 0 is not allowed; allowed: 1 or more"),
        ({"gpus": (gpu("a"), gpu("a"))}, "names of GPUs"),
        ({"gpus": (gpu("a b"),)}, "names of GPUs"),
        ({"gpus": (replace(gpu("a"), memory_mb=0),)}, "memory of GPU a: 0"),
        ({"nics": (LentNic("eth1", 0),)}, "MB/s of NIC eth1: 0"),
        ({"fabrics": frozenset()}, "fabrics"),
        ({"fabrics": frozenset({"Rack 7"})}, "'Rack 7'"),
    ],
)
def test_a_pool_that_cannot_be_published_is_a_sentence(wrong, sentence):
    with pytest.raises(InvalidValueError, match=sentence):
        pool_tree(replace(pool("g1"), **wrong))


def test_the_doctor_names_gpus_that_are_novas_and_a_pools(lent):
    """A GPU is either nova's or the pool's."""

    def fleet(device):
        root, provider = str(uuid.uuid4()), str(uuid.uuid4())
        devices = (DeviceView(provider, device, Amount(1, 0)),)
        host = HostView(root, "g1", frozenset({names.HOST}), None, (), devices=devices)
        return FleetSnapshot(FleetArrays.of([host]), 0.0, ViewState.FRESH)

    found = pool_reader.read(lent.client)
    [good] = doctor.lent_gpus(found, fleet("0000:81:00.0"))
    assert (good.level, good.detail) == (Level.GOOD, "3 GPUs of 2 pools")
    [broken] = doctor.lent_gpus(found, fleet("b"))
    assert broken.level is Level.BROKEN
    assert broken.detail.startswith("b of g1: both the pool and nova give them to servers")
    assert list(doctor.lent_gpus((), fleet("b"))) == []


def test_pools_are_listed_and_shown(lent):
    lent.claims.write(lease(route(lent), mbps=100))
    g1, g2 = run(ListPool, lent, Compute([]))[1]
    assert list(g1.values()) == [
        *("g1", "main", False, 2),
        *("1000/16000", "3/12", "1/4", "100/1000"),
    ]
    assert (g2["Host"], g2["GPU memory MiB"]) == ("g2", "0/8000")
    a, b, nic, cores = run(ShowPool, lent, Compute([]), "g1")[1]
    assert (a["What"], a["Name"], a["GPU memory MiB"], a["Shares"]) == (
        "GPU",
        "a",
        "1000/8000",
        "3/6",
    )
    assert "CUSTOM_NUMA_EXT_RGPU_API_OPENCL" in a["Traits"]
    assert b["GPU memory MiB"] == "0/8000"
    assert (nic["Name"], nic["Amount"], cores["Amount"]) == ("eth1", "100/1000 MB/s", "1/4")
    with pytest.raises(InvalidValueError, match="g1, g2"):
        run(ShowPool, lent, Compute([]), "compute1")


def test_without_a_job_service_a_pool_is_shown_as_placement_counts_it(lent, capsys):
    rows = run(ShowPool, lent, Compute([]), "g1")[1]
    assert [row["Busy"] for row in rows] == [""] * 4
    assert "the cloud has no job service" in capsys.readouterr().err


def test_without_pools_nothing_is_listed(empty_cloud):
    assert run(ListPool, empty_cloud, Compute([]))[1] == []
    with pytest.raises(InvalidValueError, match="none lends GPUs"):
        run(ShowPool, empty_cloud, Compute([]), "g1")
