# SPDX-License-Identifier: Apache-2.0
"""Machines of the publications and of data sheets, as data: one JSON file each, with where its figures come from."""

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources

from placement_traits.errors import InvalidValueError
from placement_traits.topology import HostTopology

_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class Preset:
    """One machine.

    :param name: how users ask for it
    :param title: what it is
    :param source: where each figure comes from, and which are derived or assumed
    :param topology: the machine
    """

    name: str
    title: str
    source: str
    topology: HostTopology


@cache
def available() -> tuple[str, ...]:
    """Return the names of all presets."""
    files = resources.files(__name__).iterdir()
    return tuple(
        sorted(file.name.removesuffix(_SUFFIX) for file in files if file.name.endswith(_SUFFIX))
    )


@cache
def load(name: str) -> Preset:
    """Return one preset.

    :raises InvalidValueError: for a name that is not in :func:`available`
    """
    if name not in available():
        raise InvalidValueError("preset", name, ", ".join(available()))
    data = json.loads(resources.files(__name__).joinpath(f"{name}{_SUFFIX}").read_text())
    topology = HostTopology.from_dict(data["topology"], f"{name}{_SUFFIX}.topology")
    return Preset(name, data["title"], data["source"], topology)
