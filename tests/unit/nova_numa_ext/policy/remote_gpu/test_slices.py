# SPDX-License-Identifier: Apache-2.0
"""Slices and service levels: what fits a GPU, and which GPU is taken (F-002-19, 22 to 24, 28, 33)."""

import pytest

from nova_numa_ext.policy.remote_gpu.slices import (
    GpuChoice,
    GpuRoom,
    GpuSlice,
    choose_gpu,
    energy_per_tenant,
    equal_slice,
    sharing_degree,
)
from placement_traits.errors import InvalidValueError
from placement_traits.names import ServiceLevel

K20_MB = 4799


def fill(rooms: list[GpuRoom], part: GpuSlice) -> int:
    """Take slices until none fits; return how many did."""
    taken = 0
    while (room := choose_gpu(rooms, part, GpuChoice.PERFORMANCE)) is not None:
        rooms[rooms.index(room)] = room.without(part)
        taken += 1
    return taken


@pytest.mark.parametrize(
    ("level", "tenants"), [("gold", 4), ("silver", 8), ("bronze", 12), ("scavenger", 24)]
)
def test_four_gpus_take_as_many_tenants_as_their_level_allows(level: str, tenants: int) -> None:
    rooms = [GpuRoom(f"g{n}", K20_MB) for n in range(4)]
    assert fill(rooms, GpuSlice(100, ServiceLevel(level))) == tenants


def test_equal_slices_fill_a_gpu_and_no_more() -> None:
    for level in ServiceLevel:
        part = equal_slice(K20_MB, level)
        assert fill([GpuRoom("g", K20_MB)], part) == sharing_degree(level)
        assert GpuRoom("g", K20_MB).count(part) == sharing_degree(level)


def test_memory_is_never_oversubscribed_by_unequal_slices() -> None:
    room = GpuRoom("g", K20_MB)
    for memory_mb in (3000, 1700):
        part = GpuSlice(memory_mb, ServiceLevel.BRONZE)
        assert room.fits(part)
        room = room.without(part)
    assert room.shares == 2
    assert not room.fits(GpuSlice(200, ServiceLevel.BRONZE))
    assert room.fits(GpuSlice(99, ServiceLevel.BRONZE))


def test_a_gold_tenant_shares_with_no_other() -> None:
    alone = GpuRoom("g", K20_MB).without(GpuSlice(100, ServiceLevel.GOLD))
    assert not alone.fits(GpuSlice(1, ServiceLevel.SCAVENGER))
    shared = GpuRoom("g", K20_MB).without(GpuSlice(1, ServiceLevel.SCAVENGER))
    assert not shared.fits(GpuSlice(100, ServiceLevel.GOLD))


def test_performance_takes_the_least_shared_gpu_and_energy_the_one_in_use() -> None:
    part = GpuSlice(500, ServiceLevel.BRONZE)
    rooms = [GpuRoom("idle", K20_MB), GpuRoom("used", K20_MB).without(part)]
    for choice, gpu in ((GpuChoice.PERFORMANCE, "idle"), (GpuChoice.ENERGY, "used")):
        chosen = choose_gpu(rooms, part, choice)
        assert chosen is not None
        assert chosen.gpu == gpu
    assert choose_gpu(rooms, GpuSlice(K20_MB + 1), GpuChoice.ENERGY) is None


def test_energy_of_a_tenant_falls_with_sharing() -> None:
    assert [round(energy_per_tenant(n), 2) for n in (1, 2, 3)] == [1.0, 0.84, 0.70]


def test_a_slice_without_memory_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="at least 1 MiB"):
        GpuSlice(0)
