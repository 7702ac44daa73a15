# SPDX-License-Identifier: Apache-2.0
"""Leases that move in a simulated pool: what the service would decide, what it costs, and when it does not pay."""

from itertools import pairwise
from typing import Any

import pytest

from nova_numa_ext.policy.remote_gpu.fabrics import FABRICS, GpuFabric
from nova_numa_ext.policy.remote_gpu.making_room import RebalanceRules
from nova_numa_ext.policy.remote_gpu.migration import downtime_s
from nova_numa_ext.policy.remote_gpu.slices import GpuSlice
from nova_numa_ext.simulator.remote_gpu.cluster import StarvedError
from nova_numa_ext.simulator.remote_gpu.shared_pool import (
    POLICIES,
    REGIONS,
    LeaseRecord,
    LeaseWork,
    SharedPool,
    SharedPoolRun,
)
from nova_numa_ext.simulator.remote_gpu.shared_report import SPEEDS, drawn, machines
from placement_traits.names import ServiceLevel

FDR, SLOW = FABRICS["fdr"], FABRICS["1gbe"]
GIB = 1024


def lease(
    name: str,
    level: ServiceLevel = ServiceLevel.SILVER,
    run_s: float = 100.0,
    at: float = 0.0,
    *,
    busy: float = 0.5,
    gib: int = 4,
    priority: int = 0,
) -> LeaseWork:
    return LeaseWork(name, at, run_s, busy, GpuSlice(gib * GIB, level), priority)


def ran(
    policy: str,
    works: list[LeaseWork],
    *,
    hosts: int = 1,
    fast: int = 0,
    network: GpuFabric = FDR,
    **more: Any,
) -> SharedPoolRun:
    given = {"moves_per_minute": 4, "cool_down_s": 60.0, "speeds": SPEEDS, **more}
    rules = RebalanceRules(**{**given, **POLICIES[policy]})
    pool = SharedPool(machines(hosts, fast), works, rules, network)
    empty = pool.pools
    found = pool.run()
    assert pool.pools == empty, "all that was taken was given back"
    assert sorted(each.work.uuid for each in found.records) == sorted(each.uuid for each in works)
    return found


def of(found: SharedPoolRun, name: str) -> LeaseRecord:
    return next(each for each in found.records if each.work.uuid == name)


def crowd(count: int = 5) -> list[LeaseWork]:
    """Five on four GPUs: two share one, and each of the others ends early."""
    return [lease(f"l{n}", run_s=300.0 if n in (0, 4) else 20.0) for n in range(count)]


def test_leases_that_share_a_gpu_slow_each_other_until_one_ends() -> None:
    found = ran("none", crowd())
    assert of(found, "l1").end_s == pytest.approx(20.0)
    assert of(found, "l4").end_s == pytest.approx(300 * 1.25)
    assert found.moves == ()


