# SPDX-License-Identifier: Apache-2.0
"""The sentences that the code can say, read from its source: what the documentation quotes can be held against them.

What is filled in when it is said (``{name}``, ``%s``) is ``…`` here, unless it is a constant of the module.
"""

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_PACKAGES: Final = ("placement_traits", "nova_numa_ext", "host_agent")
_FILLED: Final = re.compile(r"\{[^{}]*\}|%(?:\.\d)?[sdrgf]")
_AT_WORK: Final = {"__main__", "wsgi"}  # modules that do their work when they are loaded
_LEFT_OUT: Final = "…"


@cache
def messages() -> tuple[str, ...]:
    """Return every text of the three packages, with ``…`` for what is filled in."""
    files = (file for package in _PACKAGES for file in sorted((ROOT / package).rglob("*.py")))
    return tuple(text for file in files for text in _texts(file))


def is_said(quote: str) -> bool:
    """Whether the code says a quoted sentence, or a part of one."""
    plain = " ".join(quote.split())
    return any(plain in text for text in messages())


def _texts(file: Path) -> Iterator[str]:
    tree = ast.parse(file.read_text())
    inside = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in inside:
                yield _normal(_FILLED.sub(_LEFT_OUT, text))
            case ast.JoinedStr(values=parts):
                yield _normal("".join(_part(part, file) for part in parts))


def _part(part: ast.expr, file: Path) -> str:
    match part:
        case ast.Constant(value=str(text)):
            return text
        case ast.FormattedValue(value=ast.Attribute() | ast.Name() as value):
            return _constant(value, file)
    return _LEFT_OUT


def _constant(node: ast.expr, file: Path) -> str:
    """Return what a name of the module stands for, where it is a text that never changes."""
    if file.stem in _AT_WORK:
        return _LEFT_OUT
    try:
        found = eval(compile(ast.Expression(node), str(file), "eval"), vars(_module(file)))
    except (NameError, AttributeError, ImportError):
        return _LEFT_OUT
    return str(found) if isinstance(found, str | int) else _LEFT_OUT


@cache
def _module(file: Path) -> ModuleType:
    name = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    return importlib.import_module(name)


def _normal(text: str) -> str:
    return re.sub("…+", _LEFT_OUT, " ".join(text.split()))
