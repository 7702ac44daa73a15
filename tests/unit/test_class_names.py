# SPDX-License-Identifier: Apache-2.0
"""A class name stands for one thing in all packages: who reads or looks for one finds no other."""

import ast
from collections import defaultdict
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGES = ("placement_traits", "nova_numa_ext", "host_agent")
# Each wing has its own list of reasons; a leader has a term of office.
TWICE = frozenset({"Term"})


def public_classes() -> dict[str, list[str]]:
    """Return where each class is defined, by its name."""
    found: dict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for file in sorted((CHECKOUT / package).rglob("*.py")):
            for node in ast.parse(file.read_text("utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(str(file.relative_to(CHECKOUT)))
    return found


def test_no_class_name_stands_for_two_things() -> None:
    twice = {name: files for name, files in public_classes().items() if len(files) > 1}
    assert {name: files for name, files in twice.items() if name not in TWICE} == {}
    assert twice.keys() == TWICE
