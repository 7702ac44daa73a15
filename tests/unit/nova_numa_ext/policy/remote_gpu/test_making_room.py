# SPDX-License-Identifier: Apache-2.0
"""Leases that go to other GPUs so that one that waits has room: few of them, and none without need."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nova_numa_ext.policy.remote_gpu import making_room
from nova_numa_ext.policy.remote_gpu.lease_claims import less
from nova_numa_ext.policy.remote_gpu.lease_plan import LeaseGang, LeasePlan, places, plan
from nova_numa_ext.policy.remote_gpu.making_room import (
    RoomForGang,
    SettledLease,
    movable_gpus,
    room_by_moves,
    room_by_scavenging,
)
from nova_numa_ext.policy.remote_gpu.slices import GpuSlice
from placement_traits import names, pools
from placement_traits.claims import Amounts
from placement_traits.fleet import Amount
from placement_traits.names import RemoteGpuApi, ServiceLevel
from placement_traits.pools import ClientNic, Pool
from tests.unit.nova_numa_ext.policy.remote_gpu.test_lease_plan import (
    HALF,
    OPENCL,
    WHOLE,
    gang,
    gpus,
    pool,
)

MOVABLE = OPENCL | {names.MIGRATABLE}


class Fleet:
    """Pools, and leases that run on their GPUs."""

    def __init__(self, *found: Pool) -> None:
        self.pools: tuple[Pool, ...] = found
        self.settled: list[SettledLease] = []
        self.asked: dict[str, LeaseGang] = {}

    def lease(self, gpu: str, part: GpuSlice = HALF, **more: object) -> SettledLease:
        """Another lease on a GPU."""
        uuid = f"l{len(self.asked)}"
        asked = gang(uuid, part=part, migratable=True, taken=frozenset({gpu}), **more)
        held = {
            gpu: {
                names.REMOTE_GPU_MEMORY_MB: part.memory_mb,
                names.REMOTE_GPU_SHARE: part.shares,
            },
            f"{gpu.split(':', maxsplit=1)[0]}:cpu": {names.REMOTE_GPU_CORE: 1},
        }
        self.pools = pools.counted(self.pools, held)
        self.asked[uuid] = asked
        self.settled.append(SettledLease(uuid, gpu, held))
        return self.settled[-1]

    def room(
        self, waits: LeaseGang, others: Sequence[str] = (), most: int = 4
    ) -> RoomForGang | None:
        return room_by_moves(
            waits, self.pools, self.settled, self.asked.__getitem__, others=others, most=most
        )

    def moves(self, waits: LeaseGang, **more: object) -> dict[str, str] | None:
        """Where leases go, by the name of the GPU."""
        found = self.room(waits, **more)  # type: ignore[arg-type]
        return found and {uuid: gpu.route.gpu for uuid, gpu in found.moves.items()}


def two_half_used() -> Fleet:
    fleet = Fleet(*(pool(host, traits=MOVABLE) for host in ("g1", "g2")))
    fleet.lease("g1:a")
    fleet.lease("g2:a")
    return fleet


def test_one_of_two_leases_goes_where_the_other_is() -> None:
    assert two_half_used().moves(gang("gold")) == {"l0": "g2:a"}


def test_who_may_not_move_stays_and_the_other_goes() -> None:
    fleet = two_half_used()
    del fleet.settled[0]
    assert fleet.moves(gang("gold")) == {"l1": "g1:a"}
    fleet.settled.clear()
    assert fleet.moves(gang("gold")) is None


def test_nothing_moves_for_one_that_has_room() -> None:
    fleet = two_half_used()
    assert fleet.moves(gang("small", part=HALF)) is None


def test_nothing_moves_where_what_waits_would_still_lack_something() -> None:
    """The GPU's memory is too small, or its interface another one, or one of its two GPUs stays in use."""
    fleet = two_half_used()
    assert fleet.moves(gang("large", part=GpuSlice(9000))) is None
    assert fleet.moves(gang("cuda", api=RemoteGpuApi.CUDA)) is None
    assert fleet.moves(gang("pair", 2)) is None


