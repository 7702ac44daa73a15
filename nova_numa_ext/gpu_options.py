# SPDX-License-Identifier: Apache-2.0
"""The operator's options about GPUs as the rules of a decision: normalised weights, files read."""

from pathlib import Path
from types import MappingProxyType

from nova_numa_ext.conf import GROUP, SchedulerOptions
from nova_numa_ext.gpu_files import read_distances, read_profiles
from nova_numa_ext.policy.gpu.candidate_sets import GpuRules
from nova_numa_ext.policy.gpu.distances import Measured
from nova_numa_ext.policy.gpu.job import COMM_PROFILES, ProfileStore
from nova_numa_ext.policy.gpu.utility import UtilityOptions
from placement_traits.errors import InvalidValueError


def rules(options: SchedulerOptions) -> GpuRules:
    """Return how GPUs are judged.

    :raises InvalidValueError: no weight is above 0, or a file cannot be used
    """
    weights = (
        options.gpu_communication_weight,
        options.gpu_interference_weight,
        options.gpu_fragmentation_weight,
    )
    total = sum(weights)
    if not total > 0:
        raise InvalidValueError(
            f"[{GROUP}]gpu_…_weight", weights, "three numbers >= 0, one of them > 0"
        )
    communication, interference, fragmentation = (weight / total for weight in weights)
    return GpuRules(
        UtilityOptions(communication, interference, fragmentation),
        _store(options.gpu_profiles) if options.gpu_profiles else COMM_PROFILES,
        _measured(options.gpu_distances) if options.gpu_distances else {},
    )


def _measured(path: str) -> Measured:
    return read_distances(Path(path), f"[{GROUP}]gpu_distances")


def _store(path: str) -> ProfileStore:
    """Return the built-in profiles with those of a file over them."""
    measured = read_profiles(Path(path), f"[{GROUP}]gpu_profiles").profiles
    return ProfileStore(MappingProxyType({**COMM_PROFILES.profiles, **measured}))
