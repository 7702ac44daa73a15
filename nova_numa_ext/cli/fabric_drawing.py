# SPDX-License-Identifier: Apache-2.0
"""A fabric drawn as SVG: a box for each pod, a bar for each leaf, filled by what groups hold there, and a key."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Final

from placement_traits import names
from placement_traits.words import counted

_LINE: Final = 18
_PAD: Final = 10
_HOST: Final = 10  # width of one
_LABEL: Final = 160
_BESIDE: Final = 260  # for the text right of a bar
_FREE: Final = "#ffffff"
_DRAINED: Final = "#c9ccd1"
_FILLS: Final = {
    names.LEAF_BLOCK: "#5b8bb8",
    names.LEAF_REST: "#a9c6e0",
    names.LEAF_REMAINDER: "#d9a25b",
    names.LEAF_HOST: "#8fb573",
}
_KEY: Final = (
    ("blocks of large groups", _FILLS[names.LEAF_BLOCK]),
    ("hosts beside blocks", _FILLS[names.LEAF_REST]),
    ("remainders of large groups", _FILLS[names.LEAF_REMAINDER]),
    ("groups in one leaf", _FILLS[names.LEAF_HOST]),
    ("held by no group", _FREE),
    ("held by no group, drained", _DRAINED),
)


@dataclass(frozen=True, slots=True)
class DrawnLeaf:
    """One leaf.

    :param name: of the leaf
    :param pod: the node above it
    :param hosts: that it has
    :param held: hosts that groups hold, by resource class
    :param uplinks: who uses them, for people
    :param is_drained: no group may come
    """

    name: str
    pod: str
    hosts: int
    held: Mapping[str, int]
    uplinks: str = ""
    is_drained: bool = False


def draw(title: str, leafs: Sequence[DrawnLeaf]) -> str:
    """Return the drawing; leafs of a pod stand together."""
    most = max((leaf.hosts for leaf in leafs), default=0)
    width = _LABEL + _HOST * most + _BESIDE + 2 * _PAD
    body: list[str] = []
    y = _PAD + _LINE
    body.append(_text(_PAD, y, title))
    for pod, members in groupby(leafs, key=lambda leaf: leaf.pod):
        its = list(members)
        height = _LINE * (len(its) + 1) + _PAD
        body.append(
            f"<rect x='{_PAD}' y='{y + _PAD}' width='{width - 2 * _PAD}' height='{height}' fill='#f4f5f7' "
            "stroke='#5b6b80'/>"
        )
        body.append(_text(2 * _PAD, y + _PAD + _LINE - 4, pod))
        for number, leaf in enumerate(its, 1):
            body += _bar(leaf, y + _PAD + number * _LINE, _LABEL + _HOST * most + _PAD)
        y += height + _PAD
    y += _PAD
    for meaning, fill in _KEY:
        body += [_box(3 * _PAD, y, 2, fill), _text(6 * _PAD, y + _LINE - 4, meaning)]
        y += _LINE
    height = y + _PAD
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' "
        f"font-family='sans-serif' font-size='12'>\n<rect width='{width}' height='{height}' fill='#ffffff'/>\n"
        + "\n".join(body)
        + "\n</svg>\n"
    )


def _bar(leaf: DrawnLeaf, y: int, beside: int) -> Iterator[str]:
    """Draw a leaf.

    :param beside: where the text right of the bar begins
    """
    yield _text(3 * _PAD, y + _LINE - 4, leaf.name)
    x = _LABEL
    yield _box(x, y, leaf.hosts, _DRAINED if leaf.is_drained else _FREE)
    for name, amount in leaf.held.items():
        yield _box(x, y, amount, _FILLS.get(name, "#999999"))
        x += _HOST * amount
    said = [f"{sum(leaf.held.values())} of {counted(leaf.hosts, 'host')}"]
    said += [f"uplinks: {leaf.uplinks}"] * bool(leaf.uplinks)
    said += ["drained"] * leaf.is_drained
    yield _text(beside, y + _LINE - 4, "; ".join(said))


def _box(x: int, y: int, hosts: int, fill: str) -> str:
    return (
        f"<rect x='{x}' y='{y + 2}' width='{_HOST * hosts}' height='{_LINE - 4}' fill='{fill}' "
        "stroke='#5b6b80' stroke-width='0.5'/>"
    )


def _text(x: int, y: int, text: str) -> str:
    return f"<text x='{x}' y='{y}'>{escape(text)}</text>"
