# SPDX-License-Identifier: Apache-2.0
"""What docstrings refer to is there: a renamed module or function leaves no reference to its old name."""

import ast
import builtins
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGES = ("placement_traits", "nova_numa_ext", "host_agent", "emulation", "benchmarks")
_BUILTIN = frozenset(dir(builtins))
_REFERENCE = re.compile(r":(?:mod|class|func|meth|data|attr|exc):`~?([\w.]+)`")


@cache
def names_in(file: Path) -> frozenset[str]:
    """Every name that a module defines, imports or uses."""
    found = set[str]()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.Name(id=name):
                found.add(name)
            case ast.Attribute(attr=name):
                found.add(name)
            case ast.alias(name=name, asname=other):
                found.add((other or name).rpartition(".")[2])
    return frozenset(found)


def exists(reference: str, file: Path) -> bool:
    """Whether a reference in a file leads somewhere; other projects' names are taken as they are."""
    first, *more = rest = reference.strip(".").split(".")
    absolute = first in PACKAGES
    if not absolute and not reference.startswith("."):
        known = names_in(file)
        return known.issuperset(rest) or (first not in known and bool(more)) or first in _BUILTIN
    place = CHECKOUT if absolute else file.parent
    while rest and (place / rest[0]).is_dir():
        place, rest = place / rest[0], rest[1:]
    if not rest:
        return True
    module = place / f"{rest[0]}.py"
    if module.exists():
        return names_in(module).issuperset(rest[1:])
    return names_in(place / "__init__.py").issuperset(rest)


def dead_references(file: Path) -> Iterator[str]:
    """Yield the references of a file that lead nowhere."""
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        for reference in _REFERENCE.findall(line):
            if not exists(reference, file):
                yield f"{file.relative_to(CHECKOUT)}:{number}: {reference}"


@pytest.mark.parametrize("package", PACKAGES)
def test_references_lead_somewhere(package: str) -> None:
    files = sorted((CHECKOUT / package).rglob("*.py"))
    assert files, f"{package} is gone"
    assert [dead for file in files for dead in dead_references(file)] == []


@pytest.mark.parametrize(
    "reference",
    [
        ".gone",
        ".candidates.gone",
        "nova_numa_ext.policy.gone.plan",
        "host_agent.control.agent.Gone",
        "Reason.gone",
        "Gone",
    ],
)
def test_a_dead_reference_is_found(reference: str) -> None:
    file = CHECKOUT / "nova_numa_ext/policy/numa/candidates.py"
    assert "Reason" in names_in(file)
    assert not exists(reference, file)
