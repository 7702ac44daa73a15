# SPDX-License-Identifier: Apache-2.0
"""The operator's options about GPUs as the rules of a decision: normalised weights, files read."""

from pathlib import Path
from types import MappingProxyType

from nova_numa_ext.conf import GpuOptions
from nova_numa_ext.gpu_files import read_distances, read_profiles
from nova_numa_ext.policy.gpu.candidate_sets import GpuRules
from nova_numa_ext.policy.gpu.distances import Measured
from nova_numa_ext.policy.gpu.job import COMM_PROFILES, ProfileStore
from nova_numa_ext.policy.gpu.utility import UtilityOptions
from placement_traits.errors import InvalidValueError


def rules(options: GpuOptions, section: str) -> GpuRules:
    """Return how GPUs are judged.

    :param section: of the file, for messages
    :raises InvalidValueError: no weight is above 0, or a file cannot be used
    """
    weights = (
        options.communication_weight,
        options.interference_weight,
        options.fragmentation_weight,
    )
    total = sum(weights)
    if not total > 0:
        raise InvalidValueError(
            f"[{section}]gpu_…_weight", weights, "three numbers >= 0, one of them > 0"
        )
    communication, interference, fragmentation = (weight / total for weight in weights)
    return GpuRules(
        UtilityOptions(communication, interference, fragmentation),
        _store(options.profiles, section) if options.profiles else COMM_PROFILES,
        _measured(options.distances, section) if options.distances else {},
    )


def _measured(path: str, section: str) -> Measured:
    return read_distances(Path(path), f"[{section}]gpu_distances")


def _store(path: str, section: str) -> ProfileStore:
    """Return the built-in profiles with those of a file over them."""
    measured = read_profiles(Path(path), f"[{section}]gpu_profiles").profiles
    return ProfileStore(MappingProxyType({**COMM_PROFILES.profiles, **measured}))