def test_balance_takes_one_of_two_to_an_idle_gpu_for_the_downtime_of_the_model() -> None:
    """At 30 s, the first look at which a GPU is idle."""
    found = ran("balance", crowd())
    (move,) = found.moves
    pause_s = downtime_s(FDR, [4 * GIB * (1 << 20) // REGIONS] * REGIONS)
    assert (move.at_s, move.paused_s) == (30.0, pytest.approx(pause_s))
    moved = of(found, move.lease)
    stays = of(found, ({"l0", "l4"} - {move.lease}).pop())
    left_s = 300 - 30 / 1.25
    assert moved.end_s == pytest.approx(30 + pause_s + left_s)
    assert stays.end_s == pytest.approx(30 + left_s), (
        "it is alone as soon as the other stands still"
    )
    assert (moved.moves, moved.paused_s) == (1, pytest.approx(pause_s))


def test_a_move_over_a_slow_network_does_not_pay_and_the_figures_say_so() -> None:
    """70 s of 4 GiB over 1 GbE, for leases that have less than that to gain."""
    works = [lease(f"l{n}", run_s=100.0 if n in (0, 4) else 20.0, busy=0.2) for n in range(5)]
    there, slow, fast = (
        sum(each.response_s for each in found.records)
        for found in (
            ran("none", works),
            ran("balance", works, network=SLOW),
            ran("balance", works),
        )
    )
    assert fast < there < slow


def test_both_ends_are_held_while_a_lease_moves() -> None:
    works = [*crowd(), lease("late", ServiceLevel.GOLD, 10.0, at=31.0, gib=16)]
    found = ran("balance", works, network=SLOW)
    (move,) = found.moves
    # Three GPUs are idle at 30 s; one is the destination.
    assert of(found, "late").start_s == 31.0
    held = {each.at_s: each.held for each in found.samples}
    assert held[move.at_s] == 2
    assert held[31.0] == 3


def test_a_lease_rests_after_a_move_and_few_move_in_a_minute() -> None:
    works = drawn(60, 200.0, 4.0, 2.0, 3)
    often, rarely = (
        ran("consolidate", works, cool_down_s=rest_s, moves_per_minute=8).moves
        for rest_s in (0.0, 120.0)
    )
    assert len(often) > len(rarely) > 0
    last: dict[str, float] = {}
    for move in rarely:
        assert move.at_s - last.get(move.lease, -120.0) >= 120.0
        last[move.lease] = move.at_s


def test_no_more_move_in_a_minute_than_is_allowed_whichever_look_begins_them() -> None:
    works = [lease(f"l{n}", ServiceLevel.BRONZE, 900.0, busy=0.1, gib=1) for n in range(8)]
    starts = [each.at_s for each in ran("consolidate", works, hosts=2, moves_per_minute=1).moves]
    assert len(starts) > 3
    assert all(then - now >= 60.0 for now, then in pairwise(starts))


def test_consolidation_holds_fewer_gpus_and_takes_less_energy() -> None:
    works = [lease(f"l{n}", run_s=600.0, busy=0.1) for n in range(4)]
    spread, packed = ran("none", works), ran("consolidate", works)
    assert spread.gpus_held == 4
    assert packed.gpus_held < 2.5
    assert packed.energy_j < spread.energy_j
    assert {each.destination for each in packed.moves} < {f"m0g{n}" for n in range(4)}


def test_who_has_a_priority_goes_to_a_faster_gpu_when_one_is_free() -> None:
    works = [lease(f"g{n}", ServiceLevel.GOLD, 20.0) for n in range(8)]
    works += [lease("first", ServiceLevel.GOLD, 1000.0, at=1.0, busy=0.9, priority=5)]
    works[:4] = [lease(f"g{n}", ServiceLevel.GOLD, 500.0) for n in range(4)]
    there, promoted = (ran(each, works, hosts=2, fast=1) for each in ("none", "promote"))
    assert of(promoted, "first").end_s < of(there, "first").end_s
    assert "first" in {each.lease for each in promoted.moves}


def test_room_is_made_for_one_that_waits_and_is_kept_for_it() -> None:
    """Bronze on each GPU: no gold one has room before one of them has gone to another."""
    works = [lease(f"b{n}", ServiceLevel.BRONZE, 400.0) for n in range(4)]
    works += [lease("gold", ServiceLevel.GOLD, 50.0, at=10.0, gib=16)]
    works += [lease("late", ServiceLevel.GOLD, 50.0, at=10.0, gib=16)]
    there, room = ran("none", works), ran("room", works)
    assert of(there, "gold").start_s == pytest.approx(400.0)
    (first, *_) = room.moves
    assert (first.at_s, of(room, "gold").start_s) == (10.0, pytest.approx(10.0 + first.paused_s))
    assert of(room, "late").start_s < 400.0


def test_the_room_that_is_made_is_no_one_elses_and_one_at_a_time_is_made_room_for() -> None:
    works = [lease(f"b{n}", ServiceLevel.BRONZE, 400.0) for n in range(4)]
    works += [lease("gold", ServiceLevel.GOLD, 50.0, at=10.0, gib=16)]
    works += [lease("before", ServiceLevel.GOLD, 50.0, at=20.0, gib=16, priority=9)]
    found = ran("room", works, network=SLOW)
    first, second = found.moves[:2]
    arrived_s = first.at_s + first.paused_s
    assert of(found, "gold").start_s == pytest.approx(arrived_s)
    assert second.at_s >= arrived_s
    assert of(found, "before").start_s > arrived_s


def test_nothing_moves_by_use_while_one_waits_nor_for_one_of_a_lower_priority() -> None:
    works = [lease(f"b{n}", ServiceLevel.BRONZE, 400.0, busy=0.1, priority=5) for n in range(4)]
    works += [lease("gold", ServiceLevel.GOLD, 50.0, at=10.0, gib=16)]
    found = ran("consolidate", works)
    assert found.moves == ()
    assert of(found, "gold").start_s == pytest.approx(400.0)


def test_who_waits_has_its_turn_by_priority_and_scavengers_are_last() -> None:
    works = [lease(f"g{n}", ServiceLevel.GOLD, 50.0) for n in range(4)]
    works += [lease("scavenger", ServiceLevel.SCAVENGER, 60.0, at=1.0, gib=1)]
    works += [lease(f"w{n}", ServiceLevel.GOLD, 60.0, at=2.0 + n) for n in range(4)]
    works += [lease("first", ServiceLevel.GOLD, 60.0, at=9.0, priority=1)]
    found = ran("none", works)
    starts = {each.work.uuid: each.start_s for each in found.records}
    assert starts["first"] == starts["w0"] == starts["w2"] == 50.0
    assert starts["w3"] == starts["scavenger"] == 110.0


def test_a_scavenger_gives_way_and_begins_again() -> None:
    works = [lease(f"s{n}", ServiceLevel.SCAVENGER, 100.0, gib=1) for n in range(4)]
    works += [lease("gold", ServiceLevel.GOLD, 50.0, at=90.0, gib=16)]
    found = ran("scavenge", works)
    assert of(found, "gold").start_s == 90.0
    (away,) = found.moves
    given = of(found, away.lease)
    assert (away.destination, given.gave_way) == ("", 1)
    assert given.end_s >= 190.0, "what it had done in 90 s is lost"
    assert given.waited_s == pytest.approx(0.0), "another GPU has room at once"


def test_the_same_leases_make_the_same_run() -> None:
    works = drawn(40, 60.0, 1.0, 3.0, 7)
    assert works == drawn(40, 60.0, 1.0, 3.0, 7) != drawn(40, 60.0, 1.0, 3.0, 8)
    for policy in POLICIES:
        assert ran(policy, works) == ran(policy, works)


class Watched(SharedPool):
    """Remembers the least that any GPU had free after any event."""

    __slots__ = ("least",)

    def _sample(self) -> None:
        super()._sample()
        amounts = [
            each for one in self.pools for gpu in one.gpus for each in (gpu.memory_mb, gpu.share)
        ]
        self.least = min(getattr(self, "least", 0), *(each.free for each in amounts))


def test_no_gpu_is_promised_twice_at_any_moment() -> None:
    works = drawn(80, 60.0, 1.0, 8.0, 5)
    for policy in POLICIES:
        given: dict[str, Any] = {"moves_per_minute": 20, "cool_down_s": 0.0, "speeds": SPEEDS}
        pool = Watched(machines(2, 1), works, RebalanceRules(**{**given, **POLICIES[policy]}), SLOW)
        assert pool.run().moves or policy == "none"
        assert pool.least == 0, policy


def test_a_lease_that_fits_no_gpu_ends_the_simulation_with_its_name() -> None:
    with pytest.raises(StarvedError, match="large"):
        ran("none", [lease("large", gib=17)])
