# SPDX-License-Identifier: Apache-2.0
"""Leases that go to other GPUs by how busy they keep them: only where pools have all that they need."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nova_numa_ext.policy.remote_gpu import by_use
from nova_numa_ext.policy.remote_gpu.by_use import UsedLease, moves_by_use
from nova_numa_ext.policy.remote_gpu.lease_plan import able_for
from nova_numa_ext.policy.remote_gpu.making_room import UsePolicy
from nova_numa_ext.policy.remote_gpu.rebalance import RebalanceSettings
from nova_numa_ext.policy.remote_gpu.slices import GpuSlice
from placement_traits import names, pools
from placement_traits.names import ServiceLevel
from tests.unit.nova_numa_ext.policy.remote_gpu.test_lease_plan import WHOLE, pool
from tests.unit.nova_numa_ext.policy.remote_gpu.test_making_room import MOVABLE, Fleet

CONSOLIDATE, BALANCE = UsePolicy.CONSOLIDATE, UsePolicy.BALANCE
PROMOTE = UsePolicy.PROMOTE
SPEEDS = {"k20": 100, "p100": 338}


class UsedFleet(Fleet):
    """Leases whose hosts report how busy they keep their GPUs."""

    def __init__(self, *found: object) -> None:
        super().__init__(*found)  # type: ignore[arg-type]
        self.used: list[UsedLease] = []

    def runs(self, gpu: str, busy: float | None, *, movable: bool = True, **more: object) -> None:
        """Another lease on a GPU."""
        settled = self.lease(gpu, **more)  # type: ignore[arg-type]
        settled = replace(settled, priority=self.asked[settled.uuid].priority)
        self.used.append(UsedLease(settled, busy, movable))

    def goes(self, policy: UsePolicy, now: float = 0.0, **more: float) -> dict[str, str]:
        """Where leases go, by the name of the GPU."""
        how = RebalanceSettings(**more)  # type: ignore[arg-type]
        found = moves_by_use(
            policy,
            self.pools,
            self.used,
            self.asked.__getitem__,
            now=now,
            settings=how,
            speeds=SPEEDS,
        )
        return {uuid: gpu.route.gpu for uuid, gpu in found.items()}


def two(first: float | None, second: float | None) -> UsedFleet:
    fleet = UsedFleet(*(pool(host, traits=MOVABLE) for host in ("g1", "g2")))
    fleet.runs("g1:a", first)
    fleet.runs("g2:a", second)
    return fleet


def test_the_colder_of_two_gpus_is_emptied_and_no_gpu_gets_more_work_than_it_has_time() -> None:
    assert two(0.1, 0.6).goes(CONSOLIDATE) == {"l0": "g2:a"}
    assert two(0.6, 0.1).goes(CONSOLIDATE) == {"l1": "g1:a"}
    assert two(0.45, 0.6).goes(CONSOLIDATE) == {}
    assert two(0.3, 0.6).goes(CONSOLIDATE, cold=0.2) == {}
    assert two(0.1, 0.6).goes(UsePolicy.NONE) == {}


def test_one_of_two_leases_goes_to_an_idle_gpu() -> None:
    fleet = two(0.5, 0.4)
    fleet.runs("g2:a", 0.5)
    fleet.pools = (*fleet.pools, pool("g3", traits=MOVABLE))
    assert fleet.goes(BALANCE) == {"l1": "g3:a"}
    assert fleet.goes(CONSOLIDATE) == {}


def models(**model_of_host: str) -> UsedFleet:
    """Pools of a GPU each, of a model."""
    return UsedFleet(
        *(
            pool(host, traits=MOVABLE | {names.gpu_model(model)})
            for host, model in model_of_host.items()
        )
    )


def test_a_lease_with_a_priority_goes_to_a_faster_gpu_that_has_room() -> None:
    """F-002-84. How busy GPUs are need not be known."""
    fleet = models(g1="k20", g2="p100", g3="k20", g4="v100")
    fleet.runs("g1:a", None, priority=5)
    fleet.runs("g3:a", None)
    assert fleet.goes(PROMOTE) == {"l0": "g2:a"}, "v100 has no speed, and who has no priority stays"
    fleet.used[0] = replace(fleet.used[0], movable=False)
    assert fleet.goes(PROMOTE) == {}
    fleet = models(g1="v100", g2="p100")
    fleet.runs("g1:a", None, priority=5)
    assert fleet.goes(PROMOTE) == {}, "nor does one leave a GPU that has none"


def test_of_a_gpu_with_several_models_the_slowest_counts() -> None:
    both = MOVABLE | {names.gpu_model("k20"), names.gpu_model("p100")}
    fleet = UsedFleet(
        pool("g1", traits=MOVABLE | {names.gpu_model("k20")}), pool("g2", traits=both)
    )
    fleet.runs("g1:a", None, priority=5)
    assert fleet.goes(PROMOTE) == {}


def test_who_has_less_priority_gives_a_fast_gpu_to_who_has_more() -> None:
    """F-002-85: demotion; the lease for which it is follows at the next look."""
    fleet = models(g1="k20", g2="p100", g3="k20")
    fleet.runs("g1:a", None, priority=5, part=WHOLE)
    fleet.runs("g2:a", None, priority=1, part=WHOLE)
    assert fleet.goes(PROMOTE) == {"l1": "g3:a"}
    rests = replace(fleet.used[1].settled, moved_at=100.0)
    fleet.used[1] = replace(fleet.used[1], settled=rests)
    assert fleet.goes(PROMOTE, now=150.0, cool_down_s=60.0) == {}, "who made room lately stays"
    rests = replace(fleet.used[0].settled, moved_at=140.0)
    fleet.used[0] = replace(fleet.used[0], settled=rests)
    assert fleet.goes(PROMOTE, now=170.0, cool_down_s=60.0) == {}, "nor is room made for one"


def test_no_lease_is_demoted_for_one_that_could_not_come() -> None:
    """Of the same priority, of another fabric, or where what makes room finds none itself."""
    fleet = models(g1="k20", g2="p100", g3="k20")
    for gpu, priority in (("g1:a", 5), ("g2:a", 5)):
        fleet.runs(gpu, None, priority=priority, part=WHOLE)
    assert fleet.goes(PROMOTE) == {}
    fleet = models(g1="k20", g2="p100", g3="k20")
    near, fast, other = fleet.pools
    fleet.pools = (near, replace(fast, fabrics=frozenset({"far"})), other)
    main = {"client": "c1", "fabrics": frozenset({"main"}), "part": WHOLE}
    fleet.runs("g1:a", None, priority=5, **main)
    fleet.runs("g2:a", None, priority=1, part=WHOLE)
    assert fleet.goes(PROMOTE) == {}
    fleet = models(g1="k20", g2="p100")
    fleet.runs("g1:a", None, priority=5, part=WHOLE)
    fleet.runs("g2:a", None, priority=1, part=WHOLE)
    assert fleet.goes(PROMOTE) == {}, "the slow GPU is full of the one that would come"


def test_a_gpu_of_which_something_is_not_known_is_left_alone() -> None:
    """It may be full of what nobody reports."""
    assert two(None, 0.1).goes(CONSOLIDATE) == two(0.1, None).goes(CONSOLIDATE) == {}


def test_nothing_moves_that_may_not() -> None:
    """Whose owner forbids it, whose cool-down lasts, whose transport would lose what it has."""
    fleet = two(0.1, 0.6)
    fleet.used[0] = replace(fleet.used[0], movable=False)
    assert fleet.goes(CONSOLIDATE) == {}, "and what stays keeps its GPU from being empty"
    fleet = two(0.1, 0.6)
    moved = replace(fleet.used[0].settled, moved_at=100.0)
    fleet.used[0] = replace(fleet.used[0], settled=moved)
    assert fleet.goes(CONSOLIDATE, now=150.0, cool_down_s=60.0) == {}
    assert fleet.goes(CONSOLIDATE, now=160.0, cool_down_s=60.0) == {"l0": "g2:a"}
    fleet = UsedFleet(pool("g1", traits=MOVABLE), pool("g2"))
    fleet.runs("g1:a", 0.1)
    fleet.runs("g2:a", 0.6)
    assert fleet.goes(CONSOLIDATE) == {}


def test_a_lease_goes_only_to_a_gpu_that_its_server_reaches() -> None:
    fleet = UsedFleet(
        pool("g1", traits=MOVABLE),
        pool("g2", fabrics=("other",), traits=MOVABLE),
        pool("g3", traits=MOVABLE),
    )
    for host, busy in (("g1", 0.1), ("g2", 0.6), ("g3", 0.5)):
        fleet.runs(f"{host}:a", busy, client="c1", fabrics=frozenset({"main"}))
    assert fleet.goes(CONSOLIDATE) == {"l0": "g3:a"}, "g2 is fuller, and of another fabric"


def test_of_a_gpu_that_is_to_be_emptied_all_go_or_none() -> None:
    """g2 has no core left for a second one: neither goes."""
    for cores, moves in ((3, {"l0": "g2:a", "l1": "g2:a"}), (2, {})):
        fleet = UsedFleet(pool("g1", traits=MOVABLE), pool("g2", traits=MOVABLE, cores=cores))
        small = GpuSlice(500, ServiceLevel.SCAVENGER)
        for gpu, busy in (("g1:a", 0.1), ("g1:a", 0.1), ("g2:a", 0.6)):
            fleet.runs(gpu, busy, part=small)
        assert fleet.goes(CONSOLIDATE) == moves


def test_leases_of_one_gang_stay_on_gpus_of_their_own() -> None:
    """The other lease of its server is on g2, which would be the fullest."""
    fleet = UsedFleet(*(pool(host, traits=MOVABLE) for host in ("g1", "g2", "g3")))
    for host, busy in (("g1", 0.1), ("g2", 0.6), ("g3", 0.5)):
        fleet.runs(f"{host}:a", busy)
    fleet.asked["l0"] = replace(fleet.asked["l0"], taken=frozenset({"g1:a", "g2:a"}))
    assert fleet.goes(CONSOLIDATE) == {"l0": "g3:a"}


def test_what_leases_that_are_alike_can_reach_is_asked_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 8,000 leases in a pool of 8,000 GPUs that was nine tenths of a look."""
    asked = []

    def counted(*given: object) -> frozenset[str]:
        asked.append(given)
        return able_for(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(by_use, "able_for", counted)
    fleet = UsedFleet(*(pool(f"g{n}", traits=MOVABLE) for n in range(20)))
    for number in range(20):
        fleet.runs(f"g{number}:a", 0.1, client=f"c{number}", fabrics=frozenset({"main"}))
    assert fleet.goes(CONSOLIDATE)
    assert len(asked) == 1


@given(
    st.sampled_from([CONSOLIDATE, BALANCE]),
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.one_of(st.none(), st.floats(0, 0.5)),
            st.booleans(),
            st.sampled_from(ServiceLevel),
        ),
        max_size=10,
    ),
    st.integers(1, 4),
)
@settings(max_examples=200, deadline=None)
def test_nothing_is_ever_oversubscribed_and_nothing_unknown_is_touched(
    policy: UsePolicy, drawn: list[tuple[int, float | None, bool, ServiceLevel]], most: int
) -> None:
    fleet = UsedFleet(*(pool(f"g{n}", traits=MOVABLE, cores=3) for n in range(4)))
    for host, busy, movable, level in drawn:
        there = fleet.pools[host]
        part = GpuSlice(1000, level)
        room = there.gpus[0]
        if min(there.cores.free, room.memory_mb.free // 1000, room.share.free // part.shares) >= 1:
            fleet.runs(f"g{host}:a", busy, movable=movable, part=part)
    how = RebalanceSettings(most_moves=most)
    found = moves_by_use(
        policy, fleet.pools, fleet.used, fleet.asked.__getitem__, now=0.0, settings=how
    )
    assert len(found) <= most
    used = {each.settled.uuid: each for each in fleet.used}
    unknown = {each.settled.gpu for each in fleet.used if each.busy is None}
    now = fleet.pools
    for uuid, gpu in found.items():
        assert used[uuid].movable
        assert not unknown & {used[uuid].settled.gpu, gpu.route.gpu}
        # What a lease leaves is kept for it until it has arrived.
        now = pools.counted(now, fleet.asked[uuid].held(gpu))
    for each in now:
        assert each.cores.free >= 0
        assert all(one.memory_mb.free >= 0 <= one.share.free for one in each.gpus)
