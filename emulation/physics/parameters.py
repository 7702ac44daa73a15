# SPDX-License-Identifier: Apache-2.0
"""The model's constants: read from ``parameters.json``, known by a hash, drawn at random around the frozen values."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from importlib import resources
from typing import Any, Final

import numpy as np

from emulation.physics import published

DATA: Final[dict[str, Any]] = json.loads(
    (resources.files("emulation.physics") / "parameters.json").read_text("utf-8")
)


def hash_of(*data: Any) -> str:
    """Identify the values of some data: what is said of them, a text under a name, does not count."""
    return hashlib.sha256(json.dumps(_values(data)).encode()).hexdigest()[:12]


def _values(data: Any) -> Any:
    if isinstance(data, dict):
        return {name: _values(each) for name, each in data.items() if not isinstance(each, str)}
    return [_values(each) for each in data] if isinstance(data, list | tuple) else data


HASH: Final = hash_of(DATA, published.DATA)
"""Identifies the frozen model; printed in every result."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """Physical constants; meaning, unit and source of each are in the data file."""

    core_ghz: float
    local_latency_ns: float
    l3_latency_ns: float
    node_bandwidth_mbps: float
    link_exponent: float
    fabric_bandwidth_mbps: float
    queue_gain: float
    overbooking_cost: float
    smt_yield: float
    mba_core_bandwidth_mbps: float
    core_cpi_scale: float
    access_scale: float
    working_set_scale: float
    parallelism_scale: float
    coupling_scale: float


def frozen() -> Parameters:
    """Return the published values."""
    return Parameters(**{name: item["value"] for name, item in DATA["parameters"].items()})


def draws(count: int, seed: int, spread: float = 0.5) -> Iterator[Parameters]:
    """Yield Latin-hypercube draws of all parameters within ±``spread`` of the frozen values.

    Each parameter's range is cut into ``count`` equal parts and every part is drawn once, in an order of its own.
    """
    random = np.random.default_rng(seed)
    names = [field.name for field in fields(Parameters)]
    base = frozen()
    columns = {name: (random.permutation(count) + random.random(count)) / count for name in names}
    for number in range(count):
        yield replace(
            base,
            **{
                name: getattr(base, name) * (1.0 + spread * (2.0 * columns[name][number] - 1.0))
                for name in names
            },
        )
