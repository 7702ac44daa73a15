# SPDX-License-Identifier: Apache-2.0
"""Files of GPU measurements that options name: run times of jobs, and distances of GPUs."""

from pathlib import Path

import yaml

from nova_numa_ext.policy.gpu.distances import Measured, parse_distances
from nova_numa_ext.policy.gpu.job import ProfileStore, parse_profiles
from placement_traits.errors import InvalidValueError


def read_profiles(path: Path, where: str) -> ProfileStore:
    """Read profiles from a YAML or JSON file.

    :param where: the option that names the file, for messages
    :raises InvalidValueError: in one sentence, when it cannot be read or holds what is not allowed
    """
    return parse_profiles(_decoded(path, where), f"{where} {path}")


def read_distances(path: Path, where: str) -> Measured:
    """Read distances from a YAML or JSON file; arguments and errors as with :func:`read_profiles`."""
    return parse_distances(_decoded(path, where), f"{where} {path}")


def _decoded(path: Path, where: str) -> object:
    try:
        document: object = yaml.safe_load(path.read_text())
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        # ValueError: no UTF-8, or what YAML takes for a date or a number and Python does not.
        why = " ".join(str(error).split())
        raise InvalidValueError(
            where, str(path), f"a readable YAML or JSON file ({why})"
        ) from error
    return document
