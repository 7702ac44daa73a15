# SPDX-License-Identifier: Apache-2.0
"""``.. scheduler-figures:: FILE`` prints what ``make bench-scheduler`` has measured of each flavor, from its result.

Tables out of the code are plain text in the repository, see ``tools/tables.py``.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx


def _table(head: Sequence[str], rows: Iterable[Sequence[tuple[str, bool]]]) -> nodes.table:
    """Make a table; each cell is (text, is literal)."""
    table = nodes.table()
    group = nodes.tgroup(cols=len(head))
    table += group
    for _ in head:
        group += nodes.colspec(colwidth=1)

    def row(cells: Sequence[tuple[str, bool]]) -> nodes.row:
        result = nodes.row()
        for text, literal in cells:
            paragraph = nodes.paragraph()
            paragraph += nodes.literal(text=text) if literal else nodes.Text(text)
            entry = nodes.entry()
            entry += paragraph
            result += entry
        return result

    thead = nodes.thead()
    thead += row([(title, False) for title in head])
    body = nodes.tbody()
    for cells in rows:
        body += row(cells)
    group += thead
    group += body
    return table


_KINDS = ("ours", "whole", "stock")


def scheduler_rows(result: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return head and rows of the table of flavors; what was measured of none of them has no column.

    :param result: of the benchmark
    """
    figures, flavors = result["figures"], result["source"]["flavors"]
    columns = {
        **{f"{kind} ms": f"{kind}{{many}}_ms_median_{{key}}" for kind in _KINDS},
        **{f"{kind} cpu ms": f"{kind}{{many}}_cpu_ms_median_{{key}}" for kind in _KINDS},
    }
    rows = []
    for name, key in flavors.items():
        for servers in (1, result["source"]["servers"]):
            many = "" if servers == 1 else f"_{servers}"
            found = {
                title: figures.get(figure.format(many=many, key=key))
                for title, figure in columns.items()
            }
            if any(value is not None for value in found.values()):
                for unit in ("ms", "cpu ms"):
                    whole, stock = found[f"whole {unit}"], found[f"stock {unit}"]
                    ratio = whole / stock if whole is not None and stock else None
                    found["ratio" if unit == "ms" else "by cpu"] = ratio
                rows.append((name, str(servers), found))
    shown = [
        title
        for title in (*columns, "ratio", "by cpu")
        if any(found[title] is not None for *_, found in rows)
    ]
    return (
        ["flavor", "servers", *shown],
        [
            [name, servers, *(_number(found[title]) for title in shown)]
            for name, servers, found in rows
        ],
    )


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 10 else f"{value:.2f}"


class SchedulerFigures(Directive):
    """Times of nova's scheduler by flavor; the file stands beside the page."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        environment = self.state.document.settings.env
        path = Path(environment.doc2path(environment.docname)).with_name(self.arguments[0])
        environment.note_dependency(str(path))
        head, rows = scheduler_rows(json.loads(path.read_text()))
        return [_table(head, [[(cell, False) for cell in row] for row in rows])]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("scheduler-figures", SchedulerFigures)
    return {"parallel_read_safe": True}
