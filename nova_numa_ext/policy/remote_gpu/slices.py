# SPDX-License-Identifier: Apache-2.0
"""What a lease takes of a remote GPU, and which GPU of a pool it gets.

A slice is an amount of the GPU's memory and a service level. Memory is never oversubscribed (J. Prades, *Improving
Performance and Energy Efficiency of Heterogeneous Systems with rCUDA*, UPV Valencia 2021, chapter 3: the sum of the
slices is at most the GPU's memory, equal or not); the cores are shared in time, and the service level bounds with how
many others: a GPU has :data:`~placement_traits.names.GPU_SHARES` shares, of which gold takes all.

Placement counts both, so the rule here ranks and predicts; Placement refuses.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from placement_traits.errors import InvalidValueError
from placement_traits.names import GPU_SHARES, SERVICE_LEVEL_SHARES, ServiceLevel

# Prades 2021, chapter 3: mean run time over that of a GPU passed through, four K20, by tenants of a GPU (for two of
# them the text also has 1.32); energy of all tenants over that of four GPUs passed through.
SHARING_SLOWDOWN: Final = MappingProxyType({1: 1.03, 2: 1.33, 3: 1.65})
SHARING_ENERGY: Final = MappingProxyType({1: 1.0, 2: 1.68, 3: 2.1})


class GpuChoice(StrEnum):
    """Which of the GPUs that have room is taken."""

    PERFORMANCE = "performance"  # the least shared one
    ENERGY = "energy"  # the fullest one, so that idle ones stay idle


@dataclass(frozen=True, slots=True)
class GpuSlice:
    """What one lease takes of one GPU.

    :param memory_mb: GPU memory, MiB
    :param level: service level
    :raises InvalidValueError: no memory
    """

    memory_mb: int
    level: ServiceLevel = ServiceLevel.GOLD

    def __post_init__(self) -> None:
        if self.memory_mb < 1:
            raise InvalidValueError("GPU memory of a slice", self.memory_mb, "at least 1 MiB")

    @property
    def shares(self) -> int:
        """Shares of the GPU that it takes."""
        return SERVICE_LEVEL_SHARES[self.level]


@dataclass(frozen=True, slots=True)
class GpuRoom:
    """What is free of one GPU of a pool.

    :param gpu: uuid of its provider
    :param memory_mb: free memory, MiB
    :param shares: free shares, of :data:`~placement_traits.names.GPU_SHARES`
    """

    gpu: str
    memory_mb: int
    shares: int = GPU_SHARES

    def fits(self, part: GpuSlice) -> bool:
        """Return whether a slice finds room: memory and shares, each by itself."""
        return part.memory_mb <= self.memory_mb and part.shares <= self.shares

    def count(self, part: GpuSlice) -> int:
        """Return how many equal slices find room."""
        return min(self.memory_mb // part.memory_mb, self.shares // part.shares)

    def without(self, part: GpuSlice) -> "GpuRoom":
        """Return what is left when a slice is taken; it must fit."""
        return replace(
            self, memory_mb=self.memory_mb - part.memory_mb, shares=self.shares - part.shares
        )


def sharing_degree(level: ServiceLevel) -> int:
    """Return how many tenants of a service level share a GPU at most."""
    return GPU_SHARES // SERVICE_LEVEL_SHARES[level]


def equal_slice(memory_mb: int, level: ServiceLevel) -> GpuSlice:
    """Return the slice of each tenant where those of a GPU divide its memory equally."""
    return GpuSlice(memory_mb // sharing_degree(level), level)


def choose_gpu(rooms: Iterable[GpuRoom], part: GpuSlice, choice: GpuChoice) -> GpuRoom | None:
    """Return the GPU that a slice gets, or None where none has room.

    The least shared GPU runs it fastest; the fullest one leaves others idle, which draw least. Equal shares: less free
    memory first, so that large slices find room later; then the smallest uuid.
    """
    sign = -1 if choice is GpuChoice.PERFORMANCE else 1
    fitting = [room for room in rooms if room.fits(part)]
    return min(
        fitting, key=lambda room: (sign * room.shares, room.memory_mb, room.gpu), default=None
    )


def energy_per_tenant(tenants: int) -> float:
    """Return the energy of one tenant over that of a GPU passed through, for 1 to 3 tenants of a GPU."""
    return SHARING_ENERGY[tenants] / tenants
