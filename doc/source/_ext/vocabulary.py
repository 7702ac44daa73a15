# SPDX-License-Identifier: Apache-2.0
"""Directives that print tables out of the code, so that the documentation cannot drift.

``.. metrics:: MODULE.NAME`` prints a table of metrics (:class:`placement_traits.metrics.MetricSpec`).
``.. option-advice:: MODULE.NAME`` prints each option of a section, or of a mapping of sections, as it is declared
(:mod:`placement_traits.options`): its help, when to change it and when not.
"""

import importlib
from collections.abc import Iterable, Mapping, Sequence

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from placement_traits import oslo_options
from placement_traits.options import Declared, declared


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


class MetricsTable(Directive):
    """Metrics: name, kind, labels, meaning."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        module, _, name = self.arguments[0].rpartition(".")
        rows = [
            [
                (metric.name, True),
                (metric.kind, False),
                (", ".join(metric.labels), True),
                (metric.help, False),
            ]
            for metric in getattr(importlib.import_module(module), name).values()
        ]
        return [_table(("metric", "kind", "labels", "meaning"), rows)]


class OptionAdvice(Directive):
    """What each option of a section is, when to change it, and when not."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        module, _, name = self.arguments[0].rpartition(".")
        given = getattr(importlib.import_module(module), name)
        found: list[nodes.Node] = []
        for section in given.values() if isinstance(given, Mapping) else [given]:
            listed = nodes.definition_list()
            listed += [self._item(section.section, each) for each in declared(section)]
            found += [nodes.rubric(text=f"[{section.section}]"), listed]
        return found

    @staticmethod
    def _item(section: str, each: Declared) -> nodes.definition_list_item:
        term = nodes.term()
        term += nodes.literal(text=f"[{section}]{each.name}")
        body = nodes.definition()
        lines = (
            ("", " ".join(each.option.text.split())),
            ("Default: ", repr(oslo_options.plain(each.default))),
            ("Change it when ", f"{each.option.change}."),
            ("Leave it when ", f"{each.option.leave}."),
            *[("May change while it runs", ": send SIGHUP.")] * each.option.mutable,
        )
        for lead, text in lines:
            body += nodes.paragraph("", "", nodes.emphasis(text=lead), nodes.Text(text))
        return nodes.definition_list_item("", term, body)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("metrics", MetricsTable)
    app.add_directive("option-advice", OptionAdvice)
    return {"parallel_read_safe": True}