def test_a_gang_of_two_has_two_gpus_made_room_on_or_none() -> None:
    fleet = Fleet(*(pool(f"g{n}", traits=MOVABLE) for n in range(4)))
    for number in range(4):
        fleet.lease(f"g{number}:a")
    assert fleet.moves(gang("pair", 2), most=1) is None
    assert fleet.moves(gang("pair", 2), most=2) == {"l0": "g1:a", "l2": "g3:a"}


def test_no_lease_goes_to_a_gpu_that_is_kept_or_that_its_server_does_not_reach() -> None:
    fleet = two_half_used()
    assert fleet.moves(gang("gold"), others=["g2:a"]) is None
    there = frozenset({"main"})
    fleet = Fleet(pool("g1", traits=MOVABLE), pool("g2", fabrics=("other",), traits=MOVABLE))
    fleet.lease("g1:a", client="c1", fabrics=there)
    fleet.lease("g2:a", client="c1", fabrics=there | {"other"})
    assert fleet.moves(gang("gold")) == {"l1": "g1:a"}


def test_no_lease_goes_to_a_gpu_that_would_lose_what_it_keeps() -> None:
    fleet = Fleet(pool("g1", traits=MOVABLE), pool("g2"))
    fleet.lease("g1:a")
    fleet.lease("g2:a")
    assert movable_gpus(fleet.pools) == {"g1:a"}
    del fleet.settled[1]
    assert fleet.moves(gang("gold")) is None


def test_the_fewest_moves_of_the_least_memory_are_made() -> None:
    fleet = Fleet(*(pool(f"g{n}", traits=MOVABLE) for n in range(3)))
    for _ in range(2):
        fleet.lease("g0:a", GpuSlice(500, ServiceLevel.BRONZE))
    fleet.lease("g1:a", GpuSlice(2000, ServiceLevel.SILVER))
    fleet.lease("g2:a", GpuSlice(1000, ServiceLevel.SILVER))
    assert fleet.moves(gang("gold")) == {"l3": "g1:a"}


def test_a_lease_of_another_gpu_of_the_same_host_needs_no_second_core() -> None:
    fleet = Fleet(pool("g1", "ab", traits=MOVABLE, cores=3))
    fleet.lease("g1:a")
    fleet.lease("g1:b")
    assert fleet.moves(gang("gold")) == {"l0": "g1:b"}


LEVELS = st.sampled_from(list(ServiceLevel))
SLICES = st.builds(GpuSlice, st.integers(500, 5000), LEVELS)
LEASES = st.lists(st.tuples(st.integers(0, 2), st.sampled_from("ab"), SLICES), max_size=12)


@settings(max_examples=150, deadline=None)
@given(LEASES, SLICES, st.integers(1, 2), st.integers(1, 4))
def test_after_the_moves_all_have_room_and_nothing_has_more_than_there_is(
    leases: list[tuple[int, str, GpuSlice]], part: GpuSlice, count: int, most: int
) -> None:
    fleet = Fleet(*(pool(f"g{n}", "ab", traits=MOVABLE, cores=4) for n in range(3)))
    for host, gpu, taken in leases:
        before = fleet.pools, list(fleet.settled), dict(fleet.asked)
        fleet.lease(f"g{host}:{gpu}", taken)
        if not has_no_less_than_nothing(fleet.pools):
            fleet.pools, fleet.settled, fleet.asked = before
    waits = gang("waits", count, part)
    found = fleet.room(waits, most=most)
    if found is None:
        return
    assert places(fleet.pools, waits, ()) is None, "nothing moves without need"
    assert 0 < len(found.moves) <= most
    moving = {each.uuid: each for each in fleet.settled if each.uuid in found.moves}
    during = fleet.pools
    for uuid, to in found.moves.items():
        left, held = moving[uuid].amounts, fleet.asked[uuid].held(to)
        during = pools.counted(pools.counted(during, held), less(left, held))
        during = pools.counted(during, left, released=True)
        fleet.pools = pools.counted(pools.counted(fleet.pools, left, released=True), held)
        assert to.route.gpu != moving[uuid].gpu
    assert has_no_less_than_nothing(during)
    assert has_no_less_than_nothing(fleet.pools)
    assert places(fleet.pools, waits, ()) is not None


