# SPDX-License-Identifier: Apache-2.0
"""Directives that print tables out of the code, so that the documentation cannot drift.

``.. agent-metrics::`` prints the metrics that the host agent serves.
``.. option-advice:: MODULE`` prints each option of a module with its help and, from ``operator/advice.yaml``, when to
change it and when not; an option without advice is a warning.
"""

import importlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import yaml
from docutils import nodes
from docutils.parsers.rst import Directive
from oslo_config import cfg
from sphinx.application import Sphinx
from sphinx.util import logging

LOG = logging.getLogger(__name__)
ADVICE = Path(__file__).parents[1] / "operator" / "advice.yaml"


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


class AgentMetricsTable(Directive):
    """The metrics of the host agent: name, labels, meaning."""

    def run(self) -> list[nodes.Node]:
        from host_agent.report.metrics import METRICS

        rows = [
            [(metric.name, True), (", ".join(metric.labels), True), (metric.help, False)]
            for metric in METRICS.values()
        ]
        return [_table(("metric", "labels", "meaning"), rows)]


class OptionAdvice(Directive):
    """What each option of a module is, when to change it, and when not."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        advice = yaml.safe_load(ADVICE.read_text())
        module = importlib.import_module(self.arguments[0])
        found: list[nodes.Node] = []
        for group, options in module.list_opts():
            name = group.name if isinstance(group, cfg.OptGroup) else group
            advised = advice.get(name, {})
            listed = nodes.definition_list()
            for option in options:
                if option.dest in advised:
                    listed += self._item(name, option, *advised[option.dest])
                elif not _of_keystone(option):
                    LOG.warning("advice.yaml has nothing about [%s]%s", name, option.dest)
            found += [nodes.rubric(text=f"[{name}]"), listed]
        return found

    @staticmethod
    def _item(group: str, option: cfg.Opt, when: str, not_when: str) -> nodes.definition_list_item:
        term = nodes.term()
        term += nodes.literal(text=f"[{group}]{option.dest}")
        body = nodes.definition()
        lines = (
            ("", " ".join(option.help.split())),
            ("Default: ", repr(option.default)),
            ("Change it when ", f"{when}."),
            ("Leave it when ", f"{not_when}."),
        )
        for lead, text in lines:
            body += nodes.paragraph("", "", nodes.emphasis(text=lead), nodes.Text(text))
        return nodes.definition_list_item("", term, body)


def _of_keystone(option: cfg.Opt) -> bool:
    """Options of sessions and credentials are keystoneauth's, and documented there."""
    from keystoneauth1 import loading

    theirs = (
        *loading.get_session_conf_options(),
        *loading.get_auth_common_conf_options(),
        *loading.get_auth_plugin_conf_options("password"),
    )
    return option.dest in {other.dest for other in theirs}


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("agent-metrics", AgentMetricsTable)
    app.add_directive("option-advice", OptionAdvice)
    return {"parallel_read_safe": True}
