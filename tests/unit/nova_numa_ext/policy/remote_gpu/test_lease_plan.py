# SPDX-License-Identifier: Apache-2.0
"""All leases that wait in one decision: gangs whole, in order, rearranged where that makes room for one more."""

from dataclasses import replace
from importlib.util import find_spec

import pytest

from nova_numa_ext.flow.solvers import with_highs, with_ortools
from nova_numa_ext.policy.remote_gpu.keeping import NearestGpus
from nova_numa_ext.policy.remote_gpu.lease_plan import LeaseGang, LeasePlan, plan
from nova_numa_ext.policy.remote_gpu.network import Solver
from nova_numa_ext.policy.remote_gpu.slices import GpuSlice
from placement_traits import names
from placement_traits.fleet import Amount
from placement_traits.names import RemoteGpuApi, ServiceLevel
from placement_traits.pools import ClientNic, Pool, PoolGpu, PoolNic

OPENCL = frozenset({RemoteGpuApi.OPENCL.trait})
WHOLE = GpuSlice(4000, ServiceLevel.GOLD)
HALF = GpuSlice(1000, ServiceLevel.SILVER)
NEEDS_ORTOOLS = pytest.mark.skipif(find_spec("ortools") is None, reason="needs OR-tools")
SOLVERS = pytest.mark.parametrize(
    "solve", [pytest.param(with_ortools, marks=NEEDS_ORTOOLS), with_highs]
)


def pool(
    host: str,
    gpus: str = "a",
    fabrics: tuple[str, ...] = ("main",),
    traits: frozenset[str] = OPENCL,
    cores: int = 8,
) -> Pool:
    return Pool(
        host,
        host,
        frozenset(fabrics),
        False,
        f"{host}:cpu",
        Amount(cores, 0),
        (PoolNic(f"{host}:nic", "eth1", Amount(1000, 0)),),
        tuple(
            PoolGpu(f"{host}:{gpu}", gpu, traits, Amount(8000, 0), Amount(names.GPU_SHARES, 0))
            for gpu in gpus
        ),
    )


def gang(uuid: str, count: int = 1, part: GpuSlice = WHOLE, **more: object) -> LeaseGang:
    return replace(LeaseGang(uuid, count, part, RemoteGpuApi.OPENCL), **more)  # type: ignore[arg-type]


def of(uuid: str, client: str, *fabrics: str, **more: object) -> LeaseGang:
    """A gang of a server that runs on a host."""
    return gang(uuid, client=client, fabrics=frozenset(fabrics), **more)  # type: ignore[arg-type]


def gpus(found: LeasePlan) -> dict[str, list[str]]:
    return {uuid: [each.route.gpu for each in chosen] for uuid, chosen in found.chosen.items()}


def test_a_gang_gets_a_gpu_each_or_nothing() -> None:
    found = plan([gang("pair", 2, HALF), gang("three", 3, HALF)], [pool("g1", "ab")], None)
    assert gpus(found) == {"pair": ["g1:a", "g1:b"]}
    assert str(found.waits["three"]) == "no_gpu=opencl (against 1000)"


def test_a_lease_of_a_gang_is_of_another_gpu_than_its_others() -> None:
    small = gang("new", part=HALF, taken=frozenset({"g1:a"}))
    found = plan([small], [pool("g1", "ab")], None)
    assert gpus(found) == {"new": ["g1:b"]}
    found = plan(
        [replace(small, taken=frozenset({"g1:a", "g1:b"})), gang("any")], [pool("g1", "ab")], None
    )
    assert set(found.chosen) == {"any"}


def test_of_what_is_too_few_for_a_gang_ever_nothing_is_kept() -> None:
    found = plan([gang("three", 3), gang("one")], [pool("g1", "ab")], None)
    assert set(found.chosen) == {"one"}


def half_used(host: str, shares: int = 3, cores: int = 8) -> Pool:
    """A pool of one GPU of which shares are taken."""
    found = pool(host, cores=cores)
    return replace(found, gpus=(replace(found.gpus[0], share=Amount(names.GPU_SHARES, shares)),))


def test_one_that_waits_keeps_the_gpu_that_lacks_least_and_no_other() -> None:
    """Of 50 GPUs that are half used one is kept for a whole lease; small ones get the others."""
    pools = [half_used(f"g{number}", 2 if number == 7 else 3) for number in range(50)]
    small = GpuSlice(1000, ServiceLevel.SILVER)
    queue = [gang("whole"), *(gang(f"{number}", part=small) for number in range(50))]
    found = plan(queue, pools, None)
    assert len(found.chosen) == 49
    assert all(taken != ["g7:a"] for taken in gpus(found).values())
    assert str(found.waits["49"]) == "in_order="


