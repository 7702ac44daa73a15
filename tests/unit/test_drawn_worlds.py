# SPDX-License-Identifier: Apache-2.0
"""Who reads a story sees its hosts: what makes them draws them, or names the class or fixture that does."""

import ast
import re
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_DRAWN = re.compile(r"::\s*$|\bdraw[sn]\b", re.M)
# Calls by which stories of nova's test bed and of real Placements get their hosts.
_MAKE = re.compile(r"self\.host\(|self\.cabled\(|\bput_fabric\(|desired_tree\(|\.sync\(pool\(")


def _undrawn(text: str) -> list[str]:
    """Return the names of fixtures and classes with a ``setUp`` that make hosts and draw none."""
    found: list[str] = []
    if not _MAKE.search(text):
        return found
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            makes = [each for each in node.body if getattr(each, "name", "") == "setUp"]
        elif isinstance(node, ast.FunctionDef):
            makes = (
                [node] if any("fixture" in ast.unparse(one) for one in node.decorator_list) else []
            )
        else:
            continue
        made = any(_MAKE.search(ast.unparse(each)) for each in makes)
        if made and not _DRAWN.search(ast.get_docstring(node) or ""):
            found.append(node.name)
    return found


def test_what_makes_hosts_draws_them() -> None:
    stories = [
        file
        for folder in ("in_nova", "integration", "functional")
        for file in sorted((_ROOT / "tests" / folder).rglob("*.py"))
    ]
    found = {str(file.relative_to(_ROOT)): _undrawn(file.read_text()) for file in stories}
    assert {file: names for file, names in found.items() if names} == {}


def test_one_without_a_drawing_is_found() -> None:
    made = "@pytest.fixture\ndef h1(cloud):\n    '''One host{}'''\n    desired_tree('h1')\n"
    assert _undrawn(made.format(".")) == ["h1"]
    assert _undrawn(made.format("::\n\n        h1")) == []
    story = (
        "class Moving(NovaCloud):\n    '''{}'''\n    def setUp(self):\n        self.host('h1')\n"
    )
    assert _undrawn(story.format("Two hosts.")) == ["Moving"]
    assert _undrawn(story.format("``h1`` as :class:`NovaCloud` draws it.")) == []