def has_no_less_than_nothing(found: Sequence[Pool]) -> bool:
    amounts = [
        amount
        for each in found
        for amount in (each.cores, *(a for g in each.gpus for a in (g.memory_mb, g.share)))
    ]
    return all(amount.free >= 0 for amount in amounts)


def test_who_was_moved_rests() -> None:
    lease = SettledLease("l", "g", {}, moved_at=100.0)
    assert lease.rests(150.0, 60.0)
    assert not lease.rests(160.0, 60.0)
    assert not replace(lease, moved_at=None).rests(0.0, 60.0)


def test_nothing_moves_for_one_whose_clients_nic_lacks_room() -> None:
    nic = ClientNic("c1:nic", Amount(100, 60))
    over_it = gang("gold", client="c1", network_mbps=50, nic=nic)
    assert two_half_used().moves(over_it) is None
    assert two_half_used().moves(replace(over_it, network_mbps=40)) == {"l0": "g2:a"}


class OneHasGone(Fleet):
    """Two halves are moved off g2:a for a whole lease; the first has gone.

    ::

        g1:a  a small lease that stays, of half of the GPU's time
        g2:a  a half that is about to go to g4:a; another one has gone to g3:a
        g3:a  two halves
        g4:a  a half, and what the other one holds there already
    """

    def __init__(self) -> None:
        super().__init__(*(pool(f"g{n}", traits=MOVABLE) for n in range(1, 5)))
        self.lease("g1:a", GpuSlice(500, HALF.level))
        both = [self.lease("g2:a"), self.lease("g2:a")]
        self.lease("g3:a")
        self.lease("g4:a")
        self.settled = both
        self.whole = gang("whole")
        found = self.room(self.whole)
        assert found is not None
        assert [gpu.route.gpu for gpu in found.moves.values()] == ["g3:a", "g4:a"]
        self.rooms = {"whole": [self.whole.held(each) for each in found.gpus]}
        first, self.second = both
        for uuid, to in found.moves.items():
            self.pools = pools.counted(self.pools, self.asked[uuid].held(to))
        self.pools = pools.counted(self.pools, first.amounts, released=True)

    def second_goes(self) -> None:
        self.pools = pools.counted(self.pools, self.second.amounts, released=True)

    def planned(
        self, *waiting: LeaseGang, rooms: dict[str, list[Amounts]] | None = None
    ) -> LeasePlan:
        return plan(waiting, self.pools, None, self.rooms if rooms is None else rooms)


def test_nobody_else_gets_the_room_that_is_being_made_wherever_in_order() -> None:
    fleet = OneHasGone()
    late, later = (gang(name, part=HALF) for name in ("late", "later"))
    unkept = fleet.planned(fleet.whole, late, rooms={})
    assert gpus(unkept) == {"late": ["g2:a"]}, "what would become of it"
    for queue in ((fleet.whole, late, later), (late, later, fleet.whole)):
        found = fleet.planned(*queue)
        assert gpus(found) == {"late": ["g1:a"]}
        assert found.waits["later"].term == "in_order"
    fleet.second_goes()
    for queue in ((fleet.whole, late, later), (late, later, fleet.whole)):
        assert gpus(fleet.planned(*queue)) == {"late": ["g1:a"], "whole": ["g2:a"]}


def test_room_is_kept_for_one_that_is_left_out_now_and_not_for_one_that_has_a_gpu_elsewhere() -> (
    None
):
    fleet = OneHasGone()
    small = [gang(f"s{n}", part=HALF) for n in range(2)]
    assert gpus(fleet.planned(*small)) == {"s0": ["g1:a"]}
    fleet.pools = (*fleet.pools, pool("g5", traits=MOVABLE))
    found = gpus(fleet.planned(fleet.whole, *small))
    assert found == {"whole": ["g5:a"], "s0": ["g2:a"], "s1": ["g1:a"]}