def test_each_one_that_waits_keeps_a_gpu_of_its_own() -> None:
    pools = [half_used(f"g{number}") for number in range(3)]
    silver = GpuSlice(1000, ServiceLevel.SILVER)
    found = plan(
        [gang("x"), gang("y"), gang("a", part=silver), gang("b", part=silver)], pools, None
    )
    assert gpus(found) == {"a": ["g2:a"]}


def test_gpus_that_are_kept_are_put_in_order_once_for_all_that_wait_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thousand leases that wait for a thousand GPUs were a million comparisons, in each round."""
    looked = []
    distance = NearestGpus._distance

    def counted(self: NearestGpus, found: tuple[Pool, PoolGpu]) -> object:
        looked.append(found)
        return distance(self, found)

    monkeypatch.setattr(NearestGpus, "_distance", counted)
    pools = [half_used(f"g{number}") for number in range(100)]
    found = plan([gang(f"{number}") for number in range(200)], pools, None)
    assert (len(found.waits), len(looked)) == (200, 100)


def test_what_is_kept_drains_although_small_ones_come_and_go() -> None:
    bronze = GpuSlice(100, ServiceLevel.BRONZE)
    for taken in (4, 2):
        pools = [half_used("g1", taken), half_used("g2", 4)]
        found = plan([gang("whole"), gang("small", part=bronze)], pools, None)
        assert gpus(found) == {"small": ["g2:a"]}, "none on what drains"
    found = plan([gang("whole")], [half_used("g1", 0), half_used("g2", 6)], None)
    assert gpus(found) == {"whole": ["g1:a"]}


def test_a_host_that_lacks_cores_or_bandwidth_is_kept_whole() -> None:
    full = replace(pool("g1", "ab"), cores=Amount(8, 8))
    freed = replace(pool("g1", "ab"), cores=Amount(8, 7))
    queue = [gang("pair", 2, HALF), gang("one", part=HALF)]
    assert not plan(queue, [full], None).chosen
    assert not plan(queue, [freed], None).chosen, "a later one would take each core that comes free"
    busy = (PoolNic("g1:nic", "eth1", Amount(1000, 900)),)
    wide = gang("wide", part=HALF, network_mbps=200)
    narrow = gang("narrow", part=HALF, network_mbps=100)
    found = plan([wide, narrow], [replace(pool("g1", "ab"), nics=busy)], None)
    assert not found.chosen


def test_gpus_of_the_servers_own_host_come_first_and_need_no_wire() -> None:
    (chosen,) = plan(
        [of("x", "c1", "main", network_mbps=100)], [pool("a1"), pool("c1")], None
    ).chosen["x"]
    assert (chosen.host, chosen.route.pool_nic) == ("c1", "")


def nic(used: int, uuid: str = "c1:rgpu") -> ClientNic:
    return ClientNic(uuid, Amount(1000, used))


def test_what_the_nic_of_its_servers_host_has_is_shared_by_all_leases_there() -> None:
    queue = [of(uuid, "c1", "main", network_mbps=400, nic=nic(0)) for uuid in "abc"]
    queue.append(of("d", "c2", "main", network_mbps=400, nic=nic(0, "c2:rgpu")))
    found = plan(queue, [pool("g1", "vw"), pool("g2", "xy")], None)
    assert found.chosen.keys() == {"a", "b", "d"}
    assert str(found.waits["c"]) == "client_network=400"
    assert {gpu.route.client_nic for gpu in found.chosen["a"]} == {"c1:rgpu"}
    pair = of("pair", "c1", "main", count=2, network_mbps=400, nic=nic(300))
    waits = plan([pair, gang("rest")], [pool("g1", "ab")], None)
    assert str(waits.waits["pair"]) == "client_network=800"
    assert waits.chosen.keys() == {"rest"}, "no GPU is kept for what waits for a NIC"


def test_a_gpu_of_the_servers_own_host_takes_nothing_of_its_nic() -> None:
    queue = [of(uuid, "c1", "main", network_mbps=400, nic=nic(900)) for uuid in "ab"]
    found = plan(queue, [pool("c1"), pool("g1")], None)
    (own,) = found.chosen["a"]
    assert (own.host, own.route.client_nic) == ("c1", "")
    assert str(found.waits["b"]) == "client_network=400"


def test_what_the_nic_of_its_host_lacks_is_for_the_gpus_of_other_hosts_only() -> None:
    pair = of("pair", "c1", "main", count=2, network_mbps=400, nic=nic(700))
    found = plan([pair], [pool("c1"), pool("g1")], None)
    assert str(found.waits["pair"]) == "client_network=400"


@SOLVERS
def test_a_gpu_of_the_servers_own_host_is_left_to_it_where_its_nic_is_full(solve: Solver) -> None:
    pools = [pool("c1"), pool("g1")]
    queue = [gang("any"), of("near", "c1", "main", network_mbps=400, nic=nic(900))]
    assert gpus(plan(queue, pools, None)) == {"any": ["c1:a"]}, "without a solver"
    found = plan(queue, pools, solve)
    assert gpus(found) == {"any": ["g1:a"], "near": ["c1:a"]}
    assert found.chosen["near"][0].route.client_nic == ""
    elsewhere = [queue[0], replace(queue[1], pool="g1")]
    assert str(plan(elsewhere, pools, solve).waits["near"]) == "client_network=400"


@SOLVERS
def test_what_is_rearranged_is_no_more_than_a_nic_has(solve: Solver) -> None:
    pools = [pool("g1", fabrics=("east",)), pool("g2", fabrics=("west",))]
    queue = [
        of("any", "c1", "east", "west", network_mbps=400, nic=nic(500)),
        of("east", "c2", "east", network_mbps=400, nic=nic(0, "c2:rgpu")),
        of("last", "c1", "west", network_mbps=400, nic=nic(500)),
    ]
    found = plan(queue, pools, solve)
    assert gpus(found) == {"any": ["g2:a"], "east": ["g1:a"]}
    assert {gpu.route.client_nic for (gpu,) in found.chosen.values()} == {"c1:rgpu", "c2:rgpu"}


def test_a_server_gets_nothing_of_a_fabric_in_which_it_is_not() -> None:
    found = plan([of("x", "c1", "east")], [pool("g1", fabrics=("west",))], with_highs)
    assert (found.chosen, str(found.waits["x"])) == ({}, "no_gpu=opencl (against 4000)")


@SOLVERS
def test_one_that_can_go_elsewhere_makes_room_for_one_that_cannot(solve: Solver) -> None:
    """Both pools suit the first gang, and the least shared one is the only one of the second."""
    pools = [pool("g1", fabrics=("east",)), pool("g2", fabrics=("west",))]
    queue = [of("any", "c1", "east", "west"), of("east", "c2", "east")]
    assert set(plan(queue, pools, None).chosen) == {"any"}, "without a solver"
    assert gpus(plan(queue, pools, solve)) == {"any": ["g2:a"], "east": ["g1:a"]}


@SOLVERS
def test_none_that_was_asked_for_earlier_loses_its_place(solve: Solver) -> None:
    pools = [pool("g1", fabrics=("east",)), pool("g2", fabrics=("west",))]
    queue = [of("first", "c1", "east"), of("any", "c3", "east", "west"), of("east", "c2", "east")]
    found = plan(queue, pools, solve)
    assert gpus(found) == {"first": ["g1:a"], "any": ["g2:a"]}
    assert set(found.waits) == {"east"}


@SOLVERS
def test_what_a_gang_waits_for_is_not_used_to_rearrange(solve: Solver) -> None:
    pools = [pool("g1", "ab"), pool("g2", fabrics=("west",))]
    used = [
        replace(pools[0], gpus=(replace(pools[0].gpus[0], share=Amount(6, 6)), pools[0].gpus[1]))
    ]
    queue = [gang("pair", 2, pool="g1"), of("any", "c", "main", "west"), of("west", "d", "west")]
    found = plan(queue, [*used, pools[1]], solve)
    assert gpus(found) == {"any": ["g2:a"]}
    assert str(found.waits["west"]) == "no_gpu=opencl (against 4000)"


@SOLVERS
def test_interfaces_moves_and_named_hosts_count_when_it_is_rearranged(solve: Solver) -> None:
    moves = OPENCL | {names.MIGRATABLE}
    pools = [pool("g1", traits=moves), pool("g2"), pool("g3", "a", traits=OPENCL)]
    queue = [gang("any"), gang("other"), gang("moves", migratable=True), gang("g2", pool="g2")]
    found = plan(queue, pools, solve)
    assert set(found.chosen) == {"any", "other", "moves"}
    assert gpus(found)["moves"] == ["g1:a"]
    found = plan([gang("any"), gang("g1", pool="g1"), gang("moves", migratable=True)], pools, solve)
    assert set(found.chosen) == {"any", "g1"}


def test_equal_gangs_that_wait_cost_as_much_as_one() -> None:
    solved = []

    def solve(network: object) -> object:
        solved.append(network)
        return with_highs(network)  # type: ignore[arg-type]

    queue = [of(str(number), f"c{number}", "main") for number in range(50)]
    found = plan(queue, [pool("g1", "ab")], solve)  # type: ignore[arg-type]
    assert (len(found.chosen), len(found.waits)) == (2, 48)
    assert len(solved) <= 12, "one rearrangement, whatever waits"
