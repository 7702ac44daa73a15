# SPDX-License-Identifier: Apache-2.0
"""Which running leases move: Prades 2021, section 7.5.3 (F-002-32, 80 to 89)."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_numa_ext.policy.remote_gpu.multi_tenancy import K20
from nova_numa_ext.policy.remote_gpu.rebalance import (
    LeaseMove,
    PoolGpuState,
    RebalancePolicy,
    RebalanceSettings,
    RunningLease,
    make_room,
    policy_named,
    rebalance,
)
from nova_numa_ext.policy.remote_gpu.slices import GpuSlice
from placement_traits.errors import InvalidValueError
from placement_traits.names import GPU_SHARES, ServiceLevel

SETTINGS = RebalanceSettings(most_moves=100)
CONSOLIDATE, BALANCE = RebalancePolicy.CONSOLIDATE, RebalancePolicy.BALANCE
SCAVENGE, SWAP = RebalancePolicy.SCAVENGE, RebalancePolicy.SWAP


def gpus(count: int, **more: object) -> list[PoolGpuState]:
    return [PoolGpuState(f"g{n}", 4799, **more) for n in range(count)]


def lease(
    uuid: str,
    gpu: str,
    utilisation: float = 0.4,
    memory_mb: int = 162,
    level: str = "bronze",
    **more: object,
) -> RunningLease:
    return RunningLease(uuid, gpu, GpuSlice(memory_mb, ServiceLevel(level)), utilisation, **more)


def applied(
    leases: Sequence[RunningLease], moves: Sequence[LeaseMove], now: float = 0.0
) -> list[RunningLease]:
    """The leases after their moves."""
    to = {move.lease: move.destination for move in moves}
    return [
        replace(each, gpu=to[each.uuid], moved_at=now) if each.uuid in to else each
        for each in leases
    ]


def test_two_jobs_at_forty_percent_share_a_gpu_and_draw_less_power() -> None:
    two = [lease("a", "g0"), lease("b", "g1")]
    (move,) = rebalance(CONSOLIDATE, gpus(2), two, 0, SETTINGS)
    after = applied(two, [move])
    assert {each.gpu for each in after} == {move.destination}
    before_w = 2 * K20.mean_w(0.4)
    assert K20.mean_w(0.8) + K20.unused < before_w


@pytest.mark.parametrize(
    ("utilisation", "memory_mb", "level"),
    [(0.49, 2500, "bronze"), (0.3, 100, "gold"), (0.3, 4799, "scavenger")],
)
def test_consolidation_refuses_without_memory_or_shares(
    utilisation: float, memory_mb: int, level: str
) -> None:
    two = [lease(n, g, utilisation, memory_mb, level) for n, g in (("a", "g0"), ("b", "g1"))]
    assert rebalance(CONSOLIDATE, gpus(2), two, 0, SETTINGS) == ()


def test_consolidation_refuses_more_than_a_whole_gpu_and_what_is_not_cold() -> None:
    two = [lease("a", "g0", 0.45), lease("b", "g1", 0.6)]
    assert rebalance(CONSOLIDATE, gpus(2), two, 0, SETTINGS) == ()
    two = [lease("a", "g0", 0.5), lease("b", "g1", 0.5)]
    assert rebalance(CONSOLIDATE, gpus(2), two, 0, SETTINGS) == ()


def test_what_has_just_come_does_not_go_on() -> None:
    leases = [lease("a", "g0", 0.1), lease("b", "g1", 0.2), lease("c", "g2", 0.3)]
    moves = rebalance(CONSOLIDATE, gpus(3), leases, 0, SETTINGS)
    assert len({move.lease for move in moves}) == len(moves) == 2


def test_a_gpu_is_emptied_or_left_as_it_is() -> None:
    leases = [
        *(lease("a", "g0", 0.2), lease("b", "g0", 0.2, memory_mb=4000)),
        lease("c", "g1", 0.6, memory_mb=1000),
    ]
    assert rebalance(CONSOLIDATE, gpus(2), leases, 0, SETTINGS) == ()


def test_fourteen_servers_give_seven_back() -> None:
    """Like figure 6.2: two GPUs at 90 %, two nearly unused, the others in between."""
    used = {8: 0.9, 11: 0.9, 5: 0.05, 10: 0.05}
    load = {n: used.get(n, 0.35 if n % 2 else 0.45) for n in range(14)}
    leases = [lease(f"j{n}", f"g{n}", each) for n, each in load.items()]
    moves = rebalance(CONSOLIDATE, gpus(14), leases, 0, SETTINGS)
    after = applied(leases, moves)
    loads: dict[str, float] = {}
    for each in after:
        loads[each.gpu] = loads.get(each.gpu, 0.0) + each.utilisation
    assert 14 - len(loads) == 7
    assert max(loads.values()) <= 1.0 + 1e-9


def test_an_idle_gpu_takes_one_of_several_jobs_whenever_one_is_idle() -> None:
    """Figure 7.11: three jobs on one GPU, another is free at 50 s, a third at 100 s."""
    leases = [
        lease("cloverleaf", "g0", 0.97, 1500),
        lease("gpublast", "g0", 0.325, 1302),
        lease("cuda-meme", "g0", 0.384, 162),
    ]
    assert rebalance(BALANCE, gpus(1), leases, 0, SETTINGS) == ()
    for now, count in ((50.0, 2), (100.0, 3)):
        moves = rebalance(BALANCE, gpus(count), leases, now, SETTINGS)
        assert [move.destination for move in moves] == [f"g{count - 1}"]
        leases = applied(leases, moves, now)
    assert len({each.gpu for each in leases}) == 3
    assert rebalance(BALANCE, gpus(4), leases, 500, SETTINGS) == ()


def test_a_job_of_high_priority_goes_to_a_faster_gpu_when_one_is_free() -> None:
    pool = [PoolGpuState("k20", 4799), PoolGpuState("p100", 16_000, speed=3.4)]
    leases = [lease("high", "k20", priority=5), lease("low", "k20")]
    moves = rebalance(RebalancePolicy.PROMOTE, pool, leases, 0, SETTINGS)
    assert moves == (LeaseMove("high", "k20", "p100"),)
    for level in ("gold", "bronze"):
        taken = [*leases, lease("other", "p100", 0.9, level=level)]
        assert rebalance(RebalancePolicy.PROMOTE, pool, taken, 0, SETTINGS) == ()


def test_a_job_of_low_priority_makes_room_on_the_fastest_gpu() -> None:
    pool = [PoolGpuState("k20", 4799), PoolGpuState("p100", 16_000, speed=3.4)]
    gold = GpuSlice(1000)
    leases = [lease("low", "p100", level="gold", priority=1)]
    assert make_room(pool, leases, gold, 5, now=0, settings=SETTINGS) == LeaseMove(
        "low", "p100", "k20"
    )
    assert make_room(pool, [], gold, 5, now=0, settings=SETTINGS) is None
    assert make_room(pool, leases, gold, 1, now=0, settings=SETTINGS) is None
    full = [*leases, lease("x", "k20", level="gold")]
    assert make_room(pool, full, gold, 5, now=0, settings=SETTINGS) is None


def test_the_lowest_priority_goes_first_and_to_a_slower_gpu() -> None:
    """One as fast that has room for it would be no demotion."""
    pool = [
        PoolGpuState("k20", 4799),
        *(PoolGpuState(f"p{n}", 16_000, speed=3.4) for n in range(3)),
    ]
    leases = [
        lease("three", "p0", level="silver", priority=3),
        lease("one", "p1", level="silver", priority=1, memory_mb=200),
        lease("four", "p2", level="silver", priority=4),
        lease("slow", "k20", 0.9, level="silver"),
    ]
    found = make_room(pool, leases, GpuSlice(1000), 5, now=0, settings=SETTINGS)
    assert found == LeaseMove("one", "p1", "k20")


def test_room_is_made_only_where_the_one_that_comes_can_be() -> None:
    pool = [
        PoolGpuState("k20", 4799),
        PoolGpuState("p100", 16_000, speed=3.4),
        PoolGpuState("v100", 16_000, speed=7.0),
    ]
    leases = [lease(each, each, level="gold", priority=1) for each in ("p100", "v100")]
    given = {"now": 0, "settings": SETTINGS, "reaches": {"k20", "p100"}}
    assert make_room(pool, leases, GpuSlice(1000), 5, **given) == LeaseMove("p100", "p100", "k20")


def test_a_scavenger_gives_way_at_once_and_comes_back_after_its_cool_down() -> None:
    scavenger = lease("s", "g0", level="scavenger", moved_at=-1.0)
    user = lease("u", "g0", level="bronze")
    (parked,) = rebalance(SCAVENGE, gpus(1), [scavenger, user], 0, SETTINGS)
    assert parked == LeaseMove("s", "g0", "")
    waiting = applied([scavenger], [parked])
    assert rebalance(SCAVENGE, gpus(1), [*waiting, user], 100, SETTINGS) == ()
    assert rebalance(SCAVENGE, gpus(1), waiting, 10, SETTINGS) == ()
    assert rebalance(SCAVENGE, gpus(1), waiting, 100, SETTINGS) == (LeaseMove("s", "", "g0"),)
    idle = replace(user, utilisation=0.0)
    assert rebalance(SCAVENGE, gpus(1), [scavenger, idle], 0, SETTINGS) == (), "nobody is disturbed"


def test_memory_that_is_short_moves_a_lease_or_parks_it() -> None:
    short = lease("a", "g0", memory_mb=1000, lacks_mb=500)
    other = lease("b", "g0", memory_mb=3700)
    assert rebalance(SWAP, gpus(2), [short, other], 0, SETTINGS) == (LeaseMove("a", "g0", "g1"),)
    (parked,) = rebalance(SWAP, gpus(1), [short, other], 0, SETTINGS)
    assert parked == LeaseMove("a", "g0", "")
    (waiting,) = applied([short], [parked])
    assert rebalance(SWAP, gpus(1), [waiting], 100, SETTINGS) == (LeaseMove("a", "", "g0"),)


def test_code_for_one_architecture_stays_on_it() -> None:
    pool = [PoolGpuState("k20", 4799, architecture="kepler")]
    pool.append(PoolGpuState("p100", 16_000, speed=3.4, architecture="pascal"))
    fatbin = lease("fatbin", "k20", priority=1, architectures=frozenset({"kepler"}))
    assert rebalance(RebalancePolicy.PROMOTE, pool, [fatbin], 0, SETTINGS) == ()
    ptx = replace(fatbin, architectures=None)
    assert len(rebalance(RebalancePolicy.PROMOTE, pool, [ptx], 0, SETTINGS)) == 1


def test_a_utilisation_that_swings_moves_a_lease_once_in_its_cool_down() -> None:
    leases = [lease("a", "g0"), lease("b", "g0", 0.5)]
    moved_at: list[float] = []
    for second in range(240):
        policy = BALANCE if second % 2 else CONSOLIDATE
        moves = rebalance(policy, gpus(2), leases, float(second), SETTINGS)
        moved_at += [float(second)] * len(moves)
        leases = applied(leases, moves, float(second))
    by_lease = [each.moved_at for each in leases]
    assert 2 <= len(moved_at) <= 2 * 240 / SETTINGS.cool_down_s
    assert any(by_lease)


def test_moves_are_few_at_a_time_and_never_of_what_cannot_move() -> None:
    leases = [lease(f"j{n}", f"g{n}", 0.1, level="scavenger") for n in range(6)]
    few = replace(SETTINGS, most_moves=2)
    assert len(rebalance(CONSOLIDATE, gpus(6), leases, 0, few)) == 2
    fixed = [replace(each, movable=False) for each in leases]
    assert rebalance(CONSOLIDATE, gpus(6), fixed, 0, SETTINGS) == ()


def test_a_policy_that_is_not_there_is_refused_with_those_that_are() -> None:
    assert policy_named("balance") is BALANCE
    with pytest.raises(InvalidValueError, match="consolidate, balance, promote, scavenge, swap"):
        policy_named("tidy")


LEASES = st.lists(
    st.builds(
        lease,
        uuid=st.just(""),
        gpu=st.sampled_from(["g0", "g1", "g2", "g3"]),
        utilisation=st.floats(0, 0.6),
        memory_mb=st.integers(100, 1500),
        level=st.sampled_from(["bronze", "scavenger"]),
        priority=st.integers(0, 3),
    ),
    max_size=10,
)


@given(LEASES, st.sampled_from(list(RebalancePolicy)))
def test_no_policy_takes_more_of_a_gpu_than_there_is(
    drawn: list[RunningLease], policy: RebalancePolicy
) -> None:
    leases, room = [], {f"g{n}": [4799, GPU_SHARES] for n in range(4)}
    for number, each in enumerate(drawn):
        free = room[each.gpu]
        if each.part.memory_mb <= free[0] and each.part.shares <= free[1]:
            free[0] -= each.part.memory_mb
            free[1] -= each.part.shares
            leases.append(replace(each, uuid=f"j{number}"))
    after = applied(leases, rebalance(policy, gpus(4), leases, 0, SETTINGS))
    for gpu in room:
        here = [each for each in after if each.gpu == gpu]
        assert sum(each.part.memory_mb for each in here) <= 4799
        assert sum(each.part.shares for each in here) <= GPU_SHARES
