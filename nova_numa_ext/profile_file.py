# SPDX-License-Identifier: Apache-2.0
"""The file of measured profiles that ``[numa_ext]gpu_profiles`` and the simulator's ``--profiles`` name."""

from pathlib import Path

import yaml

from nova_numa_ext.policy.gpu_job import ProfileStore, parse_profiles
from placement_traits.errors import InvalidValueError


def read_profiles(path: Path, where: str) -> ProfileStore:
    """Read profiles from a YAML or JSON file.

    :param where: the option that names the file, for messages
    :raises InvalidValueError: in one sentence, when it cannot be read or says what is not allowed
    """
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        why = " ".join(str(error).split())
        raise InvalidValueError(
            where, str(path), f"a readable YAML or JSON file ({why})"
        ) from error
    return parse_profiles(document, f"{where} {path}")
