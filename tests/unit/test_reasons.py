# SPDX-License-Identifier: Apache-2.0
"""A reason names a member of a wing's terms, so that each one is listed, and explained, in one place."""

import ast
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def _raw(text: str) -> Iterator[int]:
    """Yield the lines in which a reason is made of a string."""
    for call in ast.walk(ast.parse(text)):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            continue
        if call.func.id == "Reason" and call.args and isinstance(call.args[0], ast.Constant):
            yield call.lineno


def test_a_reason_names_a_term_and_no_string() -> None:
    found = [
        f"{file.relative_to(_ROOT)}:{line}"
        for wing in ("placement_traits", "nova_numa_ext", "host_agent")
        for file in sorted((_ROOT / wing).rglob("*.py"))
        for line in _raw(file.read_text())
    ]
    assert not found


def test_a_string_is_found() -> None:
    assert list(_raw('x = 1\nReason("no_room", 0)\nReason(Term.NO_ROOM, 0)')) == [2]
