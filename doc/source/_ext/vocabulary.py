# SPDX-License-Identifier: Apache-2.0
"""Directives that print tables out of the code, so that the documentation cannot drift.

``.. extra-specs::`` prints the flavor extra specs of :data:`nova_numa_ext.request.EXTRA_SPECS`.
``.. agent-metrics::`` prints the metrics that the host agent serves.
"""

from collections.abc import Iterable, Sequence

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


class ExtraSpecsTable(Directive):
    """The flavor extra specs: key, allowed values, default, meaning."""

    def run(self) -> list[nodes.Node]:
        from nova_numa_ext.request import EXTRA_SPECS

        rows = [
            [(key, True), (spec.allowed, False), (spec.default, False), (spec.description, False)]
            for key, spec in EXTRA_SPECS.items()
        ]
        return [_table(("key", "allowed", "default", "meaning"), rows)]


class AgentMetricsTable(Directive):
    """The metrics of the host agent: name, labels, meaning."""

    def run(self) -> list[nodes.Node]:
        from host_agent.metrics import METRICS

        rows = [
            [(metric.name, True), (", ".join(metric.labels), True), (metric.help, False)]
            for metric in METRICS.values()
        ]
        return [_table(("metric", "labels", "meaning"), rows)]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("extra-specs", ExtraSpecsTable)
    app.add_directive("agent-metrics", AgentMetricsTable)
    return {"parallel_read_safe": True}