def test_one_that_came_before_keeps_no_gpu_that_is_emptied_for_another() -> None:
    fleet = OneHasGone()
    fleet.second_goes()
    found = fleet.planned(gang("pair", 2), gang("first"), fleet.whole)
    assert gpus(found) == {"whole": ["g2:a"]}


def test_what_the_room_holds_of_a_clients_nic_nobody_else_is_promised() -> None:
    nic = ClientNic("c1:nic", Amount(100, 0))
    over_it: dict[str, Any] = {"client": "c1", "network_mbps": 60, "nic": nic}
    free = pool("g1"), pool("g2")
    whole, other = gang("whole", **over_it), gang("other", part=HALF, **over_it)
    room = [
        {"g1:a": {names.REMOTE_GPU_MEMORY_MB: 4000}, "c1:nic": {names.REMOTE_GPU_NETWORK_MBPS: 60}}
    ]
    assert plan([other], free, None, {"whole": room}).waits["other"].term == "client_network"
    assert set(plan([whole, other], free, None, {"whole": room}).chosen) == {"whole"}


SCAVENGER = GpuSlice(1000, ServiceLevel.SCAVENGER)


def scavenged(fleet: Fleet, waits: LeaseGang, others: tuple[str, ...] = ()) -> tuple[str, ...]:
    scavengers = [
        each
        for each in fleet.settled
        if fleet.asked[each.uuid].part.level is ServiceLevel.SCAVENGER
    ]
    return room_by_scavenging(waits, fleet.pools, scavengers, others=others)


def test_the_fewest_scavengers_give_way_to_a_higher_level_and_none_to_their_own() -> None:
    """On GPUs whose transport can move nothing, too."""
    fleet = Fleet(pool("g1"), pool("g2"))
    for gpu in ("g1:a", "g1:a", "g2:a"):
        fleet.lease(gpu, part=SCAVENGER)
    assert scavenged(fleet, gang("gold", part=WHOLE)) == ("l2",)
    assert scavenged(fleet, gang("gold", part=WHOLE), others=("g2:a",)) == ("l0", "l1")
    assert scavenged(fleet, gang("gold", part=GpuSlice(8000, ServiceLevel.SCAVENGER))) == ()
    assert scavenged(fleet, gang("both", count=2, part=WHOLE)) == ("l2", "l0", "l1")


def test_no_more_gpus_are_looked_at_than_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third one's scavenger alone could go to any avail: the others keep what nobody gives up."""
    fleet = Fleet(pool("g1", cores=1), pool("g2", cores=1), pool("g3"))
    for number in range(1, 4):
        fleet.lease(f"g{number}:a", part=SCAVENGER)
    for host in ("g1", "g2"):
        held = {f"{host}:nic": {names.REMOTE_GPU_NETWORK_MBPS: 1000}}
        fleet.pools = pools.counted(fleet.pools, held)
    asks = gang("gold", part=WHOLE, network_mbps=100)
    assert scavenged(fleet, asks) == ("l2",)
    monkeypatch.setattr(making_room, "MOST_GPUS", 2)
    assert scavenged(fleet, asks) == ()


def test_no_scavenger_gives_way_in_vain() -> None:
    """Where others keep the GPU full all the same, where the one that waits has room, or does not reach it."""
    fleet = Fleet(pool("g1"))
    fleet.lease("g1:a", part=SCAVENGER)
    fleet.lease("g1:a")
    assert scavenged(fleet, gang("gold", part=WHOLE)) == ()
    assert scavenged(fleet, gang("small")) == (), "there is room"
    fleet = Fleet(pool("g1", fabrics=("far",)))
    fleet.lease("g1:a", part=SCAVENGER)
    here = gang("gold", part=WHOLE, client="c1", fabrics=frozenset({"main"}))
    assert scavenged(fleet, here) == ()
    fleet = Fleet(pool("g1"))
    fleet.lease("g1:a", part=SCAVENGER)
    assert scavenged(fleet, gang("both", count=2, part=WHOLE)) == (), "a gang has all or none"
