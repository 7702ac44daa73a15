# SPDX-License-Identifier: Apache-2.0
"""The agent's state files as the version before the last wrote them."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

VERSIONS: Final = (1, 2)

_NAMES_OF_1: Final[Mapping[str, Mapping[str, str]]] = {
    "state.json": {"home_nodes": "homes"},
    "slo.json": {"targets": "wanted", "reporting": "fed", "report": "told"},
}


def written_by(version: int, folder: Path) -> list[str]:
    """Rewrite the files as an agent of that version would have left them; return the names of those there are."""
    rewrite: dict[int, Callable[[Path], None]] = {1: _as_1, 2: lambda _file: None}
    there = [folder / name for name in _NAMES_OF_1 if (folder / name).exists()]
    for file in there:
        rewrite[version](file)
        assert json.loads(file.read_text())["version"] == version
    return [file.name for file in there]


def _as_1(file: Path) -> None:
    found = json.loads(file.read_text())
    names = _NAMES_OF_1[file.name]
    old = {names.get(key, key): value for key, value in found.items()}
    file.write_text(json.dumps(old | {"version": 1}))
