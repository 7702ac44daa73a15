# SPDX-License-Identifier: Apache-2.0
"""Published tables, read from ``published.json``; what reproduces them is *replayed*, not shown again."""

import json
from importlib import resources
from typing import Any, Final

DATA: Final[dict[str, Any]] = json.loads(
    (resources.files("emulation.physics") / "published.json").read_text("utf-8")
)


def _by_workers(table: dict[str, list[float]]) -> dict[tuple[int, ...], tuple[float, ...]]:
    return {
        tuple(int(node) for node in workers.split(",")): tuple(row)
        for workers, row in table.items()
    }


CANONICAL_A: Final = _by_workers(DATA["canonical_weights_percent"]["A"])
CANONICAL_B: Final = _by_workers(DATA["canonical_weights_percent"]["B"])
MODEL_SPEEDUPS_A: Final = _by_workers(DATA["model_speedups"]["A"])
MODEL_SPEEDUPS_B: Final = _by_workers(DATA["model_speedups"]["B"])
MEASURED_SPEEDUPS: Final[dict[str, float]] = {
    name: value for name, value in DATA["measured_speedups_up_to"].items() if name != "source"
}
MAPPING_RATIOS: Final[dict[str, tuple[float, float]]] = {
    name: (pair[0], pair[1]) for name, pair in DATA["mapping_ratios"].items() if name != "source"
}
VM_TYPES: Final[dict[str, tuple[int, int, int]]] = {
    name: (row[0], row[1], row[2]) for name, row in DATA["vm_types"].items() if name != "source"
}


def shares(percent: tuple[float, ...]) -> dict[int, float]:
    """Return a row of per cents as node -> fraction; the fractions sum to 1."""
    return {node: value / sum(percent) for node, value in enumerate(percent)}
